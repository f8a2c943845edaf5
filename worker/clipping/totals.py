"""Totals: the sums of passes, added over a step and over the ranks of an attempt.

On the grid each pass's sum is rounded to a multiple of one public unit, and the multiples are added as 64-bit integers.
Integer addition is exact and has no order. So the total has the same bits however the passes are spread over ranks, and
whatever rank adds last. It is noised once, after it is complete: each rank then holds the whole total, or the numbers
that it owns (worker.data.shards).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from core.errors import PrivacyError
from core.privacy.numerics import TILE_ROWS, grid_unit
from worker.clipping.engine import Clip, in_float32
from worker.clipping.gpu_check import require_same
from worker.clipping.precision import require_ieee
from worker.data.placed import GPU_CHUNK_BYTES, device_of
from worker.data.ranks import ALONE, Ranks, first_row
from worker.data.shards import Shards
from worker.models.base import Parameters
from worker.models.dropout import Masks
from worker.models.views import Views, rows_of
from worker.native.flat_steps import STEPS
from worker.native.gpu_pass import Part, add_sums

PIECE = 2**16  # numbers that are converted together on a processor: they stay in its cache
PRODUCT = 2**17  # numbers of a product of a group, at most: they and their totals stay in a core's own cache
PARTS, LEAST_ROWS = 4, 32  # of products, at least, for other threads; of a part, at least: narrower ones are slower
# Adding it to a number below 2⁵¹ rounds to the nearest integer, which the lowest bits of the sum then hold.
WHOLE = torch.tensor(1.5 * 2.0**52, dtype=torch.float64)
WHOLE_BITS = int(WHOLE.view(torch.int64))
LARGEST = 2.0**51  # units of a sum that is added
COUNT, BROKEN = 0, 1  # the places behind the parameters: twice the count of half counts, and sums out of range


@dataclass(frozen=True)
class Grid:
    """How an engine adds passes.

    Attributes:
        records: N, the public bound on the number of summed records.
        rows: P, of every pass.
        ranks: the ranks of the attempt; each engine call is one collective, so all ranks make the same calls.
        sharded: each rank gets the totals that it owns, and no others.
    """

    records: int
    rows: int
    ranks: Ranks = ALONE
    sharded: bool = False


@dataclass(frozen=True)
class Floats:
    """How an engine adds passes of public records, where no privacy is claimed: in float64.

    Each rank adds its own passes, and the ranks' sums are added in the order of ranks. So all ranks have the same bits,
    but another number of ranks has others.

    Attributes:
        ranks, sharded: see Grid.
    """

    ranks: Ranks = ALONE
    sharded: bool = False


ONE_PROCESS = Floats()


class Formed(NamedTuple):
    """Some records' formed gradients of one parameter, for `Totals.add_formed`.

    Attributes:
        gradients: float32 (n, numbers), undivided.
        factors: float32 (n,). A record with factor 0 adds nothing, whatever its numbers are.
        group: how many records float32 adds, at least 1.
    """

    name: str
    gradients: Tensor
    factors: Tensor
    group: int


class Totals(Protocol):
    """Adds up one query."""

    def add(self, name: str, of_pass: Tensor) -> None:
        """Adds one pass's sum for one parameter, float64; overwrites it."""
        ...

    def add_products(self, name: str, left: Tensor, right: Tensor, group: int) -> None:
        """Adds Σ_i l_i ⊗ r_i for one parameter, a matrix: the product of `group` records at a time in float32.

        Args:
            left, right: float32 (n, p) and (n, q), finite, contiguous; their product is undivided.
            group: at least 1.

        Raises:
            PrivacyError: the sizes differ, or more rows than one pass has: the slack would not cover their rounding.
        """
        ...

    def add_formed(self, parts: Sequence[Formed]) -> None:
        """Adds Σ_i factors_i g_i, `group` records at a time in float32, for some parameters, each of them once.

        Raises:
            PrivacyError: the sizes differ, or more rows than one pass has: the slack would not cover their rounding.
        """
        ...

    def finish(self, count: Tensor | None = None) -> Parameters:
        """Σ over all passes of all ranks, float64, divided by the clip's divisors; of what this rank owns, if the grid
        is sharded.

        Args:
            count: float64 (1,), this rank's half counts; becomes the sum over ranks.
        """
        ...


