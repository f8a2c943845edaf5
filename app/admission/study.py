"""A study: its trials and the request to price.

Nothing here has seen the data. A trial's specification is checked at the least and the largest point of the space: if
both fit, every point between them fits.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from pydantic import ValidationError

from app.admission.checks import Checked, check, with_scores
from app.admission.choices import settled
from app.admission.facts import DatasetFacts
from app.contracts.hpo import (
    Auto,
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
from app.contracts.job_spec import Evaluation, JobSpec, Ranking
from app.contracts.metrics import default_metric
from app.contracts.optimizers import Dp2Settings, Optimizer, PublicSideSettings
from app.errors import InvalidRequest
from app.hpo.space import Bounds
from app.hpo.strategies import Run, Slot, slots
from app.lifecycle.studies import run_spec
from app.privacy import derive
from app.privacy.plans import StudyRequest, StudyRun
from app.privacy.releases import NoisyMean, NoisyScore

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
        hpo: the study's settings.
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
    """Checks a study against its data set and fixes its plan.

    Raises:
        InvalidRequest: with a pointer to what to change.
    """
    if spec.hpo is None or isinstance(spec.hpo, Auto):
        raise TypeError("this specification asks for no study")
    _check(spec, spec.hpo, facts)
    spec, hpo = settled(with_scores(spec, facts), spec.hpo, facts)
    evaluation = _evaluation(hpo, facts)
    bounds = Bounds.of(hpo.space, 1)
    if hpo.space.steps is None:
        bounds = Bounds.of(hpo.space, check(spec.model_copy(update={"hpo": None}), facts, side).steps)
    planned = slots(hpo, bounds)
    roles = dict.fromkeys(each.role for each in planned)  # in the order of trials: the final one is last
    at_corners = [
        _planned_at(spec, Run(0, role, None, corner), evaluation, facts, side)
        for role in roles
        for corner in bounds.corners
    ]
    warnings = dict.fromkeys(warning for each in at_corners for warning in each.warnings)
    longest = replace(at_corners[-1], warnings=tuple(warnings))
    resolved = spec.model_copy(update={"optimizer": _with_side(spec, longest)})
    return CheckedStudy(
        longest, resolved, hpo, bounds, planned, evaluation, _pricing(spec, hpo, planned, bounds, evaluation, longest)
    )


def _check(spec: JobSpec, hpo: Strategy, facts: DatasetFacts) -> None:
    if spec.audit is not None:
        detail = "a study is not audited: its trials share one price. Audit a job with the point that it finds"
        raise InvalidRequest.at("/audit", f"{detail}: leave `audit` out")
    if isinstance(hpo, GridOracle) and facts.is_private:
        detail = "`grid_oracle` is for public data only: it spends the whole budget on every point, unaccounted"
        raise InvalidRequest.at("/hpo/strategy", detail)
    if isinstance(spec.optimizer, Dp2Settings) and spec.optimizer.learning_rate == "auto":
        detail = "a study keeps the ratio of `learning_rate_adaptive` to `learning_rate`: give a number"
        raise InvalidRequest.at("/optimizer/learning_rate", detail)
    if spec.privacy is not None and spec.privacy.target_epsilon is None:
        detail = "a study divides a total among its trials: give `target_epsilon`"
        raise InvalidRequest.at("/privacy/noise_multiplier", detail)
    if isinstance(hpo, LinearScaling) and spec.privacy is None:
        raise InvalidRequest.at("/privacy", "linear scaling needs privacy: give `target_epsilon`")
    if spec.sampling.is_sampled and hpo.space.steps is not None:
        detail = "Poisson sampling fixes every trial's T and σ in advance: give `length`, and leave `space.steps` out"
        raise InvalidRequest.at("/hpo/space/steps", detail)
    if isinstance(hpo, ScoredSearch | GridOracle) and not isinstance(hpo, LinearScaling) and spec.evaluation:
        raise InvalidRequest.at("/evaluation", f"trials of `{hpo.strategy}` only have their score: leave it out")
    if hpo.space.max_grad_norm is not None and spec.privacy is None:
        raise InvalidRequest.at("/hpo/space/max_grad_norm", "without privacy nothing is clipped: leave it out")


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


def _planned_at(
    spec: JobSpec, run: Run, evaluation: Evaluation | None, facts: DatasetFacts, side: DatasetFacts | None
) -> Checked:
    """Plans a trial at a corner of the space; errors there point to the space."""
    try:
        return check(run_spec(spec, run, None, evaluation, ""), facts, side)
    except ValidationError as error:
        why = error.errors()[0]["msg"].removeprefix("Value error, ")
        rate = run.point.learning_rate
        raise InvalidRequest.at("/hpo/space", f"at one end of the space, where η is {rate:.3g}: {why}") from None
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


def _with_side(spec: JobSpec, longest: Checked) -> Optimizer:
    """Returns the optimizer with its side information named by id, as resolved by planning."""
    resolved = longest.spec.optimizer
    if not isinstance(resolved, PublicSideSettings):
        return spec.optimizer
    return spec.optimizer.model_copy(update={"public_dataset": resolved.public_dataset})


def _pricing(
    spec: JobSpec, hpo: Strategy, planned: list[Slot], bounds: Bounds, evaluation: Evaluation | None, longest: Checked
) -> StudyRequest | None:
    """Builds the request to the pricing process; None without privacy."""
    asked = longest.pricing
    if asked is None or spec.privacy is None or spec.privacy.target_epsilon is None:
        return None
    mean: NoisyMean | None = None
    for release in asked.releases:
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
        training=asked.training,
        target_delta=asked.target_delta,
        unit=asked.unit,
        filter=asked.filter,
        mean=mean,
        # An oracle's trials are priced one by one, each as a job of its own.
        mean_once=mean is not None and not isinstance(hpo, GridOracle),
        runs=tuple(runs),
        levels=tuple(hpo.epsilons) if isinstance(hpo, LinearScaling) else (),
        total_epsilon=spec.privacy.target_epsilon,
        steps=bounds.steps,
        oracle=isinstance(hpo, GridOracle),
    )
