"""Shortens what is kept of jobs that ended long ago, if `history_kept_days` asks for it: attempts, events and scores.

A job's certificate has its scores, its steps and its price, signed; so nothing is shortened before the job has one.
What remains in any case, and why, is in docs/production.md (Retention).
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from datetime import datetime, timedelta

from sqlalchemy import Select, delete, exists, func, or_, select
from sqlalchemy.orm import Session

from app.db.database import Database
from app.db.models import Attempt, Certificate, Job, JobEvent, Metric, Outbox, WebhookEvent, table_of
from app.lifecycle import measures
from app.lifecycle.marks import Marks
from app.settings import Settings
from core.errors import Unavailable
from core.ids import now

logger = logging.getLogger(__name__)
AT_ONCE = 100  # jobs in one sweep, a transaction each
# They stay: certificates are made from them, an auditor trains again after them, a reader of the stream ends at them.
LASTING = ("ready", "audited", "succeeded", "failed", "cancelled")


def sweep_due(db: Database, settings: Settings) -> None:
    """Shortens jobs as the settings ask, without those that still have a mark outside the database: their scores are
    compared with it (app.lifecycle.mark_survey)."""
    if settings.history_kept_days is not None:
        try:
            sweep(db, settings.history_kept_days, set(Marks.of(settings).jobs()))
        except Unavailable as error:
            logger.error("no job is shortened for now: %s", error.message)


def sweep(db: Database, kept_days: float, marked: Collection[str] = ()) -> int:
    """Shortens up to AT_ONCE jobs; returns how many.

    Args:
        marked: jobs that are left as they are.
    """
    limit = now() - timedelta(days=kept_days)
    with db.read() as session:
        old = session.scalars(_old(limit).limit(AT_ONCE + len(marked)))
        jobs = [each for each in old if each not in marked][:AT_ONCE]
    for job_id in jobs:
        with db.write() as session:
            shorten(session, job_id)
    return len(jobs)


def _old(limit: datetime) -> Select[str]:
    """Selects jobs that ended before a time, have attempts, and of which nothing waits to be certified or announced.
    It begins at the attempts: those of jobs that were shortened are gone."""
    study = table_of(Job).alias("study").c
    certified = or_(Certificate.job_id == Job.id, Certificate.job_id == Job.parent_id)
    open_study = exists(select(study.id).where(study.id == Job.parent_id, study.finished_at.is_(None)))
    return (
        select(Attempt.job_id)
        .join(Job, Job.id == Attempt.job_id)
        .where(Job.finished_at < limit, exists(select(Certificate.job_id).where(certified)), ~open_study)
        .where(~exists(select(Outbox.id).where(Outbox.job_id == Job.id)))
        .where(~exists(select(WebhookEvent.id).where(WebhookEvent.job_id == Job.id)))
        .distinct()
    )


def shorten(session: Session, job_id: str) -> None:
    """Deletes a job's attempts, scores and events, all but LASTING and the last one. /metrics still counts attempts."""
    attempts = select(Attempt.status, func.count()).where(Attempt.job_id == job_id).group_by(Attempt.status)
    for status, count in session.execute(attempts):
        measures.count_within(session, measures.SHORTENED_ATTEMPTS, status, amount=count)
    session.execute(delete(Attempt).where(Attempt.job_id == job_id))
    session.execute(delete(Metric).where(Metric.job_id == job_id))
    last = select(Job.events).where(Job.id == job_id).scalar_subquery()
    passing = (JobEvent.job_id == job_id, JobEvent.seq < last, JobEvent.type.not_in(LASTING))
    session.execute(delete(JobEvent).where(*passing))
