"""The price of a private search: one total (ε, δ) for trials, scores and the final run.

Full batch: Gaussian differential privacy does the sums, exactly. The final run's μ is what the others leave,

    μ_f² = μ(ε, δ)² − Σ μ_pilot² − Σ μ_score²

in integer units of the filter, so that the parts add up to the total to the unit. μ_f is frozen; T and σ of the runs
may be chosen after scores were seen, as √T/σ = μ whatever T is.

Poisson sampling: choosing q or T after results were seen and composing privacy loss distributions would not be valid.
q, T and σ of every run are fixed here, and only the learning rate (and C, which costs nothing) adapts.

Source: Panda et al. 2024, Algorithm 1; Dong, Roth & Su 2022, Corollary 2 (composition of μ's).
"""

from __future__ import annotations

import math
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal
from functools import lru_cache
from typing import Any

from app.contracts.base import AccountName
from app.errors import InvalidRequest
from app.privacy import calibration, events, gdp, pld, pricing
from app.privacy.calibration import SIGMA_MAX, SIGMA_MIN, Calibration
from app.privacy.events import Tree
from app.privacy.filters import Filter, filter_of
from app.privacy.mechanism import NoisyMean, NoisySum, of_two_queries
from app.privacy.shares import (
    COMMON,
    count_noise,
    double_steps,
    mu_of_share,
    noise_multiplier,
    run_mechanism,
    units_of,
    units_per_mu2,
)

Json = dict[str, Any]
_ACCOUNTS: tuple[AccountName, ...] = ("train", "holdout")
_TOTAL, _LEVELS = "/privacy/target_epsilon", "/hpo/levels"


def price_runs(request: Json) -> list[Json]:
    """Divides the total among the runs of a study.

    Args:
        request: `runs`, each with its `role`, `level` and `releases` (NoisySums); `mean` (NoisyMean, where there is
            one), of which each run releases its own; `levels`, ε of each; `total_epsilon`,
            `target_delta`, `unit`, `filter`; `training` (a TrainingMechanism without its noise), whose T is that of
            every run under Poisson sampling; `steps`, the least and the largest T otherwise; `oracle`: each run has the
            total.

    Returns:
        of each run: `share`, units of its training; `charge`, units by account with its releases; `mu`, that of its
        training (under Poisson sampling the μ of its ε: for the fit alone); `epsilon` of its training;
        `noise_multiplier`, where it is fixed already.

    Raises:
        InvalidRequest: the total does not cover it: `smallest_total_epsilon` says what would; or no noise of the
            bounds fits.
    """
    filter_ = filter_of(request["filter"]["kind"], request["filter"].get("order"))
    trees = _release_trees(request)
    _check_holdout(request, trees)
    scores = {
        name: [sum(filter_.charge_tree(event) for event in tree[name]["events"]) for tree in trees]
        for name in _ACCOUNTS
    }
    if request["training"]["sampling"] == "poisson":
        priced = _sampled(request, filter_, trees)
    else:
        priced = _full_batch(request, filter_, scores["train"])
    for run, train, holdout in zip(priced, *scores.values(), strict=True):
        run["charge"] = {"train": run["share"] + train, "holdout": holdout}
    return priced


def price(request: Json) -> Json:
    """What a whole study costs, before anything of it runs.

    Returns:
        `runs`, as of price_runs, with `epsilon_with_scores` of the training part; `events`, the event tree of each
        account; and of the account that costs most `epsilon` and `comparison`, `charge` and `lines`, as of
        app.privacy.pricing.price.
    """
    runs = price_runs(request)
    delta, unit = request["target_delta"], request["unit"]
    alone: dict[str, float] = {}
    for asked, run in zip(request["runs"], runs, strict=True):
        tree = study_tree(request | {"runs": [asked]}, [run], "train")
        like = f"{run['share']} {asked['role']}"
        alone[like] = alone.get(like) or pricing.epsilon_of(tree, delta, unit).value
        run["epsilon_with_scores"] = alone[like]
    # Of an oracle each run is by itself, and nothing says what they cost together.
    counted = slice(1) if request["oracle"] else slice(None)
    part = request | {"runs": request["runs"][counted]}
    trees = {name: study_tree(part, runs[counted], name) for name in _ACCOUNTS}
    epsilons = {name: pricing.epsilon_of(tree, delta, unit) for name, tree in trees.items()}
    account: AccountName = "train" if epsilons["train"].value >= epsilons["holdout"].value else "holdout"
    filter_ = filter_of(request["filter"]["kind"], request["filter"].get("order"))
    return {
        "runs": runs,
        "events": {"train": trees["train"], "holdout": trees["holdout"] if trees["holdout"]["events"] else None},
        "epsilon": epsilons[account].model_dump(mode="json"),
        "comparison": pricing.comparison(trees[account], epsilons[account]),
        "charge": {name: sum(run["charge"][name] for run in runs) for name in _ACCOUNTS} | {"unit": filter_.unit},
        "lines": _lines(request, runs, filter_),
    }