def totals_for(grid: Grid | None, parameters: Parameters, clip: Clip) -> Totals:
    """The totals of one query, in the parameters' names and shapes; None: in float64, for one process."""
    return FloatTotals(parameters, clip) if grid is None else GridTotals(parameters, clip, grid)


class FloatTotals:
    """Adds in float64, pass by pass: the same in every run of so many ranks, but another sum in another order."""

    def __init__(self, parameters: Mapping[str, Tensor], clip: Clip, over: Floats = ONE_PROCESS) -> None:
        self._clip, self._over = clip, over
        self._shards = Shards.of(parameters, over.ranks) if over.sharded else None
        self._sums = {name: torch.zeros_like(value, dtype=torch.float64) for name, value in parameters.items()}

    def add(self, name: str, of_pass: Tensor) -> None:
        """See Totals.add."""
        self._sums[name] += of_pass

    def add_products(self, name: str, left: Tensor, right: Tensor, group: int) -> None:
        """See Totals.add_products."""
        total = self._sums[name].view(left.shape[1], right.shape[1])
        for first, product in _products(left, right, group, total.numel()):
            total[first : first + len(product)] += product

    def add_formed(self, parts: Sequence[Formed]) -> None:
        """See Totals.add_formed."""
        for name, gradients, factors, group in parts:
            _require_sizes(gradients, factors, self._sums[name].numel(), group)
            for gradient, by in zip(gradients.split(group), factors.split(group), strict=True):
                self._sums[name].view(-1).add_(in_float32(gradient, by))

    def finish(self, count: Tensor | None = None) -> Parameters:
        """See Totals.finish."""
        for sums in self._sums.values() if self._over.ranks.size > 1 else ():
            self._over.ranks.add_up(sums)
        total = self._clip.divided(self._sums)
        return total if self._shards is None else _cloned(self._shards.views(total))


