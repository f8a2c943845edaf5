"""Computes a job's price. Only the pricing process runs this module; answers are cached by request.

`price` returns a plan's cost, `largest_that_fits` the largest ε that still fits an account. Both are pure functions of
public numbers: they never see data.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from decimal import ROUND_FLOOR, Decimal

from scipy import optimize

from core.contracts.base import LARGEST_EPSILON, SMALLEST_EPSILON, AccountName, Epsilon
from core.errors import InvalidRequest
from core.privacy import calibration, events, gdp, rdp, renyi
from core.privacy.accounting import comparison, epsilon_of, of_record
from core.privacy.best_of import NO_BEST
from core.privacy.calibration import SIGMA_MAX, SIGMA_MIN
from core.privacy.events import BestOf, Event, Gaussian, of_two_queries
from core.privacy.filters import Filter
from core.privacy.mechanism import MIN_COUNT_NOISE, MechanismConfig
from core.privacy.price_requests import FitRequest, PlanRequest
from core.privacy.prices import Charge, Largest, Line, Price

_HOPELESS = 10.0 * LARGEST_EPSILON  # above this RDP ε no grid is built: it would not fit in memory
_DIGITS = 5  # digits of the largest ε that fits: rounded down by at most 1e-4 of it
_ACCOUNTS: tuple[AccountName, ...] = ("train", "holdout")
_SIGMA = "/privacy/noise_multiplier"


def price(request: PlanRequest) -> Price:
    """Prices a plan and fixes the mechanism that will run.

    Returns:
        `mechanism`; `epsilon` of the account that costs most, by the accountant of record (gdp where nothing is
        sampled, else pld); `comparison`: ε by gdp, rdp and pld for that account (None where one does not apply);
        `charge` per account, in the filter's unit; `lines`: one for the training or the statistics, for a histogram of
        items, for a mean of features, and for each release.

    Raises:
        InvalidRequest: the plan cannot run within the bounds, the filter does not admit it, or the evaluation costs
            more than the target.
    """
    filter_ = _filter(request)
    mechanism, calibrated = _mechanism(request)
    delta, unit = mechanism.target_delta, mechanism.unit
    events_done = {account: mechanism.event(account) for account in _ACCOUNTS}
    given_calibration = {"train": calibrated.model_copy(update={"unit": unit})} if calibrated else {}
    epsilons = {
        name: given_calibration.get(name) or epsilon_of(event, delta, unit) for name, event in events_done.items()
    }
    _check_total(request.target_epsilon, mechanism, epsilons)
    account: AccountName = "train" if epsilons["train"].value >= epsilons["holdout"].value else "holdout"
    if mechanism.selection is not None:
        lines = _lines_of_best(mechanism, filter_, epsilons)
    else:
        lines = _lines(mechanism, filter_, epsilons["train"] if len(events_done["train"].events) == 1 else None)
    charge = {name: sum(line.charge for line in lines if line.account == name) for name in _ACCOUNTS}
    return Price(
        mechanism=mechanism,
        epsilon=epsilons[account],
        comparison=comparison(events_done[account], epsilons[account]),
        charge=Charge(train=charge["train"], holdout=charge["holdout"], unit=filter_.unit),
        lines=tuple(lines),
    )


def largest_that_fits(request: FitRequest) -> Largest:
    """Finds the largest target ε whose price fits the remaining units; ignores the plan's own ε and σ.

    Under either filter the charge falls as σ grows, and so does ε(σ). So the smallest σ that `train` can pay gives an
    ε, and calibration gives every target below it at least this σ.

    Returns:
        `epsilon`, rounded down to five digits, or None if no target fits; `account`, the one that binds.
        A price for that ε fits; a price for 0.1 % more does not (or exceeds the contract's bounds).
    """
    plan, remaining = request.plan, request.remaining
    if plan.selection is not None:
        return _largest_of_best(request)
    filter_ = _filter(plan)
    released = {name: plan.released_on(name) for name in _ACCOUNTS}
    charges = {name: sum(filter_.charge_event(event) for event in released[name]) for name in _ACCOUNTS}
    if charges["holdout"] > remaining.holdout:
        return Largest(epsilon=None, account="holdout")
    training, double = plan.training, plan.training.double_steps()
    left = remaining.train - charges["train"]
    sigma = smallest_sigma(filter_, training.event_of, double, left)
    count = training.adaptive.count_noise_multiplier if training.adaptive else None
    if sigma is None or (count is not None and sigma > count / MIN_COUNT_NOISE):
        return Largest(epsilon=None, account="train")
    steps = training.event_of(sigma)
    event, delta = events.composed([steps, *released["train"]]), plan.target_delta
    # A millionth below the ε of that σ: calibration then ends above that σ despite float errors.
    highest = epsilon_of(event, delta).value * (1.0 - 1e-6)
    return _largest(highest, epsilon_of(events.composed(released["holdout"]), delta).value)


def _largest(highest: float, holdout: float) -> Largest:
    """What `train` can pay, if it is a target that can be asked for. `holdout`: that account's ε, which no target is
    below."""
    highest, lowest = min(highest, LARGEST_EPSILON), max(holdout, SMALLEST_EPSILON)
    return Largest(epsilon=max(_round_down(highest), lowest) if highest >= lowest else None, account="train")


def _filter(request: PlanRequest) -> Filter:
    filter_ = request.filter.build()
    if not filter_.rule.samples and request.selection is not None:
        raise InvalidRequest.at("/hpo/strategy", NO_BEST)
    if not filter_.rule.samples and request.training.sample_rate < 1.0:
        detail = f"this data set's `{filter_.kind}` filter admits full-batch jobs only: use full_batch sampling"
        raise InvalidRequest.at("/sampling/kind", detail)
    return filter_


def _mechanism(request: PlanRequest) -> tuple[MechanismConfig, Epsilon | None]:
    """Returns the mechanism, with σ given or calibrated, and the train account's ε if calibration computed it."""
    training, target, delta = request.training, request.target_epsilon, request.target_delta
    rate, steps, double = training.sample_rate, training.participations, training.double_steps()
    calibrated = None
    sigma = request.noise_multiplier
    if target is not None and sigma is None and request.selection is not None:
        sigma, value = _noise_of_best(request, target)
        calibrated = Epsilon(value=value, delta=delta, accountant=renyi.NAME)
    elif target is not None and sigma is None:
        other_releases = request.released_on("train")
        sigma, value = calibration.calibrate(target, delta, rate, steps, other_releases, double, training.truncation)
        calibrated = Epsilon(value=value, delta=delta, accountant=of_record(sampled=rate < 1.0))
    elif target is not None or sigma is None:
        raise InvalidRequest.at("/privacy", "give either `target_epsilon` or `noise_multiplier`")
    elif not SIGMA_MIN <= sigma <= SIGMA_MAX:
        raise InvalidRequest.at(_SIGMA, f"the noise multiplier must lie between {SIGMA_MIN:g} and {SIGMA_MAX:g}")
    elif rate < 1.0 and rdp.epsilon(training.event_of(sigma), delta)[0] > _HOPELESS:
        raise InvalidRequest.at(_SIGMA, f"this plan costs far more than ε = {LARGEST_EPSILON:g}: raise the noise")
    if double and of_two_queries(sigma) < SIGMA_MIN:
        detail = f"a step of two queries has σ/√2 = {of_two_queries(sigma):.4g}, below {SIGMA_MIN:g}: use more noise"
        raise InvalidRequest.at(_SIGMA if target is None else "/privacy/target_epsilon", detail)
    return request.mechanism(sigma), calibrated


def _check_total(target: float | None, mechanism: MechanismConfig, epsilons: dict[AccountName, Epsilon]) -> None:
    holdout = epsilons["holdout"].value
    if target is not None and holdout > target:
        highest = _largest_noise_mu(target, mechanism)
        detail = (
            f"the evaluation alone costs ε = {holdout:.4g}, more than the target: noise_mu at most {highest:g} fits"
        )
        raise InvalidRequest.at("/evaluation/noise_mu", detail)
    pointers: dict[AccountName, str] = {"train": _SIGMA, "holdout": "/evaluation/noise_mu"}
    for account, pointer in pointers.items():
        if epsilons[account].value > LARGEST_EPSILON:
            detail = f"this costs ε = {epsilons[account].value:.4g}; at most {LARGEST_EPSILON:g} is allowed"
            raise InvalidRequest.at(pointer, detail)


def _largest_noise_mu(target: float, mechanism: MechanismConfig) -> float:
    """The noise_mu with which the scores on the hold-out cost the target, rounded down to three digits. They are
    Gaussians of one noise_mu, so that the account's μ is proportional to it."""
    noise_mu = min(each.noise_mu for each in mechanism.releases if each.account == "holdout")
    total = gdp.mu_of_event(mechanism.model_copy(update={"selection": None}).event("holdout")) or math.inf
    exact = noise_mu * _mu_of_target(target, mechanism) / total
    unit = 10.0 ** (math.floor(math.log10(exact)) - 2)
    return float(f"{math.floor(exact * (1.0 - 1e-6) / unit) * unit:.3g}")


def _mu_of_target(target: float, mechanism: MechanismConfig) -> float:
    """The largest μ of one run with at most the target's ε: of the only one, or of each that is selected from."""
    selection, delta = mechanism.selection, mechanism.target_delta
    low, high = 0.0, gdp.mu_from_epsilon(target, delta)
    if selection is None:
        return high
    while high - low > 1e-6 * high:
        middle = 0.5 * (low + high)
        event = BestOf(weights=selection.weights, event=Gaussian(noise_multiplier=1.0 / middle))
        low, high = (low, middle) if renyi.epsilon(event, delta) > target else (middle, high)
    return low


def _lines(mechanism: MechanismConfig, filter_: Filter, training: Epsilon | None) -> list[Line]:
    """Returns one line of the bill for the training and one for each release. Their charges add up to the account's.

    Args:
        training: the training's ε, if it is known already.
    """
    delta, unit = mechanism.target_delta, mechanism.unit

    def line(text: str, account: AccountName, event: Event, epsilon: Epsilon | None = None) -> Line:
        epsilon = epsilon or epsilon_of(event, delta, unit)
        return Line(what=text, account=account, epsilon=epsilon, charge=filter_.charge_event(event))

    return [
        line(mechanism.line, "train", mechanism.training.event, training),
        *(line(release.line, release.account, release.event) for release in mechanism.releases),
    ]


def _lines_of_best(mechanism: MechanismConfig, filter_: Filter, epsilons: dict[AccountName, Epsilon]) -> list[Line]:
    """Returns one line for each account: the runs and their scores have one price."""
    events_of = {account: mechanism.event(account) for account in _ACCOUNTS}
    return [
        Line(what=mechanism.line, account=name, epsilon=epsilons[name], charge=filter_.charge_event(event))
        for name, event in events_of.items()
        if event.events
    ]


def _noise_of_best(request: PlanRequest, target: float) -> tuple[float, float]:
    """Returns the least σ with which the best of several runs has at most the target's ε, to 1e-6, and that ε.

    Raises:
        InvalidRequest: no σ does.
    """

    def epsilon(sigma: float) -> float:
        return renyi.epsilon(request.mechanism(sigma).event("train"), request.target_delta)

    low, high = math.log(SIGMA_MIN), math.log(SIGMA_MAX)
    if epsilon(SIGMA_MAX) > target:
        detail = (
            f"no noise brings the best of so many runs and their scores to ε = {target:g}: raise ε, or lower noise_mu"
        )
        raise InvalidRequest.at("/privacy/target_epsilon", detail)
    while high - low > 1e-6:
        middle = 0.5 * (low + high)
        low, high = (middle, high) if epsilon(math.exp(middle)) > target else (low, middle)
    return math.exp(high), epsilon(math.exp(high))


def _largest_of_best(request: FitRequest) -> Largest:
    """As `largest_that_fits`, of the best of several runs: their scores have no charge of their own."""
    plan, remaining = request.plan, request.remaining
    filter_ = _filter(plan)

    def charge(sigma: float, account: AccountName) -> int:
        return filter_.charge_event(plan.mechanism(sigma).event(account))

    if charge(SIGMA_MAX, "holdout") > remaining.holdout:
        return Largest(epsilon=None, account="holdout")
    if charge(SIGMA_MAX, "train") > remaining.train:
        return Largest(epsilon=None, account="train")
    low, high = math.log(SIGMA_MIN), math.log(SIGMA_MAX)
    while high - low > 1e-6:
        middle = 0.5 * (low + high)
        low, high = (middle, high) if charge(math.exp(middle), "train") > remaining.train else (low, middle)
    mechanism = plan.mechanism(math.exp(high))
    train, holdout = (epsilon_of(mechanism.event(name), plan.target_delta).value for name in _ACCOUNTS)
    return _largest(train * (1.0 - 1e-5), holdout)


def smallest_sigma(filter_: Filter, event: Callable[[float], Event], double: int, remaining: int) -> float | None:
    """Returns the smallest σ in range whose charge is at most `remaining` units, to 1e-9 relative; None if none fits.

    Args:
        event: σ → the event of all steps.
        double: how many of the steps query their batch twice.
    """

    def charge(sigma: float) -> int:
        return filter_.charge_event(event(sigma))

    smallest = SIGMA_MIN if double == 0 else SIGMA_MIN * 1.5  # keeps σ/√2 above SIGMA_MIN too
    low, high = smallest, SIGMA_MAX * (1.0 - 1e-3)  # margin for a target slightly below the ε of the answer
    if remaining <= 0 or charge(high) > remaining:
        return None
    if charge(low) <= remaining:
        return low

    def excess(log_sigma: float) -> float:
        return math.log(charge(math.exp(log_sigma)) / (remaining + 0.5))  # never 0 on the steps of a rounded charge

    sigma = math.exp(float(optimize.brentq(excess, math.log(low), math.log(high), xtol=1e-11)))
    while charge(sigma) > remaining:
        sigma *= 1.0 + 1e-9
    return sigma


def _round_down(value: float) -> float:
    """Rounds down to five significant decimal digits."""
    exact = Decimal(value)
    return float(exact.quantize(Decimal(1).scaleb(exact.adjusted() - _DIGITS + 1), rounding=ROUND_FLOOR))
