"""What one job reads as under an `rdp` filter: its charge at the fixed order, converted to ε at the cap's δ.

The order is fixed before the jobs are known, so a job alone reads higher than its own ε, and far from the job that the
order was chosen for much higher. All of it follows from declared numbers.
"""

from __future__ import annotations

import math

from core.privacy import gdp
from core.privacy.filters import RdpFilter

SHARES = (1 / 12, 1 / 4, 2 / 3)  # of a cap's ε: jobs as examples


def full_batch(order: float, epsilon: float, delta: float) -> float:
    """What a full-batch job of ε alone reads as: α μ²/2 converted, with the job's μ(ε, δ).

    >>> round(full_batch(3.0, 8.0, 1e-5), 2)
    8.97
    """
    divergence = order * gdp.mu_from_epsilon(epsilon, delta) ** 2 / 2.0
    return RdpFilter(order).epsilon(math.ceil(divergence * 1e9), delta)


def of_registration(order: float, cap_epsilon: float, cap_delta: float) -> str:
    """What an owner should know whose order was chosen by default: for a quarter of the cap, in batches of 512."""
    sizes = [float(f"{cap_epsilon * share:.2g}") for share in SHARES]
    jobs = ", ".join(f"{each:g} as {_shown(full_batch(order, each, cap_delta))}" for each in sizes)
    return (
        f"the `rdp` filter adds all jobs up at one order for ever, here α = {order:g}, chosen for jobs of a quarter of "
        f"the cap in batches of 512. There a job alone reads higher than its own ε: full-batch jobs of ε = {jobs}, of "
        f"the cap's {cap_epsilon:g}. Jobs with little noise in small batches read higher still. Declare `typical_job` "
        "(`epsilon`, `expected_batch_size`, `epochs`) with the jobs that you plan, and the order follows from it"
    )


def of_job(order: float, amount: int, delta: float, epsilon: float, cap_epsilon: float) -> str | None:
    """Why a job whose own ε is below the cap does not fit an empty ledger; None if that is not the reason."""
    reading = RdpFilter(order).epsilon(amount, delta)
    if epsilon > cap_epsilon or reading <= cap_epsilon:
        return None
    return (
        f"the job's own ε is {epsilon:g}, but the `rdp` filter adds up at order α = {order:g}, where this job alone "
        f"reads as ε = {_shown(reading)}, more than the cap of {cap_epsilon:g}"
    )


def _shown(epsilon: float) -> str:
    """Rounded up to three digits."""
    unit = 10.0 ** (math.floor(math.log10(epsilon)) - 2)
    return f"{math.ceil(epsilon / unit * (1.0 - 1e-12)) * unit:.6g}"
