"""Derives a job's mechanism from its specification and public facts, for admission and for the worker.

Admission prices the PlanRequest that `plan_request` returns. The worker derives the request again from the same
specification and compares the two (`check_agreement`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import assert_never

from pydantic import ValidationError

from core.contracts.base import AccountName, Unit
from core.contracts.job_spec import (
    AdaptiveNorm,
    Clipping,
    Evaluation,
    JobSpec,
    Model,
    token_ranks,
)
from core.contracts.optimizers import Dp2Settings, Optimizer
from core.contracts.sampling import Cyclic, Poisson
from core.errors import InvalidRequest, PrivacyError
from core.privacy.correlated_price import CorrelatedMechanism
from core.privacy.events import Truncation
from core.privacy.mechanism import DelayedMechanism, MechanismConfig, Selection
from core.privacy.price_requests import FilterChoice, PlanRequest, TrainingPlan
from core.privacy.releases import BEFORE, SCORE, BeforeFirstStep, NoisyCount, NoisyMean, NoisySum
from core.privacy.statistics_release import StatisticsRelease

# Public data have no account: a job on them is priced too, but charged nothing (app.jobs.steering).
ANY_FILTER = FilterChoice(kind="rdp", order=8.0)


@dataclass(frozen=True)
class PublicFacts:
    """The facts about a data set that a mechanism depends on: all of them are public.

    Attributes:
        records_train, records_holdout: the declared counts. Where users are protected, they count users.
        records_per_unit: at most this many records share the protection of one unit.
        classification: True if the task is classification.
        holdout_is_private: True if scores on the hold-out are noisy sums.
        holdout_account: the account that pays for these scores.
        slots: N, at most this many units are registered to train on.
        delta: default δ for jobs: the cap's δ; if None, a power of ten chosen by the number of records.
        filter: the filter of the ledger that pays.
        outputs: the number of classes; 1 for a number.
    """

    records_train: int
    records_holdout: int
    records_per_unit: int
    unit: Unit
    classification: bool
    holdout_is_private: bool
    holdout_account: AccountName
    slots: int
    delta: float | None
    filter: FilterChoice = ANY_FILTER
    outputs: int = 1


def plan_request(spec: JobSpec, facts: PublicFacts) -> PlanRequest | None:
    """Builds the request to price; None without privacy.

    Raises:
        InvalidRequest: too many steps.
    """
    if spec.privacy is None:
        return None
    match spec.kind:
        case "training":
            training, statistics = _training_of(spec, facts), None
        case "statistics":
            training, statistics = _one_sum(facts), StatisticsRelease.of(spec.queries or ())
        case "synthetic":
            training, statistics = _one_sum(facts), StatisticsRelease.of(spec.tables, "synthetic rows")
        case _:
            assert_never(spec.kind)
    return PlanRequest(
        training=training,
        target_epsilon=spec.privacy.target_epsilon,
        noise_multiplier=spec.privacy.noise_multiplier,
        target_delta=spec.privacy.target_delta or facts.delta or default_delta(facts.records_train),
        releases=(*before_of(spec.model, facts.records_train), *scores_of(spec.evaluation, facts, spec.model)),
        statistics=statistics,
        selection=None if spec.selection is None else Selection(weights=spec.selection.weights),
        unit=facts.unit,
        filter=facts.filter,
    )


def _one_sum(facts: PublicFacts) -> TrainingPlan:
    """Returns one release of sums as one full-batch step: what a unit adds has a norm of at most C = 1."""
    return TrainingPlan(
        sampling="full_batch",
        sample_rate=1.0,
        steps=1,
        max_grad_norm=1.0,
        clipping="flat",
        expected_batch_size=facts.records_train,
        records_per_unit=facts.records_per_unit,
    )


def _training_of(spec: JobSpec, facts: PublicFacts) -> TrainingPlan:
    clip, records = spec.clipping or Clipping(), facts.records_train
    adaptive = (clip.adaptive or AdaptiveNorm()) if spec.norm_adapts else None
    return TrainingPlan(
        sampling=spec.sampling.kind,
        sample_rate=spec.sampling.rate(records),
        cycle=spec.sampling.batches if isinstance(spec.sampling, Cyclic) else None,
        noise=CorrelatedMechanism(decay=spec.noise.decay) if spec.noise is not None else None,
        truncation=_truncation(spec, facts),
        steps=spec.length.total(spec.sampling.steps_an_epoch(records)),
        max_grad_norm=clip.norm,
        clipping=clip.kind,
        expected_batch_size=spec.sampling.batch(records),
        records_per_unit=facts.records_per_unit,
        reach=spec.model.reach,
        adaptive=adaptive,
        delayed=delayed_of(spec.optimizer),
    )


def _truncation(spec: JobSpec, facts: PublicFacts) -> Truncation | None:
    """Returns the bound on batches, and the units that registration admits."""
    largest = spec.sampling.largest_batch if isinstance(spec.sampling, Poisson) else None
    return None if largest is None else Truncation(records=facts.slots, largest_batch=largest)


def check_agreement(spec: JobSpec, facts: PublicFacts, stored: MechanismConfig, *, mean_given: bool = False) -> None:
    """Checks that the stored mechanism, which was charged, equals the one derived from the specification, which runs.

    Admission's own choices are taken from the stored mechanism: σ for a target ε, and the noise of an adaptive norm's
    count.

    Args:
        mean_given: the job is a later trial of a study whose first trial released the mean that the specification asks
            for. Then a mechanism that releases one too does not agree.

    Raises:
        PrivacyError: the two differ.
    """
    try:
        request = plan_request(spec, facts)
        if request is not None and mean_given:
            releases = tuple(each for each in request.releases if not isinstance(each, NoisyMean))
            request = request.model_copy(update={"releases": releases})
        derived = None if request is None else _with_choices(request, stored)
    except (InvalidRequest, ValidationError):
        derived = None
    if derived != stored:
        raise PrivacyError("the job's specification and its stored mechanism differ")


def _with_choices(request: PlanRequest, stored: MechanismConfig) -> MechanismConfig:
    """Returns the requested mechanism with admission's choices filled in."""
    training, adaptive = request.training, stored.training.adaptive
    if training.adaptive is not None and training.adaptive.count_noise_multiplier is None and adaptive is not None:
        noise = {"count_noise_multiplier": adaptive.count_noise_multiplier}
        training = training.model_copy(update={"adaptive": training.adaptive.model_copy(update=noise)})
    sigma = request.noise_multiplier or stored.training.noise_multiplier
    return request.model_copy(update={"training": training}).mechanism(sigma)


