"""Wake-up messages: which are due, how they are sent, and the note that they were.

A message may be lost or doubled: a claim decides who runs a job, and the sweeper repeats lost ones. So all that are due
go to the broker together and are noted in one transaction after that. Whoever dies in between sends them again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Protocol

from celery import Celery
from kombu.messaging import Producer
from sqlalchemy import BindParameter, ColumnElement, and_, bindparam, delete, or_, select, tuple_, update

from app import tracing
from app.db.database import Database
from app.db.models import Job, Outbox, table_of
from app.lifecycle.broker import GPU_QUEUE, QUEUE, celery_options
from app.lifecycle.states import NEEDS_GPU
from app.lifecycle.sweeper import CLAIMABLE
from app.settings import Settings
from core.contracts.event_kinds import RUN_JOB
from core.ids import now

NO_ROW = 0
JOBS, OUTBOX = table_of(Job), table_of(Outbox)
DUE = (
    select(Outbox.id, Job.id, NEEDS_GPU, Job.traceparent)
    .join(Job, Job.id == Outbox.job_id)
    .where(Outbox.topic == "notify")
    .order_by(Outbox.id)
)


@dataclass(frozen=True)
class WakeUp:
    """A message that wakes one worker.

    Attributes:
        id: the job's or the prediction's.
        gpu: a GPU worker, as no other may take the job.
        traceparent: where the job's trace goes on, if it has one.
        row: of the outbox; NO_ROW if none asks for it.
    """

    id: str
    gpu: bool = False
    traceparent: str | None = None
    row: int = NO_ROW


class Notifier(Protocol):
    """Sends wake-up messages to workers; may lose or double them."""

    def notify(self, due: Sequence[WakeUp]) -> Iterator[WakeUp]:
        """Sends messages; yields each one once it is sent."""
        ...

    def waiting(self, *, gpu: bool = False) -> int:
        """Returns how many messages no worker has taken yet; `gpu` as in `WakeUp`."""
        ...


class CeleryNotifier:
    """Sends wake-up messages through Celery: through Redis all of them in one round trip."""

    def __init__(self, settings: Settings) -> None:
        self.app = Celery("scrimp")
        self.app.conf.update(celery_options(settings))

    def notify(self, due: Sequence[WakeUp]) -> Iterator[WakeUp]:
        """Sends messages, without retries; yields each one once it is sent.

        Raises:
            Exception: the broker's. Of those not yielded, some may have arrived.
        """
        with self.app.producer_or_acquire() as producer:
            if producer.supports_batch_publish:
                with producer.batch():
                    for wake_up in due:
                        self._send(wake_up, producer)
                yield from due
                return
            for wake_up in due:
                self._send(wake_up, producer)
                yield wake_up

    def waiting(self, *, gpu: bool = False) -> int:
        """Asks the broker how many messages no worker has taken yet."""
        with self.app.connection_for_write() as connection, connection.channel() as channel:
            return int(channel.queue_declare(GPU_QUEUE if gpu else QUEUE).message_count)

    def _send(self, wake_up: WakeUp, producer: Producer) -> None:
        queue = GPU_QUEUE if wake_up.gpu else QUEUE
        with _traced(wake_up):
            self.app.send_task(
                RUN_JOB, args=[wake_up.id], ignore_result=True, retry=False, queue=queue, producer=producer
            )


def _traced(wake_up: WakeUp) -> AbstractContextManager[Any]:
    if wake_up.traceparent is None:
        return nullcontext()
    return tracing.span("notify", {"job": wake_up.id}, parent=wake_up.traceparent)


def due(db: Database, limit: int) -> list[WakeUp]:
    """Reads the messages that the outbox asks for, in its order."""
    with db.quick_read() as connection:
        rows = connection.execute(DUE.limit(limit))
        return [WakeUp(job_id, bool(gpu), parent, row) for row, job_id, gpu, parent in rows]


def note(db: Database, sent: Sequence[WakeUp]) -> None:
    """Notes sent messages of jobs, and takes their rows from the outbox: two statements, however many they are."""
    with db.write() as session:
        connection = session.connection()
        connection.execute(NOTE, {"jobs": [each.id for each in sent], "at": now()})
        connection.execute(DONE, {"rows": [(each.row, each.id) for each in sent]})


def as_read(topic: str, rows: Sequence[tuple[int, str]] | BindParameter[Any]) -> ColumnElement[bool]:
    """The condition for these rows of the outbox, as they were read, by id and job. SQLite reuses a deleted row's id,
    and with two relays this may have happened since."""
    return and_(OUTBOX.c.topic == topic, tuple_(OUTBOX.c.id, OUTBOX.c.job_id).in_(rows))


# A locked row is being claimed, or noted by another relay: no need to wait for it.
NOTE = (
    update(JOBS)
    .where(
        JOBS.c.id.in_(
            select(JOBS.c.id)
            .where(JOBS.c.id.in_(bindparam("jobs", expanding=True)), JOBS.c.status == "queued")
            .with_for_update(skip_locked=True, key_share=True)
        )
    )
    .values(notified_at=bindparam("at"))
)
DONE = delete(OUTBOX).where(
    OUTBOX.c.id.in_(
        select(OUTBOX.c.id)
        .where(as_read("notify", bindparam("rows", expanding=True)))
        .with_for_update(skip_locked=True)
    )
)


def unclaimed(db: Database, notify_again_s: float, limit: int, *, gpu: bool = False) -> list[WakeUp]:
    """Finds jobs that a worker could claim, oldest first, whose message was never sent or must be lost by its age.

    Args:
        gpu: True for the jobs that only GPU workers may take, False for all others.
    """
    stale = now() - timedelta(seconds=notify_again_s)
    query = (
        select(Job.id, Job.traceparent)
        .where(*CLAIMABLE, NEEDS_GPU if gpu else ~NEEDS_GPU)
        .where(or_(Job.notified_at.is_(None), Job.notified_at < stale))
        .order_by(Job.created_at, Job.id)
        .limit(limit)
    )
    with db.quick_read() as connection:
        return [WakeUp(job_id, gpu, parent) for job_id, parent in connection.execute(query)]
