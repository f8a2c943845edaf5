"""A user's data as records with places of their own: tensors, or a data set of tuples of tensors."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from scrimp.engine.errors import MisusedError
from worker.data.passes import EMPTY, Cuttable, gathered
from worker.data.placed import CPU


@dataclass(frozen=True)
class Fields:
    """A pass's rows: one tensor for each field of a record, the target last."""

    tensors: tuple[Tensor, ...]

    def to(self, device: torch.device) -> Fields:
        """The same rows on a device."""
        return Fields(tuple(each.to(device) for each in self.tensors))


class FieldRecords(Cuttable[Fields]):
    """Records of one or more fields.

    Attributes:
        template: one row of zeros in each field's shape and type. Public: shapes and types are.
    """

    template: tuple[Tensor, ...]

    @abstractmethod
    def rows(self, places: NDArray[np.int64]) -> tuple[Tensor, ...]:
        """The records at these places in new memory; zeros for EMPTY."""

    def piece(self, places: NDArray[np.int64], dtype: torch.dtype) -> Fields:
        """See Cuttable.piece. Floating fields get the type of the passes."""
        return Fields(tuple(_typed(each, dtype) for each in self.rows(places)))

    def select(self, indices: NDArray[np.int64]) -> FieldRecords:
        """The records at these indices, in their order."""
        return TensorRecords(self.rows(indices))


class TensorRecords(FieldRecords):
    """Records as tensors, one for each field, along dimension 0.

    >>> TensorRecords((torch.arange(3.0), torch.arange(3))).rows(np.array([2, EMPTY]))[0].tolist()
    [2.0, 0.0]
    """

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self._tensors = tuple(each.detach() for each in tensors)
        if not self._tensors or any(each.dim() == 0 for each in self._tensors):
            raise MisusedError("data are tensors with records along dimension 0, the target last")
        if len({len(each) for each in self._tensors}) != 1:
            raise MisusedError("the tensors of the data have different numbers of records")
        self.template = tuple(each.new_zeros((1, *each.shape[1:])).to(CPU) for each in self._tensors)

    def __len__(self) -> int:
        return len(self._tensors[0])

    def rows(self, places: NDArray[np.int64]) -> tuple[Tensor, ...]:
        """See FieldRecords.rows."""
        return tuple(gathered(each, places) for each in self._tensors)


class DatasetRecords(FieldRecords):
    """Records of a map-style data set, whose items are tuples of tensors and numbers in one shape each."""

    def __init__(self, dataset: Any) -> None:
        self._dataset, self._count = dataset, len(dataset)
        if self._count == 0:
            raise MisusedError("the data set has no records")
        self.template = tuple(torch.zeros_like(each)[None] for each in self._item(0))

    def __len__(self) -> int:
        return self._count

    def _item(self, place: int) -> tuple[Tensor, ...]:
        item = self._dataset[place]
        return tuple(torch.as_tensor(each) for each in (item if isinstance(item, tuple | list) else (item,)))

    def rows(self, places: NDArray[np.int64]) -> tuple[Tensor, ...]:
        """See FieldRecords.rows."""
        repeated = tuple(each.repeat(len(places), *[1] * (each.dim() - 1)) for each in self.template)
        for row, place in enumerate(places.tolist()):
            if place == EMPTY:
                continue
            item = self._item(place)
            if [each.shape for each in item] != [each.shape[1:] for each in repeated]:
                raise MisusedError("the records of the data set have different shapes: pad them to one")
            for field, value in zip(repeated, item, strict=True):
                field[row] = value
        return repeated


def records_of(data: Any) -> FieldRecords:
    """The records of what a user calls data: tensors, a TensorDataset, or a data set of tuples.

    Raises:
        MisusedError: it draws batches by itself, or is none of these.
    """
    if isinstance(data, FieldRecords):
        return data
    if isinstance(data, DataLoader):
        raise MisusedError("a DataLoader draws batches of its own, which nothing prices: give its `dataset`")
    if isinstance(data, IterableDataset):
        raise MisusedError("records of a stream cannot be drawn: give a data set with a length")
    if isinstance(data, TensorDataset):
        return TensorRecords(data.tensors)
    if isinstance(data, tuple | list) and data and all(isinstance(each, Tensor) for each in data):
        return TensorRecords(data)
    if hasattr(data, "__len__") and hasattr(data, "__getitem__") and not isinstance(data, Tensor | tuple | list):
        return DatasetRecords(data)
    raise MisusedError("data are a tuple of tensors, the target last, or a data set of such tuples")


def public_examples(template: Sequence[Tensor], count: int, seed: int = 1) -> TensorRecords:
    """Random records in the shapes and types of a template. No record of the data is among them.

    Integers are 0 and 1 by turns: every vocabulary and every number of classes has both. Floating inputs are Gaussian,
    a floating target is uniform on [0, 1).
    """
    generator = torch.Generator().manual_seed(seed)
    fields = []
    for number, tensor in enumerate(template):
        shape = (count, *tensor.shape[1:])
        if not tensor.is_floating_point():
            bits = torch.randint(0, 2, shape, generator=generator)
            fields.append((bits if bits.dim() > 1 else torch.arange(count) % 2).to(tensor.dtype))
        elif number == len(template) - 1 and number > 0:
            fields.append(torch.rand(shape, generator=generator).to(tensor.dtype))
        else:
            fields.append(torch.randn(shape, generator=generator).to(tensor.dtype))
    return TensorRecords(fields)


def _typed(field: Tensor, dtype: torch.dtype) -> Tensor:
    return field.to(dtype) if field.is_floating_point() else field
