"""Divides a study's total among its trials, in integer units of the filter.

Full batch: Gaussian differential privacy composes exactly. The final trial gets the μ that the others leave,

    μ_f² = μ(ε, δ)² − Σ μ_pilot² − Σ μ_score²

so that the parts add up to the total to the unit. μ_f is frozen. T and σ of a trial may be chosen after scores were
seen, because √T/σ = μ for any T.

Poisson sampling: composing privacy loss distributions is not valid if q or T is chosen after results were seen. So q, T
and σ of every trial are fixed here, and only the learning rate (and C, which costs nothing) adapts.

Source: Panda et al. 2024, Algorithm 1; Dong, Roth & Su 2022, Corollary 2 (composition of μ's).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from decimal import ROUND_CEILING, Decimal
from functools import lru_cache

from core.errors import InvalidRequest
from core.privacy import calibration, events, gdp, pld
from core.privacy.accounting import epsilon_of
from core.privacy.calibration import SIGMA_MAX, SIGMA_MIN, Calibration
from core.privacy.events import Event, of_two_queries
from core.privacy.filters import Filter
from core.privacy.price_requests import StudyRequest, StudyRun
from core.privacy.prices import PricedRun, Units
from core.privacy.shares import mu_of_share, noise_multiplier, run_mechanism, units_of, units_per_mu2

_TOTAL, _LEVELS = "/privacy/target_epsilon", "/hpo/levels"


@dataclass(frozen=True)
class Share:
    """The price of a trial's training, without its releases; see PricedRun for the fields."""

    units: int
    mu: float
    epsilon: float
    noise_multiplier: float | None = None


@dataclass(frozen=True)
class Released:
    """A trial's events on each account besides its training."""

    train: tuple[Event, ...]
    holdout: tuple[Event, ...]


def price_runs(request: StudyRequest) -> list[PricedRun]:
    """Divides the total among the trials of a study.

    Raises:
        InvalidRequest: the total is too small (`smallest_total_epsilon` is the least that works), or no noise within
            the bounds fits.
    """
    filter_ = request.filter.build()
    released = releases_of(request)
    _check_holdout(request, released)
    on_train = [_charge(filter_, each.train) for each in released]
    on_holdout = [_charge(filter_, each.holdout) for each in released]
    if request.training.sampling == "poisson":
        shares = _sampled(request, filter_, released)
    else:
        shares = _full_batch(request, filter_, on_train)
    return [
        PricedRun(
            share=share.units,
            mu=share.mu,
            epsilon=share.epsilon,
            noise_multiplier=share.noise_multiplier,
            charge=Units(train=share.units + train, holdout=holdout),
        )
        for share, train, holdout in zip(shares, on_train, on_holdout, strict=True)
    ]


def releases_of(request: StudyRequest) -> list[Released]:
    """Returns each trial's own releases before the first step, and its scores."""
    return [_released(request, number, run) for number, run in enumerate(request.runs)]


def _released(request: StudyRequest, number: int, run: StudyRun) -> Released:
    events_before = [each.event for each in request.before(number)]
    scores = {name: [each.event for each in run.releases if each.account == name] for name in ("train", "holdout")}
    return Released(train=(*events_before, *scores["train"]), holdout=tuple(scores["holdout"]))


def others_of(request: StudyRequest, released: list[Released]) -> list[Event]:
    """For a Poisson-sampled study: all events but the trainings that share the rest of the total."""
    training = request.training
    events_of = [event for each in released for event in each.train]
    for run in request.runs:
        if run.level is not None:
            sigma = _at_level(request, request.levels[run.level]).noise_multiplier
            events_of.append(events.gradient_sums(training.sample_rate, sigma, training.steps, training.double_steps()))
    return events_of


def _charge(filter_: Filter, events_done: tuple[Event, ...]) -> int:
    return sum(filter_.charge_event(event) for event in events_done)


def _full_batch(request: StudyRequest, filter_: Filter, scores: list[int]) -> list[Share]:
    """Shares in units: pilots get their levels' worth, scores their charge; the other trials share the rest."""
    delta, runs = request.target_delta, request.runs
    total = units_of(gdp.mu_from_epsilon(request.total_epsilon, delta) ** 2, filter_)
    levels = [units_of(gdp.mu_from_epsilon(level, delta) ** 2, filter_) for level in request.levels]
    if request.oracle:
        shares = [total - score for score in scores]
    else:
        fixed = sum(scores) + sum(levels[run.level] for run in runs if run.level is not None)
        sharers = [number for number, run in enumerate(runs) if run.level is None]
        smallest = _least_share(request, filter_)
        if total - fixed < smallest * len(sharers):
            raise _too_small(_smallest_gdp_total(request, filter_, fixed + smallest * len(sharers)))
        unit_share, remainder = divmod(total - fixed, len(sharers))
        shares = [levels[run.level] if run.level is not None else unit_share for run in runs]
        for number in sharers[:remainder]:
            shares[number] += 1
    for share, run in dict(zip(shares, runs, strict=True)).items():
        _check_noise(request, filter_, run, share)
    mus = {share: mu_of_share(share, filter_) for share in shares}
    epsilons = {share: gdp.epsilon_from_mu(mu, delta) for share, mu in mus.items()}
    return [Share(share, mus[share], epsilons[share]) for share in shares]


