"""Integer shares of one budget, and the noise of a run that spends its share: what the runs of a study are made of.

On plain Gaussian sums both filters charge in proportion to μ² = T/σ², so that a share of the budget, in the filter's
units, is as good as a μ:

    gdp   1e12 units a unit of μ²            rdp   1e9 α*/2 units a unit of μ²

A run's T may be chosen after results were seen: whatever T is, σ = √(T/μ²) makes it μ-GDP, exactly, and its charge the
share. Every rounding is against the spender.
"""

from __future__ import annotations

import math

from app.errors import PrivacyError
from app.privacy import events
from app.privacy.calibration import SIGMA_MAX, SIGMA_MIN
from app.privacy.events import of_two_queries
from app.privacy.filters import Filter
from app.privacy.mechanism import MechanismConfig
from app.privacy.plans import StudyCommon
from app.privacy.releases import NoisyCount, NoisySum

# Of float arithmetic on the way from μ² to units: more than a charge is rounded up by.
_ROUNDING = 4e-12


def units_per_mu2(filter_: Filter) -> float:
    """What a plain Gaussian mechanism with μ = 1 is charged, in units."""
    return 1e12 if filter_.order is None else 0.5e9 * filter_.order


def units_of(mu_squared: float, filter_: Filter) -> int:
    """The largest share whose runs together are at most μ-GDP."""
    return math.floor(mu_squared * units_per_mu2(filter_) * (1.0 - _ROUNDING))


def mu_of_share(share: int, filter_: Filter) -> float:
    """μ of a run that spends the share."""
    return math.sqrt(share / units_per_mu2(filter_))


def noise_multiplier(share: int, steps: int, double: int, filter_: Filter) -> float:
    """σ = √((T + T₂)/μ²), moved up until the charge is at most the share; T₂ of the steps make two queries.

    Raises:
        PrivacyError: the share is nothing.
    """
    if share < 1:
        raise PrivacyError("a run without a share of the budget")
    sigma, nudge = math.sqrt((steps + double) * units_per_mu2(filter_) / share), 1e-12
    while filter_.charge_event(events.gradient_sums(1.0, sigma, steps, double)) > share:
        sigma *= 1.0 + nudge
        nudge *= 2.0
    return sigma


def run_mechanism(
    common: StudyCommon,
    *,
    share: int,
    sigma: float | None,
    scores: tuple[NoisyCount | NoisySum, ...],
    steps: int,
    max_grad_norm: float | None = None,
) -> MechanismConfig:
    """What a run of a study does to private data, and is charged for.

    Args:
        share: of its training, in units.
        sigma: where batches are drawn its noise multiplier, fixed with T at admission; None: the share decides.
        scores: what it releases at evaluations.
        steps: T.
        max_grad_norm: C, where it is searched.

    Raises:
        PrivacyError: σ lies beyond its bounds; admission looks at the shortest and the longest run.
        InvalidRequest: the count of an adaptive norm has too little noise.
    """
    searched = {} if max_grad_norm is None else {"max_grad_norm": max_grad_norm}
    training = common.training.model_copy(update={"steps": steps, **searched})
    double = training.double_steps()
    if sigma is None:
        sigma = noise_multiplier(share, steps, double, common.filter.build())
    if not (of_two_queries(sigma) if double else sigma) >= SIGMA_MIN or sigma > SIGMA_MAX:
        raise PrivacyError(f"the noise multiplier {sigma:.4g} lies beyond its bounds")
    return MechanismConfig(
        unit=common.unit,
        target_delta=common.target_delta,
        training=training.with_noise(sigma),
        releases=(*common.before, *scores),
    )
