"""Passes of one public shape: records in pieces of P rows, the last one filled up with rows of weight 0.

A product's rounding of one row depends on how many rows there are, and deep networks amplify it. At one shape a
record's numbers do not depend on who else is there, or on how many (docs/privacy.md). So whoever computes on private
records iterates over `passes`, and multiplies by `Pass.weights`.
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
        count: private. It decides which weights are 0, and nothing else.
    """

    records: R
    count: int

    def weights(self, rows: int, device: torch.device | None = None) -> Tensor:
        """1 for a record, 0 for a row that fills up: float64 (P,)."""
        return (torch.arange(rows, device=device) < self.count).double()


class Batch(Protocol[R]):
    """A logical batch: what an engine adds up, and a scorer scores."""

    def passes(self, rows: int, dtype: torch.dtype) -> Iterable[Pass[R]]:
        """All records in passes of P = `rows` rows. None of no records.

        Args:
            dtype: of dense features, as the passes take them; widening changes no value.
        """
        ...


class Cuttable(ABC, Generic[R]):
    """Records that are cut into passes."""

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def piece(self, start: int, rows: int, dtype: torch.dtype) -> R:
        """`rows` rows from `start` on, in new memory: the records that there are, then rows that fill up."""

    def passes(self, rows: int, dtype: torch.dtype) -> Iterator[Pass[R]]:
        """See Batch. One pass is in memory at a time."""
        for start in range(0, len(self), rows):
            yield Pass(self.piece(start, rows, dtype), min(rows, len(self) - start))

    def prepared(self, rows: int, dtype: torch.dtype) -> Prepared[R]:
        """The passes, made once for use in many steps."""
        return Prepared([replace(each, records=self._kept(each.records)) for each in self.passes(rows, dtype)], rows)

    def _kept(self, piece: R) -> R:
        """A piece that is used in many steps: what is worth computing once may be added to it."""
        return piece


class Prepared(Generic[R]):
    """A logical batch whose passes are in memory.

    Args:
        passes: all of them.
        rows: P.
    """

    def __init__(self, passes: Sequence[Pass[R]], rows: int) -> None:
        self._passes, self._rows = passes, rows

    def passes(self, rows: int, dtype: torch.dtype) -> Sequence[Pass[R]]:
        """Raises ValueError where another P is asked for than was prepared."""
        if rows != self._rows:
            raise ValueError("these passes were prepared with another number of rows")
        return self._passes


def filled(values: Tensor, start: int, rows: int, fill: Any = 0) -> Tensor:
    """values[start : start + rows] in new memory of exactly `rows` rows, the rest of them `fill`."""
    made = values.new_full((rows, *values.shape[1:]), fill)
    part = values[start : start + rows]
    made[: len(part)] = part
    return made


def filled_array(values: NDArray[Any], start: int, rows: int) -> NDArray[Any]:
    """As `filled`, with zeros."""
    made = np.zeros((rows, *values.shape[1:]), dtype=values.dtype)
    part = values[start : start + rows]
    made[: len(part)] = part
    return made
