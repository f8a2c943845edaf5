"""A study: its trials, the request to price, and the division of its total among them as it is quoted and stored.

Nothing here has seen the data. A trial's specification is checked at the least and the largest point of the space: if
both fit, every point between them fits.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass, replace
from itertools import pairwise

from pydantic import ValidationError

from app.admission.facts import DatasetFacts
from app.admission.job_rules import Checked, check
from app.hpo.space import Bounds
from app.hpo.stored_study import StoredRun, StoredStudy
from app.hpo.strategies import Run, Slot, slots
from app.lifecycle.study_states import run_spec
from core.contracts.hpo import (
    GridOracle,
    LinearScaling,
    PrivateCount,
    PrivateRanking,
    PublicScore,
    Random,
    ScoredSearch,
    Strategy,
    noise_mu_of,
)
from core.contracts.job_spec import Evaluation, JobSpec, Ranking
from core.contracts.metrics import default_metric
from core.errors import InvalidRequest
from core.privacy import derive
from core.privacy.accounting import epsilon_of_trial
from core.privacy.price_requests import StudyRequest, StudyRun
from core.privacy.prices import Charge, PricedRun, StudyPrice
from core.privacy.releases import NoisyMean, NoisyScore

# The least factor from a level to the next, in the fit's unit. Calibrated noise (Poisson sampling) is exact to 5e-4.
LEAST_RISE = 1.01
# The spec's members that the study replaces, and the pointers to report instead.
_SEARCHED = {
    "/length": "/hpo/space/steps",
    "/optimizer/learning_rate": "/hpo/space/learning_rate",
    "/clipping/max_grad_norm": "/hpo/space/max_grad_norm",
}


@dataclass(frozen=True)
class CheckedStudy:
    """A study that goes with its data set, fixed in advance.

    Attributes:
        longest: the final trial at the space's largest point, which has the common part of all trials.
        slots: its trials, before their points are known.
        evaluation: the trials' evaluation; None if there is none.
        pricing: the request to the pricing process; None without privacy.
    """

    longest: Checked
    spec: JobSpec
    hpo: Strategy
    bounds: Bounds
    slots: list[Slot]
    evaluation: Evaluation | None
    pricing: StudyRequest | None


def check_study(spec: JobSpec, facts: DatasetFacts, side: DatasetFacts | None) -> CheckedStudy:
    """Checks a study whose choices are closed against its data set, and fixes its plan.

    Raises:
        InvalidRequest: with a pointer to what to change.
    """
    hpo = spec.study
    if hpo is None:
        raise TypeError("this specification asks for no study")
    evaluation = _evaluation(hpo, facts)
    steps = 1 if hpo.space.steps is not None else _check_one(spec, None, evaluation, facts, side).steps
    bounds = Bounds.of(hpo.space, steps)
    planned = slots(hpo, bounds)
    roles = dict.fromkeys(each.role for each in planned)  # in the order of trials: the final one is last
    corners = [Run(0, role, None, corner) for role in roles for corner in bounds.corners]
    at_corners = [_check_one(spec, each, evaluation, facts, side) for each in corners]
    warnings = dict.fromkeys(warning for each in at_corners for warning in each.warnings)
    longest = replace(at_corners[-1], warnings=tuple(warnings))
    resolved, side_id = spec, longest.spec.optimizer.side
    if side_id is not None:  # by its id, as the trials have it
        resolved = spec.model_copy(update={"optimizer": spec.optimizer.model_copy(update={"public_dataset": side_id})})
    return CheckedStudy(
        longest, resolved, hpo, bounds, planned, evaluation, _pricing(spec, hpo, planned, bounds, evaluation, longest)
    )


def _evaluation(hpo: Strategy, facts: DatasetFacts) -> Evaluation | None:
    """Returns the trials' evaluation, whose score compares them."""
    if isinstance(hpo, Random):
        return None
    score, task = hpo.score, facts.spec.task.kind
    classes, ranked = task == "classification", task == "next_item"
    if isinstance(score, PrivateRanking):
        if not ranked:
            raise InvalidRequest.at("/hpo/score/kind", f"it needs the task `next_item`; this data set's is `{task}`")
        ranking = Ranking(k=score.k, leave_out_seen=score.leave_out_seen)
        return Evaluation(on=score.on, noise_mu=noise_mu_of(score), ranking=ranking)
    if isinstance(score, PrivateCount):
        if not classes:
            other = "private_ranking" if ranked else "private_loss"
            raise InvalidRequest.at("/hpo/score/kind", f"it needs a classification task: use `{other}`")
        return Evaluation(on=score.on, noise_mu=noise_mu_of(score), metrics=[default_metric(classes=True)])
    if isinstance(score, PublicScore):
        if facts.spec.holdout is None or facts.holdout_is_private:
            raise InvalidRequest.at("/hpo/score/kind", "this data set has no public hold-out: use a private score")
        if ranked:
            return Evaluation(ranking=Ranking())
        return Evaluation(metrics=[default_metric(classes=classes)])
    return Evaluation(on=score.on, noise_mu=noise_mu_of(score), loss_bound=score.loss_bound, metrics=["loss"])


