"""Records in memory: features, dense or sparse, and labels, with the two products that a linear layer needs.

Everything here is private where the data set is. Arithmetic is in float64 throughout: what summing n clipped gradients
rounds away is at most n²·2⁻⁵³·C in either of two neighbouring sums (4·10⁻⁸ C at n = 20,000), so that the computed sums
differ by no more than what the noise was made for. In float32 rounding alone could exceed it (Casacuberta et al. 2022,
"Widespread underestimation of sensitivity in differentially private libraries and how to fix it"). A matrix product may
also round a record's outputs differently where it has other neighbours: relatively some 2⁻⁵³·√d a record, which stays
below all that matters unless outputs are many orders of magnitude larger than residuals.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from worker.clipping.norms import norm_bound, root_bound

DOUBLE_BYTES = 2**30  # dense features up to this size are kept in float64; larger ones are widened batch by batch
BATCH_BYTES = 2**24  # of the float64 features of one automatic physical batch: both products find them in the cache


class Records(Protocol):
    """n records.

    Attributes:
        labels: int64 class indices or float64 targets, (n,).
    """

    labels: Tensor

    def __len__(self) -> int: ...

    def select(self, indices: NDArray[np.int64]) -> Records:
        """The records of these indices, in their order."""
        ...

    def split(self, physical_batch_size: int | None) -> Sequence[Records]:
        """Consecutive pieces of at most so many records; None: a size that suits the machine. None of no records."""
        ...

    def prepared(self) -> Records:
        """These records, made ready for use in many steps."""
        ...


class FeatureRecords(Records, Protocol):
    """n records with d features.

    Attributes:
        private_norms: float64 (n,), upper bounds of ‖x‖; ∞ for a record with a feature that is not finite. The features
            of such a record are held as zeros, so that 0 · NaN can not reach a sum.
    """

    private_norms: Tensor

    def apply(self, weight: Tensor) -> Tensor:
        """W Xᵀ: float64 (K, n), for a weight (K, d)."""
        ...

    def adjoint(self, coefficients: Tensor) -> Tensor:
        """Σ_i c_i ⊗ x_i: float64 (K, d), for coefficients (K, n). Deterministic on one machine."""
        ...

    def weighted_squares(self, weights: Tensor) -> Tensor:
        """Σ_j w_kj x_ij²: float64 (K, n), for weights (K, d)."""
        ...

    def dense(self, dtype: torch.dtype) -> Tensor:
        """X: (n, d)."""
        ...

    def split(self, physical_batch_size: int | None) -> Sequence[FeatureRecords]: ...


class DenseRecords:
    """Dense features.

    Args:
        features: float32 or float64 (n, d).
        labels: (n,).
    """

    def __init__(self, features: Tensor, labels: Tensor) -> None:
        finite = torch.isfinite(features).all(dim=1)
        if not bool(finite.all()):
            features = torch.where(finite[:, None], features, 0.0)
        wide = features.numel() * 8 <= DOUBLE_BYTES
        self._features = features.double() if wide else features
        self.labels = labels
        rows = _automatic_rows(features.shape[1])
        norms = [norm_bound(features[at : at + rows].double(), dim=1) for at in range(0, max(len(labels), 1), rows)]
        self.private_norms = torch.cat(norms).masked_fill_(~finite, torch.inf)

    @classmethod
    def _of(cls, features: Tensor, labels: Tensor, norms: Tensor) -> DenseRecords:
        made = cls.__new__(cls)
        made._features, made.labels, made.private_norms = features, labels, norms
        return made

    def __len__(self) -> int:
        return len(self.labels)

    def apply(self, weight: Tensor) -> Tensor:
        return weight @ self._features.double().T

    def adjoint(self, coefficients: Tensor) -> Tensor:
        return coefficients @ self._features.double()

    def weighted_squares(self, weights: Tensor) -> Tensor:
        return weights @ self._features.double().square().T

    def dense(self, dtype: torch.dtype) -> Tensor:
        return self._features.to(dtype)

    def clipped_sum(self, max_norm: float) -> Tensor:
        """Σ_i min(1, B/‖x_i‖) x_i: float64 (d,), B the `max_norm`. A record that is not finite adds nothing.

        Each number is cut to a multiple of a power of two g ≤ B/2³⁰, towards zero, which makes no norm larger; the sum
        is then one of integers, exact below 2⁵³ g and whatever the order, and a record changes it by at most B.
        """
        g = math.ldexp(1.0, math.frexp(max_norm)[1] - 31)
        total, rows = torch.zeros(self._features.shape[1], dtype=torch.int64), _automatic_rows(self._features.shape[1])
        for at in range(0, len(self), rows):
            shrink = (max_norm / self.private_norms[at : at + rows] * (1.0 - 2.0**-40)).clamp(max=1.0)
            cut = (self._features[at : at + rows].double() * shrink[:, None] / g).trunc()
            total += cut.to(torch.int64).sum(dim=0)
        return total.double() * g

    def less(self, mean: Tensor) -> DenseRecords:
        """x_i − m. A record that was not finite stays one."""
        made = DenseRecords(self._features - mean.to(self._features.dtype), self.labels)
        made.private_norms.masked_fill_(torch.isinf(self.private_norms), torch.inf)
        return made

    def select(self, indices: NDArray[np.int64]) -> DenseRecords:
        at = torch.from_numpy(indices)
        return DenseRecords._of(self._features[at], self.labels[at], self.private_norms[at])

    def split(self, physical_batch_size: int | None) -> Sequence[DenseRecords]:
        rows = physical_batch_size or _automatic_rows(self._features.shape[1])
        return [
            DenseRecords._of(
                self._features[at : at + rows], self.labels[at : at + rows], self.private_norms[at : at + rows]
            )
            for at in range(0, len(self), rows)
        ]

    def prepared(self) -> DenseRecords:
        return self


class SparseRecords:
    """Sparse features, made dense for nobody but who asks for a few of them.

    Args:
        features: a SciPy CSR matrix, n × d.
        labels: (n,).
    """

    def __init__(self, features: Any, labels: Tensor) -> None:
        matrix = features.astype(np.float64)  # a copy
        matrix.sum_duplicates()  # a column twice in a row would make ‖x‖ larger than the norm of its entries
        rows = np.repeat(np.arange(matrix.shape[0]), np.diff(matrix.indptr))
        broken = np.zeros(matrix.shape[0], dtype=bool)
        broken[rows[~np.isfinite(matrix.data)]] = True
        matrix.data[broken[rows]] = 0.0
        squares = np.bincount(rows, weights=matrix.data**2, minlength=matrix.shape[0])
        norms = root_bound(torch.from_numpy(squares), matrix.shape[1])
        self._fill(matrix, labels, norms.masked_fill_(torch.from_numpy(broken), torch.inf))

    def _fill(self, matrix: Any, labels: Tensor, norms: Tensor) -> SparseRecords:
        self._matrix = matrix
        self._forward = _torch_csr(matrix)
        self._backward: Tensor | None = None
        self.labels = labels
        self.private_norms = norms
        return self

    def __len__(self) -> int:
        return len(self.labels)

    def apply(self, weight: Tensor) -> Tensor:
        return (self._forward @ weight.T.contiguous()).T.contiguous()

    def adjoint(self, coefficients: Tensor) -> Tensor:
        if self._backward is not None:
            return (self._backward @ coefficients.T.contiguous()).T.contiguous()
        return torch.from_numpy(np.ascontiguousarray((self._matrix.T @ coefficients.numpy().T).T))

    def weighted_squares(self, weights: Tensor) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray((self._matrix.power(2) @ weights.numpy().T).T))

    def dense(self, dtype: torch.dtype) -> Tensor:
        return self._forward.to_dense().to(dtype)

    def select(self, indices: NDArray[np.int64]) -> SparseRecords:
        at = torch.from_numpy(indices)
        return self._piece(self._matrix[indices], self.labels[at], self.private_norms[at])

    def split(self, physical_batch_size: int | None) -> Sequence[SparseRecords]:
        rows = physical_batch_size or max(len(self), 1)
        if rows >= len(self) > 0:
            return [self]
        return [
            self._piece(self._matrix[at : at + rows], self.labels[at : at + rows], self.private_norms[at : at + rows])
            for at in range(0, len(self), rows)
        ]

    def prepared(self) -> SparseRecords:
        """With Xᵀ as CSR too: its product is faster and uses all cores, but making it costs more than one step."""
        piece = self._piece(self._matrix, self.labels, self.private_norms)
        piece._backward = _torch_csr(self._matrix.T.tocsr())
        return piece

    @staticmethod
    def _piece(matrix: Any, labels: Tensor, norms: Tensor) -> SparseRecords:
        return SparseRecords.__new__(SparseRecords)._fill(matrix, labels, norms)


def _automatic_rows(features: int) -> int:
    return max(1, BATCH_BYTES // (8 * features))


def _torch_csr(matrix: Any) -> Tensor:
    """A torch view of a SciPy CSR matrix; 32-bit indices where they fit, as MKL's products want them."""
    index = np.int32 if max(matrix.nnz, *matrix.shape) < 2**31 else np.int64
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # "sparse CSR is in beta state"
        return torch.sparse_csr_tensor(
            torch.from_numpy(matrix.indptr.astype(index)),
            torch.from_numpy(matrix.indices.astype(index)),
            torch.from_numpy(matrix.data),
            size=matrix.shape,
        )
