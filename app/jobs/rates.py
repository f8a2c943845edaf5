"""Puts a number in the place of `learning_rate: auto`, once the price has fixed σ. See app.hpo.rates."""

from __future__ import annotations

import math
from dataclasses import replace

from pydantic import ValidationError

from app.contracts.job_spec import LinearModel
from app.errors import InvalidRequest
from app.hpo.rates import PublicNumbers, linear_rate
from app.jobs.plans import DatasetFacts, Plan
from app.privacy.prices import Price

WHERE = "/optimizer/learning_rate"


def with_rate(planned: Plan, priced: Price) -> Plan:
    """Returns the plan with a number as its learning rate, and with the reason if it was "auto".

    Raises:
        InvalidRequest: no rule is known for this model and optimizer, or its rate does not go with the weight decay.
    """
    spec = planned.spec
    if spec.optimizer.learning_rate != "auto":
        return planned
    found = None
    if isinstance(spec.model, LinearModel):
        found = linear_rate(spec.optimizer, public_numbers(planned, priced, spec.model))
    if found is None:
        what = f"`{spec.optimizer.kind}` on a `{spec.model.kind}` model"
        raise InvalidRequest.at(WHERE, f"no rule for `auto` is known for {what}: give a number (docs/choosing.md)")
    try:
        optimizer = type(spec.optimizer).model_validate(
            spec.optimizer.model_dump() | {"learning_rate": found.learning_rate}
        )
    except ValidationError as error:
        why = error.errors()[0]["msg"].removeprefix("Value error, ")
        raise InvalidRequest.at(WHERE, f"`auto` means {found.learning_rate:g} here; {why}") from None
    return replace(planned, spec=spec.model_copy(update={"optimizer": optimizer}), resolved=found)


def public_numbers(planned: Plan, priced: Price, model: LinearModel) -> PublicNumbers:
    """What the rate of a linear model depends on: T, L, σ, C and ‖x‖."""
    training = priced.mechanism.training if priced.mechanism else None
    return PublicNumbers(
        steps=planned.steps,
        expected_batch_size=planned.expected_batch_size,
        noise_multiplier=training.noise_multiplier if training else 0.0,
        max_grad_norm=training.max_grad_norm if training else 1.0,
        length=_length(model, planned.facts),
        outputs=planned.facts.outputs,
        is_sparse=model.is_sparse(planned.facts.is_sparse),
    )


def _length(model: LinearModel, facts: DatasetFacts) -> float:
    """About ‖x‖, with the 1 of a bias."""
    length = facts.spec.features.length(facts.features)
    if model.extractor is not None:
        length = model.extractor.length or math.sqrt(model.extractor.features or facts.features) / 2.0
    return math.hypot(length, 1.0) if model.has_bias else length
