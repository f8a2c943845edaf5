"""What a worker has room for: its own device, or what a cluster grants (worker.cluster).

A worker by itself has its processors, and one GPU if it has any. A driver of a cluster asks the cluster for the room of
the job whose turn it is, before it claims it (app.lifecycle.queue.fair). The cluster counts what is in use, and grants
all or nothing; the database stores none of that. While the cluster has no room for that job, no driver claims
another that asks for the same kind of device: so what is free there only grows, and a large job whose turn has come is
claimed after at most the ends of those that ran before.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from sqlalchemy import select
from sqlalchemy.orm import Session

from app.db.models import Job
from app.lifecycle.states import IS_DUE, NEEDS_GPU, notify
from core.contracts.devices import Kind, kind_of
from core.contracts.runtime import Runtime, StoredRuntime


@dataclass(frozen=True)
class Need:
    """What an attempt of a job needs.

    Attributes:
        kind: of device, one for each rank.
        ranks, limit: at least so many, and at most; more than `ranks` for one that takes what is free.
        threads: of each rank; None: the job leaves them open.
    """

    kind: Kind
    ranks: int
    limit: int
    threads: int | None = None


@dataclass(frozen=True)
class Room:
    """The most ranks of one job that a worker can ever run.

    Attributes:
        ranks: on processors.
        gpus: on GPUs.
    """

    ranks: int
    gpus: int = 0

    def need(self, runtime: Runtime, ready: str | None = None, threads: int | None = None) -> Need | None:
        """What an attempt needs here; None if it cannot run.

        Args:
            ready, threads: the kind of device, and the threads, of the job's earlier ready attempts. Such a job goes on
                with fewer ranks, to the same bits.
        """
        kind, ranks = kind_of(runtime.device, ready), runtime.ranks
        capacity = self.gpus if kind == "cuda" else self.ranks
        if capacity == 0 or (ranks > capacity and ready is None):
            return None
        fewest = min(ranks, capacity)
        limit = capacity if kind == "cuda" and runtime.processes == "auto" else fewest
        return Need(kind, fewest, limit, threads or (None if runtime.threads == "auto" else runtime.threads))


class Grants(Protocol):
    """Who gives a worker its room."""

    def granted(self, need: Need) -> int:
        """How many ranks there is room for now, as it was granted; 0 if nothing was, or something else."""
        ...

    def ask(self, need: Need) -> bool:
        """Asks for room, in place of what was granted before. Call it outside a transaction: it may take seconds.

        Returns:
            False if there is none now.
        """
        ...


class OwnDevice:
    """A worker that runs one attempt at a time on its own device: all of it is always free."""

    def granted(self, need: Need) -> int:
        """See Grants.granted."""
        return need.limit

    def ask(self, need: Need) -> bool:
        """See Grants.ask. There is nothing to ask for."""
        return True


def wake(session: Session, but: str = "") -> None:
    """Wakes a worker for each queue of messages in which a job waits: earlier messages came while there was no room for
    them. Who claims a job on a cluster wakes the next.

    Args:
        but: this job leaves the queue.
    """
    queued = select(Job.id).where(Job.status == "queued", Job.study.is_(None), Job.id != but, IS_DUE)
    for asks in (NEEDS_GPU, ~NEEDS_GPU):
        for job_id in session.scalars(queued.where(asks).order_by(Job.created_at).limit(1)).all():
            notify(session, job_id)


def leave_queue(session: Session, job: Job) -> None:
    """Wakes workers for what had to wait behind a job of several ranks that leaves the queue unclaimed.

    Args:
        job: its row, locked by this transaction, with its status as it was.
    """
    if job.status == "queued" and StoredRuntime.of(job.spec).runtime.ranks > 1:
        wake(session, but=job.id)
