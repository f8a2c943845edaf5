"""The accountants of record: what each must have, and which one an event's ε is from.

A new one is a module with these functions, its name in core.contracts.base and its place in OF_RECORD.
"""

from __future__ import annotations

from typing import Protocol

from core.contracts.base import AccountantName
from core.privacy import gdp, pld, renyi
from core.privacy.events import Event


class Accountant(Protocol):
    """A module that computes an upper bound on ε. Every function is pure, and its results are public."""

    NAME: AccountantName

    def takes(self, event: Event) -> bool:
        """True if it can account for the event."""
        ...

    def resolves(self, delta: float, steps: int) -> bool:
        """True if ε at δ after so many steps is a number in double precision."""
        ...

    def epsilon(self, event: Event, delta: float) -> float:
        """Returns ε ≥ 0, never too small; ∞ if it cannot resolve δ."""
        ...

    def estimate(self, event: Event, delta: float, target: float, steps: int) -> float:
        """Approximates ε quickly where it is about `target`: only the search for σ uses it."""
        ...

    def noise_multiplier(self, mu_squared: float, queries: int) -> float | None:
        """Returns σ in closed form for this many equal sums within a budget of μ²; None if there is no such form."""
        ...


OF_RECORD: tuple[Accountant, ...] = (gdp, renyi, pld)  # the first that takes an event is the most exact


def of(event: Event) -> Accountant:
    """Returns the accountant of record of an event.

    >>> from core.privacy.events import noisy_sums
    >>> of(noisy_sums(1.0, 2.0, steps=10)).NAME, of(noisy_sums(0.1, 2.0, steps=10)).NAME
    ('gdp', 'pld')
    """
    return next(each for each in OF_RECORD if each.takes(event))
