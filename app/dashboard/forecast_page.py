"""When a budget would be used up: what was spent in the last 30 days, continued at the same rate.

    rate = spent in the last D days / D          D = min(30, the ledger's age in days), at least 1
    the cap is reached at today + (budget − spent) / rate

Only entries of the ledger go in, so it is as public as they are. It is no promise: jobs come as people want them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

DAYS = 30.0
LONGEST = timedelta(days=36_525)


@dataclass(frozen=True)
class Forecast:
    """A budget's rate and its end.

    Attributes:
        percent_per_day: of today's budget.
        days: over how many days the rate was taken.
        reached: when the cap is reached, at most a century away.
    """

    percent_per_day: float
    days: float
    reached: datetime


def forecast(
    settled: Iterable[tuple[datetime, int]], opened: datetime, spent: int, budget: int, today: datetime
) -> Forecast | None:
    """Continues the rate of the last 30 days; None if nothing was spent then, or nothing is left.

    Args:
        settled: when each job settled, and what it spent in the filter's units.
        opened: when the ledger was opened.
    """
    days = min(DAYS, max(1.0, (today - opened) / timedelta(days=1)))
    recent = sum(amount for at, amount in settled if at > today - timedelta(days=days))
    if recent <= 0 or spent >= budget:
        return None
    away = min(timedelta(days=min((budget - spent) * days / recent, LONGEST.days)), LONGEST)
    return Forecast(percent_per_day=100.0 * recent / days / budget, days=days, reached=today + away)