def _check_one(
    spec: JobSpec, run: Run | None, evaluation: Evaluation | None, facts: DatasetFacts, side: DatasetFacts | None
) -> Checked:
    """Checks a trial at a corner of the space, where errors point to the space; without a trial the job itself."""
    try:
        one = spec.model_copy(update={"hpo": None}) if run is None else run_spec(spec, run, None, evaluation, "")
        return check(one, facts, side)
    except ValidationError as error:
        if run is None:
            raise
        reason = error.errors()[0]["msg"].removeprefix("Value error, ")
        rate = run.point.learning_rate
        raise InvalidRequest.at("/hpo/space", f"at one end of the space, where η is {rate:.3g}: {reason}") from None
    except InvalidRequest as error:
        if run is None:
            raise
        raise _moved(error, run) from None


def _moved(error: InvalidRequest, run: Run) -> InvalidRequest:
    errors = []
    for finding in error.members["errors"]:
        pointer = finding["pointer"]
        for old, new in _SEARCHED.items():
            if pointer.startswith(old):
                pointer = new
        if pointer.startswith("/evaluation") and run.role != "final":
            pointer = "/hpo/score"
        errors.append(finding | {"pointer": pointer})
    return InvalidRequest(error.message, errors)


def _pricing(
    spec: JobSpec, hpo: Strategy, planned: list[Slot], bounds: Bounds, evaluation: Evaluation | None, longest: Checked
) -> StudyRequest | None:
    """Builds the request to the pricing process; None without privacy."""
    pricing = longest.pricing
    if pricing is None or spec.privacy is None or spec.privacy.target_epsilon is None:
        return None
    mean: NoisyMean | None = None
    for release in pricing.releases:
        if isinstance(release, NoisyMean):
            mean = release  # one for the whole study
        elif not isinstance(release, NoisyScore):
            raise InvalidRequest.at(*release.refused_in_studies)
    facts = longest.facts.public
    scored, final = (derive.scores_of(each, facts, spec.model) for each in (evaluation, spec.evaluation))
    runs = (
        StudyRun(role=slot.role, level=slot.level, releases=final if slot.role == "final" else scored)
        for slot in planned
    )
    return StudyRequest(
        training=pricing.training,
        target_delta=pricing.target_delta,
        unit=pricing.unit,
        filter=pricing.filter,
        mean=mean,
        # An oracle's trials are priced one by one, each as a job of its own.
        mean_once=mean is not None and not isinstance(hpo, GridOracle),
        runs=tuple(runs),
        levels=tuple(hpo.epsilons) if isinstance(hpo, LinearScaling) else (),
        total_epsilon=spec.privacy.target_epsilon,
        steps=bounds.steps,
        oracle=isinstance(hpo, GridOracle),
    )


def stored(study: CheckedStudy, priced: StudyPrice) -> StoredStudy:
    """Builds the part of the plan that is stored with the job; its trials are built from it."""
    hpo, scores = study.hpo, [run.releases for run in study.pricing.runs] if study.pricing else [()] * len(study.slots)
    runs = [
        StoredRun(
            role=slot.role,
            level=slot.level,
            share=run.share,
            mu=run.mu,
            noise_multiplier=run.noise_multiplier,
            charge=run.charge,
            training_epsilon=epsilon_of_trial(study.pricing, run.epsilon),
            epsilon=epsilon_of_trial(study.pricing, run.epsilon_with_scores),
            releases=releases,
        )
        for slot, run, releases in zip(study.slots, priced.runs, scores, strict=True)
    ]
    levels, final = _levels(study, priced)
    score = study.evaluation.compared_by if study.evaluation else None
    return StoredStudy(
        seed=secrets.token_hex(16) if study.spec.seed is None else str(study.spec.seed),
        steps=study.bounds.steps[1],
        levels=tuple(levels),
        at_final=final,
        score=score,
        larger_is_better=study.evaluation is None or study.evaluation.larger_is_better,
        trial_evaluation=study.evaluation,
        keep_weights=hpo.keep_weights if isinstance(hpo, ScoredSearch | GridOracle) else False,
        common=study.pricing.common if study.pricing else None,
        runs=tuple(runs),
        decision=None,
        chosen=None,
    )


def unpriced(study: CheckedStudy) -> StudyPrice:
    """Returns the price of a study without privacy."""
    runs = tuple(PricedRun.unpriced() for _ in study.slots)
    return StudyPrice(epsilon=None, comparison=None, charge=Charge.nothing(), lines=(), runs=runs, events=None)


def _levels(study: CheckedStudy, priced: StudyPrice) -> tuple[list[float], float]:
    """Returns the levels' and the final trial's positions, in the fit's unit."""
    hpo = study.hpo
    if not isinstance(hpo, LinearScaling):
        return [], 0.0
    by_level = {
        slot.level: (run.mu if hpo.fit_in == "mu" else run.epsilon) or 0.0
        for slot, run in zip(study.slots, priced.runs, strict=True)
    }
    return [by_level[level] for level in range(len(hpo.epsilons))], by_level[None]


def check_levels(study: CheckedStudy, priced: StudyPrice) -> tuple[str, ...]:
    """Checks that a curve can be fitted through the priced levels.

    Returns:
        Warnings.

    Raises:
        InvalidRequest: two levels are nearly equal.
    """
    levels, final = _levels(study, priced)
    if any(not other >= one * LEAST_RISE or one <= 0.0 for one, other in pairwise(levels)):
        detail = "these levels are too close for a curve through them: raise each to at least 1 % above the one before"
        raise InvalidRequest.at("/hpo/levels", detail)
    if levels and final < levels[-1]:
        return ("The levels leave less privacy for the final run than a pilot of the top level has: lower them.",)
    return ()
