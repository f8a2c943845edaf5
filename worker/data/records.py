"""Records in memory: features, dense or sparse, and labels, with the two products that a linear layer needs.

Everything here is private if the data set is. Products are over passes of one public shape (worker.data.passes), in
the type of the pass. The number of features, or P, chooses types, indices and chunks; the number of records or
entries never does.
"""

from __future__ import annotations

import math
import warnings
from typing import Any, Protocol

import numpy as np
import scipy.sparse
import torch
from numpy.typing import NDArray
from torch import Tensor

from core.parts.damage import DataDamagedError
from core.privacy.numerics import GROUP
from worker.data.norms import exact_root_bound, root_bound, row_bounds
from worker.data.passes import EMPTY, Batch, Cuttable, Places, gathered, moved, taken
from worker.data.sparse_entries import Entries, by_column
from worker.native.linear_steps import LINEAR

CHUNK_BYTES = 2**24  # of float64 features that are summed together before the first step


class Records(Batch[Any], Places[Any], Protocol):
    """n records, in their own order or in places."""

    @property
    def labels(self) -> Tensor:
        """int64 class indices or float64 targets, (n,)."""
        ...

    def __len__(self) -> int: ...

    def select(self, indices: NDArray[np.int64]) -> Records:
        """The records at these indices, in their order."""
        ...


class FeatureRecords(Records, Protocol):
    """n records with d features.

    Attributes:
        private_norms: float64 (n,), upper bounds of ‖x‖; ∞ for a record with a feature that is not finite. Passes hold
            such a record's features as zeros, so that 0 · NaN cannot reach a sum.
    """

    private_norms: Tensor

    def apply(self, weight: Tensor) -> Tensor:
        """W Xᵀ: (K, n) in the features' type, for a weight (K, d)."""
        ...

    def adjoint(self, coefficients: Tensor) -> Tensor:
        """Σ_i c_i ⊗ x_i: float64 (K, d), for coefficients (K, n). Deterministic on one machine.

        Coefficients in float32 let float32 add GROUP rows of a pass at a time, and float64 the groups. Products of
        sparse rows, and sums of groups, on a processor add in an order that is ours (worker.data.sparse_entries).
        """
        ...

    def weighted_squares(self, weights: Tensor) -> Tensor:
        """Σ_j w_kj x_ij²: float64 (K, n), for weights (K, d)."""
        ...

    def dense(self, dtype: torch.dtype) -> Tensor:
        """X: (n, d)."""
        ...


