"""The one place where a price is made: JSON in and out, run by the pricing process, cached by what was asked.

`price` says what a plan costs, `largest_that_fits` what would still fit an account, `compare` what the accountants that
are not enforced say of a data set's jobs. All three are pure functions of public numbers: they never see data.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from decimal import ROUND_FLOOR, Decimal
from typing import Any

from scipy import optimize

from app.contracts.base import AccountName, Epsilon, Unit
from app.errors import InvalidRequest
from app.privacy import calibration, events, gdp, pld, rdp
from app.privacy.calibration import SIGMA_MAX, SIGMA_MIN
from app.privacy.events import Tree
from app.privacy.filters import Filter, filter_of
from app.privacy.mechanism import (
    MIN_COUNT_NOISE,
    MechanismConfig,
    NoisyFrequencies,
    NoisyMean,
    NoisySum,
    TrainingMechanism,
    of_two_queries,
)
from app.privacy.shares import count_noise, double_steps

_LARGEST_EPSILON, _SMALLEST_EPSILON = 100.0, 1e-4  # of a job, the contract's bounds
_HOPELESS = 10.0 * _LARGEST_EPSILON  # an RDP ε beyond which no grid is laid: it would not fit in memory
_DIGITS = 5  # of the largest ε that fits: rounded down by at most 1e-4 of it
_ACCOUNTS: tuple[AccountName, ...] = ("train", "holdout")
_SIGMA = "/privacy/noise_multiplier"

Json = dict[str, Any]


def price(request: Json) -> Json:
    """What a plan costs, and the mechanism that will run.

    Args:
        request: `training` (a TrainingMechanism without its noise), either `target_epsilon` or `noise_multiplier`,
            `target_delta`, `releases` (NoisySums), `frequencies` and `mean` (NoisyFrequencies, NoisyMean, where there
            are any) and `filter` (kind and order).

    Returns:
        `mechanism`; `epsilon` of the account that costs most, by the accountant of record (gdp where nothing is
        sampled, else pld); `comparison`, what gdp, rdp and pld say of that account (None where they cannot);
        `charge` per account, in the filter's unit; `lines`, one for the training, for a histogram of items, for a mean
        of features, and for each release.

    Raises:
        InvalidRequest: the plan cannot be run within the bounds, the filter does not admit it, or the evaluation
            costs more than the target.
    """
    filter_ = _filter(request)
    releases = [NoisySum.model_validate(release) for release in request["releases"]]
    mechanism, calibrated = _mechanism(request, releases)
    delta = mechanism.target_delta
    trees = {account: events.event_tree(mechanism, account) for account in _ACCOUNTS}
    unit = mechanism.unit
    known = {"train": calibrated.model_copy(update={"unit": unit})} if calibrated else {}
    epsilons = {name: known.get(name) or epsilon_of(tree, delta, unit) for name, tree in trees.items()}
    _check_total(request["target_epsilon"], epsilons)
    account: AccountName = "train" if epsilons["train"].value >= epsilons["holdout"].value else "holdout"
    lines = _lines(mechanism, filter_, epsilons["train"] if len(trees["train"]["events"]) == 1 else None)
    charge = {name: sum(line["charge"] for line in lines if line["account"] == name) for name in _ACCOUNTS}
    return {
        "mechanism": mechanism.model_dump(mode="json"),
        "epsilon": epsilons[account].model_dump(mode="json"),
        "comparison": comparison(trees[account], epsilons[account]),
        "charge": {**charge, "unit": filter_.unit},
        "lines": lines,
    }


def largest_that_fits(request: Json) -> Json:
    """The largest target ε whose price fits what is left.

    Under either filter the charge falls as σ grows, and so does ε(σ); so the smallest σ that `train` can pay gives an ε
    below which every target, calibrated, gets at least that σ.

    Args:
        request: as for `price` (its ε or σ is not looked at), and `remaining`: units left on `train` and `holdout`.

    Returns:
        `epsilon`, rounded down to five digits, or None where no target fits; `account`, the one that binds.
        A price asked for that ε fits; one for 0.1 % more does not (or is beyond the contract's bounds).
    """
    filter_ = _filter(request)
    releases = [NoisySum.model_validate(release) for release in request["releases"]]
    remaining = request["remaining"]
    trees = {name: [events.release_tree(r) for r in releases if r.account == name] for name in _ACCOUNTS}
    trees["train"] += events.first_releases(*first_of(request)).values()
    charges = {name: sum(filter_.charge_tree(tree) for tree in trees[name]) for name in _ACCOUNTS}
    if charges["holdout"] > remaining["holdout"]:
        return {"epsilon": None, "account": "holdout"}
    sample_rate, steps = request["training"]["sample_rate"], request["training"]["steps"]
    double = double_steps(request["training"], steps)
    sigma = smallest_sigma(filter_, sample_rate, steps, double, remaining["train"] - charges["train"])
    count = (request["training"].get("adaptive") or {}).get("count_noise_multiplier")
    if sigma is None or (count is not None and sigma > count / MIN_COUNT_NOISE):
        return {"epsilon": None, "account": "train"}
    tree, delta = (
        events.composed([events.gradient_sums(sample_rate, sigma, steps, double), *trees["train"]]),
        request["target_delta"],
    )
    # A millionth less than the ε of that σ, so that calibrating to it ends above that σ whatever floats do.
    most = min(epsilon_of(tree, delta).value * (1.0 - 1e-6), _LARGEST_EPSILON)
    least = max(epsilon_of(events.composed(trees["holdout"]), delta).value, _SMALLEST_EPSILON)
    return {"epsilon": max(_round_down(most), least) if most >= least else None, "account": "train"}


def compare(request: Json) -> Json:
    """What the accountants that are not enforced say of one account's jobs together.

    Args:
        request: `trees`, the jobs' event trees on the account; `delta`.

    Returns:
        `basic`: the sum of the jobs' own ε's, each at δ. `rdp_best_order`: Rényi composition, best order.
        `pld_if_fixed_in_advance`: the tight composition, valid only had all jobs been fixed before the first result.
        Where a δ is too small for a grid after so many steps, the Rényi bound stands in.
    """
    trees, delta = request["trees"], request["delta"]
    alike = Counter(tuple(sorted(events.leaves(tree).items())) for tree in trees)
    one_of = {tuple(sorted(events.leaves(tree).items())): tree for tree in trees}
    together = events.composed(trees)
    return {
        "basic": math.fsum(count * _own(one_of[leaves], delta) for leaves, count in alike.items()),
        "rdp_best_order": rdp.epsilon(together, delta)[0],
        "pld_if_fixed_in_advance": _tight(together, delta),
    }


def _filter(request: Json) -> Filter:
    filter_ = filter_of(request["filter"]["kind"], request["filter"].get("order"))
    if filter_.kind == "gdp" and request["training"]["sample_rate"] < 1.0:
        detail = "this data set's `gdp` filter admits full-batch jobs only: use full_batch sampling"
        raise InvalidRequest.at("/sampling/kind", detail)
    return filter_


def _mechanism(request: Json, releases: Sequence[NoisySum]) -> tuple[MechanismConfig, Epsilon | None]:
    """The mechanism, with σ given or calibrated, and the train account's ε where calibrating has computed it."""
    training, target, sigma = request["training"], request["target_epsilon"], request["noise_multiplier"]
    delta, sample_rate, steps = request["target_delta"], training["sample_rate"], training["steps"]
    double = double_steps(training, steps)
    calibrated = None
    if (target is None) == (sigma is None):
        raise InvalidRequest.at("/privacy", "give either `target_epsilon` or `noise_multiplier`")
    if target is not None:
        others = [events.release_tree(release) for release in releases if release.account == "train"]
        others += events.first_releases(*first_of(request)).values()
        sigma, value = calibration.calibrate(target, delta, training["sampling"], sample_rate, steps, others, double)
        calibrated = Epsilon(value=value, delta=delta, accountant="gdp" if sample_rate == 1.0 else "pld")
    elif not SIGMA_MIN <= sigma <= SIGMA_MAX:
        raise InvalidRequest.at(_SIGMA, f"the noise multiplier lies between {SIGMA_MIN:g} and {SIGMA_MAX:g}")
    elif sample_rate < 1.0 and _rdp_epsilon(sample_rate, sigma, steps, double, delta) > _HOPELESS:
        raise InvalidRequest.at(_SIGMA, f"this plan costs far more than ε = {_LARGEST_EPSILON:g}: raise the noise")
    if double and of_two_queries(sigma) < SIGMA_MIN:
        detail = f"a step of two queries has σ/√2 = {of_two_queries(sigma):.4g}, below {SIGMA_MIN:g}: take more noise"
        raise InvalidRequest.at(_SIGMA if target is None else "/privacy/target_epsilon", detail)
    frequencies, mean = first_of(request)
    mechanism = MechanismConfig(
        unit=request.get("unit", "example"),
        target_delta=delta,
        training=TrainingMechanism.model_validate(
            {**training, "noise_multiplier": sigma, **count_noise(training, sigma)}
        ),
        releases=tuple(releases),
        frequencies=frequencies,
        mean=mean,
    )
    return mechanism, calibrated


def first_of(request: Json) -> tuple[NoisyFrequencies | None, NoisyMean | None]:
    """The histogram of items and the mean of features that a plan releases before its first step."""
    frequencies, mean = request.get("frequencies"), request.get("mean")
    return (
        NoisyFrequencies.model_validate(frequencies) if frequencies else None,
        NoisyMean.model_validate(mean) if mean else None,
    )


def _rdp_epsilon(sample_rate: float, sigma: float, steps: int, double: int, delta: float) -> float:
    return rdp.epsilon(events.gradient_sums(sample_rate, sigma, steps, double), delta)[0]


def _check_total(target: float | None, epsilons: Mapping[AccountName, Epsilon]) -> None:
    holdout = epsilons["holdout"].value
    if target is not None and holdout > target:
        detail = f"the evaluation alone costs ε = {holdout:.4g}, more than the target: lower noise_mu"
        raise InvalidRequest.at("/evaluation/noise_mu", detail)
    pointers: dict[AccountName, str] = {"train": _SIGMA, "holdout": "/evaluation/noise_mu"}
    for account, pointer in pointers.items():
        if epsilons[account].value > _LARGEST_EPSILON:
            detail = f"this costs ε = {epsilons[account].value:.4g}, more than {_LARGEST_EPSILON:g}"
            raise InvalidRequest.at(pointer, detail)


def epsilon_of(tree: Tree, delta: float, unit: Unit = "example") -> Epsilon:
    """ε by the accountant of record: exact where nothing is sampled, else pessimistic on the fine grid."""
    mu = gdp.mu_of_tree(tree)
    if mu is not None:
        return Epsilon(value=gdp.epsilon_from_mu(mu, delta), delta=delta, accountant="gdp", unit=unit)
    value = pld.epsilon(tree, delta)
    if math.isinf(value):
        detail = f"δ = {delta:g} is below what double precision resolves after so many sampled steps"
        raise InvalidRequest.at("/privacy/target_delta", detail)
    return Epsilon(value=value, delta=delta, accountant="pld", unit=unit)


def _lines(mechanism: MechanismConfig, filter_: Filter, training: Epsilon | None) -> list[Json]:
    """One line of the bill for the training and one for each release; their charges add up to the account's."""
    delta = mechanism.target_delta
    tree = events.training_tree(mechanism.training)
    bill: list[tuple[str, AccountName, Tree, Epsilon]]
    bill = [("training", "train", tree, training or epsilon_of(tree, delta, mechanism.unit))]
    for what, tree in events.first_releases(mechanism.frequencies, mechanism.mean).items():
        bill.append((what, "train", tree, epsilon_of(tree, delta, mechanism.unit)))
    for release in mechanism.releases:
        tree = events.release_tree(release)
        bill.append(("evaluation", release.account, tree, epsilon_of(tree, delta, mechanism.unit)))
    return [
        {"what": what, "account": account, "epsilon": e.model_dump(mode="json"), "charge": filter_.charge_tree(tree)}
        for what, account, tree, e in bill
    ]


def comparison(tree: Tree, epsilon: Epsilon) -> Json:
    exact = epsilon.accountant == "gdp"
    return {
        "gdp": epsilon.value if exact else None,
        "rdp": rdp.epsilon(tree, epsilon.delta)[0],
        "pld": _tight(tree, epsilon.delta) if exact else epsilon.value,
    }


def _own(tree: Tree, delta: float) -> float:
    """A job's own ε, as its price had it, at the ledger's δ."""
    mu = gdp.mu_of_tree(tree)
    return _tight(tree, delta) if mu is None else gdp.epsilon_from_mu(mu, delta)


def _tight(tree: Tree, delta: float) -> float:
    """The PLD's figure, for comparison only, or the Rényi bound where no grid resolves δ.

    Of plain Gaussians alone a grid of μ/100 is fine enough (1e-5 of ε), and as quick for any μ.
    """
    mu = gdp.mu_of_tree(tree)
    value = pld.epsilon(tree, delta, pld.GRID if mu is None else max(pld.GRID, mu / 100.0))
    return value if math.isfinite(value) else rdp.epsilon(tree, delta)[0]


def smallest_sigma(filter_: Filter, sample_rate: float, steps: int, double: int, remaining: int) -> float | None:
    """The smallest σ of the range whose charge is at most `remaining` units, to 1e-9 of it; None where there is none.

    Args:
        double: how many of the steps query their batch twice.
    """

    def charge(sigma: float) -> int:
        return filter_.charge_tree(events.gradient_sums(sample_rate, sigma, steps, double))

    least = SIGMA_MIN if double == 0 else SIGMA_MIN * 1.5  # σ/√2 is not below it either
    low, high = least, SIGMA_MAX * (1.0 - 1e-3)  # room above, for a target slightly below the ε of the answer
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
    """To five significant digits, as a decimal that reads as it is written."""
    exact = Decimal(value)
    return float(exact.quantize(Decimal(1).scaleb(exact.adjusted() - _DIGITS + 1), rounding=ROUND_FLOOR))
