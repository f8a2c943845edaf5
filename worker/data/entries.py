"""The entries of a pass's sparse rows, and the two products that a linear model needs of them.

Every sum adds its entries one by one, in the order of the rows and of the entries in a row. So all forms, compiled or
not, of rows or of columns, have the same bits on any machine and any number of threads.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from worker.native.linear import LINEAR
from worker.native.threads import on_threads

NARROW = 2**16  # rows and columns up to this many have numbers of two bytes
PIECES = 4  # for each thread: rows differ in their numbers of entries


@dataclass(frozen=True)
class Entries:
    """Rows of entries.

    Attributes:
        ends: int64 (n + 1,); row i's entries are those from ends[i] to ends[i + 1].
        columns: of each entry.
        values: of each entry, finite.
        width: the number of columns.
    """

    ends: NDArray[np.int64]
    columns: NDArray[Any]
    values: NDArray[Any]
    width: int

    @classmethod
    def of(cls, matrix: Any, *, narrow: bool = False) -> Entries:
        """The entries of a SciPy CSR matrix.

        Args:
            narrow: in copies of 6 bytes an entry where sizes allow it; the values are then whole numbers of float32.
        """
        fits = narrow and max(matrix.shape) <= NARROW  # rows of a pass and declared features
        columns = matrix.indices.astype(np.uint16) if fits else matrix.indices
        values = matrix.data.astype(np.float32) if fits else matrix.data
        return cls(matrix.indptr.astype(np.int64), columns, values, matrix.shape[1])

    def product(self, table: Tensor) -> Tensor:
        """Σ over each row's entries of value · table[column]: float64 (K, n), for a table float64 (width, K)."""
        outputs, rows = table.shape[1], len(self.ends) - 1
        steps = LINEAR
        if steps is None or not steps.takes(self.columns, self.values):
            return self._counted(self._rows, self.columns, table, rows)
        out, each = torch.empty(outputs, rows, dtype=torch.float64), -(-rows // (PIECES * torch.get_num_threads()))

        def work(first: int) -> None:
            steps.product(out, self.ends, self.columns, self.values, table, slice(first, first + each))

        on_threads(work, range(0, rows, each))
        return out

    def scattered(self, table: Tensor) -> Tensor:
        """Σ over each column's entries of value · table[row]: float64 (K, width), for a table float64 (n, K)."""
        if LINEAR is None or not LINEAR.takes(self.columns, self.values):
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
        sums = [np.bincount(into, weights=values * each[of], minlength=size) for each in numbers.T]
        return torch.from_numpy(np.stack(sums).astype(np.float64))  # without any entry NumPy counts in integers


def by_column(weight: Tensor) -> Tensor:
    """(d, K), contiguous, of a contiguous float64 (K, d): K copies, several times as fast as one transposition."""
    table = torch.empty(weight.T.shape, dtype=torch.float64)
    for place, each in enumerate(weight.numpy()):
        table.numpy()[:, place] = each
    return table
