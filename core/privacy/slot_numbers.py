"""How many places a part has for its records, and how many rows a step has for those that it draws.

Both are public. The records sit in secret, uniformly random places; the other places stay empty. So two neighbouring
data sets differ in one place, whatever kernels do with places (docs/theorems.md, "A record has a place of its own").
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import reduce

from core.contracts.slots import PartSlots, Slots

EXTRA = 64  # slots beyond, so that small data sets have a margin too
SPREADS = 6.0  # standard deviations of a hash split that slots leave room for
TAIL_BITS = 60  # a step's draw exceeds its rows with a probability of at most 2⁻⁶⁰
ROUNDING = 1.0 - 1e-6  # of the exponent of a tail bound, which float64 computes


def default_slots(units: int, *, all_units: int | None = None) -> int:
    """Returns N for a part whose public count is `units`: ⌈1.05 d⌉ + 64, and the spread of a hash split.

    Args:
        units: d, the declared units of the part.
        all_units: the declared units of the data set, if a keyed hash splits it: the part's actual number then has
        variance
            f (1 − f) · whole, where no records are equal.

    >>> default_slots(1000), default_slots(20_000, all_units=25_000)
    (1114, 21444)
    """
    return with_margin(units, 0.0 if all_units is None else units * (all_units - units) / all_units)


def with_margin(units: int, variance: float) -> int:
    """Returns ⌈1.05 d⌉ + 64, and six standard deviations of a split.

    Args:
        variance: of the part's actual number: f (1 − f) Σ (class size)² over classes of equal records, as these fall on
            one side.

    >>> with_margin(20_000, 4000.0), with_margin(20_000, 100 * 4000.0)
    (21444, 24859)
    """
    return -(-units * 21 // 20) + EXTRA + math.ceil(SPREADS * math.sqrt(variance))


def unstated_slots(units: int) -> int:
    """Returns N of a data set that was registered before there were slots: 2d + 64, which registration admitted.

    >>> unstated_slots(1000)
    2064
    """
    return 2 * units + EXTRA


def slots_of(stated: Slots | None, records_train: int, records_per_unit: int) -> Slots:
    """Returns a data set's slots: as stated, or those that an old registration admitted. It counted the training part
    alone, so of its hold-out none are known.

    Args:
        stated: in the declaration; None: it was registered before there were slots.
        records_train: the declared units of its training part.
        records_per_unit: k.

    >>> slots_of(None, 10, 3)
    Slots(train=PartSlots(units=84, rows=252), holdout=None)
    """
    if stated is not None:
        return stated
    units = unstated_slots(records_train)
    return Slots(train=PartSlots(units=units, rows=records_per_unit * units))


def added(slots: Iterable[Slots]) -> Slots:
    """Returns the slots of several blocks together; at least one."""
    return reduce(Slots.__add__, slots)


def rows_of_step(slots: PartSlots, sample_rate: float, records_per_unit: int = 1) -> int:
    """Returns R, the rows of each Poisson step: more records are drawn with a probability of at most 2⁻⁶⁰.

    With M = ⌈rows/k⌉ and the smallest B for which exp(−M · KL(B/M ‖ q)) ≤ 2⁻⁶⁰, R = k(B + 1) − 1: so neither do the
    others' records fill R − k + 1 rows. Where k > 1 the sum of records is Σ c_u b_u with c_u ≤ k and Σ c_u ≤ rows; its
    moments e^{λ c_u} are convex in c_u, so those of k · Bin(M, q) bound them, and Chernoff's bound is the same.

    Args:
        slots: of the training part.
        sample_rate: q.
        records_per_unit: k.

    >>> rows_of_step(PartSlots(units=60_000, rows=60_000), 256 / 60_000)
    415
    """
    k = records_per_unit
    units = -(-slots.rows // k)
    if sample_rate >= 1.0:
        return slots.rows
    low, high = min(units, math.floor(units * sample_rate)), units + 1  # at `high` no draw is so large
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if _tail_bits(units, middle, sample_rate) >= TAIL_BITS else (middle, high)
    return min(k * (high + 1) - 1, slots.rows)


def _tail_bits(units: int, count: int, rate: float) -> float:
    """−log₂ of Chernoff's bound on P(Bin(units, rate) ≥ count), rounded down."""
    share = count / units
    if share <= rate:
        return 0.0
    tail = 0.0 if count >= units else (1.0 - share) * (math.log1p(-share) - math.log1p(-rate))
    return units * (share * math.log(share / rate) + tail) / math.log(2.0) * ROUNDING
