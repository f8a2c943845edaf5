"""Integer shares of one budget, and the noise of a run that spends its share: what the runs of a study are made of.

On plain Gaussian sums both filters charge in proportion to μ² = T/σ², so that a share of the budget, in the filter's
units, is as good as a μ:

    gdp   1e12 units a unit of μ²            rdp   1e9 α*/2 units a unit of μ²

A run's T may be chosen after results were seen: whatever T is, σ = √(T/μ²) makes it μ-GDP, exactly, and its charge the
share. Every rounding is against the spender.
"""

from __future__ import annotations

import math
from typing import Any

from app.errors import InvalidRequest, PrivacyError
from app.privacy import events
from app.privacy.calibration import SIGMA_MAX, SIGMA_MIN
from app.privacy.filters import Filter, filter_of
from app.privacy.mechanism import (
    MIN_COUNT_NOISE,
    DelayedMechanism,
    MechanismConfig,
    NoisyMean,
    NoisySum,
    TrainingMechanism,
    of_two_queries,
)

Json = dict[str, Any]
# What all runs of a study have in common, of what they are priced with.
COMMON = ("training", "target_delta", "unit", "filter", "mean")
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


def double_steps(training: Json, steps: int) -> int:
    """How many of the steps query their batch twice."""
    delayed = training.get("delayed")
    return DelayedMechanism.model_validate(delayed).double_steps(steps) if delayed else 0


def noise_multiplier(share: int, steps: int, double: int, filter_: Filter) -> float:
    """σ = √((T + T₂)/μ²), moved up until the charge is at most the share; T₂ of the steps make two queries.

    Raises:
        PrivacyError: the share is nothing.
    """
    if share < 1:
        raise PrivacyError("a run without a share of the budget")
    sigma, nudge = math.sqrt((steps + double) * units_per_mu2(filter_) / share), 1e-12
    while filter_.charge_tree(events.gradient_sums(1.0, sigma, steps, double)) > share:
        sigma *= 1.0 + nudge
        nudge *= 2.0
    return sigma


def count_noise(training: Json, sigma: float) -> Json:
    """The count of an adaptive norm with its noise: what was asked for, or max(L/10, 5σ).

    Raises:
        InvalidRequest: less noise than MIN_COUNT_NOISE · σ was asked for.
    """
    asked = training.get("adaptive")
    if asked is None:
        return {}
    noise = asked["count_noise_multiplier"] or max(training["expected_batch_size"] / 10.0, 5.0 * sigma)
    if noise < MIN_COUNT_NOISE * sigma:
        least = MIN_COUNT_NOISE * sigma
        detail = f"at least {least:.4g}, twice the step's σ: the count is paid for out of the gradient's own noise"
        raise InvalidRequest.at("/clipping/adaptive/count_noise_multiplier", detail)
    return {"adaptive": {**asked, "count_noise_multiplier": noise}}


def run_mechanism(common: Json, run: Json, steps: int, max_grad_norm: float | None = None) -> MechanismConfig:
    """What a run of a study does to private data, and is charged for.

    Args:
        common: of the study, COMMON: `training` (without T and noise), `target_delta`, `unit`, `filter`, `mean`.
        run: its `share` of the training, in units; or, where batches are drawn, its `noise_multiplier`, fixed with T
            at admission; and its `releases`.
        steps: T.
        max_grad_norm: C, where it is searched.

    Raises:
        PrivacyError: σ lies beyond its bounds; admission looks at the shortest and the longest run.
        InvalidRequest: the count of an adaptive norm has too little noise; as above.
    """
    training = common["training"] | {"steps": steps}
    if max_grad_norm is not None:
        training["max_grad_norm"] = max_grad_norm
    sigma = run["noise_multiplier"]
    if sigma is None:
        filter_ = filter_of(common["filter"]["kind"], common["filter"].get("order"))
        sigma = noise_multiplier(run["share"], steps, double_steps(training, steps), filter_)
    if not (of_two_queries(sigma) if double_steps(training, steps) else sigma) >= SIGMA_MIN or sigma > SIGMA_MAX:
        raise PrivacyError(f"the noise multiplier {sigma:.4g} lies beyond its bounds")
    return MechanismConfig(
        unit=common["unit"],
        target_delta=common["target_delta"],
        training=TrainingMechanism.model_validate(
            {**training, "noise_multiplier": sigma, **count_noise(training, sigma)}
        ),
        releases=tuple(NoisySum.model_validate(release) for release in run["releases"]),
        mean=NoisyMean.model_validate(common["mean"]) if common.get("mean") else None,
    )
