"""Passes of one public shape: P rows, each of which is one record or empty.

All code that computes on private records iterates over `passes`, and masks by `Pass.present`. Records of private data
sit in secret, uniformly random rows (worker.data.secret_slots): so one more record changes one row, and no pass appears
or goes (docs/theorems.md, "A record has a place of its own").
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from worker.native.flat_steps import STEPS

R = TypeVar("R")


EMPTY = -1  # in place of a record's number


@dataclass(frozen=True)
class Pass(Generic[R]):
    """P rows, some of which are records.

    Attributes:
        records: exactly P rows in memory of their own, contiguous and aligned; empty rows are padding.
        present: bool (P,), where the records are: the rows that are records. Private.

    >>> Pass(None, torch.tensor([True, False])).weights
    tensor([1., 0.], dtype=torch.float64)
    """

    records: R
    present: Tensor

    @property
    def weights(self) -> Tensor:
        """1 for a record, 0 for an empty row: float64 (P,)."""
        return self.present.double()

    def only(self, values: Tensor, dim: int = 0) -> Tensor:
        """The values of rows that are records: of public records alone, as their number shows."""
        rows = torch.from_numpy(np.flatnonzero(self.present.cpu().numpy()))
        return values.index_select(dim, moved(rows, values.device))


class Batch(Protocol[R]):
    """A logical batch: an engine sums over it, a scorer scores it."""

    def __len__(self) -> int:
        """Its rows."""
        ...

    def passes(self, rows: int, dtype: torch.dtype) -> Iterable[Pass[R]]:
        """All rows in passes of P = `rows`. No pass for no rows.

        Args:
            dtype: of dense features in the passes; widening changes no value.
        """
        ...


class Occupants(Protocol):
    """The record in each row, EMPTY for none: an array, or what makes its slices."""

    def __len__(self) -> int: ...

    def __getitem__(self, rows: slice, /) -> NDArray[np.int64]: ...


class Places(Protocol[R]):
    """Records that can be put into rows. See Cuttable for what each member does."""

    def __len__(self) -> int: ...

    def piece(self, places: NDArray[np.int64], dtype: torch.dtype) -> R: ...

    def announce(self, places: NDArray[np.int64]) -> None: ...

    def reusable(self, piece: R) -> R: ...


class Cuttable(ABC, Generic[R]):
    """Records that can be cut into passes."""

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def piece(self, places: NDArray[np.int64], dtype: torch.dtype) -> R:
        """The records at these places in new memory, a row for each; padding for EMPTY."""

    def passes(self, rows: int, dtype: torch.dtype) -> Iterator[Pass[R]]:
        """See Batch.passes: in the records' order. For public records, whose number is public, too."""
        return passes_of(self, np.arange(len(self)), rows, dtype)

    def announce(self, places: NDArray[np.int64]) -> None:
        """Tells the kernel that these records are read next, if they are on disk."""

    def reusable(self, piece: R) -> R:
        """A piece for many steps; may add results that are worth computing once."""
        return piece


def moved(tensor: Tensor, device: torch.device | None) -> Tensor:
    """The tensor on a device. A copy to a GPU starts from pinned memory, and nothing waits for it."""
    if device is None or tensor.device == device:
        return tensor
    if device.type == "cuda" and tensor.device.type == "cpu":
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)


def passes_of(records: Places[R], places: Occupants, rows: int, dtype: torch.dtype) -> Iterator[Pass[R]]:
    """Passes of the records at these places; the last one is padded. One pass is in memory at a time.

    >>> from worker.data.ratings import RatingRecords
    >>> three = RatingRecords(*(torch.arange(3) for _ in range(3)))
    >>> [each.present.tolist() for each in passes_of(three, np.array([2, EMPTY, 0]), 2, torch.float64)]
    [[True, False], [True, False]]
    """
    if len(places):
        records.announce(places[:rows])
    for start in range(0, len(places), rows):
        rows_padded = padded(places[start : start + rows], rows)
        piece = records.piece(rows_padded, dtype)
        if start + rows < len(places):
            records.announce(places[start + rows : start + 2 * rows])
        yield Pass(piece, torch.from_numpy(rows_padded != EMPTY))


class Prepared(Generic[R]):
    """A logical batch whose passes are all in memory.

    Args:
        passes: all of them.
        rows: P.
    """

    def __init__(self, passes: Sequence[Pass[R]], rows: int) -> None:
        self._passes, self._rows = passes, rows

    def __len__(self) -> int:
        return len(self._passes) * self._rows

    def passes(self, rows: int, dtype: torch.dtype) -> Sequence[Pass[R]]:
        """See Batch.passes. Raises ValueError if `rows` differs from the prepared P."""
        if rows != self._rows:
            raise ValueError("these passes were prepared with another number of rows")
        return self._passes


def gathered(values: Tensor, places: NDArray[np.int64]) -> Tensor:
    """values[places] in new memory, and zeros in EMPTY rows. As much is read for empty rows as for records."""
    rows = moved(torch.from_numpy(places), values.device)
    return taken(values, rows, rows < 0)


def taken(values: Tensor, rows: Tensor, absent: Tensor) -> Tensor:
    """values[rows] in new memory, and zeros in absent rows, EMPTY ones among them: each row is read all the same."""
    if not values.shape[0]:
        return values.new_zeros(rows.shape[0], *values.shape[1:])
    compiled = None if STEPS is None else STEPS.gather(values, rows, absent)
    if compiled is not None:
        return compiled
    return values.index_select(0, rows.clamp(min=0)).masked_fill_(absent.view(-1, *[1] * (values.dim() - 1)), 0)


def gathered_array(values: NDArray[Any], places: NDArray[np.int64]) -> NDArray[Any]:
    """As `gathered`, with zeros in EMPTY rows."""
    if not len(values):
        return np.zeros((len(places), *values.shape[1:]), dtype=values.dtype)
    rows: NDArray[Any] = values[np.maximum(places, 0)]
    rows[places == EMPTY] = 0
    return rows


def padded(places: NDArray[np.int64], rows: int) -> NDArray[np.int64]:
    """The places, with EMPTY ones up to this many rows; more stay as they are."""
    return np.concatenate([places, np.full(rows - len(places), EMPTY)]) if len(places) < rows else places
