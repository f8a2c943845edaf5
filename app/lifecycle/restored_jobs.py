"""Ends the jobs that a restored database takes to be unfinished, as their marks say."""

from __future__ import annotations

from collections.abc import Collection

from sqlalchemy import ColumnElement, or_, select
from sqlalchemy.orm import Session

from app.db.models import Charge, Job, LedgerEntry
from app.lifecycle import study_states
from app.lifecycle.claims import end_attempt, give_back
from app.lifecycle.marks import Mark, adopt_all
from app.lifecycle.settle import Cause, settle, settlement_of
from app.lifecycle.states import ACTIVE, FINISHED, IDLE, get_job
from core.contracts.stored_documents import Failure
from core.errors import PrivacyError


def end_jobs(session: Session, dataset_id: str, left: dict[str, Mark], damaged: Collection[str]) -> None:
    """Ends jobs that the database believes unfinished; posts the larger of their started part and of their mark, and
    the whole hold of a job whose mark is damaged."""
    adopt_all(session, left, (*IDLE, *ACTIVE))
    for job_id in damaged:
        _end_unknown(session, job_id)
    for job_id in unfinished_jobs(session, dataset_id):
        job = get_job(session, job_id, lock=True)
        if job.study is not None:
            for run in session.scalars(select(Job).where(Job.parent_id == job_id, Job.status.in_(ACTIVE))).all():
                give_back(session, run, "lost", 1)
            session.flush()
            study_states.cancel(session, job)
            continue
        if job.status in ACTIVE:
            give_back(session, job, "lost", 1)
            session.flush()
        if job.status not in FINISHED:
            settle(session, settlement_of(session, job, "cancelled"))


def _end_unknown(session: Session, job_id: str) -> None:
    """Ends a job, or a trial, whose mark is damaged; a trial's study is ended by whoever calls this."""
    study_states.lock(session, job_id)
    job = get_job(session, job_id, lock=True)
    if job.status in ACTIVE:
        end_attempt(session, job, "lost")
    failure = Failure(code=PrivacyError.code, message=f"{Cause.UNKNOWN.value}: its whole hold is spent")
    settle(session, settlement_of(session, job, "failed", failure=failure, cause=Cause.UNKNOWN))
    session.flush()


def unfinished_jobs(session: Session, dataset_id: str) -> list[str]:
    """The jobs on a data set, or on this block of one, that the database takes to be unfinished; no trials."""
    query = select(Job.id).where(on_ledger(dataset_id, Job), Job.parent_id.is_(None), Job.status.not_in(FINISHED))
    return list(session.scalars(query.order_by(Job.created_at, Job.id)))


def on_ledger(dataset_id: str, model: type[Job] | type[Charge]) -> ColumnElement[bool]:
    """The condition that a job, or another system's charge, is on a data set, or holds on this block of one."""
    holds = select(LedgerEntry.job_id).where(LedgerEntry.dataset_id == dataset_id, LedgerEntry.kind == "hold")
    return or_(model.dataset_id == dataset_id, model.id.in_(holds))