class DenseRecords(Cuttable["DenseRecords"]):
    """Dense features.

    Args:
        features: float32 or float64 (n, d).
        labels: (n,).
        mean: float64 (d,), subtracted from the features in float64.

    >>> DenseRecords(torch.ones(2, 3), torch.zeros(2)).apply(torch.ones(1, 3, dtype=torch.float64)).tolist()
    [[3.0, 3.0]]
    """

    def __init__(self, features: Tensor, labels: Tensor, mean: Tensor | None = None) -> None:
        self._features, self.labels, self._mean = features, labels, mean
        rows = chunk_rows(features.shape[1])
        chunks = features.split(rows) if mean is None else (each.double() - mean for each in features.split(rows))
        self.private_norms = torch.cat([torch.zeros(0, dtype=torch.float64), *map(row_bounds, chunks)])

    def _like(self, features: Tensor, labels: Tensor, norms: Tensor, mean: Tensor | None) -> DenseRecords:
        records = DenseRecords.__new__(DenseRecords)
        records._features, records.labels, records.private_norms, records._mean = features, labels, norms, mean
        return records

    def __len__(self) -> int:
        return len(self.labels)

    def apply(self, weight: Tensor) -> Tensor:
        """See FeatureRecords.apply."""
        return (self._features @ weight.to(self._features.dtype).T).T  # twice as fast as W Xᵀ

    def adjoint(self, coefficients: Tensor) -> Tensor:
        """See FeatureRecords.adjoint."""
        if coefficients.dtype == torch.float64:
            return coefficients @ self._features.double()
        group = min(GROUP, len(self))  # a pass has whole groups, or is smaller than one
        grouped = coefficients.unflatten(1, (-1, group)).transpose(0, 1)  # (groups, K, group)
        return added(torch.bmm(grouped, self._features.unflatten(0, (-1, group))))

    def weighted_squares(self, weights: Tensor) -> Tensor:
        """See FeatureRecords.weighted_squares."""
        return weights @ self._features.double().square().T

    def dense(self, dtype: torch.dtype) -> Tensor:
        """See FeatureRecords.dense."""
        return self._features.to(dtype)

    def clipped_sum(self, max_norm: float) -> Tensor:
        """Σ_i min(1, B/‖x_i‖) x_i: float64 (d,), with B = `max_norm`. A record that is not finite adds nothing.

        Each number is cut towards zero to a multiple of a power of two g ≤ B/2³⁰, which makes no norm larger. The sum
        then adds integers: it is exact below 2⁵³ g, in any order, and a record changes it by at most B.
        """
        return clipped_sum(self, self._features.shape[1], max_norm)

    def less(self, mean: Tensor) -> DenseRecords:
        """x_i − m. A record that is not finite stays so."""
        return DenseRecords(self._features, self.labels, mean)

    def select(self, indices: NDArray[np.int64]) -> DenseRecords:
        """See Records.select."""
        at = moved(torch.from_numpy(indices), self._features.device)
        return self._like(self._features[at], self.labels[at], self.private_norms[at], self._mean)

    def repeated(self, features: Tensor, times: int) -> DenseRecords:
        """Every record `times` times, one after the other, with these features instead: (each · n, d), not centred.

        A record that is not finite stays so.
        """
        labels, norms = (x.repeat_interleave(times) for x in (self.labels, self.private_norms))
        return self._like(features, labels, norms, None)

    def to(self, device: torch.device) -> DenseRecords:
        """The same records on a device."""
        mean = None if self._mean is None else moved(self._mean, device)
        features, labels, norms = (moved(each, device) for each in self.tensors)
        return self._like(features, labels, norms, mean)

    @property
    def tensors(self) -> tuple[Tensor, Tensor, Tensor]:
        """Features, labels and norms."""
        return self._features, self.labels, self.private_norms

    def piece(self, places: NDArray[np.int64], dtype: torch.dtype) -> DenseRecords:
        """See Cuttable.piece. Padding rows are zeros, and so are the features of a record that is not finite.

        So are those of a record that could overflow in a narrower type; its norm covers the rounding to that type.
        """
        rows = moved(torch.from_numpy(places), self.labels.device)
        norms = gathered(self.private_norms, places)
        if dtype != torch.float64 and (self._features.dtype != dtype or self._mean is not None):
            norms = norms * (1.0 + torch.finfo(dtype).eps)
            norms.masked_fill_(norms > torch.finfo(dtype).max, torch.inf)
        zero = (rows < 0) | ~torch.isfinite(norms)
        features = taken(self._features, rows, zero)
        if self._mean is not None:
            features = (features.double() - self._mean).masked_fill_(zero[:, None], 0.0)
        return self._like(features.to(dtype), gathered(self.labels, places), norms, None)


