"""Compares the marks of jobs (app.lifecycle.marks) with the database, and removes those that are needed no longer."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from sqlalchemy import select

from app.db.engine import Database
from app.db.models import Job, LedgerEntry, Metric
from app.ledger import behind
from app.ledger.blocks import held_on
from app.ledger.transparency.heads import Heads, UnreadableHeadError
from app.lifecycle.marks import Marks
from app.lifecycle.states import FINISHED
from app.privacy.quoted import Quoted
from app.storage.objects import Objects

logger = logging.getLogger(__name__)
RELEASED_BY_NOISE = ("noisy_count", "noisy_sum")


@dataclass(frozen=True)
class Forgotten:
    """What the database has forgotten of a job.

    Attributes:
        known: the database has the job.
        ended: it has ended there, charged for what the database knew.
        steps, scores: started steps and noisy scores that the database knows of.
        marked_steps, marked_scores: those in the mark.
    """

    job_id: str
    dataset_id: str
    known: bool
    ended: bool
    steps: int
    scores: int
    marked_steps: int
    marked_scores: int


def survey(db: Database, heads: Heads, store: Objects) -> dict[str, str]:
    """Compares all recorded heads and marks with the database; notes which data sets admit nothing, and why. Raises as
    app.ledger.behind.survey."""
    return behind.survey(db, heads, store, problems(db, Marks(heads.records)))


def problems(db: Database, marks: Marks) -> dict[str, str]:
    """The data sets of jobs whose charge is unknown or too small, each with its problem.

    Such is an unfinished job with a damaged mark, and a job that ended for less than its mark. Of a job unknown to the
    database, the recorded head has the whole hold.

    Raises:
        Unavailable: the bucket does not answer.
    """
    _, found = marks.examine(marks.jobs())
    for each in forgotten(db, marks):
        if each.ended:
            found[each.job_id] = f"{each.job_id} ended, charged for less than left it"
    datasets: dict[str, str] = {}
    for job_id, problem in sorted(found.items()):
        with db.read() as session:
            job = session.get(Job, job_id)
            if job is None:
                logger.error("%s; the database does not know this job", problem)
            elif job.status not in FINISHED or problem.startswith(job_id):
                datasets |= dict.fromkeys(held_on(session, job.parent_id or job_id), problem)
    return datasets


def forgotten(db: Database, marks: Marks) -> list[Forgotten]:
    """The jobs, ended ones too, of which the database knows less than their marks; changes nothing.

    Damaged marks are left out: see `problems`.

    Raises:
        Unavailable: the bucket does not answer.
    """
    jobs = []
    there, _ = marks.examine(marks.jobs())
    for job_id, mark in sorted(there.items()):
        with db.read() as session:
            job = session.get(Job, job_id)
            noisy = (Metric.job_id == job_id, Metric.released_by.in_(RELEASED_BY_NOISE))
            here = {(row.name, row.step) for row in session.execute(select(Metric.name, Metric.step).where(*noisy))}
            steps = 0 if job is None else job.steps_started
        released = {(each.name, each.step) for each in mark.released if each.released_by in RELEASED_BY_NOISE}
        if mark.steps_started > steps or not released <= here:
            states = (job is not None, job is not None and job.status in FINISHED)
            numbers = (steps, len(here), mark.steps_started, len(released | here))
            jobs.append(Forgotten(job_id, mark.dataset, *states, *numbers))
    return jobs


def sweep(db: Database, heads: Heads, marks: Marks) -> None:
    """Removes the marks of ended jobs whose settlement is in the recorded heads: those tell of it from then on.

    A job on public data has no ledger, and a trial that spent nothing has no settlement but its study's.

    Raises:
        Unavailable: the bucket does not answer.
    """
    short = {each.job_id for each in forgotten(db, marks)}
    for job_id in marks.jobs():
        with db.read() as session:
            job = session.get(Job, job_id)
            if job is None or job.status not in FINISHED or job_id in short:
                continue
            names = [f"settle:{each}" for each in (job_id, job.parent_id) if each is not None]
            entries = select(LedgerEntry.dataset_id, LedgerEntry.seq).where(LedgerEntry.once.in_(names))
            settled = session.execute(entries).all()
            is_public = Quoted.of(job.quote).charge.unit is None
        if is_public or (settled and all(_recorded(heads, dataset_id) >= seq for dataset_id, seq in settled)):
            marks.remove(job_id)


def _recorded(heads: Heads, dataset_id: str) -> int:
    try:
        head = heads.read(dataset_id)
    except UnreadableHeadError:
        return 0
    return 0 if head is None else head.seq
