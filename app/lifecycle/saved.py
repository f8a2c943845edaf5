"""Saved states of jobs (decision 38): a folder of the store has no other files, so what its job no longer needs goes.

checkpoints/<job>/state    the job's last saved state, sealed (worker.attempt.job_checkpoints)
"""

from __future__ import annotations

from sqlalchemy import select

from app.db.database import Database
from app.db.models import Job
from app.lifecycle.states import FINISHED
from app.storage.objects import Objects

FOLDER = "checkpoints"
BATCH = 500  # jobs


def drop_ended(db: Database, store: Objects) -> None:
    """Removes the states of all jobs but unfinished ones, whoever wrote them and when: a worker that was killed or
    stuck at the job's end too. A job does not begin again, so what is read after the listing holds.

    Raises:
        Unavailable: the store does not answer.
    """
    names = store.jobs(FOLDER)
    for ids in (names[start : start + BATCH] for start in range(0, len(names), BATCH)):
        with db.read() as session:
            needed = set(session.scalars(select(Job.id).where(Job.id.in_(ids), Job.status.not_in(FINISHED))))
        for job_id in ids:
            if job_id not in needed:
                store.remove(f"{FOLDER}/{job_id}")
