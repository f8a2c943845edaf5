"""Compares the marks of jobs (app.lifecycle.marks) with the database, and removes those that are needed no longer."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from sqlalchemy import select

from app.db.database import Database
from app.db.models import Job, LedgerEntry, Metric
from app.ledger import behind
from app.ledger.block_accounts import held_on
from app.ledger.transparency.heads import Heads, UnreadableHeadError
from app.lifecycle.marks import Marks
from app.lifecycle.states import FINISHED
from app.storage.objects import Objects
from core.privacy.quoted import Quoted

logger = logging.getLogger(__name__)
BATCH = 500  # marks
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


@dataclass(frozen=True)
class Comparison:
    """The marks of a deployment, compared with its database.

    Attributes:
        forgotten: the jobs, ended ones too, of which the database knows less than their marks.
        damaged: what is wrong with the marks that cannot be read, by job. What left these jobs is unknown.
    """

    forgotten: list[Forgotten]
    damaged: dict[str, str]

    @property
    def short(self) -> dict[str, str]:
        """The problem of each job that ended for less than its mark."""
        return {
            each.job_id: f"{each.job_id} ended, charged for less than left it" for each in self.forgotten if each.ended
        }


def compare(db: Database, marks: Marks) -> Comparison:
    """Compares all marks with the database; changes nothing. Two statements for each BATCH of them.

    Raises:
        Unavailable: the bucket does not answer.
    """
    marked, damaged = marks.examine(marks.jobs())
    forgotten, names = list[Forgotten](), sorted(marked)
    for ids in (names[start : start + BATCH] for start in range(0, len(names), BATCH)):
        noisy = (Metric.job_id.in_(ids), Metric.released_by.in_(RELEASED_BY_NOISE))
        with db.read() as session:
            columns = select(Job.id, Job.status, Job.steps_started).where(Job.id.in_(ids))
            jobs = {row.id: row for row in session.execute(columns)}
            stored: dict[str, set[tuple[str, int]]] = {job_id: set() for job_id in ids}
            for row in session.execute(select(Metric.job_id, Metric.name, Metric.step).where(*noisy)):
                stored[row.job_id].add((row.name, row.step))
        for job_id in ids:
            job, mark = jobs.get(job_id), marked[job_id]
            steps = 0 if job is None else job.steps_started
            released = {(each.name, each.step) for each in mark.released if each.released_by in RELEASED_BY_NOISE}
            if mark.steps_started > steps or not released <= stored[job_id]:
                states = (job is not None, job is not None and job.status in FINISHED)
                numbers = (steps, len(stored[job_id]), mark.steps_started, len(released | stored[job_id]))
                forgotten.append(Forgotten(job_id, mark.dataset, *states, *numbers))
    return Comparison(forgotten, damaged)


def survey(db: Database, heads: Heads, store: Objects, compared: Comparison) -> dict[str, str]:
    """Compares all recorded heads with the database; notes which data sets admit nothing, and why, those too whose jobs
    have a mark that the database contradicts. Raises as app.ledger.behind.survey."""
    return behind.survey(db, heads, store, problems(db, compared))


def problems(db: Database, compared: Comparison) -> dict[str, str]:
    """The data sets of jobs whose charge is unknown or too small, each with its problem.

    Such is an unfinished job with a damaged mark, and a job that ended for less than its mark. Of a job unknown to the
    database, the recorded head has the whole hold.
    """
    datasets: dict[str, str] = {}
    for job_id, problem in sorted((compared.damaged | compared.short).items()):
        with db.read() as session:
            job = session.get(Job, job_id)
            if job is None:
                logger.error("%s; the database does not know this job", problem)
            elif job.status not in FINISHED or job_id in compared.short:
                datasets |= dict.fromkeys(held_on(session, job.parent_id or job_id), problem)
    return datasets


def sweep(db: Database, heads: Heads, marks: Marks, compared: Comparison) -> None:
    """Removes the marks of ended jobs whose settlement is in the recorded heads: those tell of it from then on.

    A job on public data has no ledger, and a trial that spent nothing has no settlement but its study's.

    Raises:
        Unavailable: the bucket does not answer.
    """
    forgotten = {each.job_id for each in compared.forgotten}
    for job_id in marks.jobs():
        with db.read() as session:
            job = session.get(Job, job_id)
            if job is None or job.status not in FINISHED or job_id in forgotten:
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