def largest_that_fits(request: Json) -> Json:
    """The largest total ε that what is `remaining` covers; None where none does."""
    filter_ = filter_of(request["filter"]["kind"], request["filter"].get("order"))
    remaining, delta = request["remaining"], request["target_delta"]
    if remaining["train"] < 1:
        return {"epsilon": None}
    if request["training"]["sampling"] == "poisson":
        most = _most_sampled(request, filter_, remaining["train"])
    else:
        most = gdp.epsilon_from_mu(mu_of_share(remaining["train"], filter_), delta)
    most = _rounded(min(most * (1.0 - 1e-6), 100.0), ROUND_FLOOR) if most > 0.0 else 0.0
    try:
        charges = [run["charge"] for run in price_runs(request | {"total_epsilon": most})] if most else []
    except InvalidRequest:
        return {"epsilon": None}
    fits = charges and all(sum(charge[name] for charge in charges) <= remaining[name] for name in _ACCOUNTS)
    return {"epsilon": most if fits else None}


def _most_sampled(request: Json, filter_: Filter, remaining: int) -> float:
    """ε of the study whose final run has the least noise that what the others leave can pay; 0 where there is none."""
    training, trees = request["training"], _release_trees(request)
    rate, steps = training["sample_rate"], training["steps"]
    double = double_steps(training, steps)
    others = _others(request, trees)
    left = remaining - sum(filter_.charge_tree(event) for event in others)
    takers = sum(run["level"] is None for run in request["runs"])
    sigma = pricing.smallest_sigma(filter_, rate, steps, double, left // takers)
    if sigma is None:
        return 0.0
    final = events.gradient_sums(rate, sigma, steps, double)
    return pld.epsilon(events.composed([*others, *[final] * takers]), request["target_delta"])


def _lines(request: Json, runs: list[Json], filter_: Filter) -> list[Json]:
    """The bill: one line for the trainings of each level, of candidates and of the final run, one for their scores and
    one for their means."""
    delta, unit = request["target_delta"], request["unit"]
    bill: dict[tuple[str, AccountName], list[tuple[Tree, int]]] = {}
    for asked, run in zip(request["runs"], runs, strict=True):
        what = f"pilots of level {asked['level'] + 1}" if asked["role"] == "pilot" else asked["role"]
        tree = study_tree(request | {"runs": [asked | {"releases": []}], "mean": None}, [run], "train")
        bill.setdefault((what, "train"), []).append((tree, run["share"]))
        for tree in _means(request):
            bill.setdefault(("mean", "train"), []).append((tree, filter_.charge_tree(tree)))
        for release in asked["releases"]:
            scored = events.release_tree(NoisySum.model_validate(release))
            line = ("evaluation" if asked["role"] == "final" else "scores", release["account"])
            bill.setdefault(line, []).append((scored, filter_.charge_tree(scored)))
    return [
        {
            "what": what,
            "account": account,
            "count": len(parts),
            "epsilon": pricing.epsilon_of(events.composed(tree for tree, _ in parts), delta, unit).model_dump(
                mode="json"
            ),
            "charge": sum(charge for _, charge in parts),
        }
        for (what, account), parts in bill.items()
    ]


def _full_batch(request: Json, filter_: Filter, scores: list[int]) -> list[Json]:
    """Shares in units: pilots what their levels are worth, scores their charge, and the rest to who takes it."""
    delta, runs = request["target_delta"], request["runs"]
    total = units_of(gdp.mu_from_epsilon(request["total_epsilon"], delta) ** 2, filter_)
    levels = [units_of(gdp.mu_from_epsilon(level, delta) ** 2, filter_) for level in request["levels"]]
    if request["oracle"]:
        shares = [total - score for score in scores]
    else:
        fixed = sum(scores) + sum(levels[run["level"]] for run in runs if run["level"] is not None)
        takers = [number for number, run in enumerate(runs) if run["level"] is None]
        least = _least_share(request, filter_)
        if total - fixed < least * len(takers):
            raise _too_small(request, _smallest_gdp_total(request, filter_, fixed + least * len(takers)))
        each, rest = divmod(total - fixed, len(takers))
        shares = [levels[run["level"]] if run["level"] is not None else each for run in runs]
        for number in takers[:rest]:
            shares[number] += 1
    for share, run in dict(zip(shares, runs, strict=True)).items():
        _check_noise(request, filter_, run, share)
    mus = {share: mu_of_share(share, filter_) for share in shares}
    epsilons = {share: gdp.epsilon_from_mu(mu, delta) for share, mu in mus.items()}
    return [
        {
            "share": share,
            "mu": mus[share],
            "epsilon": epsilons[share],
            "noise_multiplier": None,
        }
        for share in shares
    ]


def _sampled(request: Json, filter_: Filter, releases: list[dict[AccountName, Tree]]) -> list[Json]:
    """σ of each level by itself, then that of the rest, with everything else beside it."""
    delta, runs, training = request["target_delta"], request["runs"], request["training"]
    steps, rate = training["steps"], training["sample_rate"]
    double = double_steps(training, steps)
    at_level = [_at_level(level, delta, rate, steps, double) for level in request["levels"]]
    others, takers = _others(request, releases), sum(run["level"] is None for run in runs)
    if request["oracle"]:  # each by itself: they are all alike
        others, takers = releases[0]["train"]["events"], 1
    # Where the final run would be noisier than the noisiest pilot, or next to nothing is left, no σ is looked for.
    noisiest = at_level[0].noise_multiplier if at_level else SIGMA_MAX
    least = pld.epsilon(
        events.composed([*others, *[events.gradient_sums(rate, noisiest, steps, double)] * takers]), delta
    )
    smallest = _round_up(least * (1.0 + 2.0 * calibration.SLACK if at_level else 1.05))
    if request["total_epsilon"] < smallest:
        raise _too_small(request, smallest)
    found = calibration.calibrate(
        request["total_epsilon"], delta, "poisson", rate, steps * takers, others, double * takers
    )
    rest = found.noise_multiplier
    alone = pricing.epsilon_of(events.gradient_sums(rate, rest, steps, double), delta).value
    priced = []
    for run in runs:
        level = run["level"]
        sigma, epsilon = (rest, alone) if level is None else at_level[level]
        share = filter_.charge_tree(events.gradient_sums(rate, sigma, steps, double))
        count_noise(training, sigma)
        mu = gdp.mu_from_epsilon(max(epsilon, 1e-6), delta)
        priced.append({"share": share, "mu": mu, "epsilon": epsilon, "noise_multiplier": sigma})
    return priced


def _others(request: Json, releases: list[dict[AccountName, Tree]]) -> list[Tree]:
    """Of a study that draws batches: all but the trainings of the runs that share what is left."""
    training = request["training"]
    rate, steps = training["sample_rate"], training["steps"]
    double = double_steps(training, steps)
    others = [event for tree in releases for event in tree["train"]["events"]]
    for run in request["runs"]:
        if run["level"] is not None:
            level = request["levels"][run["level"]]
            sigma = _at_level(level, request["target_delta"], rate, steps, double).noise_multiplier
            others.append(events.gradient_sums(rate, sigma, steps, double))
    return others


@lru_cache(maxsize=64)  # a sweep asks for the same ones again, and so does what would fit
def _at_level(level: float, delta: float, rate: float, steps: int, double: int) -> Calibration:
    return calibration.calibrate(level, delta, "poisson", rate, steps, (), double)


def study_tree(request: Json, priced: list[Json], account: AccountName) -> Tree:
    """All that a study does to one account. A full-batch run's training is one Gaussian sum with noise 1/μ: whatever T
    it has, it is that, exactly."""
    filter_ = filter_of(request["filter"]["kind"], request["filter"].get("order"))
    training = request["training"]
    found: list[Tree] = []
    for run, price in zip(request["runs"], priced, strict=True):
        sigma = price["noise_multiplier"]
        if account == "train" and sigma is None:
            found.append(events.noisy_sums(1.0, noise_multiplier(price["share"], 1, 0, filter_), 1))
        elif account == "train":
            steps = training["steps"]
            found.append(events.gradient_sums(training["sample_rate"], sigma, steps, double_steps(training, steps)))
        found += _released(request, run, account)
    return events.composed(found)


def _release_trees(request: Json) -> list[dict[AccountName, Tree]]:
    return [{name: events.composed(_released(request, run, name)) for name in _ACCOUNTS} for run in request["runs"]]


def _released(request: Json, run: Json, account: AccountName) -> list[Tree]:
    """What a run does to an account beside its training: its mean and its scores."""
    scores = [NoisySum.model_validate(each) for each in run["releases"] if each["account"] == account]
    return (_means(request) if account == "train" else []) + [events.release_tree(each) for each in scores]


def _means(request: Json) -> list[Tree]:
    """Of each run: its own private mean of the features, where the job asks for one."""
    return [events.mean_tree(NoisyMean.model_validate(request["mean"]))] if request.get("mean") else []


def _check_holdout(request: Json, trees: list[dict[AccountName, Tree]]) -> None:
    """Scores of the hold-out are on its own account, which has the same total."""
    if request["oracle"]:
        return
    mu = gdp.mu_of_tree(events.composed(tree["holdout"] for tree in trees)) or 0.0
    epsilon = gdp.epsilon_from_mu(mu, request["target_delta"])
    if epsilon > request["total_epsilon"]:
        raise _too_small(request, _round_up(epsilon), "the scores of the hold-out alone cost more than the total")


def _least_share(request: Json, filter_: Filter) -> int:
    """The least that a run can spend: with the most noise that there is, at its longest."""
    steps = int(request["steps"][1])
    queries = steps + double_steps(request["training"], steps)
    return max(1, math.ceil(queries * units_per_mu2(filter_) / SIGMA_MAX**2 * (1.0 + 1e-9)))


def _check_noise(request: Json, filter_: Filter, run: Json, share: int) -> None:
    """σ grows with T: its bounds hold for every T where they do for the least and the largest."""
    where = _TOTAL if run["level"] is None else f"{_LEVELS}/{run['level']}"
    if share < 1:
        raise InvalidRequest.at(where, "this is less than one unit of the data set's filter: ask for more")
    for steps in request["steps"]:
        double = double_steps(request["training"], steps)
        sigma = noise_multiplier(share, steps, double, filter_)
        if (of_two_queries(sigma) if double else sigma) < SIGMA_MIN:
            raise InvalidRequest.at(where, f"{steps} steps would need a noise multiplier below {SIGMA_MIN:g}")
        if sigma > SIGMA_MAX:
            raise InvalidRequest.at(where, f"{steps} steps would need a noise multiplier above {SIGMA_MAX:g}")
        common = {name: request.get(name) for name in COMMON}
        run_mechanism(common, {"share": share, "noise_multiplier": None, "releases": []}, steps)


def _smallest_gdp_total(request: Json, filter_: Filter, units: int) -> float:
    """The least ε, to four digits, whose budget is at least so many units."""
    delta = request["target_delta"]
    epsilon = _round_up(gdp.epsilon_from_mu(mu_of_share(units, filter_) * (1.0 + 1e-11), delta))
    while units_of(gdp.mu_from_epsilon(epsilon, delta) ** 2, filter_) < units:
        epsilon = _round_up(epsilon * (1.0 + 1e-5))
    return max(epsilon, 1e-4)


def _round_up(epsilon: float) -> float:
    return _rounded(epsilon, ROUND_CEILING)


def _rounded(epsilon: float, direction: str) -> float:
    """To four digits."""
    value = Decimal(repr(epsilon))
    return float(value.quantize(Decimal(1).scaleb(value.adjusted() - 3), rounding=direction))


def _too_small(request: Json, smallest: float, why: str | None = None) -> InvalidRequest:
    why = why or "trials and scores leave nothing of the total for the run whose model is handed out"
    detail = f"{why}: the smallest total that works is ε = {smallest:g}"
    return InvalidRequest.at(_TOTAL, detail, smallest_total_epsilon=smallest)
