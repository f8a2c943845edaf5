"""A job's quote, as stored and answered: its plan and cost."""

from __future__ import annotations

from app.catalogue.models import Layer, layers
from app.contracts.base import Document, Epsilon
from app.contracts.blocks import FIRST
from app.hpo.rates import Resolved
from app.jobs.plans import DatasetFacts, Plan
from app.jobs.study_quotes import SearchQuote, quoted
from app.privacy.events import AccountEvents
from app.privacy.numerics import Numerics
from app.privacy.prices import Charge, Comparison, Line, Price, StudyPrice


class ModelQuote(Document):
    """The model's parameters, and its layers with the shapes of their tensors."""

    parameters: int
    layers: tuple[Layer, ...]


class ReadBlock(Document):
    """A block that a job reads, with its declared number of records. A data set that never grew is its block first."""

    label: str
    records: int


class StoredQuote(Document):
    """The quote of a job, with its members in stored order. `mechanism` is the event of each account, for accountants;
    `hpo` shows how a study divides the total; `resolved` what "auto" stood for."""

    noise_multiplier: float | None
    sample_rate: float
    steps: int
    expected_batch_size: int
    mechanism: AccountEvents | None
    epsilon: Epsilon | None
    comparison: Comparison | None
    charge: Charge
    lines: tuple[Line, ...]
    model: ModelQuote
    numerics: Numerics
    hpo: SearchQuote | None
    warnings: tuple[str, ...]
    resolved: Resolved | None = None
    reads: tuple[ReadBlock, ...] = ()  # empty for jobs older than this member


def quote_of(planned: Plan, priced: Price | StudyPrice) -> StoredQuote:
    """Builds the quote of a plan at its price."""
    if isinstance(priced, StudyPrice):
        sigma, events = priced.runs[-1].noise_multiplier, priced.events
    elif priced.mechanism is not None:
        sigma, events = priced.mechanism.training.noise_multiplier, priced.mechanism.events
    else:
        sigma, events = None, None
    search = None
    if planned.study is not None and isinstance(priced, StudyPrice):
        search = quoted(planned.study, priced)
    return StoredQuote(
        noise_multiplier=sigma,
        sample_rate=planned.sample_rate,
        steps=planned.steps,
        expected_batch_size=planned.expected_batch_size,
        mechanism=events,
        epsilon=priced.epsilon,
        comparison=priced.comparison,
        charge=priced.charge,
        lines=priced.lines,
        model=_model(planned),
        numerics=planned.numerics,
        hpo=search,
        warnings=planned.warnings,
        resolved=planned.resolved,
        reads=_reads(planned.facts),
    )


def _reads(facts: DatasetFacts) -> tuple[ReadBlock, ...]:
    if not facts.blocks:
        return (ReadBlock(label=FIRST, records=facts.records_train + facts.records_holdout),)
    found = [ReadBlock(label=each.label, records=each.records_train + each.records_holdout) for each in facts.blocks]
    return tuple(sorted(found, key=lambda each: each.label))


def _model(planned: Plan) -> ModelQuote:
    found = layers(planned.spec.model, planned.facts.features, planned.facts.outputs, planned.facts.rows)
    return ModelQuote(parameters=sum(layer.parameters for layer in found), layers=tuple(found))