class SparseRecords(Cuttable["SparseRecords"]):
    """Sparse features; `dense` makes only the requested ones dense.

    Args:
        features: a SciPy CSR matrix, n × d.
        labels: (n,).
    """

    def __init__(self, features: Any, labels: Tensor) -> None:
        matrix = features.astype(np.float64)  # a copy
        matrix.sum_duplicates()  # a column twice in one row would make ‖x‖ larger than the norm of its entries
        narrow = features.dtype == np.float32
        if narrow:  # a sum of two entries is one of these numbers, too
            matrix.data = matrix.data.astype(np.float32).astype(np.float64)
        rows = np.repeat(np.arange(matrix.shape[0]), np.diff(matrix.indptr))
        broken = np.zeros(matrix.shape[0], dtype=bool)
        broken[rows[~np.isfinite(matrix.data)]] = True
        matrix.data[broken[rows]] = 0.0
        squares = np.bincount(rows, weights=matrix.data**2, minlength=matrix.shape[0])
        # Without any entry NumPy forgets the weights, and counts in integers.
        norms = exact_root_bound(torch.from_numpy(squares.astype(np.float64)), matrix.shape[1])
        self._fill(matrix, labels, norms.masked_fill_(torch.from_numpy(broken), torch.inf))
        self._narrow = narrow

    def _fill(self, matrix: Any, labels: Tensor, norms: Tensor) -> SparseRecords:
        self._matrix = matrix
        self._narrow = False  # the features are numbers of float32
        self._even = False  # all features of a record that are not 0 are one number
        self._keeps = False
        self._rows: Entries | None = None
        self._columns: Entries | None = None
        self._forward: Tensor | None = None
        self._backward: Tensor | None = None
        self._squares: Tensor | None = None
        self.labels = labels
        self.private_norms = norms
        return self

    def __len__(self) -> int:
        return len(self.labels)

    def apply(self, weight: Tensor) -> Tensor:
        """See FeatureRecords.apply."""
        if self._on_cpu:
            return self._entries().product(by_column(weight))
        return (self._csr() @ weight.T.contiguous()).T

    def adjoint(self, coefficients: Tensor) -> Tensor:
        """See FeatureRecords.adjoint."""
        table = coefficients.T.contiguous()
        if self._on_cpu:
            rows, table = self._entries(), table.double()  # which the compiled parts read
            return self._transposed(rows).product(rows.scaled(table)) if self._keeps else rows.scattered(table)
        if self._backward is None:
            self._backward = _torch_csr(self._matrix.T.tocsr())
        return (self._backward @ table).T

    def weighted_squares(self, weights: Tensor) -> Tensor:
        """See FeatureRecords.weighted_squares."""
        if self._squares is not None:
            return (self._squares @ weights.T.contiguous()).T.contiguous()
        return torch.from_numpy(np.ascontiguousarray((self._matrix.power(2) @ weights.numpy().T).T))

    def dense(self, dtype: torch.dtype) -> Tensor:
        """See FeatureRecords.dense."""
        return moved(torch.from_numpy(self._matrix.toarray()), self.labels.device).to(dtype)

    def select(self, indices: NDArray[np.int64]) -> SparseRecords:
        """See Records.select."""
        at = moved(torch.from_numpy(indices), self.labels.device)
        return self._like(self._matrix[indices], self.labels[at], self.private_norms[at])

    def piece(self, places: NDArray[np.int64], dtype: torch.dtype) -> SparseRecords:
        """See Cuttable.piece. Padding rows have no entries."""
        present = places != EMPTY
        records = self._matrix[places[present]]
        lengths = np.zeros(len(places) + 1, dtype=records.indptr.dtype)
        lengths[1:][present] = np.diff(records.indptr)
        entries = (records.data, records.indices, np.cumsum(lengths, dtype=records.indptr.dtype))
        matrix = scipy.sparse.csr_matrix(entries, shape=(len(places), self._matrix.shape[1]))
        return self._like(matrix, gathered(self.labels, places), gathered(self.private_norms, places))

    def even(self) -> SparseRecords:
        """The same records, whose kept passes hold each record's value once: 2 bytes a feature and not 6.

        Raises:
            DataDamagedError: a record has two values, which hashed presence of words never has.
        """
        data, ends = self._matrix.data, self._matrix.indptr
        if (data != np.repeat(np.append(data, 0.0)[ends[:-1]], np.diff(ends))).any():
            raise DataDamagedError("a stored record of hashed words has two values: its words were declared as present")
        records = self._like(self._matrix, self.labels, self.private_norms)
        records._even = True
        return records

    def reusable(self, piece: SparseRecords) -> SparseRecords:
        """See Cuttable.reusable. Keeps Xᵀ: its product is faster and on all cores, but making it takes over a step."""
        piece._keeps = True
        return piece

    def _entries(self) -> Entries:
        if self._rows is None:  # a copy pays for many steps only
            self._rows = Entries.of(self._matrix, narrow=self._narrow and self._keeps, even=self._even)
        return self._rows

    def _transposed(self, rows: Entries) -> Entries:
        if self._columns is None:
            self._columns = rows.transposed(self._matrix, narrow=self._narrow)
        return self._columns

    @property
    def _on_cpu(self) -> bool:
        return self.labels.device.type == "cpu"

    def dropped(self, seeds: NDArray[np.uint64], times: int, rate: float) -> SparseRecords:
        """Every record `times` times, one after the other, without the words that its seeds drop.

        A word is dropped with probability `rate`, by a hash of the seed and its column; words of one column go
        together. The others are scaled so that a record keeps its length, as if its text had been hashed without them.

        Args:
            seeds: (each · n,).
        """
        matrix = self._matrix[np.repeat(np.arange(len(self)), times)]
        rows = np.repeat(np.arange(len(seeds)), np.diff(matrix.indptr))
        stays = _hashes(seeds[rows], matrix.indices) >= np.uint64(min(round(rate * 2**32), 2**32 - 1))
        squares = np.where(stays, matrix.data**2, 0.0)
        norms_before, norms_after = (
            np.bincount(rows, weights=x, minlength=len(seeds)) for x in (matrix.data**2, squares)
        )
        with np.errstate(divide="ignore", invalid="ignore"):
            scale = np.where(norms_after > 0.0, np.sqrt(norms_before / norms_after), 0.0)
        ends = np.append(0, np.cumsum(np.bincount(rows[stays], minlength=len(seeds))))
        entries = ((matrix.data * scale[rows])[stays], matrix.indices[stays], ends)
        entries_left = scipy.sparse.csr_matrix(entries, shape=matrix.shape)
        lengths = np.bincount(rows[stays], weights=entries_left.data**2, minlength=len(seeds)).astype(np.float64)
        broken = torch.isinf(self.private_norms.cpu()).repeat_interleave(times)
        norms = root_bound(torch.from_numpy(lengths), entries_left.shape[1]).masked_fill_(broken, torch.inf)
        records = SparseRecords.__new__(SparseRecords)._fill(
            entries_left, self.labels.cpu().repeat_interleave(times), norms
        )
        return records if self._on_cpu else records.as_csr(self.labels.device)

    def grams(self, views: int) -> Tensor:
        """⟨x_u, x_v⟩ among each `views` rows, which are views of one record: float64 (n / each, each, each).

        A record at a time, over its own words: its numbers then depend on it alone, and take `views` rows of memory.
        """
        indptr, products = self._matrix.indptr, torch.empty(len(self) // views, views, views, dtype=torch.float64)
        for record in range(len(products)):
            ends = indptr[record * views : (record + 1) * views + 1]
            part = slice(int(ends[0]), int(ends[-1]))
            words, at = np.unique(self._matrix.indices[part], return_inverse=True)
            rows = torch.zeros(views, len(words), dtype=torch.float64)
            rows.numpy()[np.repeat(np.arange(views), np.diff(ends)), at] = self._matrix.data[part]
            products[record] = torch.mm(rows, rows.mT)
        return moved(products, self.labels.device)

    def to(self, device: torch.device) -> SparseRecords:
        """The same records on a device."""
        return self if device.type == "cpu" or self._squares is not None else self.as_csr(device)

    def as_csr(self, device: torch.device) -> SparseRecords:
        """The same records with all three products as torch's, on a device."""
        labels, norms = moved(self.labels, device), moved(self.private_norms, device)
        records = self._like(self._matrix, labels, norms)
        records._forward = moved(self._csr(), device)
        records._backward = moved(_torch_csr(self._matrix.T.tocsr()), device)
        records._squares = moved(_torch_csr(self._matrix.power(2)), device)
        return records

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """Labels, norms, and the parts of the CSR matrices."""
        matrices = [each for each in (self._forward, self._backward, self._squares) if each is not None]
        parts = [part for each in matrices for part in (each.crow_indices(), each.col_indices(), each.values())]
        return self.labels, self.private_norms, *parts

    def _csr(self) -> Tensor:
        if self._forward is None:
            self._forward = _torch_csr(self._matrix)
        return self._forward

    def _like(self, matrix: Any, labels: Tensor, norms: Tensor) -> SparseRecords:
        records = SparseRecords.__new__(SparseRecords)._fill(matrix, labels, norms)
        records._narrow, records._even = self._narrow, self._even
        return records


def added(groups: Tensor) -> Tensor:
    """Σ_g groups[g], float64 (…) of float32 (g, …), group by group on a processor."""
    if groups.device.type != "cpu":
        return groups.sum(dim=0, dtype=torch.float64)
    total = torch.zeros(groups.shape[1:], dtype=torch.float64)
    if LINEAR is None or not LINEAR.add_groups(total, groups):
        for group in groups.unbind(0):
            total += group
    return total


def clipped_sum(records: Batch[DenseRecords], features: int, max_norm: float) -> Tensor:
    """See DenseRecords.clipped_sum."""
    g = math.ldexp(1.0, math.frexp(max_norm)[1] - 31)
    total = torch.zeros(features, dtype=torch.int64)
    for batch in records.passes(chunk_rows(features), torch.float64):
        shrink = (max_norm / batch.records.private_norms * (1.0 - 2.0**-40)).clamp(max=1.0)
        cut = (batch.records.dense(torch.float64) * shrink[:, None] / g).trunc()
        total += cut.to(torch.int64).sum(dim=0)  # padding rows are zeros
    return total.double() * g


def chunk_rows(features: int) -> int:
    """How many records are checked together outside of passes; depends only on the number of features."""
    return max(1, CHUNK_BYTES // (8 * features))


def _hashes(seeds: NDArray[np.uint64], columns: NDArray[Any]) -> NDArray[np.uint64]:
    """32 bits of each pair: splitmix64's mixing of a seed and a column.

    Source: Steele, Lea & Flood 2014, "Fast splittable pseudorandom number generators".
    """
    with np.errstate(over="ignore"):
        mixed = seeds + (columns.astype(np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
        mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    hashes: NDArray[np.uint64] = (mixed ^ (mixed >> np.uint64(31))) >> np.uint64(32)
    return hashes


def _torch_csr(matrix: Any) -> Tensor:
    """A torch view of a SciPy CSR matrix; uses 32-bit indices if rows × columns fit, as MKL's products require."""
    rows, columns = matrix.shape
    index = np.int32 if rows * columns < 2**31 else np.int64
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # "sparse CSR is in beta state"
        return torch.sparse_csr_tensor(
            torch.from_numpy(matrix.indptr.astype(index)),
            torch.from_numpy(matrix.indices.astype(index)),
            torch.from_numpy(matrix.data),
            size=matrix.shape,
        )