def _sampled(request: StudyRequest, filter_: Filter, released: list[Released]) -> list[Share]:
    """Calibrates σ for each level by itself, then for the rest, composed with everything else."""
    delta, training = request.target_delta, request.training
    steps, rate, double = training.steps, training.sample_rate, training.double_steps()
    at_level = [_at_level(request, level) for level in request.levels]
    other_events, sharers = others_of(request, released), request.sharers
    if request.oracle:  # each trial is priced by itself, and all are alike
        other_events, sharers = list(released[0].train), 1
    # Refuses before calibration if the final trial would be noisier than the noisiest pilot, or if hardly any budget
    # is left.
    noisiest = at_level[0].noise_multiplier if at_level else SIGMA_MAX
    lowest = pld.epsilon(
        events.composed([*other_events, *[events.gradient_sums(rate, noisiest, steps, double)] * sharers]), delta
    )
    smallest = _round_up(lowest * (1.0 + 2.0 * calibration.SLACK if at_level else 1.05))
    if request.total_epsilon < smallest:
        raise _too_small(smallest)
    calibrated = calibration.calibrate(
        request.total_epsilon, delta, rate, steps * sharers, other_events, double * sharers
    ).noise_multiplier
    single = Calibration(calibrated, epsilon_of(events.gradient_sums(rate, calibrated, steps, double), delta).value)
    shares = []
    for run in request.runs:
        sigma, epsilon = single if run.level is None else at_level[run.level]
        units = filter_.charge_event(events.gradient_sums(rate, sigma, steps, double))
        training.count(sigma)
        shares.append(Share(units, gdp.mu_from_epsilon(max(epsilon, 1e-6), delta), epsilon, sigma))
    return shares


def _at_level(request: StudyRequest, level: float) -> Calibration:
    training = request.training
    return _calibrated(level, request.target_delta, training.sample_rate, training.steps, training.double_steps())


@lru_cache(maxsize=64)  # sweeps and `largest_that_fits` ask for the same levels again
def _calibrated(level: float, delta: float, rate: float, steps: int, double: int) -> Calibration:
    return calibration.calibrate(level, delta, rate, steps, (), double)


def _check_holdout(request: StudyRequest, released: list[Released]) -> None:
    """Scores on the hold-out are charged to its own account, which has the same total."""
    if request.oracle:
        return
    mu = gdp.mu_of_event(events.composed(event for each in released for event in each.holdout)) or 0.0
    epsilon = gdp.epsilon_from_mu(mu, request.target_delta)
    if epsilon > request.total_epsilon:
        raise _too_small(_round_up(epsilon), "the scores on the hold-out alone cost more than the total")


def _least_share(request: StudyRequest, filter_: Filter) -> int:
    """Returns the least share of a trial: at SIGMA_MAX and its longest T."""
    steps = request.steps[1]
    queries = steps + request.training.double_steps(steps)
    return max(1, math.ceil(queries * units_per_mu2(filter_) / SIGMA_MAX**2 * (1.0 + 1e-9)))


def _check_noise(request: StudyRequest, filter_: Filter, run: StudyRun, share: int) -> None:
    """Checks σ at the least and the largest T; it grows with T, so every T between them is within the bounds too."""
    pointer = _TOTAL if run.level is None else f"{_LEVELS}/{run.level}"
    if share < 1:
        raise InvalidRequest.at(pointer, "this is less than one unit of the data set's filter: raise it")
    for steps in request.steps:
        double = request.training.double_steps(steps)
        sigma = noise_multiplier(share, steps, double, filter_)
        if (of_two_queries(sigma) if double else sigma) < SIGMA_MIN:
            raise InvalidRequest.at(pointer, f"{steps} steps need a noise multiplier below {SIGMA_MIN:g}: lower ε")
        if sigma > SIGMA_MAX:
            raise InvalidRequest.at(pointer, f"{steps} steps need a noise multiplier above {SIGMA_MAX:g}: raise ε")
        run_mechanism(request.common, number=0, share=share, sigma=None, scores=(), steps=steps)


def _smallest_gdp_total(request: StudyRequest, filter_: Filter, units: int) -> float:
    """Returns the least ε, to four digits, with a budget of at least `units`."""
    delta = request.target_delta
    epsilon = _round_up(gdp.epsilon_from_mu(mu_of_share(units, filter_) * (1.0 + 1e-11), delta))
    while units_of(gdp.mu_from_epsilon(epsilon, delta) ** 2, filter_) < units:
        epsilon = _round_up(epsilon * (1.0 + 1e-5))
    return max(epsilon, 1e-4)


def _round_up(epsilon: float) -> float:
    return rounded(epsilon, ROUND_CEILING)


def rounded(epsilon: float, direction: str) -> float:
    """Rounds to four significant digits; `direction` is a rounding mode of `decimal`."""
    value = Decimal(repr(epsilon))
    return float(value.quantize(Decimal(1).scaleb(value.adjusted() - 3), rounding=direction))


def _too_small(smallest: float, reason: str | None = None) -> InvalidRequest:
    reason = reason or "trials and scores leave too little of the total for the final trial, whose model is delivered"
    detail = f"{reason}: the smallest total that works is ε = {smallest:g}"
    return InvalidRequest.at(_TOTAL, detail, smallest_total_epsilon=smallest)
