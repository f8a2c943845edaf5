"""A quote, as it is stored with its job and as it is answered."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

from app.admission.division import SearchQuote
from app.admission.memory import MemoryEstimate
from app.admission.times import Start
from app.catalogue.models import Layer
from app.contracts.base import Document, Epsilon
from app.hpo.outlook import Outlook
from app.hpo.rates import Resolved
from app.privacy.events import AccountEvents
from app.privacy.numerics import Numerics
from app.privacy.prices import Charge, Comparison, Line
from app.privacy.releases import ScoreNoise


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
