"""Cancels, pauses and resumes jobs."""

from __future__ import annotations

from typing import Literal

from sqlalchemy.orm import Session

from app.audit import record as audit
from app.db.database import Database
from app.db.models import Job
from app.grants import service as grants
from app.keys.service import Caller
from app.ledger.transparency.heads import Heads
from app.lifecycle import marks, pausing
from app.lifecycle.job_events import Requested
from app.lifecycle.settle import settle, settlement_of
from app.lifecycle.states import IDLE, append_event, get_job
from app.lifecycle.study_states import cancel as cancel_study
from app.lifecycle.study_states import pause as pause_study
from app.lifecycle.study_states import resume as resume_study
from core.errors import Conflict, Forbidden
from core.ids import now
from core.privacy.filters import load_numerics

STOPPABLE = ("queued", "running", "pausing", "paused")


def cancel(db: Database, caller: Caller, job_id: str, heads: Heads) -> None:
    """Cancels a job: at once if no worker has it, within a second if one runs it.

    Args:
        heads: the marks of jobs lie beside them: what left the job and the database has forgotten is charged.

    Raises:
        Conflict: `wrong-state`: the job has ended, or is a trial. `ledger-behind`: its mark is damaged, so that it is
            unknown what left it.
        NotFound: there is no such job, or the key may not see its data set.
        Forbidden: the key is none of these: the submitter's, if it may still train; the data set's owner's; an admin's.
    """
    load_numerics()  # for a paused job, whose started part is charged now
    outside = marks.outside(db, heads, job_id)
    with db.write() as session:
        job = _steered(session, caller, job_id, "cancel")
        if job.status == "cancelling":
            return
        if job.status not in STOPPABLE:
            raise Conflict("wrong-state", f"there is nothing to cancel: the job is {job.status}", job_status=job.status)
        job.cancel_requested_at = now()
        append_event(session, job.id, "cancel_requested", Requested(by=caller.id))
        audit.record(session, "job.cancelled", job.id)
        marks.adopt_all(session, outside, IDLE)
        if job.study is not None:
            cancel_study(session, job)
        elif job.status in IDLE:
            settle(session, settlement_of(session, job, "cancelled"))
        else:
            job.status = "cancelling"


def pause(db: Database, caller: Caller, job_id: str) -> None:
    """Pauses a job: at once if it is queued, within a second if it runs. Its hold stays.

    Raises:
        Conflict: `wrong-state`: it has ended or is being cancelled, or it is a trial.
        NotFound, Forbidden: as `cancel`.
    """
    with db.write() as session:
        job = _steered(session, caller, job_id, "pause")
        if job.status in ("pausing", "paused"):
            return
        if job.status not in ("queued", "running"):
            raise Conflict("wrong-state", f"there is nothing to pause: the job is {job.status}", job_status=job.status)
        append_event(session, job.id, "pause_requested", Requested(by=caller.id))
        audit.record(session, "job.paused", job.id)
        (pause_study if job.study is not None else pausing.request)(session, job)


def resume(db: Database, caller: Caller, job_id: str) -> None:
    """Lets a paused job go on from its checkpoint: it repeats later steps bit for bit, free of charge.

    Raises:
        Conflict: `wrong-state`: it is not paused.
        NotFound, Forbidden: as `cancel`.
    """
    with db.write() as session:
        job = _steered(session, caller, job_id, "resume")
        if job.status not in ("pausing", "paused"):
            raise Conflict("wrong-state", f"there is nothing to resume: the job is {job.status}", job_status=job.status)
        audit.record(session, "job.resumed", job.id)
        (resume_study if job.study is not None else pausing.resume)(session, job)


def _steered(session: Session, caller: Caller, job_id: str, action: Literal["cancel", "pause", "resume"]) -> Job:
    """A job's locked row, for a caller who may steer it."""
    if not may_cancel(session, caller, grants.require_job(session, caller, job_id)):
        raise Forbidden(f"only the key that submitted this job, the data set's owner or an admin may {action} it")
    # Locked: a worker may be claiming the job now, and the hold of a started step must not be voided.
    job = get_job(session, job_id, lock=True)
    if job.parent_id is not None:
        raise Conflict("wrong-state", f"a trial ends with its study: {action} the study", study=job.parent_id)
    return job


def may_cancel(session: Session, caller: Caller, job: Job) -> bool:
    """Returns True if the caller may cancel, pause and resume the job: as its submitter who may train, as the owner, or
    as an admin."""
    access = grants.access_to_job(session, caller, job)
    return access is not None and access.covers("train" if caller.id == job.key_id else "own")