class GridTotals:
    """Adds integers, multiples of `grid_unit(N, P, C)`.

    Guarantee: the result is a function of the passes' sums as a set. Sums of at most N records clipped to C stay below
    2⁶² units. A sum that is not finite, or has 2⁵¹ units or more, makes the whole total NaN, which no release accepts.
    """

    def __init__(self, parameters: Mapping[str, Tensor], clip: Clip, grid: Grid) -> None:
        self._unit = grid_unit(grid.records, grid.rows, clip.max_grad_norm)
        self._clip, self._ranks, self._rows = clip, grid.ranks, grid.rows
        self._shards = Shards.of(parameters, grid.ranks) if grid.sharded else None
        device = device_of(dict(parameters))
        if device.type == "cuda":
            require_same(device)
        sizes = [value.numel() for value in parameters.values()]
        self._flat = torch.zeros(sum(sizes) + 2, dtype=torch.int64, device=device)
        *parts, self._rest = self._flat.split([*sizes, 2])
        self._parts = dict(zip(parameters, parts, strict=True))
        self._shapes = {name: value.shape for name, value in parameters.items()}

    def add(self, name: str, of_pass: Tensor) -> None:
        """See Totals.add. The grid is of divided gradients, as their norm is what C bounds."""
        self._add(self._parts[name], self._clip.divided_one(name, of_pass).reshape(-1))

    def add_products(self, name: str, left: Tensor, right: Tensor, group: int) -> None:
        """See Totals.add_products."""
        totals, totals_of, inverse = self._parts[name], _rows_of_product(left, right), 1.0 / self._unit
        self._require_one_pass(left.shape[0])
        in_range = None if STEPS is None else STEPS.add_products(totals, left, right, group, totals_of, inverse)
        if in_range is not None:
            self._note(in_range)
            return
        if totals.device.type == "cuda":
            _require_factors(left, right, group, len(totals))
            for products in products_of_groups(left, right, group):
                self._add_on_gpu([Part(totals, products)])
            return
        for first, product in _products(left, right, group, len(totals)):
            start = first * right.shape[1]
            self._add(totals[start : start + product.numel()], product.reshape(-1))

    def add_formed(self, parts: Sequence[Formed]) -> None:
        """See Totals.add_formed."""
        for name, gradients, factors, group in parts:
            _require_sizes(gradients, factors, self._parts[name].shape[0], group)
            self._require_one_pass(factors.shape[0])
        if len({each.name for each in parts}) < len(parts):
            raise PrivacyError("each parameter's gradients are added once")
        if self._flat.device.type == "cuda":
            self._add_on_gpu([Part(self._parts[each.name], *each[1:]) for each in parts])
            return
        sums = [(self._parts[name], gradients.contiguous(), by, group) for name, gradients, by, group in parts]
        in_range = None if STEPS is None else STEPS.add_formed(sums, 1.0 / self._unit)
        if in_range is not None:
            self._note(in_range)
            return
        for name, gradients, factors, group in parts:
            for gradient, by in zip(gradients.split(group), factors.split(group), strict=True):
                self._add(self._parts[name], in_float32(gradient, by))

    def _require_one_pass(self, rows: int) -> None:
        if rows > self._rows:
            raise PrivacyError(f"{rows} rows were added together, and a pass has {self._rows}")

    def _add(self, totals: Tensor, sums: Tensor) -> None:
        """Adds sums, rounded to the grid; overwrites them if they are in float64."""
        if totals.device.type == "cuda":
            self._add_on_gpu([Part(totals, sums[None])])
            return
        in_range = STEPS.add_on_grid(totals, sums, 1.0 / self._unit) if STEPS is not None else None
        if in_range is not None:
            self._note(in_range)
            return
        for total, part in zip(_pieces(totals), _pieces(sums.double()), strict=True):
            total.add_(self._units_(part))

    def _add_on_gpu(self, parts: Sequence[Part]) -> None:
        add_sums(parts, 1.0 / self._unit, self._rest[BROKEN, None])

    def _note(self, in_range: bool) -> None:
        if not in_range:
            self._rest[BROKEN] += 1

    def _units_(self, sums: Tensor) -> Tensor:
        """The nearest multiples of the unit, int64, over float64 sums; notes those that are out of range."""
        self._rest[BROKEN] += (~(sums.abs() < LARGEST * self._unit)).sum()
        # The unit is a power of two, so the product is exact and the addition rounds once.
        torch.add(WHOLE, sums, alpha=1.0 / self._unit, out=sums)
        return sums.view(torch.int64).sub_(WHOLE_BITS)

    def finish(self, count: Tensor | None = None) -> Parameters:
        """See Totals.finish."""
        if count is not None:
            self._rest[COUNT] += (2.0 * count[0]).long()  # a sum of halves is exact
        if self._shards is None:
            self._ranks.add_up(self._flat)
            return self._scaled(self._flat, self._parts, count)
        self._ranks.add_up(self._rest)
        own_totals, parts = self._own(self._shards)
        return self._scaled(own_totals, parts, count)

    def _own(self, shards: Shards) -> tuple[Tensor, Parameters]:
        """The totals that this rank owns, in memory of their own: that of all numbers is then free."""
        for rank in range(self._ranks.size):
            begin, end = shards.bounds(rank)
            if begin < end:
                self._ranks.add_up_at(rank, self._flat[begin:end])
        own_totals = self._flat[slice(*shards.bounds(self._ranks.rank))].clone()
        parts = own_totals.split([span.count for span in shards.own.values()]) if shards.own else ()
        return own_totals, dict(zip(shards.own, parts, strict=True))

    def _scaled(self, flat: Tensor, parts: Parameters, count: Tensor | None) -> Parameters:
        """Integers as multiples of the unit, in their own memory; NaN if a sum of any rank was out of range."""
        if count is not None:
            count.copy_(self._rest[COUNT].double() / 2.0)
        nan = flat.new_full((), torch.nan, dtype=torch.float64)
        scale = torch.where(self._rest[BROKEN] > 0, nan, self._unit)
        if STEPS is None or flat.device.type != "cpu" or not STEPS.from_grid(flat, float(scale)):
            for part in _pieces(flat):
                part.view(torch.float64).copy_(part).mul_(scale)
        shapes = self._shapes if self._shards is None else {}
        return {name: part.view(torch.float64).view(shapes.get(name, part.shape)) for name, part in parts.items()}


