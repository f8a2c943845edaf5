"""Puts a number in the place of `learning_rate: auto`, once the price has fixed σ. See app.hpo.rates."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from pydantic import ValidationError

from app.contracts.job_spec import CnnModel, JobSpec, LinearModel, MlpModel
from app.contracts.sampling import Cyclic
from app.errors import InvalidRequest
from app.hpo.rates import CALIBRATED, NETWORKS, Constants, PublicNumbers, Resolved, Ruled, rate_of
from app.hpo.tangents import tangent_length
from app.jobs.plans import DatasetFacts, Plan
from app.privacy import derive
from app.privacy.prices import Price

WHERE = "/optimizer/learning_rate"
NAMED = "`strategy: auto` runs no search here, and the job keeps the learning rate that it names."


@dataclass(frozen=True)
class Rule:
    """How a job's rate follows from T, σ and C.

    Attributes:
        batch: L.
        length, outputs, is_sparse: see PublicNumbers.
        unmeasured: what the job has and no experiment had, though the rule is the same.
    """

    optimizer: Ruled
    constants: Constants
    batch: int
    length: float
    outputs: int
    is_sparse: bool
    unmeasured: tuple[str, ...] = ()

    def rate(self, steps: int, sigma: float, max_grad_norm: float) -> Resolved:
        """Returns the rate for T steps at σ and C."""
        numbers = PublicNumbers(
            steps=steps,
            expected_batch_size=self.batch,
            noise_multiplier=sigma,
            max_grad_norm=max_grad_norm,
            length=self.length,
            outputs=self.outputs,
            is_sparse=self.is_sparse,
        )
        found = rate_of(self.optimizer, numbers, self.constants)
        if not self.unmeasured:
            return found
        because = f"{found.because}, without {' or '.join(self.unmeasured)}, which this job has"
        return found.model_copy(update={"because": because})


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
    rule = rule_of(spec, planned.facts)
    if isinstance(rule, str):
        raise InvalidRequest.at(WHERE, f"no rule for `auto` is known {rule}: give a number (docs/choosing.md)")
    training = priced.mechanism.training if priced.mechanism else None
    sigma, norm = (training.noise_multiplier, training.max_grad_norm) if training else (0.0, 1.0)
    found = rule.rate(planned.steps, sigma, norm)
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


def rule_of(spec: JobSpec, facts: DatasetFacts) -> Rule | str:
    """Returns the rule for a job's learning rate; where nothing like it was tried, says where: "for regression"."""
    model, optimizer = spec.model, spec.optimizer
    if not isinstance(model, LinearModel | MlpModel | CnnModel):
        return f"for a `{model.kind}` model"
    if not isinstance(optimizer, Ruled):
        return f"for the optimizer `{optimizer.kind}`"
    length = tangent_length(model, _inputs(model, facts), _length(model, facts))
    untried = _untried(spec, facts)
    if length is None or untried is not None:
        return untried or f"for the network `{getattr(model, 'preset', model.kind)}`"
    return Rule(
        optimizer=optimizer,
        constants=CALIBRATED if isinstance(model, LinearModel) else NETWORKS,
        batch=derive.batch_of(spec, facts.records_train),
        length=length,
        outputs=facts.outputs,
        is_sparse=isinstance(model, LinearModel) and model.is_sparse(facts.is_sparse),
        unmeasured=_unmeasured(spec),
    )


def _unmeasured(spec: JobSpec) -> tuple[str, ...]:
    optimizer, dropout = spec.optimizer, getattr(spec.model, "dropout", 0.0)
    has = {
        "`averaging`": optimizer.averaging is not None,
        "a `schedule`": optimizer.schedule.kind != "constant",
        "`dropout`": dropout > 0.0,
        "`augmentation`": spec.augmentation is not None,
    }
    return tuple(name for name, there in has.items() if there)


def _untried(spec: JobSpec, facts: DatasetFacts) -> str | None:
    """Returns what no experiment had, of the models and optimizers with a rule."""
    is_linear = isinstance(spec.model, LinearModel)
    clipping = spec.clipping.kind if spec.clipping is not None else "flat"
    if not facts.spec.task.is_classification:
        return "for regression"
    if facts.records_per_unit > 1:
        return "where a user has several records"
    if clipping != "flat" and not (is_linear and clipping == "per_layer"):  # a linear model is one layer
        return f"for `{clipping}` clipping"
    if spec.privacy is None and not is_linear:
        return "for a network without privacy"
    if isinstance(spec.sampling, Cyclic):
        return "for `cyclic` batches"
    return None if spec.noise is None else "with correlated noise"


def _inputs(model: LinearModel | MlpModel | CnnModel, facts: DatasetFacts) -> int:
    return model.inputs(facts.features) if isinstance(model, LinearModel) else facts.features


def _length(model: LinearModel | MlpModel | CnnModel, facts: DatasetFacts) -> float:
    """About ‖x‖ of what the model reads."""
    extractor = model.extractor if isinstance(model, LinearModel) else None
    if extractor is not None:
        return extractor.length or math.sqrt(_inputs(model, facts)) / 2.0
    return facts.spec.features.length(facts.features)
