"""A mechanism small enough to integrate: a few records, coins, rows, and a kernel that depends on a record's row.

A data set is a tuple of slots. A slot has the values of a unit's records, or EMPTY. A placing puts a step's drawn slots
into rows, a kernel says what a record adds in its row, and the release is the sum with Gaussian noise. `law` is the
sum's exact law over all coins and rows. `Release.epsilon` is the exact privacy of what is released, by integration.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

Value = float | None
Slot = tuple[Value, ...]
EMPTY: Slot = (None,)
Sum = tuple[float, ...]
Law = dict[Sum, float]
Rows = list[tuple[Value, int]]
Placing = Callable[[Sequence[Slot]], Iterator[tuple[float, Rows, int]]]  # (chance, values with rows, number of rows)
Kernel = Callable[[float, int, int], Sum]  # a value, its row, the number of rows
Densities = NDArray[np.float64]
Revealed = list[tuple[float, Law, Law]]  # (chance of what is revealed, the sum without x, the sum with x)

WIDTH = {1: 8_001, 2: 401}  # points of each axis


def alternating(value: float, row: int, rows: int) -> Sum:
    """Adds on even rows and takes on odd ones."""
    return (value if row % 2 == 0 else -value,)


def by_pass(value: float, row: int, rows: int) -> Sum:
    """Adds in the first pass of two rows and takes in later ones."""
    return (value if row < 2 else -value,)


def by_number_of_rows(value: float, row: int, rows: int) -> Sum:
    """Adds where the number of rows is even."""
    return (value if rows % 2 == 0 else -value,)


def one_sided(value: float, row: int, rows: int) -> Sum:
    """Negative values change their sign on odd rows; others do not, so that an attacker loses nothing to chance."""
    return (value if value > 0 or row % 2 == 0 else -value,)


def records_of(slots: Sequence[Slot]) -> list[float]:
    """The values in these slots, without the empty ones."""
    return [value for slot in slots for value in slot if value is not None]


def all_rows(count: int) -> Placing:
    """The construction: the drawn records take uniformly random rows out of `count`; a larger draw keeps a uniform
    subset. Empty slots are dropped first."""

    def place(drawn: Sequence[Slot]) -> Iterator[tuple[float, Rows, int]]:
        records = records_of(drawn)
        orders = list(itertools.permutations(range(max(count, len(records))), len(records)))
        for order in orders:
            yield 1.0 / len(orders), [(v, row) for v, row in zip(records, order, strict=True) if row < count], count

    return place


def packed_slots(drawn: Sequence[Slot]) -> Iterator[tuple[float, Rows, int]]:
    """Wrong: each slot, empty or not, tosses a coin, and the drawn ones are packed in their order."""
    values = [value for slot in drawn for value in slot]
    yield 1.0, [(value, row) for row, value in enumerate(values)], len(values)


def packed_records(drawn: Sequence[Slot]) -> Iterator[tuple[float, Rows, int]]:
    """Wrong: the drawn records are packed in their order."""
    return packed_slots([(value,) for value in records_of(drawn)])


def rows_of_the_draw(drawn: Sequence[Slot]) -> Iterator[tuple[float, Rows, int]]:
    """Wrong: random rows, but only as many as there are drawn records."""
    return all_rows(len(records_of(drawn)))(drawn)


def ascending_rows(count: int) -> Placing:
    """Wrong: a random set of rows, which the drawn records take in their order, so that places are not uniform."""

    def place(drawn: Sequence[Slot]) -> Iterator[tuple[float, Rows, int]]:
        records = records_of(drawn)
        subsets = list(itertools.combinations(range(count), len(records)))
        for subset in subsets:
            yield 1.0 / len(subsets), list(zip(records, subset, strict=True)), count

    return place


def last_row_for_the_last(count: int) -> Placing:
    """Wrong: the last slot's record takes the last row, the others random ones out of those that are left."""

    def place(drawn: Sequence[Slot]) -> Iterator[tuple[float, Rows, int]]:
        last = [(value, count - 1) for value in records_of(drawn[-1:])]
        for chance, rows, _ in all_rows(count - len(last))(drawn[:-1]):
            yield chance, [*rows, *last], count

    return place


