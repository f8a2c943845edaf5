"""Integer shares of one budget for a study's trials, and the noise of a trial that spends its share.

For plain Gaussian sums both filters charge in proportion to μ² = T/σ². So a share of the budget, in the filter's units,
determines a μ:

    gdp   1e12 units per unit of μ²          rdp   1e9 α*/2 units per unit of μ²

A trial's T may be chosen after results were seen: for any T, σ = √(T/μ²) makes the trial exactly μ-GDP, and its charge
is the share. All rounding is conservative.
"""

from __future__ import annotations

import math

from core.errors import PrivacyError
from core.privacy import events
from core.privacy.calibration import SIGMA_MAX, SIGMA_MIN
from core.privacy.events import of_two_queries
from core.privacy.filters import Filter
from core.privacy.mechanism import MechanismConfig
from core.privacy.price_requests import StudyCommon
from core.privacy.releases import NoisyCount, NoisySum

# Covers float arithmetic from μ² to units: larger than the rounding up of a charge.
_ROUNDING = 4e-12


def units_per_mu2(filter_: Filter) -> float:
    """Returns the charge for a plain Gaussian mechanism with μ = 1, in units."""
    return 1e12 if filter_.order is None else 0.5e9 * filter_.order


def units_of(mu_squared: float, filter_: Filter) -> int:
    """Returns the largest share that keeps the trials spending it at most μ-GDP together."""
    return math.floor(mu_squared * units_per_mu2(filter_) * (1.0 - _ROUNDING))


def mu_of_share(share: int, filter_: Filter) -> float:
    """Returns the μ of a trial that spends the share."""
    return math.sqrt(share / units_per_mu2(filter_))


def noise_multiplier(share: int, steps: int, double: int, filter_: Filter) -> float:
    """Returns σ = √((T + T₂)/μ²), raised until the charge is at most the share; T₂ of the steps make two queries.

    Raises:
        PrivacyError: the share is below one unit.
    """
    if share < 1:
        raise PrivacyError("a trial needs a share of at least one unit")
    sigma, nudge = math.sqrt((steps + double) * units_per_mu2(filter_) / share), 1e-12
    while filter_.charge_event(events.gradient_sums(1.0, sigma, steps, double)) > share:
        sigma *= 1.0 + nudge
        nudge *= 2.0
    return sigma


def run_mechanism(
    common: StudyCommon,
    *,
    number: int,
    share: int,
    sigma: float | None,
    scores: tuple[NoisyCount | NoisySum, ...],
    steps: int,
    max_grad_norm: float | None = None,
) -> MechanismConfig:
    """Returns the mechanism of a study's trial, which runs and is charged.

    Args:
        number: the trial's number: a mean for the whole study is the first trial's release.
        share: the share for its training, in units.
        sigma: under Poisson sampling its noise multiplier, fixed with T at admission; None: the share decides.
        scores: its releases at evaluations.
        steps: T.
        max_grad_norm: C, if the study varies it.

    Raises:
        PrivacyError: σ is out of bounds; admission checks the shortest and the longest trial.
        InvalidRequest: the count of an adaptive norm has too little noise.
    """
    searched = {} if max_grad_norm is None else {"max_grad_norm": max_grad_norm}
    training = common.training.model_copy(update={"steps": steps, **searched})
    double = training.double_steps()
    if sigma is None:
        sigma = noise_multiplier(share, steps, double, common.filter.build())
    if not (of_two_queries(sigma) if double else sigma) >= SIGMA_MIN or sigma > SIGMA_MAX:
        raise PrivacyError(f"the noise multiplier {sigma:.4g} is out of bounds")
    return MechanismConfig(
        unit=common.unit,
        target_delta=common.target_delta,
        training=training.with_noise(sigma),
        releases=(*common.before(number), *scores),
    )
