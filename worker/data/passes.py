"""Passes of one public shape: records in pieces of P rows; the last piece is padded with rows of weight 0.

The rounding of one row in a product depends on the number of rows, and deep networks amplify it. With one shape, a
record's results do not depend on the other records or their number (docs/privacy.md). So all code that computes on
private records iterates over `passes`, and multiplies by `Pass.weights`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

R = TypeVar("R")


@dataclass(frozen=True)
class Pass(Generic[R]):
    """P rows, of which the first `count` are records.

    Attributes:
        records: exactly P rows in memory of their own, contiguous and aligned.
        count: private. It decides only which weights are 0.

    >>> Pass(None, count=2).weights(rows=3)
    tensor([1., 1., 0.], dtype=torch.float64)
    """

    records: R
    count: int

    def weights(self, rows: int, device: torch.device | None = None) -> Tensor:
        """1 for a record, 0 for a padding row: float64 (P,)."""
        return (torch.arange(rows, device=device) < self.count).double()


class Batch(Protocol[R]):
    """A logical batch: an engine sums over it, a scorer scores it.

    Attributes:
        in_random_order: True if the order of the records was drawn in secret, uniformly (worker.noise.order). Sums in
            float32 need this.
    """

    in_random_order: bool

    def passes(self, rows: int, dtype: torch.dtype) -> Iterable[Pass[R]]:
        """All records in passes of P = `rows` rows. No pass for no records.

        Args:
            dtype: of dense features in the passes; widening changes no value.
        """
        ...


class Cuttable(ABC, Generic[R]):
    """Records that can be cut into passes."""

    in_random_order = False

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def piece(self, start: int, rows: int, dtype: torch.dtype) -> R:
        """`rows` rows from `start` on, in new memory: the existing records, then padding rows."""

    def passes(self, rows: int, dtype: torch.dtype) -> Iterator[Pass[R]]:
        """See Batch.passes. One pass is in memory at a time."""
        for start in range(0, len(self), rows):
            yield Pass(self.piece(start, rows, dtype), min(rows, len(self) - start))

    def prepared(self, rows: int, dtype: torch.dtype) -> Prepared[R]:
        """The passes, made once for many steps."""
        passes = [replace(each, records=self._kept(each.records)) for each in self.passes(rows, dtype)]
        return Prepared(passes, rows, in_random_order=self.in_random_order)

    def _kept(self, piece: R) -> R:
        """A piece for many steps; may add results that are worth computing once."""
        return piece


class Prepared(Generic[R]):
    """A logical batch whose passes are all in memory.

    Args:
        passes: all of them.
        rows: P.
        in_random_order: see Batch.
    """

    def __init__(self, passes: Sequence[Pass[R]], rows: int, *, in_random_order: bool = False) -> None:
        self._passes, self._rows, self.in_random_order = passes, rows, in_random_order

    def passes(self, rows: int, dtype: torch.dtype) -> Sequence[Pass[R]]:
        """See Batch.passes. Raises ValueError if `rows` differs from the prepared P."""
        if rows != self._rows:
            raise ValueError("these passes were prepared with another number of rows")
        return self._passes


class Filled(Generic[R]):
    """A batch with a public number of passes: after its records' own, passes of padding alone.

    Args:
        records: the batch's records; private, like their number.
        count: how many passes; at least the records' own.
        in_random_order: see Batch.
    """

    def __init__(self, records: Cuttable[R], count: int) -> None:
        self._records, self._count, self.in_random_order = records, count, records.in_random_order

    def passes(self, rows: int, dtype: torch.dtype) -> Iterator[Pass[R]]:
        """See Batch.passes."""
        for number in range(self._count):
            start = number * rows
            yield Pass(self._records.piece(start, rows, dtype), max(0, min(rows, len(self._records) - start)))


def filled(values: Tensor, start: int, rows: int, fill: Any = 0) -> Tensor:
    """values[start : start + rows] in new memory of exactly `rows` rows, padded with `fill`."""
    made = values.new_empty((rows, *values.shape[1:]))
    part = values[start : start + rows]
    made[: len(part)] = part
    made[len(part) :] = fill
    return made


def filled_array(values: NDArray[Any], start: int, rows: int) -> NDArray[Any]:
    """As `filled`, padded with zeros."""
    made = np.zeros((rows, *values.shape[1:]), dtype=values.dtype)
    part = values[start : start + rows]
    made[: len(part)] = part
    return made
