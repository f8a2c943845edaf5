"""From a JobSpec with an `hpo` block to the plan of a study: its runs, what they are priced with, what is stored.

Nothing here has seen the data. A run's specification is checked at the least and the largest point of the space: what
fits both fits every point between them.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from pydantic import ValidationError

from app.contracts.base import AccountantName, Epsilon
from app.contracts.hpo import (
    GridOracle,
    Hpo,
    LinearScaling,
    PrivateCount,
    PrivateRanking,
    PublicScore,
    Random,
    ScoredSearch,
)
from app.contracts.job_spec import Evaluation, JobSpec, Ranking
from app.errors import InvalidRequest
from app.hpo.space import Bounds
from app.hpo.strategies import Run, Slot, slots
from app.jobs.planning import DatasetFacts, Plan, plan, releases
from app.lifecycle.studies import run_spec
from app.privacy.shares import COMMON

Json = dict[str, Any]
# From a level to the next, in the unit of the fit. Calibrated noise (Poisson sampling) is right to 5e-4.
LEAST_RISE = 1.01
# What the search takes the place of, and where to look instead.
_SEARCHED = {
    "/length": "/hpo/space/steps",
    "/optimizer/learning_rate": "/hpo/space/learning_rate",
    "/clipping/max_grad_norm": "/hpo/space/max_grad_norm",
}


@dataclass(frozen=True)
class StudyPlan:
    """A study, fixed in advance.

    Attributes:
        longest: the plan of the final run at the space's largest point: what all runs have in common.
        hpo: the search.
        slots: its runs, before their points are known.
        evaluation: of trials; None where there are none.
        pricing: what app.privacy.study is asked; None without privacy.
    """

    longest: Plan
    spec: JobSpec
    hpo: Hpo
    bounds: Bounds
    slots: list[Slot]
    evaluation: Evaluation | None
    pricing: Json | None


def plan_study(spec: JobSpec, facts: DatasetFacts, side: DatasetFacts | None) -> StudyPlan:
    """Checks a search against its data set.

    Raises:
        InvalidRequest: with a pointer to what to change.
    """
    if spec.hpo is None:
        raise TypeError("this specification has no search")
    _check(spec, spec.hpo, facts)
    evaluation = _evaluation(spec.hpo, facts)
    bounds = Bounds.of(spec.hpo.space, 1)
    if spec.hpo.space.steps is None:
        bounds = Bounds.of(spec.hpo.space, plan(spec.model_copy(update={"hpo": None}), facts, side).steps)
    planned = slots(spec.hpo, bounds)
    roles = dict.fromkeys(each.role for each in planned)  # in the order of runs: the final one is last
    at_corners = [
        _planned_at(spec, Run(0, role, None, corner), evaluation, facts, side)
        for role in roles
        for corner in bounds.corners
    ]
    warnings = dict.fromkeys(warning for each in at_corners for warning in each.warnings)
    longest = replace(at_corners[-1], warnings=tuple(warnings))
    resolved = spec.model_copy(update={"optimizer": _with_side(spec, longest)})
    return StudyPlan(
        longest, resolved, spec.hpo, bounds, planned, evaluation, _pricing(spec, planned, bounds, evaluation, longest)
    )


def stored(study: StudyPlan, priced: Json) -> Json:
    """What is kept of the plan with the job: all that its runs are made from."""
    hpo = study.hpo
    runs = [
        {
            "role": slot.role,
            "level": slot.level,
            **{name: run[name] for name in ("share", "mu", "noise_multiplier", "charge")},
            "training_epsilon": _epsilon(study, run["epsilon"]),
            "epsilon": _epsilon(study, run["epsilon_with_scores"]),
            "releases": asked["releases"],
        }
        for slot, run, asked in zip(study.slots, priced["runs"], _asked(study), strict=True)
    ]
    levels, final = _levels(study, priced)
    score = study.evaluation.compared_by if study.evaluation else None
    seed = secrets.token_hex(16) if study.spec.seed is None else str(study.spec.seed)
    return {
        "seed": seed,
        "steps": study.bounds.steps[1],
        "levels": levels,
        "at_final": final,
        "score": score,
        "larger_is_better": score != "loss",
        "trial_evaluation": study.evaluation.model_dump(mode="json") if study.evaluation else None,
        "keep_weights": getattr(hpo, "keep_weights", False),
        "common": {name: study.pricing[name] for name in COMMON} if study.pricing else None,
        "runs": runs,
        "decision": None,
        "chosen": None,
    }


def unpriced(study: StudyPlan) -> list[Json]:
    """The runs of a study without privacy, as app.privacy.study would give them."""
    empty = dict.fromkeys(("mu", "epsilon", "epsilon_with_scores", "noise_multiplier"))
    return [{**empty, "share": 0, "charge": {"train": 0, "holdout": 0}} for _ in study.slots]


def quoted(study: StudyPlan, priced: Json) -> Json:
    """The `hpo` block of a quote: how the total is divided, before anything runs."""
    runs = list(zip(study.slots, priced["runs"], strict=True))
    by_level: dict[int, list[Json]] = {}
    for slot, run in runs:
        if slot.level is not None:
            by_level.setdefault(slot.level, []).append(_part(study, run))
    final = _part(study, runs[-1][1])
    scores = [line for line in priced["lines"] if line["what"] == "scores"]
    return {
        "strategy": study.hpo.strategy,
        "runs": len(runs),
        "pilots": [{"level": level, "runs": len(found), **found[0]} for level, found in by_level.items()],
        "scores": scores[0] if scores else None,
        "final": final["epsilon"],
        "final_run": final,
        # An oracle's runs are not accounted together.
        "procedure": None if isinstance(study.hpo, GridOracle) else priced["epsilon"],
    }


def _part(study: StudyPlan, run: Json) -> Json:
    named = {name: run[name] for name in ("mu", "noise_multiplier", "charge")}
    return {**named, "epsilon": _epsilon(study, run["epsilon"])}


def _epsilon(study: StudyPlan, value: float | None) -> Json | None:
    if value is None or study.pricing is None:
        return None
    accountant: AccountantName = "pld" if study.pricing["training"]["sampling"] == "poisson" else "gdp"
    delta, unit = study.pricing["target_delta"], study.pricing["unit"]
    return Epsilon(value=value, delta=delta, accountant=accountant, unit=unit).model_dump(mode="json")


def _levels(study: StudyPlan, priced: Json) -> tuple[list[float], float]:
    """Where the levels and the final run lie, in the unit of the fit."""
    hpo = study.hpo
    if not isinstance(hpo, LinearScaling):
        return [], 0.0
    by_level = {slot.level: run[hpo.fit_in] for slot, run in zip(study.slots, priced["runs"], strict=True)}
    return [by_level[level] for level in range(len(hpo.levels))], by_level[None]


def check_levels(study: StudyPlan, priced: Json) -> list[str]:
    """Whether a curve can be laid through the levels, as they were priced.

    Returns:
        Warnings.

    Raises:
        InvalidRequest: two of them are all but one.
    """
    levels, final = _levels(study, priced)
    if any(not other >= one * LEAST_RISE or one <= 0.0 for one, other in pairwise(levels)):
        detail = (
            "these lie too close together for a curve through them: let each be at least a hundredth above the last"
        )
        raise InvalidRequest.at("/hpo/levels", detail)
    if levels and final < levels[-1]:
        return ["The levels leave less privacy for the final run than a pilot of the top level has: lower them."]
    return []


def _check(spec: JobSpec, hpo: Hpo, facts: DatasetFacts) -> None:
    if isinstance(hpo, GridOracle) and facts.is_private:
        detail = "an oracle spends the whole budget on every point, unaccounted: it is for public data only"
        raise InvalidRequest.at("/hpo/strategy", detail)
    if spec.privacy is not None and spec.privacy.target_epsilon is None:
        detail = "a search divides a total among its runs: give `target_epsilon`"
        raise InvalidRequest.at("/privacy/noise_multiplier", detail)
    if isinstance(hpo, LinearScaling) and spec.privacy is None:
        raise InvalidRequest.at("/privacy", "linear scaling goes by the privacy of runs: give `target_epsilon`")
    if spec.sampling.kind == "poisson" and hpo.space.steps is not None:
        detail = "where batches are drawn, T and σ of every run are fixed in advance: give `length`, search no steps"
        raise InvalidRequest.at("/hpo/space/steps", detail)
    if isinstance(hpo, ScoredSearch | GridOracle) and not isinstance(hpo, LinearScaling) and spec.evaluation:
        raise InvalidRequest.at("/evaluation", f"the runs of `{hpo.strategy}` have one evaluation, their score")
    if hpo.space.max_grad_norm is not None and spec.privacy is None:
        raise InvalidRequest.at("/hpo/space/max_grad_norm", "without privacy nothing is clipped")


def _evaluation(hpo: Hpo, facts: DatasetFacts) -> Evaluation | None:
    """What trials are compared by, as the evaluation that they have."""
    if isinstance(hpo, Random):
        return None
    score, task = hpo.score, facts.spec.task.kind
    classes, ranked = task == "classification", task == "next_item"
    if isinstance(score, PrivateRanking):
        if not ranked:
            raise InvalidRequest.at("/hpo/score/kind", f"next items are ranked; this data set's task is `{task}`")
        ranking = Ranking(k=score.k, leave_out_seen=score.leave_out_seen)
        return Evaluation(on=score.on, noise_mu=score.noise_mu, ranking=ranking)
    if isinstance(score, PrivateCount):
        if not classes:
            other = "private_ranking" if ranked else "private_loss"
            raise InvalidRequest.at("/hpo/score/kind", f"nothing is predicted right or wrong here: use `{other}`")
        return Evaluation(on=score.on, noise_mu=score.noise_mu, metrics=["accuracy"])
    if isinstance(score, PublicScore):
        if facts.spec.holdout is None or facts.holdout_is_private:
            raise InvalidRequest.at("/hpo/score/kind", "this data set has no public hold-out: use a private score")
        if ranked:
            return Evaluation(ranking=Ranking())
        return Evaluation(metrics=["accuracy" if classes else "loss"])
    return Evaluation(on=score.on, noise_mu=score.noise_mu, loss_bound=score.loss_bound, metrics=["loss"])


def _planned_at(
    spec: JobSpec, run: Run, evaluation: Evaluation | None, facts: DatasetFacts, side: DatasetFacts | None
) -> Plan:
    """The plan of a run at a corner of the space; what is wrong there is said of the space."""
    scored = evaluation.model_dump(mode="json") if evaluation else None
    try:
        return plan(run_spec(spec, run, None, scored, ""), facts, side)
    except ValidationError as error:
        why = error.errors()[0]["msg"].removeprefix("Value error, ")
        raise InvalidRequest.at("/hpo/space", f"at one end of the space: {why}") from None
    except InvalidRequest as error:
        raise _moved(error, run) from None


def _moved(error: InvalidRequest, run: Run) -> InvalidRequest:
    errors = []
    for each in error.members["errors"]:
        pointer = each["pointer"]
        for old, new in _SEARCHED.items():
            if pointer.startswith(old):
                pointer = new
        if pointer.startswith("/evaluation") and run.role != "final":
            pointer = "/hpo/score"
        errors.append(each | {"pointer": pointer})
    return InvalidRequest(error.message, errors)


def _with_side(spec: JobSpec, planned: Plan) -> Any:
    """The optimizer with its side information named by id, as planning resolved it."""
    named = getattr(planned.spec.optimizer, "public_dataset", None)
    return spec.optimizer if named is None else spec.optimizer.model_copy(update={"public_dataset": named})


def _asked(study: StudyPlan) -> list[Json]:
    return study.pricing["runs"] if study.pricing is not None else [{"releases": []} for _ in study.slots]


def _pricing(
    spec: JobSpec, planned: list[Slot], bounds: Bounds, evaluation: Evaluation | None, longest: Plan
) -> Json | None:
    if longest.pricing is None or spec.privacy is None:
        return None
    if "frequencies" in longest.pricing:
        detail = "every run of a study would count the items again: declare them with the data set, and use `public`"
        raise InvalidRequest.at("/model/re_attention/frequencies", detail)
    scored = releases(evaluation, longest.facts, spec.model)
    final = releases(spec.evaluation, longest.facts, spec.model)
    runs = [
        {"role": slot.role, "level": slot.level, "releases": final if slot.role == "final" else scored}
        for slot in planned
    ]
    return {
        "runs": runs,
        "levels": spec.hpo.levels if isinstance(spec.hpo, LinearScaling) else [],
        "total_epsilon": spec.privacy.target_epsilon,
        "steps": list(bounds.steps),
        "oracle": isinstance(spec.hpo, GridOracle),
        **{name: longest.pricing[name] for name in COMMON},
    }
