"""Answers of the job routes, as documents of the REST contract. A job's specification, its event tree, an event's data
and a certificate are shown as they are stored: the JSON of their release."""

from __future__ import annotations

from datetime import datetime
from types import SimpleNamespace
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

from pydantic import ConfigDict, Field
from sqlalchemy import Row

from app.admission.quote import Quote
from app.db.models import Attempt, Job, Metric
from app.db.row_view import Column, Computed, Page, RowView, Separate, Whole
from app.jobs.trials import StudyView
from app.ledger.certificate_documents import Signed
from app.lifecycle.queue.presence import GpuWorkers
from core import leaves
from core.contracts.base import Deferred, Epsilon, is_none
from core.contracts.metrics import ReleasedHistogram
from core.contracts.runtime import StoredRuntime
from core.contracts.stored_documents import Failure, Number
from core.ids import now
from core.privacy.prices import Units

JobLike = Job | Row[Any] | SimpleNamespace  # the ORM's object, or one with its columns


class Progress(Deferred):
    """A job's progress: steps done and planned, and times in whole seconds."""

    step: Annotated[int, leaves.PROGRESS]
    steps: Annotated[int, leaves.ASKED]
    elapsed_s: Annotated[float | None, leaves.TIMES]
    remaining_s: Annotated[float | None, leaves.PROGRESS]


def shown_status(attempt: Attempt | Row[Any] | SimpleNamespace) -> str:
    """An attempt's status as callers see it. `crashed` and `lapsed` are `lost`: a crash may depend on private data,
    such as lengths that need too much memory."""
    return "lost" if attempt.status in ("crashed", "lapsed") else str(attempt.status)


class AttemptView(RowView):
    """An attempt of a worker to run a job."""

    number: Annotated[int, leaves.WORKERS]
    worker: Annotated[str, leaves.WORKERS]
    status: Annotated[str, Computed(shown_status, "status"), leaves.ENDS]
    device: Annotated[str | None, leaves.TIMES] = None  # "cpu" or "cuda", once it has loaded the data
    started_at: Annotated[datetime, leaves.TIMES]
    ended_at: Annotated[datetime | None, leaves.TIMES]


class MetricView(Number, RowView):
    """A released number, with the std of its noise.

    `histogram`, in the list of a job's metrics: from which the last `auc` and what comes with it were computed.
    """

    model_config = ConfigDict(extra="ignore", allow_inf_nan=True)  # rows of old releases are shown as they are

    histogram: Annotated[ReleasedHistogram | None, Separate(), leaves.SCORES] = Field(default=None, exclude_if=is_none)

    @classmethod
    def whole(cls, metric: Metric) -> MetricView:
        return cls.model_validate(metric, from_attributes=True)


class ArtifactView(RowView):
    """A file of a job. `damaged`: the stored file differs from the published one and cannot be downloaded."""

    name: Annotated[str, leaves.FILES]
    sha256: Annotated[str, leaves.WEIGHTS]
    size_bytes: Annotated[int, leaves.FILES]
    damaged: Annotated[bool, Computed(lambda file: file.damaged_at is not None, "damaged_at"), leaves.FILES] = False


class ChargedView(Deferred):
    """What a settled job was charged on each account, in the filter's units, its trials' charges included; `share` is
    the charged part of its hold, on the account where that is larger."""

    train: int
    holdout: int
    share: float

    @classmethod
    def of(cls, job: JobLike, hold: Units, settlements: list[Any]) -> ChargedView | None:
        """Builds the view of a job with this charge; None for one that has not settled, and on public data."""
        if not settlements:
            return None
        settled = settlements[-1]
        # The trials of a study have drawn on its hold before: what was not released was charged.
        released = {"train": settled.train_released, "holdout": settled.holdout_released}
        holds = {"train": hold.train, "holdout": hold.holdout}
        totals = {name: holds[name] - released[name] for name in released}
        charged = totals if job.study is not None else {"train": settled.train, "holdout": settled.holdout}
        share = max((charged[name] / holds[name] for name in charged if holds[name] > 0), default=0.0)
        return cls(**charged, share=share)


