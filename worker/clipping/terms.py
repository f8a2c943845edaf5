"""One parameter's per-record gradients as the backward pass leaves them: products not yet multiplied out.

    Outer   g_i = Σ_t left_it ⊗ right_it          linear layers, convolutions (unfolded)
    Rows    g_i = Σ_t e_{ids_it} ⊗ values_it      embeddings
    Dense   g_i itself                            small parameters: biases, norms, positions

Terms of one kind that belong to one parameter merge into one term with more positions. So its Gram matrices contain
every cross term between a module's calls, or between modules that share the parameter.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import NamedTuple

import torch
from torch import Tensor

from core.errors import PrivacyError
from worker.clipping.scratch import Scratch
from worker.data.lengths import squared_lengths_of_rows
from worker.data.norms import ROUNDING, TINY

ROUNDING32 = 2.0**-24

TALL = 8  # a float64 product so many times as tall as wide takes twice the time of its transpose (MKL, 3417 × 64)
SPREAD = 256  # unused rows that a GPU adds to one row
BLOCK = 256  # float32 adds this many products, then float64 continues: rounding takes less than 2·10⁻⁵


class Bounded(NamedTuple):
    """Squared norms that rounding made too small by at most `slack`; the rounding scales with `scale` ≥ ‖g_i‖."""

    squares: Tensor
    slack: Tensor
    scale: Tensor


@dataclass(frozen=True)
class Outer:
    """g_i = Σ_t left_it ⊗ right_it, for left (n, T, p) and right (n, T, q).

    >>> Outer(torch.ones(1, 2, 3), torch.ones(1, 2, 4)).squares().squares
    tensor([48.], dtype=torch.float64)
    """

    left: Tensor
    right: Tensor

    def __len__(self) -> int:
        return self.left.shape[0]  # `len` of a tensor takes microseconds

    @property
    def positions(self) -> int:
        """T."""
        return self.left.shape[1]

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """The tensors that hold the term."""
        return self.left, self.right

    def take(self, at: slice) -> Outer:
        """The term of these records."""
        return Outer(self.left[at], self.right[at])

    def of_views(self, views: int) -> Outer:
        """The term of n / each records, whose views are the rows: their positions one after the other."""
        return Outer(*(x.unflatten(0, (-1, views)).flatten(1, 2) for x in (self.left, self.right)))

    def squares(self) -> Bounded:
        """‖g_i‖² = ⟨LLᵀ, RRᵀ⟩ by T×T Gram matrices; ‖l‖²‖r‖² for one position."""
        (left, left_error), (right, right_error) = _gram(self.left), _gram(self.right)
        lengths = [each.diagonal(dim1=1, dim2=2) for each in (left, right)]
        sums = [(each + TINY).sqrt().sum(dim=1) for each in lengths]
        scale = (lengths[0].sqrt() * lengths[1].sqrt()).sum(dim=1) * (1 + left_error + right_error)
        squares = left.mul_(right).sum(dim=(1, 2))
        slack = (left_error + right_error + (self.positions**2 + 8) * ROUNDING) * 1.01 * scale.square()
        # A float32 underflow is lost, whatever factor follows.
        under = _tiny(self.left) * self.left.shape[2] * sums[1].square()
        under += _tiny(self.right) * self.right.shape[2] * sums[0].square()
        return Bounded(squares, slack + under, scale + under.sqrt())

    def dense(self, scratch: Scratch | None = None) -> Tensor:
        """The gradients (n, p, q), in the precision of the factors.

        In new memory: what the backward pass let go of. Those that are not kept take scratch memory, as small results
        between them would break the heap up.
        """
        left, right = self.left.mT, self.right
        if scratch is None:
            return torch.bmm(left, right)
        shape = (left.shape[0], left.shape[1], right.shape[2])
        return torch.bmm(left, right, out=scratch.empty("gradients", shape, left.dtype, left.device))

    def add_to(self, total: Tensor, factors: Tensor, scratch: Scratch, keep: int = 1) -> None:
        """total (p, q) = keep · total + Σ_i factors_i g_i, by one product over records and positions.

        In the precision of `total`; with keep = 0 its old content may be anything.
        """
        left, right, scale = self.left, self.right, factors.to(total.dtype)
        if left.shape[2] <= right.shape[2]:
            left, right = scratch.scaled("left", left, scale), scratch.finite("right", right, total.dtype)
        else:
            left, right = scratch.finite("left", left, total.dtype), scratch.scaled("right", right, scale)
        if left.shape[2] < TALL * right.shape[2]:
            total.addmm_(left.flatten(0, 1).mT, right.flatten(0, 1), beta=keep)
            return
        lying = scratch.empty("lying", (right.shape[2], left.shape[2]), total.dtype, total.device)
        torch.mm(right.flatten(0, 1).mT, left.flatten(0, 1), out=lying)
        total.copy_(lying.mT) if keep == 0 else total.add_(lying.mT)


@dataclass(frozen=True)
class Rows:
    """g_i = Σ_t e_{ids_it} ⊗ values_it, for ids (n, T) below `rows` and values (n, T, q).

    >>> Rows(torch.tensor([[0, 2, 0]]), torch.ones(1, 3, 2), rows=3).squares().squares
    tensor([10.], dtype=torch.float64)
    """

    ids: Tensor
    values: Tensor
    rows: int
    unused: int | None = None  # an id whose values are 0

    def __len__(self) -> int:
        return self.ids.shape[0]

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """The tensors that hold the term."""
        return self.ids, self.values

    def take(self, at: slice) -> Rows:
        """The term of these records."""
        return replace(self, ids=self.ids[at], values=self.values[at])

    def of_views(self, views: int) -> Rows:
        """See Outer.of_views."""
        ids, values = (x.unflatten(0, (-1, views)).flatten(1, 2) for x in (self.ids, self.values))
        return replace(self, ids=ids, values=values)

    def over(self, divisor: Tensor) -> Rows:
        """The same gradients divided elementwise by a (rows, q) tensor."""
        return replace(self, values=self.values / divisor[self.ids])

    def squares(self) -> Bounded:
        """‖g_i‖² = Σ_{t,u} [id_t = id_u] ⟨v_t, v_u⟩."""
        values = self.values.double()
        scale = torch.linalg.vector_norm(values, dim=2).sum(dim=1)
        if self.values.dtype == torch.float32:
            squares = squared_lengths_of_rows(self.ids, self.values)
        elif self.ids.shape[1] == 1:
            squares = values.square().sum(dim=(1, 2))
        else:
            same = self.ids[:, :, None] == self.ids[:, None, :]
            squares = torch.bmm(values, values.mT).mul_(same).sum(dim=(1, 2))
        return Bounded(squares, _slack(values.shape[2] + self.ids.shape[1] ** 2, scale.square()), scale)

    def inner(self, outer: Outer) -> Tensor:
        """⟨g_i, g'_i⟩ with an Outer of the same parameter: Σ_{t,u} left_u[id_t] ⟨v_t, right_u⟩, a gather and a product.

        In float64. Its rounding is at most `cross_slack`.

        Source: the cross term of Phantom Clipping (DPFormer).
        """
        gathered = outer.left.gather(2, self.ids[:, None, :].expand(-1, outer.positions, -1))  # (n, U, T)
        return torch.bmm(outer.right.double(), self.values.double().mT).mul_(gathered).sum(dim=(1, 2))

    def cross_slack(self, outer: Outer, scales: Tensor) -> Tensor:
        """A bound on the rounding of `inner`; `scales` is the product of both terms' scales."""
        return _slack(self.values.shape[2] + outer.positions * self.ids.shape[1], scales)

    def dense_onto(self, gradients: Tensor) -> None:
        """Adds the gradients to (n, rows, q), in the order of positions."""
        offsets = torch.arange(len(self), device=self.ids.device)[:, None] * self.rows
        flat = gradients.view(-1, gradients.shape[2])
        flat.index_add_(0, (self.ids + offsets).flatten(), self.values.flatten(0, 1))

    def add_to(self, total: Tensor, factors: Tensor, scratch: Scratch) -> None:
        """total (rows, q) += Σ_i factors_i g_i."""
        scaled = scratch.scaled("rows", self.values, factors.to(total.dtype)).flatten(0, 1)
        ids, into = self.ids.flatten(), total
        if total.device.type != "cpu" and self.unused is not None:  # equal ids are added one by one there
            spare = -(-ids.numel() // SPREAD)
            places = torch.arange(ids.numel(), device=ids.device).remainder_(spare).add_(self.rows)
            ids = torch.where(ids == self.unused, places, ids)
            into = torch.cat([total, total.new_zeros(spare, total.shape[1])])
        into.index_add_(0, ids, scaled)
        if into is not total:
            total.copy_(into[: self.rows])


@dataclass(frozen=True)
class Dense:
    """The formed gradients g_i: (n, …)."""

    gradients: Tensor

    def __len__(self) -> int:
        return self.gradients.shape[0]

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """The tensors that hold the term."""
        return (self.gradients,)

    def take(self, at: slice) -> Dense:
        """The term of these records."""
        return Dense(self.gradients[at])

    def of_views(self, views: int) -> Dense:
        """See Outer.of_views: the sum over a record's views."""
        return Dense(_sum_in_order(self.gradients.unflatten(0, (-1, views)).unbind(dim=1)))


Term = Outer | Rows | Dense


@dataclass(frozen=True)
class Merged:
    """All terms of one parameter, at most one of each kind. Their sum is the per-record gradient."""

    outer: Outer | None
    rows: Rows | None
    dense: Dense | None

    @classmethod
    def of(cls, terms: Sequence[Term]) -> Merged:
        """Merges terms of one kind: joins positions, adds dense gradients in the order of the parameter's uses."""
        outers = [each for each in terms if isinstance(each, Outer)]
        rows = [each for each in terms if isinstance(each, Rows)]
        dense = [each.gradients for each in terms if isinstance(each, Dense)]
        outer = _joined_outer(outers) if outers else None
        row = _joined_rows(rows) if rows else None
        return cls(outer, row, Dense(_sum_in_order(dense)) if dense else None)

    def __len__(self) -> int:
        if self.outer is not None:
            return self.outer.left.shape[0]
        if self.rows is not None:
            return self.rows.ids.shape[0]
        return 0 if self.dense is None else self.dense.gradients.shape[0]

    @property
    def positions(self) -> int:
        """The positions of all terms together; a formed gradient counts as one."""
        outer = self.outer.positions if self.outer else 0
        return outer + (self.rows.ids.shape[1] if self.rows else 0) + (1 if self.dense else 0)

    @property
    def device(self) -> torch.device:
        """The device of its tensors."""
        return self._any.tensors[0].device

    @property
    def dtype(self) -> torch.dtype:
        """The precision of formed gradients."""
        return self._any.tensors[-1].dtype

    @property
    def _any(self) -> Term:
        for part in (self.outer, self.rows, self.dense):
            if part is not None:
                return part
        raise PrivacyError("a parameter has no gradient terms")

    def take(self, at: slice) -> Merged:
        """The terms of these records."""
        if not self or at == slice(0, len(self)):
            return self
        return Merged(
            self.outer.take(at) if self.outer else None,
            self.rows.take(at) if self.rows else None,
            self.dense.take(at) if self.dense else None,
        )

    def formed(self, shape: torch.Size, scratch: Scratch | None = None) -> Tensor:
        """The gradients themselves, (n, *shape), in the precision of the pass that made them.

        Args:
            scratch: for gradients that are not kept.
        """
        if self.outer is not None:
            gradients = self.outer.dense(scratch)
        elif self.rows is not None:
            values = self.rows.values
            gradients = values.new_zeros(len(self), self.rows.rows, values.shape[2])
        else:
            return self.dense.gradients.reshape(len(self), *shape) if self.dense else torch.empty(0)
        if self.rows is not None:
            self.rows.dense_onto(gradients)
        gradients = gradients.view(len(self), *shape)
        return gradients + self.dense.gradients.reshape(gradients.shape) if self.dense else gradients


def _sum_in_order(gradients: Sequence[Tensor]) -> Tensor:
    """((g_1 + g_2) + g_3) + …, the same additions at every place: `stack().sum(0)` adds the last places by other code,
    in another order."""
    return reduce(torch.add, gradients)


def _joined_outer(outers: list[Outer]) -> Outer:
    if len(outers) == 1:
        return outers[0]
    return Outer(torch.cat([each.left for each in outers], dim=1), torch.cat([each.right for each in outers], dim=1))


def _joined_rows(rows: list[Rows]) -> Rows:
    if len(rows) == 1:
        return rows[0]
    ids, values = torch.cat([each.ids for each in rows], dim=1), torch.cat([each.values for each in rows], dim=1)
    unused = rows[0].unused if len({each.unused for each in rows}) == 1 else None
    return Rows(ids, values, rows[0].rows, unused)


def _gram(vectors: Tensor) -> tuple[Tensor, float]:
    """The Gram matrices (n, T, T) of (n, T, p) in float64, and their error relative to ‖v_t‖‖v_u‖.

    For narrower vectors, float32 adds BLOCK products at a time, and float64 adds the blocks.
    """
    width = vectors.shape[2]
    if vectors.shape[1] == 1 or vectors.dtype == torch.float64:
        wide = vectors.double()
        return torch.bmm(wide, wide.mT), (width + 8) * ROUNDING
    blocks = [each.float() for each in vectors.split(BLOCK, dim=2)]
    total = torch.bmm(blocks[0], blocks[0].mT).double()
    for block in blocks[1:]:
        total += torch.bmm(block, block.mT)
    return total, (min(width, BLOCK) + 8) * ROUNDING32 + len(blocks) * ROUNDING


def _tiny(vectors: Tensor) -> float:
    """The most that one product in `_gram` may lose by underflow."""
    wide = vectors.dtype == torch.float64 or vectors.shape[1] == 1
    return 0.0 if wide else torch.finfo(torch.float32).tiny


def _slack(terms: int, magnitudes: Tensor) -> Tensor:
    """The most that rounding can take from a float64 sum of products with this many additions, in any order."""
    return (terms + 8) * ROUNDING * magnitudes
