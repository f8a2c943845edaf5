"""A quote, as it is stored with its job and as it is answered."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

from app.admission.facts import DatasetFacts
from app.admission.memory import MemoryEstimate
from app.admission.study import CheckedStudy
from app.admission.times import Start
from app.catalogue.models import Layer
from app.hpo.outlook import Outlook
from app.hpo.rates import Resolved
from core.contracts.base import Document, Epsilon
from core.contracts.blocks import ALL, FIRST, BlockChoice
from core.privacy.accounting import epsilon_of_trial
from core.privacy.events import AccountEvents
from core.privacy.numerics import Numerics
from core.privacy.prices import Charge, Comparison, Line, PricedRun, RunCost, StudyPrice
from core.privacy.releases import ScoreNoise

FIRST_ALONE = "it reads the block `first` alone: the data set's others are closed, or cannot pay"


class ModelQuote(Document):
    """The model's parameters, and its layers with the shapes of their tensors."""

    parameters: int
    layers: tuple[Layer, ...]

    @classmethod
    def of(cls, layers: tuple[Layer, ...]) -> ModelQuote:
        """The quote of a model's layers, with its content filled in."""
        return cls(parameters=sum(layer.parameters for layer in layers), layers=layers)


class ReadBlock(Document):
    """A block that a job reads, with its declared number of records. A data set that never grew is its block first."""

    label: str
    records: int


class RunQuote(RunCost):
    """A trial's part of the total."""

    epsilon: Epsilon | None


class Level(Document):
    """A level of a study's pilots, and how many it has."""

    level: int
    runs: int


class PilotsQuote(RunQuote, Level):  # in this order: stored quotes begin with the level
    """The pilots of one level, which all have the same price but for a mean: the study's first trial pays for it.

    `charge` is that of the level's last pilot.
    """


class SearchQuote(Document):
    """The `hpo` block of a quote: the division of the total before any trial runs. `procedure` is None for an oracle,
    whose trials are not accounted together."""

    strategy: str
    runs: int
    pilots: tuple[PilotsQuote, ...]
    scores: Line | None
    final: Epsilon | None
    final_run: RunQuote
    procedure: Epsilon | None


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
    model: ModelQuote | None  # null of kinds without a model, as are numerics
    numerics: Numerics | None
    hpo: SearchQuote | None
    warnings: tuple[str, ...]
    resolved: Resolved | None = None
    reads: tuple[ReadBlock, ...] = ()  # empty for jobs older than this member


class Quote(BaseModel):
    """A price. `mechanism` is the event tree of each account, for accountants."""

    noise_multiplier: float | None
    sample_rate: float
    steps: int
    expected_batch_size: int
    mechanism: dict[str, Any] | None
    epsilon: Epsilon | None
    comparison: dict[str, float | None] | None
    charge: Charge
    lines: list[Line]
    scores: list[ScoreNoise] = []  # each score's noise; its std at most about this. In a study, of the final trial
    model: ModelQuote | None = None  # its parameters, and its layers with the shapes of their tensors
    numerics: Numerics | None = None  # shapes and types of the passes; null for jobs older than this member
    fits: bool | None = None
    remaining_after: Charge | None = None
    largest_epsilon_that_fits: float | None = None
    jobs_that_fit: int | None = None  # how many jobs of this price fit now; null on public data
    hpo: SearchQuote | None = None  # for a study: how pilots, scores and the final trial share the total
    estimated_duration_s: float | None = None
    start: Start | None = None  # null inside a job, for a study, and if no worker is alive that may take it
    declaration: int | None = None  # the version of the data set's declaration; null inside a job, which has it itself
    warnings: list[str] = []
    memory: MemoryEstimate | None = None  # of each process of an attempt; null inside a job
    resolved: Resolved | None = None  # the learning rate that "auto" stands for, and why
    reads: list[ReadBlock] = []  # the blocks that it reads, with their declared records; empty for older jobs
    outlook: Outlook | None = None  # what more would buy; null inside a job, and without like runs


def search_quote(study: CheckedStudy, priced: StudyPrice) -> SearchQuote:
    """Builds the quote's division of the total, before any trial runs."""
    by_level: dict[int, list[PricedRun]] = {}
    for slot, run in zip(study.slots, priced.runs, strict=True):
        if slot.level is not None:
            by_level.setdefault(slot.level, []).append(run)
    final = _part(study, priced.runs[-1])
    return SearchQuote(
        strategy=study.hpo.strategy,
        runs=len(priced.runs),
        pilots=tuple(
            PilotsQuote(level=level, runs=len(runs), **dict(_part(study, runs[-1]))) for level, runs in by_level.items()
        ),
        scores=next((line for line in priced.lines if line.what == "scores"), None),
        final=final.epsilon,
        final_run=final,
        procedure=None if study.hpo.strategy == "grid_oracle" else priced.epsilon,
    )


def _part(study: CheckedStudy, run: PricedRun) -> RunQuote:
    cost = {name: getattr(run, name) for name in RunCost.model_fields}
    return RunQuote(**cost, epsilon=epsilon_of_trial(study.pricing, run.epsilon))


def left_out(asked: BlockChoice, facts: DatasetFacts) -> list[str]:
    """Warns if of all blocks that were asked for the data set's own is read alone."""
    return [FIRST_ALONE] if asked == ALL and [each.label for each in facts.blocks] == [FIRST] else []


def blocks_read(facts: DatasetFacts) -> tuple[ReadBlock, ...]:
    """The blocks that a job reads, by label."""
    if not facts.blocks:
        return (ReadBlock(label=FIRST, records=facts.records_train + facts.records_holdout),)
    found = [ReadBlock(label=each.label, records=each.records_train + each.records_holdout) for each in facts.blocks]
    return tuple(sorted(found, key=lambda each: each.label))
