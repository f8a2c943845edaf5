"""Puts a number in the place of `learning_rate: auto`, once the price has fixed σ. See app.hpo.rates."""

from __future__ import annotations

import math
from dataclasses import replace

from pydantic import ValidationError

from app.contracts.job_spec import JobSpec, LinearModel
from app.contracts.optimizers import DpAdam, DpSgd
from app.errors import InvalidRequest
from app.hpo.rates import PublicNumbers, linear_rate
from app.jobs.plans import DatasetFacts, Plan
from app.privacy import derive
from app.privacy.prices import Price

WHERE = "/optimizer/learning_rate"
NAMED = "`strategy: auto` runs no search here, and the job keeps the learning rate that it names."


def with_rate(planned: Plan, priced: Price, more: str | None = None) -> Plan:
    """Returns the plan with a number as its learning rate, and with the reason if it was "auto".

    Args:
        more: to say besides.

    Raises:
        InvalidRequest: no rule is known for such a job, or its rate does not go with the weight decay.
    """
    spec = planned.spec
    if spec.optimizer.learning_rate != "auto":
        return planned if more is None else replace(planned, warnings=(*planned.warnings, f"{NAMED} {more}"))
    why_not, found = without_rule(spec, planned.facts), None
    if why_not is None and isinstance(spec.model, LinearModel):
        found = linear_rate(spec.optimizer, public_numbers(planned, priced, spec.model))
    if found is None:
        raise InvalidRequest.at(WHERE, f"no rule for `auto` is known {why_not}: give a number (docs/choosing.md)")
    try:
        optimizer = type(spec.optimizer).model_validate(
            spec.optimizer.model_dump() | {"learning_rate": found.learning_rate}
        )
    except ValidationError as error:
        why = error.errors()[0]["msg"].removeprefix("Value error, ")
        detail = f"`auto` means {found.learning_rate:g} here ({found.because}); {why}: give a number"
        raise InvalidRequest.at(WHERE, detail) from None
    if more is not None:
        found = found.model_copy(update={"because": f"{found.because}. {more}"})
    return replace(planned, spec=spec.model_copy(update={"optimizer": optimizer}), resolved=found)


def without_rule(spec: JobSpec, facts: DatasetFacts) -> str | None:
    """Says where no rule gives the learning rate, as nothing like it was calibrated; None if one does."""
    clipping = spec.clipping.kind if spec.clipping is not None else "flat"
    if not isinstance(spec.model, LinearModel):
        return f"for a `{spec.model.kind}` model"
    if not isinstance(spec.optimizer, DpSgd | DpAdam):
        return f"for the optimizer `{spec.optimizer.kind}`"
    if not facts.spec.task.is_classification:
        return "for regression"
    if facts.records_per_unit > 1:
        return "where a user has several records"
    if clipping not in ("flat", "per_layer"):  # a linear model is one layer
        return f"for `{clipping}` clipping"
    return None


def public_numbers(planned: Plan, priced: Price, model: LinearModel) -> PublicNumbers:
    """What the rate of a linear model depends on: T, L, σ, C and ‖x‖."""
    training = priced.mechanism.training if priced.mechanism else None
    sigma, norm = (training.noise_multiplier, training.max_grad_norm) if training else (0.0, 1.0)
    return numbers_at(planned.spec, planned.facts, model, planned.steps, sigma, norm)


def numbers_at(
    spec: JobSpec, facts: DatasetFacts, model: LinearModel, steps: int, sigma: float, max_grad_norm: float
) -> PublicNumbers:
    """The same for a job with T steps at σ and C, whatever its own are."""
    return PublicNumbers(
        steps=steps,
        expected_batch_size=derive.batch_of(spec, facts.records_train),
        noise_multiplier=sigma,
        max_grad_norm=max_grad_norm,
        length=_length(model, facts),
        outputs=facts.outputs,
        is_sparse=model.is_sparse(facts.is_sparse),
    )


def _length(model: LinearModel, facts: DatasetFacts) -> float:
    """About ‖x‖, with the 1 of a bias."""
    length = facts.spec.features.length(facts.features)
    if model.extractor is not None:
        length = model.extractor.length or math.sqrt(model.inputs(facts.features)) / 2.0
    return math.hypot(length, 1.0) if model.has_bias else length
