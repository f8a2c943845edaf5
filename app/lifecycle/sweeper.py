"""The sweeper makes lost messages and workers harmless: it finds unclaimed jobs and takes back expired leases."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import func, select, text, update

from app import tracing
from app.db.clock import has_passed
from app.db.database import Database
from app.db.models import DatasetReading, Job
from app.lifecycle import study_states
from app.lifecycle.claims import give_back
from app.lifecycle.marks import Marks, adopt, adopt_all, around
from app.lifecycle.queue.turns import LINE
from app.lifecycle.states import ACTIVE, IDLE, IS_DUE, NEEDS_GPU
from core.errors import ServiceError
from core.privacy.filters import load_numerics

logger = logging.getLogger(__name__)
LAPSED = (Job.status.in_(ACTIVE), has_passed(Job.lease_until, Job.lease_clock))
CLAIMABLE = (Job.status == "queued", Job.study.is_(None), IS_DUE)
PAST = "none"  # names no clock: all its moments have passed
SILENT_S = 10.0
# The server's own limit of idle transactions does not see a program that stands still within a trip, and the driver
# turns it off at a trip's end: it sends a flush after the sync.
CUT_OFF = text(
    "SELECT pg_terminate_backend(pid) FROM pg_locks JOIN pg_stat_activity USING (pid) "
    "WHERE locktype = 'advisory' AND classid = 0 AND objid = :line AND objsubid = 1 AND granted "
    "AND datname = current_database() AND usename = current_user AND wait_event = 'ClientRead' "
    "AND state_change < clock_timestamp() - :silent_s * interval '1 second'"
)


def cut_off_silent(db: Database) -> int:
    """Lets the others pass where the first in line has sent nothing for a while: its process stands still, or its
    machine is gone and no network has said so. Returns how many claims it ended."""
    if db.engine.dialect.name != "postgresql":
        return 0
    with db.quick_read() as connection:
        count = len(connection.execute(CUT_OFF, {"line": LINE, "silent_s": SILENT_S}).all())
    if count:
        logger.warning("a claim sent nothing for %g s while others waited for it: it is cut off", SILENT_S)
    return count


def reap_expired(db: Database, max_attempts: int, outside: Marks | None = None) -> int:
    """Takes back every job with an expired lease; returns how many.

    Args:
        outside: the marks of jobs: a job that ends here is charged for what they have and the database has forgotten.
    """
    with db.read() as session:
        expired = session.scalars(select(Job.id).where(*LAPSED)).all()
    reaped = 0
    if expired:
        load_numerics()
    for job_id in expired:
        with _one_by_one(job_id):
            marks = {} if outside is None else around(db, outside, job_id)
            mark = marks.pop(job_id, None)
            with db.write() as session:
                study_states.lock(session, job_id)
                # Checked again inside the write: the worker may have renewed its lease since.
                lapsed = select(Job).where(Job.id == job_id, *LAPSED).with_for_update(key_share=True)
                job = session.scalars(lapsed).one_or_none()
                if job is not None:
                    if mark is not None:
                        adopt(session, job, mark)
                    adopt_all(session, marks, IDLE)
                    give_back(session, job, "lapsed", max_attempts)
                    reaped += 1
    return reaped


@contextmanager
def _one_by_one(job_id: str) -> Iterator[None]:
    """Logs the error of a job that cannot be taken back, so that the others are not delayed."""
    try:
        yield
    except ServiceError as error:
        logger.error("cannot take back %s: %s: %s", job_id, error.code, error.message)


def expire_all_leases(db: Database) -> None:
    """Expires all leases when an embedded home starts: its lock proves that no other process of it is alive."""
    with db.write() as session:
        expired = (DatasetReading.state == "reading", DatasetReading.lease_until.is_not(None))
        session.execute(update(DatasetReading).where(*expired).values(lease_until=0.0, lease_clock=PAST))
        leased = (Job.status.in_(ACTIVE), Job.lease_until.is_not(None))  # a study has no worker, and no lease
        session.execute(update(Job).where(*leased).values(lease_until=0.0, lease_clock=PAST))


def count_queued(db: Database, *, gpu: bool = False) -> int:
    """Counts the jobs that a worker could claim now; `gpu`: only those for GPU workers alone, or all others."""
    with db.read() as session:
        queued = select(func.count()).select_from(Job).where(*CLAIMABLE, NEEDS_GPU if gpu else ~NEEDS_GPU)
        return session.scalar(queued) or 0


def traceparent(db: Database, job_id: str) -> str | None:
    """Returns where the job's trace goes on; None, without a query, where this process does not trace."""
    if not tracing.is_on():
        return None
    with db.quick_read() as connection:
        return connection.scalar(select(Job.traceparent).where(Job.id == job_id))
