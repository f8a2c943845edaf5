"""Pauses: a paused job keeps its hold and its record of started steps, and is on no worker until a person resumes it.

    queued ──pause──▶ paused ◀──its process is gone── pausing ◀──pause── running
       ▲                │ │                              │
       └────resume──────┘ └──cancel──▶ cancelled         └──resume──▶ running, or queued if its process is gone already

A pause takes effect at a whole second, like a cancel: the number of steps that had started at a moment of a caller's
choice would reveal the time of a step. A resumed job goes on from its checkpoint under the same keys: it repeats later
steps bit for bit, which is free, and is compared with every digest on the way. Nothing is released and nothing is
charged by a pause.
"""

from __future__ import annotations

from sqlalchemy.orm import Session

from app.db.models import Job
from app.lifecycle.queue.room import leave_queue
from app.lifecycle.settle import waiting_for
from app.lifecycle.states import append_event, enqueue, notify


def request(session: Session, job: Job) -> None:
    """Pauses a queued job at once, and a running one at the next whole second.

    Args:
        job: its row, locked by this transaction.
    """
    if job.status == "queued":
        park(session, job)
    else:
        job.status = "pausing"


def resume(session: Session, job: Job) -> None:
    """Lets a paused job go on; takes a pause back that has not taken effect yet.

    Args:
        job: its row, locked by this transaction.
    """
    append_event(session, job.id, "resumed")
    if job.status == "pausing":
        job.status = "running"  # if its worker has ended the process already, `enqueue` follows
    else:
        enqueue(session, job)


def park(session: Session, job: Job) -> None:
    """Takes a job out of the queue, or off its worker, whose attempt has ended. Its hold stays."""
    waiting = waiting_for(session, job) if job.worker is not None else []
    leave_queue(session, job)
    job.status, job.worker, job.notified_at, job.lease_until, job.lease_clock = "paused", None, None, None, None
    append_event(session, job.id, "paused")
    for job_id in waiting:
        notify(session, job_id)
