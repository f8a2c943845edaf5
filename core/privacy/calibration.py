"""From a target ε to the noise that meets it: ε(calibrated plan) ≤ target, always.

The accountant of record of the plan says what its ε is (core.privacy.accountants). Full batch has a closed form,
σ = √T/μ(ε, δ). For Poisson sampling each ε(σ) takes a privacy loss distribution on a fine grid: 0.05 to 0.5 s. Plain
bisection needs a dozen or more of them. This module finds σ by the accountant's quick estimates instead; its ε then
confirms σ in one or two evaluations.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from core.errors import InvalidRequest
from core.privacy import accountants, events, gdp, rdp
from core.privacy.accountants import Accountant
from core.privacy.events import Event, Truncation

SIGMA_MIN, SIGMA_MAX = 0.1, 1e5

SLACK = 5e-4  # the calibrated plan's ε is at least target · (1 − SLACK), unless ε(σ) is too ragged to hit that
_ESTIMATED = (
    1.0 - 2e-4,
    1.0 - 1e-4,
)  # estimates aim below the target by more than their usual error
_TRIES = 16
_STEEPEST = -4.0  # steepest first slope d ln ε / d ln σ: a single step loses about 1/(2σ²), which falls like σ^−2
_STRIDE = 2.0  # ln ε is clipped to this distance from the aim, so that one outlier cannot derail the root finding

_TARGET = "/privacy/target_epsilon"

Plan = Callable[[float], Event]  # σ → the account's event
EpsilonAt = Callable[[float], float]  # σ → ε


class Calibration(NamedTuple):
    """A σ, and the plan's ε by the accountant of record at this σ."""

    noise_multiplier: float
    epsilon: float


def noise_multiplier(
    target_epsilon: float,
    target_delta: float,
    sample_rate: float,
    steps: int,
    other_events: Sequence[Event] = (),
) -> float:
    """Returns a σ at which `steps` noisy sums, composed with `other_events`, are (ε, δ)-DP with ε ≤ target_epsilon.

    Args:
        target_epsilon: ε > 0, finite.
        target_delta: δ in (0, 1).
        sample_rate: q in (0, 1]; 1 for full batch.
        steps: T ≥ 1.
        other_events: events with fixed noise; the same account pays for them out of the same target.

    Returns:
        σ in [0.1, 1e5], the noise's std over the sensitivity. Public: a function of the plan alone.

    Raises:
        InvalidRequest: the target is not a positive number, `other_events` alone cost more, or no σ in the range meets
        it.
    """
    return calibrate(target_epsilon, target_delta, sample_rate, steps, other_events).noise_multiplier


def calibrate(
    target_epsilon: float,
    target_delta: float,
    sample_rate: float,
    steps: int,
    others: Sequence[Event] = (),
    double_steps: int = 0,
    truncation: Truncation | None = None,
) -> Calibration:
    """As `noise_multiplier`, and returns the ε at this σ too. `double_steps` of the T steps query a batch twice.
    `truncation`: of Poisson batches."""
    if not (math.isfinite(target_epsilon) and target_epsilon > 0.0):
        raise InvalidRequest.at(_TARGET, "the target ε must be a finite number above 0")
    if not 0.0 < target_delta < 1.0:
        raise InvalidRequest.at("/privacy/target_delta", "δ must lie strictly between 0 and 1")

    def plan(sigma: float) -> Event:
        return events.composed([events.gradient_sums(sample_rate, sigma, steps, double_steps, truncation), *others])

    others_mu = gdp.mu_of_event(events.composed(others)) or 0.0
    left = gdp.mu_from_epsilon(target_epsilon, target_delta) ** 2 - others_mu**2
    if left <= 0.0:
        lowest = math.ceil(1e4 * gdp.epsilon_from_mu(others_mu, target_delta)) / 1e4
        detail = (
            f"the evaluation alone costs ε = {lowest:g}: ask for a larger target_epsilon than that, or lower noise_mu"
        )
        raise InvalidRequest.at(_TARGET, detail)
    queries = steps + double_steps
    accountant = accountants.of(plan(1.0))  # which one does not depend on σ
    if (closed := accountant.noise_multiplier(left, queries)) is not None:
        return _raised(accountant, plan, target_epsilon, target_delta, closed)
    if not accountant.resolves(target_delta, steps):
        detail = f"δ = {target_delta:g} is too small: double precision cannot resolve it after {steps} sampled steps"
        raise InvalidRequest.at("/privacy/target_delta", detail)
    return _searched(accountant, plan, target_epsilon, target_delta, steps, _first_trial(left, sample_rate, queries))


