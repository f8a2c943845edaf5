"""The entries of a pass's sparse rows, and the two products that a linear model needs of them.

A row's product adds every fourth entry to one of four sums, and these by pairs. What is added to columns of rows that
are not kept is added one by one. So both, compiled or not, have the same bits on any machine and any number of threads.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from worker.native.linear_steps import LINEAR, SUMS
from worker.native.threads import on_threads

NARROW = 2**16  # rows and columns up to this many have numbers of two bytes
PIECES = 4  # for each thread: rows differ in their numbers of entries


@dataclass(frozen=True)
class Entries:
    """Rows of entries.

    Attributes:
        ends: int64 (n + 1,); row i's entries are those from ends[i] to ends[i + 1].
        columns: of each entry.
        values: of each entry, finite; or of each row, if `even`.
        width: the number of columns.
        even: all entries of a row have one value, which is held once.
    """

    ends: NDArray[np.int64]
    columns: NDArray[Any]
    values: NDArray[Any]
    width: int
    even: bool = False

    @classmethod
    def of(cls, matrix: Any, *, narrow: bool = False, even: bool = False) -> Entries:
        """The entries of a SciPy CSR matrix.

        Args:
            narrow: in copies of 6 bytes an entry where sizes allow it; the values are numbers of float32.
            even: likewise, in 2 bytes; all entries of a row have one value.
        """
        fits = narrow and max(matrix.shape) <= NARROW  # rows of a pass and declared features
        ends, columns = matrix.indptr.astype(np.int64), matrix.indices.astype(np.uint16) if fits else matrix.indices
        values = matrix.data.astype(np.float32) if fits else matrix.data
        if fits and even:
            squares = np.zeros(matrix.shape[0], dtype=np.float32)
            squares[np.repeat(np.arange(len(squares)), np.diff(ends))] = values
            values = squares
        return cls(ends, columns, values, matrix.shape[1], fits and even)

    def transposed(self, matrix: Any, *, narrow: bool) -> Entries:
        """The entries of the same matrix' transpose. Those of even rows are ones: `scaled` has their values."""
        if not self.even:
            return Entries.of(matrix.T.tocsr(), narrow=narrow)
        transposed = Entries.of(matrix.T.tocsr(), narrow=True)
        return replace(transposed, values=np.ones(self.width, dtype=np.float32), even=True)

    def scaled(self, table: Tensor) -> Tensor:
        """What the transpose's entries multiply: each row times its value, if rows are even."""
        return table * torch.from_numpy(self.values)[:, None] if self.even else table

    def product(self, table: Tensor) -> Tensor:
        """Σ over each row's entries of value · table[column]: float64 (K, n), for a table float64 (width, K)."""
        outputs, rows = table.shape[1], len(self.ends) - 1
        steps = LINEAR
        if steps is None or not steps.takes(self.columns, self.values):
            place = np.arange(len(self.columns)) - self.ends[self._rows]
            sums = self._counted(SUMS * self._rows + place % SUMS, self.columns, table, SUMS * rows)
            a, b, c, d = sums.view(outputs, rows, SUMS).unbind(2)
            return (a + b) + (c + d)
        out, span = torch.empty(outputs, rows, dtype=torch.float64), -(-rows // (PIECES * torch.get_num_threads()))

        def work(first: int) -> None:
            steps.product(out, self.ends, self.columns, self.values, table, slice(first, first + span), even=self.even)

        on_threads(work, range(0, rows, span))
        return out

    def scattered(self, table: Tensor) -> Tensor:
        """Σ over each column's entries of value · table[row]: float64 (K, width), for a table float64 (n, K)."""
        if LINEAR is None or self.even or not LINEAR.takes(self.columns, self.values):
            return self._counted(self.columns, self._rows, table, self.width)
        out = torch.zeros(self.width, table.shape[1], dtype=torch.float64)
        LINEAR.scatter(out, self.ends, self.columns, self.values, table)
        return out.T.contiguous()

    @property
    def _rows(self) -> NDArray[np.int64]:
        return np.repeat(np.arange(len(self.ends) - 1), np.diff(self.ends))

    def _counted(self, into: NDArray[Any], of: NDArray[Any], table: Tensor, size: int) -> Tensor:
        """The same sums without the library: NumPy adds weights one by one, too."""
        values, numbers = self.values.astype(np.float64), table.numpy()
        values = np.repeat(values, np.diff(self.ends)) if self.even else values
        sums = [np.bincount(into, weights=values * each[of], minlength=size) for each in numbers.T]
        return torch.from_numpy(np.stack(sums).astype(np.float64))  # without any entry NumPy counts in integers


def by_column(weight: Tensor) -> Tensor:
    """(d, K), contiguous, of a contiguous float64 (K, d): K copies, several times as fast as one transposition."""
    table = torch.empty(weight.T.shape, dtype=torch.float64)
    for place, value in enumerate(weight.numpy()):
        table.numpy()[:, place] = value
    return table
