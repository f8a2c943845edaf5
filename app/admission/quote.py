"""A quote, as it is stored with its job and as it is answered."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from app.admission.facts import DatasetFacts
from app.admission.memory_estimate import MemoryEstimate
from app.admission.study import CheckedStudy
from app.admission.times import Start
from app.catalogue.model_kinds import Layer
from app.hpo.accuracy_outlook import Outlook
from app.hpo.rates import Resolved
from core import leaves
from core.contracts.base import Deferred, Document, Epsilon
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
    planned_noise: tuple[str, ...] = ()  # those of the warnings that released scores replace; so too


class Quote(Deferred):
    """A price. `mechanism` is the event tree of each account, for accountants."""

    noise_multiplier: Annotated[float | None, leaves.PLANNED]
    sample_rate: Annotated[float, leaves.PLANNED]
    steps: Annotated[int, leaves.PLANNED]
    expected_batch_size: Annotated[int, leaves.PLANNED]
    mechanism: Annotated[dict[str, Any] | None, leaves.PLANNED]
    epsilon: Annotated[Epsilon | None, leaves.PLANNED]
    comparison: Annotated[dict[str, float | None] | None, leaves.PLANNED]
    charge: Annotated[Charge, leaves.PLANNED]
    lines: Annotated[list[Line], leaves.PLANNED]
    # each score's noise; its std at most about this. In a study, of the final trial
    scores: Annotated[list[ScoreNoise], leaves.PLANNED] = Field([])
    # its parameters, and its layers with the shapes of their tensors
    model: Annotated[ModelQuote | None, leaves.PLANNED] = None
    # shapes and types of the passes; null for jobs older than this member
    numerics: Annotated[Numerics | None, leaves.NUMERICS] = None
    fits: Annotated[bool | None, leaves.WHAT_FITS] = None
    remaining_after: Annotated[Charge | None, leaves.WHAT_FITS] = None
    largest_epsilon_that_fits: Annotated[float | None, leaves.WHAT_FITS] = None
    # how many jobs of this price fit now; null on public data
    jobs_that_fit: Annotated[int | None, leaves.WHAT_FITS] = None
    # for a study: how pilots, scores and the final trial share the total
    hpo: Annotated[SearchQuote | None, leaves.PLANNED] = None
    estimated_duration_s: Annotated[float | None, leaves.DURATION] = None
    # null inside a job, for a study, and if no worker is alive that may take it
    start: Annotated[Start | None, leaves.QUEUE] = None
    # the version of the data set's declaration; null inside a job, which has it itself
    declaration: Annotated[int | None, leaves.OWNERS_ACTIONS] = None
    warnings: Annotated[list[str], leaves.PLANNED] = Field([])
    memory: Annotated[MemoryEstimate | None, leaves.PLANNED] = None  # of each process of an attempt; null inside a job
    resolved: Annotated[Resolved | None, leaves.PLANNED] = None  # the learning rate that "auto" stands for, and why
    # the blocks that it reads, with their declared records; empty for older jobs
    reads: Annotated[list[ReadBlock], leaves.PLANNED] = Field([])
    # what more would buy; null inside a job, and without like runs
    outlook: Annotated[Outlook | None, leaves.PLANNED] = None


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


def left_out(choice: BlockChoice, facts: DatasetFacts) -> list[str]:
    """Warns if of all blocks that were asked for the data set's own is read alone."""
    return [FIRST_ALONE] if choice == ALL and [each.label for each in facts.blocks] == [FIRST] else []


def blocks_read(facts: DatasetFacts) -> tuple[ReadBlock, ...]:
    """The blocks that a job reads, by label."""
    if not facts.blocks:
        return (ReadBlock(label=FIRST, records=facts.records_train + facts.records_holdout),)
    blocks = [ReadBlock(label=each.label, records=each.records_train + each.records_holdout) for each in facts.blocks]
    return tuple(sorted(blocks, key=lambda block: block.label))
