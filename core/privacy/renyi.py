"""The Rényi accountant, of record for the best of a secret number of runs: nothing tighter is known for it."""

from __future__ import annotations

from core.contracts.base import AccountantName
from core.privacy import events, rdp
from core.privacy.events import Event

NAME: AccountantName = "rdp"


def takes(event: Event) -> bool:
    """True if the event has the best of several runs."""
    return any(leaf.weights for leaf in events.leaves(event))


def resolves(delta: float, steps: int) -> bool:
    """True: divergences know no smallest δ."""
    return True


def epsilon(event: Event, delta: float) -> float:
    """Returns the smallest ε at δ over the orders. The mechanism is fixed in advance, so any order is valid."""
    return rdp.epsilon(event, delta)[0]


def estimate(event: Event, delta: float, target: float, steps: int) -> float:
    """Returns the same: nothing is quicker."""
    return epsilon(event, delta)


def noise_multiplier(mu_squared: float, queries: int) -> float | None:
    """Returns None: σ has no closed form."""
    return None
