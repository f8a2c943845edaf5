"""What the events of a job's log say. Every number from private data in one is paid for.

A log is read for ever, by people and their programs, as JSON: members keep their names and their order. What canaries
show is an `core.privacy.canary_bound.Finding`, and a study's decision an `app.hpo.stored_study.StoredDecision`.
"""

from __future__ import annotations

from pydantic import ConfigDict, Field

from core.contracts.base import Document, is_none
from core.contracts.devices import Kind
from core.contracts.stored_documents import Failure, Number, Role, TrialPoint
from core.privacy.numerics import NumericsReport
from core.privacy.prices import Charge, Units


class Nothing(Document):
    """An event without members."""


class Queued(Document):
    """The job is admitted, at this price. `number` and `role`: of a study's trial."""

    number: int | None = Field(default=None, exclude_if=is_none)
    role: Role | None = Field(default=None, exclude_if=is_none)
    charge: Charge


class AttemptStarted(Document):
    """A worker has claimed the job."""

    attempt: int
    worker: str


class AttemptLost(Document):
    """The attempt's worker or process is gone, and the job is queued again. How stays untold."""

    attempt: int


class Ready(Document):
    """The data are loaded.

    `processes`: the pids of the attempt's ranks. `fallbacks`: layers whose gradients are formed record by record.
    """

    device: Kind
    processes: tuple[int, ...]
    fallbacks: tuple[str, ...]
    numerics: NumericsReport


class Progress(Document):
    """The last step whose state is recorded, of all."""

    step: int
    steps: int


class Part(Document):
    """Another number of the same release: the score on one group of classes, or HIT with NDCG."""

    name: str
    value: float
    std: float

    def of(self, total: Number) -> Number:
        """Returns it as a number of its own, which follows from the whole release."""
        return total.model_copy(update={**dict(self), "released_by": "post_processing", "histogram": None})


class Mismatch(Document):
    """A replay differed after this step: fresh noise from there on."""

    matched_step: int


class Rank(Document):
    """What one rank did, on public data alone: `passes` over all steps, and the most memory that it had resident."""

    pid: int
    passes: int
    max_rss_bytes: int


class Ranks(Document):
    """The report of all ranks."""

    ranks: tuple[Rank, ...]


class Requested(Document):
    """A cancel or a pause: who asked, a key or a study."""

    by: str


class Ended(Document):
    """The job's end: its started steps, or a study's ended trials; why it failed; what it was charged, if there is an
    account."""

    steps: int | None = Field(default=None, exclude_if=is_none)
    runs: int | None = Field(default=None, exclude_if=is_none)
    code: str | None = Field(default=None, exclude_if=is_none)
    message: str | None = Field(default=None, exclude_if=is_none)
    charge: Units | None = Field(default=None, exclude_if=is_none)

    def because(self, failure: Failure | None) -> Ended:
        """The same, of a job that failed so."""
        return self if failure is None else self.model_copy(update=failure.model_dump())


class Settled(Document):
    """What is read from the end of a job of any age: other members are left out."""

    model_config = ConfigDict(extra="ignore")

    charge: Units | None = None


class Trial(Document):
    """A study's trial, by its job and its number."""

    job: str
    number: int


class TrialQueued(TrialPoint, Trial):
    """A study's trial is queued, at this point."""


class Score(Document):
    """What trials are compared by."""

    name: str
    value: float
    std: float


class TrialEnded(Trial):
    """A study's trial has ended; `score` is null for the final trial and for one without."""

    status: str
    score: Score | None