def _require_sizes(gradients: Tensor, factors: Tensor, numbers: int, group: int) -> None:
    if gradients.shape != (factors.shape[0], numbers) or group < 1:
        sizes = f"{tuple(gradients.shape)} gradients and {len(factors)} factors in groups of {group}"
        raise PrivacyError(f"{sizes} do not add up to {numbers} numbers")


def _products(left: Tensor, right: Tensor, group: int, numbers: int) -> Iterator[tuple[int, Tensor]]:
    """A parameter's products of each group, some rows at a time: the first row, and float32 (rows, q)."""
    require_ieee()
    _require_factors(left, right, group, numbers)
    rows = _rows_of_product(left, right)
    for first in range(0, left.shape[1], rows):
        columns = left[:, first : first + rows]
        for columns_group, by in zip(columns.split(group), right.split(group), strict=True):
            yield first, torch.mm(columns_group.mT, by)


def _require_factors(left: Tensor, right: Tensor, group: int, numbers: int) -> None:
    if len(left) != len(right) or left.shape[1] * right.shape[1] != numbers or group < 1:
        sizes = f"{tuple(left.shape)} and {tuple(right.shape)} in groups of {group}"
        raise PrivacyError(f"factors {sizes} do not multiply to {numbers} numbers")


def products_of_groups(left: Tensor, right: Tensor, group: int) -> Iterator[Tensor]:
    """Σ_i l_i ⊗ r_i of each group on a GPU, some groups at a time: float32 (groups, p · q) from (n, p) and (n, q).

    >>> [each.tolist() for each in products_of_groups(torch.ones(5, 1), torch.ones(5, 2), 2)]
    [[[2.0, 2.0], [2.0, 2.0]], [[1.0, 1.0]]]
    >>> [each.tolist() for each in products_of_groups(torch.ones(6, 1), torch.ones(6, 1), 4)]
    [[[3.0], [3.0]]]
    """
    require_ieee()
    rows, p, q = left.shape[0], left.shape[1], right.shape[1]
    at_once = max(1, GPU_CHUNK_BYTES // (8 * p * q)) * group
    groups = -(-rows // group)
    group = rows // groups if rows % groups == 0 else group  # none is left over: one product for all
    full = rows // group * group
    for first in range(0, full, at_once):
        left_group, by = (each[first : min(first + at_once, full)].unflatten(0, (-1, group)) for each in (left, right))
        yield torch.bmm(left_group.mT, by).flatten(1)
    if full < rows:
        yield torch.mm(left[full:].mT, right[full:]).view(1, -1)


def _rows_of_product(left: Tensor, right: Tensor) -> int:
    """How many rows of a parameter are one product: on a processor, the product and its totals stay in the cache, and
    other threads take other rows. Depends on sizes only: products of other shapes may have other bits."""
    p, q = left.shape[1], right.shape[1]
    if left.device.type != "cpu":
        return p
    parts = max(PARTS, -(-p * q // PRODUCT))
    return max(LEAST_ROWS, -(-p // (parts * TILE_ROWS)) * TILE_ROWS)


def begin_pass(
    masks: Sequence[Masks], number: int, rows: int, grid: Grid | Floats | None, views: Views | None = None
) -> None:
    """Sets dropout and views to the records of this rank's pass with this number."""
    first = first_row(number, rows, ALONE if grid is None else grid.ranks)
    if views is not None:
        views.begin_pass(first)
    for mask in masks:
        mask.begin_pass(first * rows_of(views))


def _cloned(parts: Parameters) -> Parameters:
    return {name: part.clone() for name, part in parts.items()}


def _pieces(flat: Tensor) -> tuple[Tensor, ...]:
    return flat.split(PIECE) if flat.device.type == "cpu" else (flat,)