def largest_batch(most: int) -> Placing:
    """The construction with a largest batch: a uniform subset of the drawn records takes random rows."""

    def place(drawn: Sequence[Slot]) -> Iterator[tuple[float, Rows, int]]:
        records = [slot for slot in drawn if slot != EMPTY]
        subsets = list(itertools.combinations(records, min(most, len(records))))
        for subset in subsets:
            for chance, rows, count in all_rows(most)(subset):
                yield chance / len(subsets), rows, count

    return place


def law(slots: Sequence[Slot], rate: float, placing: Placing, kernel: Kernel) -> Law:
    """The exact law of one step's sum."""
    sums: Law = {}
    for coins in itertools.product((False, True), repeat=len(slots)):
        chance = math.prod(rate if coin else 1.0 - rate for coin in coins)
        if chance == 0.0:
            continue
        for share, rows, count in placing([slot for slot, coin in zip(slots, coins, strict=True) if coin]):
            total = sum_of(rows, count, kernel)
            sums[total] = sums.get(total, 0.0) + chance * share
    return sums


def sum_of(rows: Rows, count: int, kernel: Kernel) -> Sum:
    """What the records in these rows add up to; an empty row adds nothing."""
    added = [kernel(value, row, count) for value, row in rows if value is not None]
    width = len(kernel(1.0, 0, count))
    return tuple(round(sum(each[at] for each in added), 9) for at in range(width))


def revealed(others: Sequence[Slot], x: Slot, rate: float, count: int, kernel: Kernel) -> Revealed:
    """The theorem's pairs: the others' coins and all rows are revealed, x's coin is not.

    A full batch has rate 1. Where others of one record each fill all rows, x takes the row of one of them, with a
    probability of at most `rate`.
    """
    pairs: Revealed = []
    for coins in itertools.product((False, True), repeat=len(others)):
        drawn = [each for each, coin in zip(others, coins, strict=True) if coin]
        chance = math.prod(rate if coin else 1.0 - rate for coin in coins)
        if chance == 0.0:
            continue
        if len(records_of([*drawn, x])) <= count:
            for share, rows, _ in all_rows(count)([*drawn, x]):
                pairs.append(_pair(chance * share, rate, rows[: -len(x)], rows, count, kernel))
            continue
        chosen = rate * count / (len(drawn) + 1)
        for share, rows, _ in all_rows(count)(drawn):
            for at, (_, row) in enumerate(rows):
                replaced = [*rows[:at], *rows[at + 1 :], (x[0], row)]
                pairs.append(_pair(chance * share / count, chosen, rows, replaced, count, kernel))
    return pairs


def revealed_to_overflow(others: Sequence[Slot], x: Slot, rate: float, count: int, kernel: Kernel) -> Revealed:
    """As `revealed`, for units of several records and draws larger than `count` rows: all rows of D ∪ {x} are revealed.
    D's are these without x's; where records had no row, some of them move up into x's.
    """
    pairs: Revealed = []
    for coins in itertools.product((False, True), repeat=len(others)):
        records = records_of([each for each, coin in zip(others, coins, strict=True) if coin])
        chance = math.prod(rate if coin else 1.0 - rate for coin in coins)
        values, places = [*records, *records_of([x])], max(count, len(records) + len(x))
        orders = list(itertools.permutations(range(places), len(values)))
        for order in orders:
            without = list(order[: len(records)])
            for last, free in zip(
                range(places - 1, max(count, len(records)) - 1, -1), order[len(records) :], strict=False
            ):
                without = [free if row == last else row for row in without]
            laid = (_laid(records, without, count), _laid(values, order, count))
            pairs.append(_pair(chance / len(orders), rate, *laid, count, kernel))
    return pairs


def _laid(values: Sequence[float], order: Sequence[int], count: int) -> Rows:
    return [(value, row) for value, row in zip(values, order, strict=True) if row < count]