def rough_noise_multiplier(target_epsilon: float, target_delta: float, sample_rate: float, steps: int) -> float:
    """Approximates the σ of `noise_multiplier` quickly, for any δ; it guarantees nothing.

    Uses the RDP bound, which is a few percent too large. For a small ε no order suffices: there it uses the central
    limit theorem.
    """

    def epsilon_at(sigma: float) -> float:
        return rdp.epsilon(events.noisy_sums(sample_rate, sigma, steps), target_delta)[0]

    start = _first_trial(gdp.mu_from_epsilon(target_epsilon, target_delta) ** 2, sample_rate, steps)
    if target_epsilon < 0.1:
        return min(max(start.sigma, SIGMA_MIN), SIGMA_MAX)
    return _solve(epsilon_at, target_epsilon, (1.0 - 1e-2, 1.0), start).sigma


def _raised(accountant: Accountant, plan: Plan, target: float, delta: float, sigma: float) -> Calibration:
    """Starts at σ in closed form and raises it until ε(σ) ≤ target holds in floats."""
    nudge = 1e-12
    while (epsilon := accountant.epsilon(plan(sigma), delta)) > target:
        sigma *= 1.0 + nudge
        nudge *= 2.0
    if sigma < SIGMA_MIN:
        raise _too_little_noise(target)
    if sigma > SIGMA_MAX:
        raise _too_much_noise(target)
    return Calibration(sigma, epsilon)


def _searched(
    accountant: Accountant, plan: Plan, target: float, delta: float, steps: int, start: _Trial
) -> Calibration:
    """Solves by quick estimates for slightly less than the target, then refines by the accountant's ε."""

    def estimate(sigma: float) -> float:
        return accountant.estimate(plan(sigma), delta, target, steps)

    near = _solve(estimate, target, _ESTIMATED, start)
    exact = _solve(lambda sigma: accountant.epsilon(plan(sigma), delta), target, (1.0 - SLACK, 1.0), near)
    return Calibration(exact.sigma, exact.epsilon)


class _Trial(NamedTuple):
    sigma: float
    epsilon: float
    slope: float  # d ln ε / d ln σ nearby


def _first_trial(mu_squared: float, sample_rate: float, steps: int) -> _Trial:
    """Returns a first σ and its slope by the central limit theorem, μ² = q² T (e^{1/σ²} − 1); no guarantee."""
    precision = math.log1p(mu_squared / (sample_rate * sample_rate * steps))
    return _Trial(precision**-0.5, 0.0, max(precision / math.expm1(-precision), _STEEPEST))


def _solve(epsilon_at: EpsilonAt, target: float, window: tuple[float, float], start: _Trial) -> _Trial:
    """Finds a σ with ε(σ)/target in `window`, by bracketed secants in logarithms.

    ε(σ) falls like a power of σ, so the secant of the logarithms is nearly the curve. If rounding makes ε(σ) too
    ragged to hit the window, returns the best σ on the safe side.
    """
    lower, upper = target * window[0], target * window[1]
    floor, ceiling = math.log(SIGMA_MIN), math.log(SIGMA_MAX)
    low, high = floor, ceiling
    x, slope = min(max(math.log(start.sigma), low), high), start.slope
    best: _Trial | None = None
    last: tuple[float, float] | None = None
    for _ in range(_TRIES):
        epsilon = epsilon_at(math.exp(x))
        y = math.log(max(epsilon, 1e-300)) - 0.5 * math.log(lower * upper)
        y = min(max(y, -_STRIDE), _STRIDE)
        if last is not None and (y - last[1]) / (x - last[0]) < -0.2:
            slope = (y - last[1]) / (x - last[0])
        if epsilon <= upper and (best is None or epsilon > best.epsilon):
            best = _Trial(math.exp(x), epsilon, slope)
            if epsilon >= lower:
                return best
        low, high = (x, high) if y > 0.0 else (low, x)
        if high <= floor:
            raise _too_little_noise(target)
        if low >= ceiling:
            break
        last, x = (x, y), x - y / slope
        if not low < x < high:
            x = 0.5 * (low + high) if floor < low and high < ceiling else min(max(x, floor), ceiling)
    if best is None:
        raise _too_much_noise(target)
    return best


def _too_little_noise(target: float) -> InvalidRequest:
    detail = (
        f"ε = {target:g} needs a noise multiplier below {SIGMA_MIN:g}: lower the target, or take more or larger steps"
    )
    return InvalidRequest.at(_TARGET, detail)


def _too_much_noise(target: float) -> InvalidRequest:
    detail = (
        f"no noise multiplier up to {SIGMA_MAX:g} meets ε = {target:g} with this plan: raise ε, or take fewer steps"
    )
    return InvalidRequest.at(_TARGET, detail)
