"""Accumulators for one physical batch: each parameter's per-record gradient norms, and their weighted sum.

No product is made twice as large as needed. The method for a parameter depends on public sizes only:

    one position        ‖l‖²‖r‖², and one product over all records for the sum
    ghost               Gram matrices over positions, if they cost less than the gradients themselves
    formed              the gradients of a few records at a time, kept if there is room, else formed a second time
    groups              one position or formed, and float32 may add some records at a time (docs/theorems.md)

Formed gradients may have any precision: the same numbers are measured and added. Gram matrices, norms and other sums
are in float64.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from core.errors import PrivacyError
from core.privacy.numerics import NORM_FLOOR
from worker.clipping.methods import ROOM_BYTES, can_stay_factored, kept_bytes
from worker.clipping.precision import require_ieee
from worker.clipping.scratch import Scratch
from worker.clipping.terms import BLOCK, ROUNDING32, Merged, Outer, Term
from worker.data.lengths import squared_lengths
from worker.data.norms import ROUNDING
from worker.data.passes import moved
from worker.data.placed import chunk_bytes
from worker.native.flat_steps import STEPS
from worker.native.gpu_pass import row_squares

CHUNK_BYTES = 2**23  # of float64 temporaries, so that they stay in the cache
WIDE_BYTES = 2**19  # of float64 copies of formed gradients: in a core's own cache
LONGEST = 2.0**60  # a longer input or gradient counts as not finite where float32 adds: no product can overflow


class Lengths(NamedTuple):
    """A parameter's gradients as they were measured; `bounded` makes of them what clipping needs.

    Attributes:
        numbers: float64 (n,): squared norms.
        slack: a bound on what rounding took from the squared norms, float64 (n,); a number: in parts of them.
        narrow: float32 adds these gradients.
    """

    numbers: Tensor
    slack: Tensor | float
    narrow: bool = False


def bounded(measured: Sequence[Lengths]) -> tuple[Tensor, Tensor]:
    """‖g_i‖² of each parameter, and a bound on what rounding took from it: float64 (parameters, n), in new memory."""
    squares, device = torch.stack([each.numbers for each in measured]), measured[0].numbers.device
    shares = tuple(each.slack if isinstance(each.slack, float) else 1.0 for each in measured)
    slack = squares
    if any(isinstance(each.slack, Tensor) for each in measured):
        slacks = [squares[at] if isinstance(each.slack, float) else each.slack for at, each in enumerate(measured)]
        slack = torch.stack(slacks)
    slack = slack * _column(shares, device)
    if any(each.narrow for each in measured):
        limits = _column(tuple(LONGEST**2 if each.narrow else torch.inf for each in measured), device)
        squares.masked_fill_(squares > limits, torch.inf)
    return squares, slack


@lru_cache(maxsize=256)
def _column(numbers: tuple[float, ...], device: torch.device) -> Tensor:
    """Public numbers as float64 (parameters, 1), copied to the device once."""
    return moved(torch.tensor(numbers, dtype=torch.float64)[:, None], device)


class ParameterAccumulator:
    """The accumulator of one parameter in one physical batch.

    Args:
        terms: the terms of all uses of the parameter, each over all n records.
        shape: the parameter's.
        divisor: float64, in the parameter's shape. Gradients are divided by it elementwise before they are measured.
        scratch: the engine's scratch memory.
        group: how many records float32 may add; None: sums are in float64. They are for products over positions, too.
        room: bytes of the pass's formed gradients that may be kept.

    Attributes:
        positions: how many rows of the products over records belong to one record, over all uses of the parameter.
        kept_bytes: the size of the formed gradients that it keeps.
    """

    def __init__(
        self,
        terms: Sequence[Term],
        shape: torch.Size,
        divisor: Tensor | None = None,
        scratch: Scratch | None = None,
        group: int | None = None,
        room: int = ROOM_BYTES,
    ) -> None:
        self._scratch = scratch or Scratch()
        self._merged, self._shape, self._divisor = Merged.of(terms), shape, divisor
        self._kept: list[Tensor] | None = None
        self._measured: Lengths | None = None
        self._factored = can_stay_factored(self._merged, divided=divisor is not None)
        self.kept_bytes = 0 if self._factored else kept_bytes(self._merged, shape.numel(), room)
        is_dense = not self._factored and self._merged.outer is None and self._merged.rows is None
        self._stays = self.kept_bytes > 0 or is_dense  # gradients, from when they are formed on
        self._group = group if self._narrow() and divisor is None else None
        self._chunks = self._cut()
        self.positions, self._device, self._dtype = self._merged.positions, self._merged.device, self._merged.dtype

    def _narrow(self) -> bool:
        """True if the gradients are float32, and formed or of one position. Depends on sizes only."""
        merged = self._merged
        if not self._factored:
            return merged.dtype == torch.float32
        outer = merged.outer if merged.rows is None else None
        return outer is not None and outer.positions == 1 and outer.left.dtype == torch.float32

    @property
    def in_groups(self) -> bool:
        """True if float32 adds some records at a time: `add_products` or `add_formed` then replaces `add_to`."""
        return self._group is not None

    @property
    def formed(self) -> bool:
        """True if gradients are formed."""
        return not self._factored

    def squares(self) -> tuple[Tensor, Tensor]:
        """‖g_i‖², and a bound on what rounding took from it, float64 (n,) each."""
        squares, slack = bounded([self.measured()])
        return squares[0], slack[0]

    def begin(self) -> None:
        """Forms gradients that stay; others are measured, too. On a processor all are: they are still in the cache."""
        if self._waits:
            self._form()
        else:
            self.measured()

    @staticmethod
    def measure(accumulators: Iterable[ParameterAccumulator]) -> None:
        """Measures those that wait, at once."""
        waiting = [each for each in accumulators if each._waits]
        formed = [each._form() for each in waiting]
        squares = iter(row_squares([part for parts in formed for part in parts]))
        for accumulator, parts in zip(waiting, formed, strict=True):
            share, narrow = _share(parts[0]), accumulator._group is not None
            accumulator._measured = _joined([Lengths(next(squares), share, narrow) for _ in parts])

    @property
    def _waits(self) -> bool:
        """True for formed gradients on a GPU that are still to be measured: one kernel measures all parameters'."""
        is_plain = self._divisor is None and self._dtype == torch.float32 and self._device.type == "cuda"
        return self._measured is None and self._stays and is_plain

    def _form(self) -> list[Tensor]:
        """Gradients that stay, (rows, numbers) some records at a time; lets the terms go."""
        if self._kept is None:
            self._kept = [self._merged.take(at).formed(self._shape) for at in self._chunks]
            self._merged = Merged(None, None, None)
        return [each.flatten(1) for each in self._kept]

    def measured(self) -> Lengths:
        """The gradients' lengths. Computed once. Lets the terms go if it keeps the gradients."""
        if self._waits:
            self.measure([self])
        if self._measured is None:
            require_ieee()
            formed: list[Tensor] | None = [] if self._stays else None
            self._measured = _joined([self._chunk_lengths(self._merged.take(at), formed) for at in self._chunks])
            if formed is not None:
                self._kept, self._merged = formed, Merged(None, None, None)
        return self._measured

    def add_to(self, total: Tensor, factors: Tensor, *, first: bool = False) -> None:
        """total += Σ_i factors_i g_i, in the precision of `total`.

        The divisor is not applied here: it is the same for all records, so their sum is divided by it once.

        Args:
            total: in the parameter's shape; changed.
            factors: (n,). A record with factor 0 adds nothing, whatever its numbers are. It is zeroed, not dropped, so
                that products keep their shape.
            first: nothing was added to the total before: its old content is overwritten.
        """
        require_ieee()
        # Sums the pass by itself and adds it once: rounding into a large total then grows only with the passes.
        target = total if first else self._scratch.empty("sum", total.shape, total.dtype, total.device)
        for number, at in enumerate(self._chunks):
            keep = 0 if number == 0 else 1
            if self._factored:
                self._add_products(target, self._merged.take(at), factors[at], keep)
            else:
                self._add_formed(target.view(-1), self._gradients(number), factors[at], keep)
        if target is not total:
            total += target

    def add_products(self, add: Callable[[Tensor, Tensor, int], None], factors: Tensor) -> None:
        """Hands out the factors of Σ_i factors_i l_i ⊗ r_i, float32 (n, p) and (n, q), and how many float32 may add.

        Args:
            factors: see add_to.
        """
        outer, group = self._merged.outer, self._group
        if outer is None or group is None:
            raise PrivacyError("this parameter's sums are in float64")
        add(*self._scratch.of_products(outer.left[:, 0], outer.right[:, 0], factors), group)

    @property
    def keeps_formed(self) -> bool:
        """True if all gradients that `formed_parts` hands out stay valid."""
        return self.in_groups and self._stays

    def formed_parts(self, factors: Tensor) -> Iterator[tuple[Tensor, Tensor, int]]:
        """The formed gradients, float32 (rows, numbers), with their factors and how many float32 may add: some records
        at a time. A part that was formed again is valid until the next one.

        Args:
            factors: float32; see add_to.
        """
        if self._group is None or self._factored:
            raise PrivacyError("this parameter's sums are in float64")
        require_ieee()  # gradients that are formed again are those that were measured
        for number, at in enumerate(self._chunks):
            yield self._gradients(number), factors[at], self._group

    def _gradients(self, number: int) -> Tensor:
        """A chunk's formed gradients, (rows, numbers): kept, or formed again."""
        if self._kept is not None:
            return self._kept[number].flatten(1)
        return self._merged.take(self._chunks[number]).formed(self._shape, self._scratch).flatten(1)

    def _add_products(self, total: Tensor, chunk: Merged, factors: Tensor, keep: int) -> None:
        """total = keep · total + the chunk's sum; with keep = 0 the old content may be anything."""
        if chunk.outer is not None:
            upright = total.view(chunk.outer.left.shape[2], -1)
            chunk.outer.add_to(upright, factors, self._scratch, keep)
            keep = 1
        if chunk.rows is not None:
            chunk.rows.add_to(total if keep else total.zero_(), factors, self._scratch)

    def _add_formed(self, total: Tensor, gradients: Tensor, factors: Tensor, keep: int) -> None:
        """A few records at a time, so that their wide copies stay in the cache."""
        rows = even_rows(len(gradients), chunk_bytes(gradients.device, WIDE_BYTES) // (8 * max(1, gradients.shape[1])))
        weights = factors.to(total.dtype)
        for at in range(0, len(gradients), rows):
            wide = self._scratch.finite("formed", gradients[at : at + rows], total.dtype)
            total.addmv_(wide.mT, weights[at : at + rows], beta=keep)
            keep = 1

    def _chunk_lengths(self, chunk: Merged, formed: list[Tensor] | None) -> Lengths:
        if not self._factored:
            gradients = chunk.formed(self._shape, self._scratch if formed is None else None)
            if formed is not None:
                formed.append(gradients)
            if self._divisor is not None:
                gradients = gradients.double() / self._divisor
            return _lengths(gradients.flatten(1))._replace(narrow=self._group is not None)
        outer, rows = chunk.outer, chunk.rows
        if rows is None:
            if outer is None:
                raise PrivacyError("a parameter has no gradient terms")
            if outer.positions == 1:
                return Lengths(*self._one_position(outer))
            outer_squares = outer.squares()
            return Lengths(*at_least(outer_squares.squares, outer_squares.slack, outer_squares.scale, outer.positions))
        squares, slack, scale = (rows if self._divisor is None else rows.over(self._divisor)).squares()
        positions = rows.ids.shape[1]
        if outer is not None:  # (a + b)² = a² + b² + 2ab
            own_squares = outer.squares()
            squares = squares + own_squares.squares + 2 * rows.inner(outer)
            slack = slack + own_squares.slack + 2 * rows.cross_slack(outer, scale * own_squares.scale)
            scale, positions = scale + own_squares.scale, positions + outer.positions
        return Lengths(*at_least(squares, slack, scale, positions))

    def _one_position(self, outer: Outer) -> tuple[Tensor, Tensor]:
        """‖l ⊗ r‖² = ‖l‖²‖r‖²; with a divisor (l²)ᵀ (1/D²) (r²)."""
        left, right = outer.left[:, 0], outer.right[:, 0]
        if self._divisor is None:
            shares = (_share(left), _share(right))
            longest = math.inf if self._group is None else LONGEST**2
            compiled = None if STEPS is None else STEPS.squares_of_products(left, right, shares, longest)
            if compiled is not None:
                return compiled
            factors = [_lengths(each)._replace(narrow=self._group is not None) for each in (left, right)]
            (one, two), (less, lesser) = bounded(factors)
            return one * two, (one + less) * (two + lesser) * (1 + 4 * ROUNDING) - one * two
        left, right = left.double(), right.double()
        inverse = self._divisor.view(left.shape[1], -1).square().reciprocal()
        squares = ((left.square() @ inverse) * right.square()).sum(dim=1)
        return squares, (left.shape[1] + right.shape[1] + 8) * ROUNDING * squares

    def _rows(self) -> int:
        """Records of one chunk: the float64 copies of their factors, or their formed gradients, fit in the cache."""
        merged = self._merged
        numbers = self._shape.numel()
        if self._factored:
            factors = [merged.outer.left, merged.outer.right] if merged.outer else []
            factors += [merged.rows.values] if merged.rows else []
            numbers = sum(each.shape[1] * each.shape[2] for each in factors)
        return even_rows(len(merged), chunk_bytes(merged.device, CHUNK_BYTES) // (8 * max(1, numbers)))

    def _cut(self) -> list[slice]:
        rows = self._rows()
        return [slice(at, at + rows) for at in range(0, len(self._merged), rows)]


@lru_cache(maxsize=4096)
def even_rows(rows: int, limit: int) -> int:
    """The largest divisor of P, a pass's rows, that is at most `limit`. All chunks then have the same shape."""
    return next(each for each in range(max(1, min(rows, limit)), 0, -1) if rows % each == 0)


def at_least(squares: Tensor, slack: Tensor, scale: Tensor, positions: int) -> tuple[Tensor, Tensor]:
    """Raises the norm to at least NORM_FLOOR / √positions of `scale`.

    If products over positions cancel, their sum's rounding scales with Σ_t ‖a_t‖‖g_t‖ ≤ `scale`, not with ‖g‖
    (core.privacy.numerics.sensitivity_slack).
    """
    if positions == 1:
        return squares, slack
    floor = scale.square() * (NORM_FLOOR**2 / positions)
    return squares, torch.maximum(slack, floor - squares)


def _joined(parts: Sequence[Lengths]) -> Lengths:
    """The lengths of all chunks' records."""
    if len(parts) == 1:
        return parts[0]
    numbers, slack = torch.cat([each.numbers for each in parts]), [each.slack for each in parts]
    tensors = [each for each in slack if isinstance(each, Tensor)]
    return parts[0]._replace(numbers=numbers, slack=torch.cat(tensors) if tensors else slack[0])


def _lengths(numbers: Tensor) -> Lengths:
    """The lengths of (n, m)'s rows, in float64; numbers narrower than float32 are added in float32 by blocks."""
    relative = _share(numbers)
    if numbers.dtype == torch.float64:
        return Lengths(numbers.square().sum(dim=1), relative)
    if numbers.dtype == torch.float32:
        squares = row_squares([numbers])[0] if numbers.device.type == "cuda" else squared_lengths(numbers)
        return Lengths(squares, relative)
    aligned = numbers.shape[1] // BLOCK * BLOCK
    tail = numbers[:, aligned:].double().square().sum(dim=1)
    lengths = torch.linalg.vector_norm(numbers[:, :aligned].float().unflatten(1, (-1, BLOCK)), dim=2).double()
    squares = lengths.square().sum(dim=1) + tail
    under = numbers.shape[1] * torch.finfo(torch.float32).tiny
    return Lengths(squares, ((2 * BLOCK + 8) * ROUNDING32 + numbers.shape[1] * ROUNDING) * squares + under)


def _share(numbers: Tensor) -> float:
    """What rounding may take from the squared lengths of (n, m)'s rows, in parts of them."""
    return (numbers.shape[1] + 8) * ROUNDING
