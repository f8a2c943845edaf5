"""What more ε or more records would buy: how far private models of like shape were below the same without privacy.

Noise in a coordinate of a full-batch linear model falls with μ n, and is shared by d features. By μ n/d, runs on
fourteen public tables of two classes tell about how many points of AUC a job is below the model that has no privacy.
Nothing here has seen the data.
"""

from __future__ import annotations

import itertools
import math
from typing import NamedTuple

from core.contracts.base import Document

SOURCE = "fourteen public tables of two classes (benchmarks/reports/tables.md#outlook)"


class Kept(NamedTuple):
    """Kept runs about one μ n/d, and the quartiles of their points below the same model without privacy."""

    signal: float
    runs: int
    below: float
    low: float
    high: float


# By `python -m benchmarks.reproduce.tables_outlook`.
RUNS = (
    Kept(signal=2.2, runs=15, below=4.2, low=2.2, high=8.6),
    Kept(signal=6.0, runs=16, below=2.4, low=1.3, high=5.5),
    Kept(signal=12.1, runs=15, below=1.3, low=0.5, high=2.6),
    Kept(signal=23.3, runs=14, below=1.0, low=0.4, high=1.6),
    Kept(signal=43.1, runs=13, below=0.4, low=0.2, high=1.1),
    Kept(signal=83.1, runs=13, below=0.4, low=0.1, high=0.6),
    Kept(signal=171.6, runs=12, below=0.3, low=0.1, high=0.6),
)
NOTHING = 0.3  # points: less is within the spread of seeds


class Outcome(Document):
    """What a job is expected to reach: points of AUC below the same model without privacy. Half of the kept runs of
    like shape were between `low` and `high`."""

    what: str
    epsilon: float
    records: int
    below: float
    low: float
    high: float


class Outlook(Document):
    """A job beside the same with more ε, or more records."""

    outcomes: tuple[Outcome, ...]
    because: str


def told(signal: float, rows: tuple[Kept, ...] = RUNS) -> tuple[float, float, float]:
    """The points below at a μ n/d, and their quartiles: between rows by its logarithm; beyond the last, those of it.

    Raises:
        ValueError: no run had so little signal.

    >>> rows = (Kept(1.0, 9, 8.0, 4.0, 12.0), Kept(100.0, 9, 2.0, 0.0, 4.0))
    >>> told(10.0, rows), told(1e9, rows)
    ((5.0, 2.0, 8.0), (2.0, 0.0, 4.0))
    """
    first, last = rows[0], rows[-1]
    if signal < first.signal:
        raise ValueError(f"no run had a signal below {first.signal}")
    if signal >= last.signal:
        return last.below, last.low, last.high
    left, right = next(pair for pair in itertools.pairwise(rows) if signal <= pair[1].signal)
    share = math.log(signal / left.signal) / math.log(right.signal / left.signal)

    def between(a: float, b: float) -> float:
        return round(a + share * (b - a), 1)

    return between(left.below, right.below), between(left.low, right.low), between(left.high, right.high)
