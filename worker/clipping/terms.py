"""One parameter's per-record gradients in the form that the backward pass leaves them: products not yet multiplied out.

    Outer   g_i = Σ_t left_it ⊗ right_it          linear layers, convolutions (unfolded)
    Rows    g_i = Σ_t e_{ids_it} ⊗ values_it      embeddings
    Dense   g_i itself                            what is small: biases, norms, positions

Terms of one kind that belong to one parameter are one term with more positions, so that every cross term between the
calls of a module, or between modules that share the parameter, is inside its Gram matrices.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from worker.clipping.norms import ROUNDING

# (squared norms or inner products, bounds of what rounding may have taken from them), float64 (n,) each.
Bounded = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Outer:
    """g_i = Σ_t left_it ⊗ right_it, for left (n, T, p) and right (n, T, q)."""

    left: Tensor
    right: Tensor

    def __len__(self) -> int:
        return len(self.left)

    @property
    def positions(self) -> int:
        return self.left.shape[1]

    def take(self, at: slice | Tensor) -> Outer:
        return Outer(self.left[at], self.right[at])

    def double(self) -> Outer:
        return Outer(self.left.double(), self.right.double())

    def magnitudes(self) -> Tensor:
        """Σ_t ‖left_t‖‖right_t‖ ≥ ‖g_i‖: the scale of rounding errors."""
        return (_lengths(self.left) * _lengths(self.right)).sum(dim=1)

    def squares(self) -> Bounded:
        """‖g_i‖² = ⟨LLᵀ, RRᵀ⟩ by T×T Gram matrices; ‖l‖²‖r‖² for one position."""
        return self.inner(self)

    def inner(self, other: Outer) -> Bounded:
        """⟨g_i, g'_i⟩."""
        gram = torch.bmm(self.left, other.left.mT).mul_(torch.bmm(self.right, other.right.mT))
        terms = self.left.shape[2] + self.right.shape[2] + self.positions * other.positions
        return gram.sum(dim=(1, 2)), _slack(terms, self.magnitudes() * other.magnitudes())

    def dense(self) -> Tensor:
        """(n, p, q), in the precision of the factors."""
        return torch.bmm(self.left.mT, self.right)

    def add_to(self, total: Tensor, factors: Tensor) -> None:
        """total (p, q) += Σ_i factors_i g_i, one product over records and positions."""
        left, right = self.left, self.right
        scale = factors[:, None, None]
        if left.shape[2] <= right.shape[2]:
            left = left * scale
        else:
            right = right * scale
        total.addmm_(left.flatten(0, 1).mT, right.flatten(0, 1))


@dataclass(frozen=True)
class Rows:
    """g_i = Σ_t e_{ids_it} ⊗ values_it, for ids (n, T) below `rows` and values (n, T, q)."""

    ids: Tensor
    values: Tensor
    rows: int

    def __len__(self) -> int:
        return len(self.ids)

    def take(self, at: slice | Tensor) -> Rows:
        return Rows(self.ids[at], self.values[at], self.rows)

    def double(self) -> Rows:
        return Rows(self.ids, self.values.double(), self.rows)

    def over(self, divisor: Tensor) -> Rows:
        """The same gradients divided elementwise by a (rows, q) tensor."""
        return Rows(self.ids, self.values / divisor[self.ids], self.rows)

    def magnitudes(self) -> Tensor:
        return _lengths(self.values).sum(dim=1)

    def squares(self) -> Bounded:
        """‖g_i‖² = Σ_{t,u} [id_t = id_u] ⟨v_t, v_u⟩."""
        same = self.ids[:, :, None] == self.ids[:, None, :]
        gram = torch.bmm(self.values, self.values.mT).mul_(same)
        terms = self.values.shape[2] + self.ids.shape[1] ** 2
        return gram.sum(dim=(1, 2)), _slack(terms, self.magnitudes().square())

    def inner(self, outer: Outer) -> Bounded:
        """⟨g_i, g'_i⟩ with an Outer of the same parameter: Σ_{t,u} left_u[id_t] ⟨v_t, right_u⟩, a gather and a product.

        Source: the cross term of Phantom Clipping (DPFormer, Yu et al. 2023).
        """
        gathered = outer.left.gather(2, self.ids[:, None, :].expand(-1, outer.positions, -1))  # (n, U, T)
        products = torch.bmm(outer.right, self.values.mT)
        terms = self.values.shape[2] + outer.positions * self.ids.shape[1]
        return gathered.mul_(products).sum(dim=(1, 2)), _slack(terms, self.magnitudes() * outer.magnitudes())

    def dense_onto(self, gradients: Tensor) -> None:
        """Adds to (n, rows, q), in the order of the positions."""
        offsets = torch.arange(len(self), device=self.ids.device)[:, None] * self.rows
        flat = gradients.view(-1, gradients.shape[2])
        flat.index_add_(0, (self.ids + offsets).flatten(), self.values.flatten(0, 1))

    def add_to(self, total: Tensor, factors: Tensor) -> None:
        """total (rows, q) += Σ_i factors_i g_i."""
        scaled = self.values * factors[:, None, None]
        total.index_add_(0, self.ids.flatten(), scaled.flatten(0, 1).to(total.dtype))