class JobSource(NamedTuple):
    """What a job's answer is read from.

    Attributes:
        job: its row. Its specification and its quote are read only of queued jobs and of studies.
        epsilon, charge: of its quote: the planned ε and the held units.
        details: its attempts, metrics, artifacts and settlements.
        gpus: what queued jobs wait for.
    """

    job: JobLike
    epsilon: Epsilon | None
    charge: Units
    details: dict[str, list[Any]]
    gpus: GpuWorkers


class JobView(RowView):
    """A job. `epsilon_spent` is its planned ε, also if it stopped early: `charged` tells how much of its hold it cost.
    `metrics` has each metric's last value; `GET …/metrics` has all values."""

    row: ClassVar[str] = "job"

    id: Annotated[str, leaves.ASKED]
    name: Annotated[str, leaves.ASKED]
    dataset: Annotated[str, Column("dataset_id"), leaves.ASKED]
    status: Annotated[str, leaves.ENDS]
    # Queued: for a living GPU worker, for living workers with so many GPUs for one job (`runtime.processes`), for one
    # with so many processes, or for any free worker.
    waiting_for: Annotated[
        Literal["cuda", "gpus", "processes", "worker"] | None,
        Computed(lambda source: _waiting_for(source.job, source.gpus), "study", "status", "device"),
        leaves.WORKERS,
    ] = None
    spec: Annotated[dict[str, Any], Column("spec", text=True), leaves.ASKED]
    quote: Annotated[Quote, Column("quote", text=True), leaves.ASKED]
    progress: Annotated[
        Progress,
        Computed(lambda source: progress_of(source.job, source.details["attempts"]), "step", "steps", "finished_at"),
        leaves.PROGRESS,
    ]
    epsilon_spent: Annotated[
        Epsilon | None,
        Computed(
            lambda source: spent_by(source.job, source.epsilon), "study", "started_at", "finished_at", "steps_started"
        ),
        leaves.EPSILON,
    ]
    charged: Annotated[
        ChargedView | None,  # null until it has settled
        Computed(lambda source: ChargedView.of(source.job, source.charge, source.details["settlements"]), "study"),
        leaves.SPENDING,
    ] = None
    attempts: Annotated[
        list[AttemptView],
        Computed(lambda source: [AttemptView.members(each) for each in source.details["attempts"]]),
        leaves.TIMES,
    ]
    metrics: Annotated[
        dict[str, MetricView],
        Computed(lambda source: {each.name: MetricView.members(each) for each in source.details["metrics"]}),
        leaves.ELSEWHERE,
    ]
    failure: Annotated[Failure | None, leaves.FAILURES]
    warnings: Annotated[list[str], leaves.REPLAYS]
    artifacts: Annotated[
        list[ArtifactView],
        Computed(lambda source: [ArtifactView.members(each) for each in source.details["artifacts"]]),
        leaves.WEIGHTS,
    ]
    tags: Annotated[
        list[str], Computed(lambda source: [each for each in source.job.tags.split(",") if each], "tags"), leaves.ASKED
    ] = Field(default=[])
    notes: Annotated[str, leaves.ASKED] = ""
    study: Annotated[  # for a study: its progress and decisions
        StudyView | None, Computed(lambda source: StudyView.of(source.job), "study", "step", "steps"), leaves.ELSEWHERE
    ] = None
    parent: Annotated[str | None, Column("parent_id"), leaves.ASKED] = None  # for a trial: its study
    declaration: Annotated[int, leaves.OWNERS_ACTIONS] = (
        1  # the version of the data set's declaration that it was priced with
    )
    # Like the times below, or it could be later than them.
    created_at: Annotated[
        datetime, Computed(lambda source: source.job.created_at.replace(microsecond=0), "created_at"), leaves.ASKED
    ]
    started_at: Annotated[datetime | None, leaves.TIMES]
    finished_at: Annotated[datetime | None, leaves.TIMES]

    @classmethod
    def of_job(cls, job: JobLike, details: dict[str, list[Any]], gpus: GpuWorkers) -> JobView:
        """Builds the answer of a job's row with its details."""
        quote = Quote.model_validate(job.quote)
        source = JobSource(job, quote.epsilon, held_by(quote), details, gpus)
        return cls.model_validate({"spec": job.spec, "quote": quote} | cls.members(source))