def delayed_of(optimizer: Optimizer) -> DelayedMechanism | None:
    """Returns an optimizer's changes to the mechanism; None for all but delayed preconditioners."""
    return phases_of(optimizer) if isinstance(optimizer, Dp2Settings) else None


def phases_of(settings: Dp2Settings) -> DelayedMechanism:
    """Returns the phases, or second queries, of a delayed preconditioner. The optimizer asks them for a step's kind."""
    return DelayedMechanism(
        variant=settings.variant,
        delay_sgd=settings.delays[0],
        delay_adaptive=settings.delays[1],
        max_grad_norm_adaptive=settings.max_grad_norm_adaptive,
    )


def is_noisy(evaluation: Evaluation | None, facts: PublicFacts) -> bool:
    """Returns True if a job that claims privacy scores by noisy sums. A public hold-out is scored exactly, for free."""
    return evaluation is not None and (evaluation.on == "train" or facts.holdout_is_private)


def scores_of(evaluation: Evaluation | None, facts: PublicFacts, model: Model) -> tuple[NoisyCount | NoisySum, ...]:
    """Returns the noisy counts and sums released for evaluation."""
    if evaluation is None or not is_noisy(evaluation, facts):
        return ()
    of_training = evaluation.on == "train"
    common = {
        "account": "train" if of_training else facts.holdout_account,
        "noise_mu": evaluation.noise_mu,
        "times": evaluation.points,
        "records_per_unit": facts.records_per_unit,
        "reach": model.reach,
        "records": facts.records_train if of_training else facts.records_holdout,
        "groups": evaluation.groups or {},
        "ranks": token_ranks(evaluation, model),
        "cutoff": evaluation.ranking.k if evaluation.ranking else None,
    }
    bounds = evaluation.sensitivities(classes=facts.classification)
    details = {"macro_f1": {"classes": facts.outputs}}
    return tuple(
        SCORE.validate_python(common | {"what": name, "sensitivity": bound} | details.get(name, {}))
        for name, bound in bounds.items()
    )


def before_of(model: Model, records: int) -> tuple[BeforeFirstStep, ...]:
    """Returns the model's releases about the training part before the first step."""
    statistics = (each.of(model, records) for each in BEFORE)
    return tuple(each for each in statistics if each is not None)


def default_delta(records: int) -> float:
    """Returns the largest 10⁻ᵏ ≤ 1/records, within the contract's bounds."""
    exponent = max(3, len(str(records)) - (records == 10 ** (len(str(records)) - 1)))
    return float(f"1e-{min(exponent, 15)}")