@dataclass(frozen=True)
class Dense:
    """g_i, formed: (n, …)."""

    gradients: Tensor

    def __len__(self) -> int:
        return len(self.gradients)

    def take(self, at: slice | Tensor) -> Dense:
        return Dense(self.gradients[at])


Term = Outer | Rows | Dense


@dataclass(frozen=True)
class Merged:
    """All terms of one parameter: at most one of each kind. Their sum is the per-record gradient."""

    outer: Outer | None
    rows: Rows | None
    dense: Dense | None

    @classmethod
    def of(cls, terms: Sequence[Term]) -> Merged:
        """Terms of one kind become one: positions side by side, dense gradients added."""
        outers = [each for each in terms if isinstance(each, Outer)]
        rows = [each for each in terms if isinstance(each, Rows)]
        dense = [each.gradients for each in terms if isinstance(each, Dense)]
        outer = _joined_outer(outers) if outers else None
        row = _joined_rows(rows) if rows else None
        return cls(outer, row, Dense(torch.stack(dense).sum(dim=0) if len(dense) > 1 else dense[0]) if dense else None)

    def __len__(self) -> int:
        return next(len(each) for each in (self.outer, self.rows, self.dense) if each is not None)

    def take(self, at: slice | Tensor) -> Merged:
        return Merged(
            self.outer.take(at) if self.outer else None,
            self.rows.take(at) if self.rows else None,
            self.dense.take(at) if self.dense else None,
        )

    def formed(self, shape: torch.Size) -> Tensor:
        """The gradients themselves, (n, *shape), in the precision of the pass that made them."""
        if self.outer is not None:
            gradients = self.outer.dense()
        elif self.rows is not None:
            values = self.rows.values
            gradients = values.new_zeros(len(self), self.rows.rows, values.shape[2])
        else:
            return self.dense.gradients.reshape(len(self), *shape) if self.dense else torch.empty(0)
        if self.rows is not None:
            self.rows.dense_onto(gradients)
        gradients = gradients.view(len(self), *shape)
        return gradients + self.dense.gradients.reshape(gradients.shape) if self.dense else gradients


def _joined_outer(outers: list[Outer]) -> Outer:
    if len(outers) == 1:
        return outers[0]
    return Outer(torch.cat([each.left for each in outers], dim=1), torch.cat([each.right for each in outers], dim=1))


def _joined_rows(rows: list[Rows]) -> Rows:
    if len(rows) == 1:
        return rows[0]
    ids, values = torch.cat([each.ids for each in rows], dim=1), torch.cat([each.values for each in rows], dim=1)
    return Rows(ids, values, rows[0].rows)


def _lengths(vectors: Tensor) -> Tensor:
    lengths: Tensor = torch.linalg.vector_norm(vectors, dim=2)
    return lengths


def _slack(terms: int, magnitudes: Tensor) -> Tensor:
    """What rounding can take from a float64 sum of products with so many additions, in any order."""
    return (terms + 8) * ROUNDING * magnitudes