def held_by(quote: Quote) -> Units:
    """The units that a job of this quote holds."""
    return Units(train=quote.charge.train, holdout=quote.charge.holdout)


class JobList(Page[JobView]):
    """A page of jobs."""


class EventView(RowView):
    """An event of a job."""

    seq: Annotated[int, leaves.ASKED]
    type: Annotated[str, leaves.ASKED]
    data: Annotated[dict[str, Any], leaves.ASKED]
    at: Annotated[datetime, Column("created_at"), leaves.TIMES]


class EventList(Page[EventView]):
    """A page of a job's events."""


class MetricList(Whole[MetricView]):
    """All released numbers of a job."""


class DsseSignature(Deferred):
    """A signature over the envelope's payload: Ed25519, base64. `keyid`: the SHA-256 of the raw public key."""

    keyid: str
    sig: str


class DsseEnvelope(Deferred):
    """A DSSE envelope. `payload`: base64 of an in-toto statement about the job's files, by their SHA-256."""

    payloadType: str  # noqa: N815 - DSSE's name
    payload: str
    signatures: list[DsseSignature]


class CertificateDocument(Signed):
    """The signed certificate: `signature` is Ed25519 over the canonical JSON of `certificate`.

    `envelope`: the same for other tools, an in-toto statement in a DSSE envelope; null if an earlier version issued it.
    """

    certificate: dict[str, Any]
    envelope: DsseEnvelope | None = None


def progress_of(job: JobLike, attempts: list[Any]) -> Progress:
    """Builds a job's progress in whole seconds, updated at whole seconds: step times are never published."""
    began = attempts[-1].started_at if attempts else None
    if began is None:
        return Progress(step=job.step, steps=job.steps, elapsed_s=None, remaining_s=None)
    until = attempts[-1].ended_at or job.finished_at or now()  # paused and queued jobs' time stands
    elapsed = max(0.0, (until - began).total_seconds())
    goes_on = job.step and job.finished_at is None and attempts[-1].ended_at is None
    left = elapsed / job.step * (job.steps - job.step) if goes_on else None
    return Progress(
        step=job.step,
        steps=job.steps,
        elapsed_s=float(round(elapsed)),
        remaining_s=None if left is None else float(round(left)),
    )


def _waiting_for(job: JobLike, gpus: GpuWorkers) -> Literal["cuda", "gpus", "processes", "worker"] | None:
    """Says what a queued job waits for. A study waits like its trials while no worker can take them."""
    is_study = job.study is not None
    if job.status != "queued" and not (is_study and job.status == "running"):
        return None
    lack = gpus.lack(StoredRuntime.of(job.spec).runtime, job.device)
    return lack or (None if is_study else "worker")


def spent_by(job: JobLike, planned: Epsilon | None) -> Epsilon | None:
    """Returns the planned ε once a worker has the job; 0 if the job ended before a private step.

    Never computes ε from the stopping time. ε also does not change when the data are loaded, as the time of loading
    depends on their number.
    """
    is_study = job.study is not None
    may_spend = job.started_at is not None and (is_study or job.finished_at is None)
    if planned is None or job.steps_started > 0 or may_spend:
        return planned
    return planned.model_copy(update={"value": 0.0})