def _pair(
    chance: float, rate: float, without: Rows, joined: Rows, count: int, kernel: Kernel
) -> tuple[float, Law, Law]:
    """Where x joins with this rate; the sum without x is taken as the origin, which the attacker knows."""
    base, moved = (sum_of(rows, count, kernel) for rows in (without, joined))
    change = tuple(round(one - other, 9) for one, other in zip(moved, base, strict=True))
    origin = tuple(0.0 for _ in base)
    if rate >= 1.0:
        return chance, {origin: 1.0}, {change: 1.0}
    return chance, {origin: 1.0}, {origin: 1.0 - rate, change: rate}


class Release:
    """Sums with Gaussian noise, for data sets without and with x.

    Args:
        pairs: of laws, with the chances of what is revealed beside the release; one pair where nothing is.
        sigma: the noise's standard deviation, in each coordinate.
    """

    def __init__(self, pairs: Revealed, sigma: float) -> None:
        merged: dict[tuple[tuple[tuple[Sum, float], ...], ...], float] = {}
        for chance, *laws in pairs:
            key = tuple(tuple(sorted(each.items())) for each in laws)
            merged[key] = merged.get(key, 0.0) + chance
        self._pairs = [(chance, dict(one), dict(other)) for (one, other), chance in merged.items()]
        values = [number for _, *laws in self._pairs for sums in laws for total in sums for number in total]
        width = len(next(iter(self._pairs[0][1])))
        self.axis = np.linspace(min(values) - 9.0 * sigma, max(values) + 9.0 * sigma, WIDTH[width])
        self._cell = float(self.axis[1] - self.axis[0]) ** width
        self.densities = [
            (chance, self._density(one, sigma), self._density(other, sigma)) for chance, one, other in self._pairs
        ]

    def _density(self, sums: Law, sigma: float) -> Densities:
        parts = []
        for total, chance in sums.items():
            axes = [np.exp(-(((self.axis - mean) / sigma) ** 2) / 2.0) for mean in total]
            scale = (sigma * math.sqrt(2.0 * math.pi)) ** len(total)
            density = axes[0] if len(axes) == 1 else np.outer(*axes)
            parts.append(chance * density / scale)
        return np.sum(parts, axis=0)  # type: ignore[no-any-return]

    def delta(self, epsilon: float) -> float:
        """The larger hockey-stick divergence of both directions, averaged over what is revealed."""
        return max(self.deltas(epsilon))

    def deltas(self, epsilon: float) -> tuple[float, float]:
        """δ for adding x to a data set, and for removing it."""
        factor, both = math.exp(epsilon), [0.0, 0.0]
        for chance, without, joined in self.densities:
            for at, (one, other) in enumerate(((joined, without), (without, joined))):
                both[at] += chance * float(np.maximum(one - factor * other, 0.0).sum()) * self._cell
        return both[0], both[1]

    def epsilon(self, delta: float) -> float:
        """The smallest ε at which δ is this."""
        low, high = 0.0, 40.0
        while high - low > 1e-5:
            middle = (low + high) / 2.0
            low, high = (middle, high) if self.delta(middle) > delta else (low, middle)
        return high

    def composed_epsilon(self, delta: float, steps: int, grid: float = 1e-4) -> float:
        """ε of many independent steps, from the law of one step's loss, rounded to a grid; of one pair in 1-D."""
        ((_, without, joined),) = self.densities
        return max(
            _composed(one * self._cell, other * self._cell, delta, steps, grid)
            for one, other in ((without, joined), (joined, without))
        )


def _composed(mass: Densities, other: Densities, delta: float, steps: int, grid: float) -> float:
    inside = (mass > 1e-25) & (other > 0)
    losses = np.rint(np.log(mass[inside] / other[inside]) / grid).astype(np.int64)
    low = int(losses.min())
    single = np.bincount(losses - low, weights=mass[inside])
    span = 2**20  # of losses around zero, 105 nats: what lies outside has no mass that counts
    transform = np.fft.rfft(single, span)
    result = np.fft.irfft(transform**steps, span)
    values = ((np.arange(span) + low * steps + span // 2) % span - span // 2) * grid
    lower, upper = 0.0, 60.0
    while upper - lower > 1e-4:
        middle = (lower + upper) / 2.0
        over = values > middle
        exceeds = float((result[over] * -np.expm1(middle - values[over])).sum()) > delta
        lower, upper = (middle, upper) if exceeds else (lower, middle)
    return upper
