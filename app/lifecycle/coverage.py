"""How many steps a job's hold covers if steps differ in cost.

Steps repeated under fresh keys are charged again, out of the same hold. If all steps cost the same, counting them is
enough. If some query their batch twice, the repeated steps may be the expensive ones: from the first repetition on,
every step is counted as the most expensive. If units take part in turn, each repetition may take a unit once more.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import Row, bindparam, select
from sqlalchemy.orm import Session

from app.db.models import Block, Job
from core.privacy.mechanism import MechanismConfig, TrainingMechanism

# Of steps: block 0 is the first state's.
SALTS = select(Block.salt).where(Block.job_id == bindparam("job"), Block.last_step > 0).distinct()


def covered_steps(session: Session, job: Job) -> int:
    """Returns how many steps may start in total, repeated ones included."""
    training = training_of(job)
    return covered(job, training, 0 if training is None else _segments(session, job))


def covered(job: Job | Row[Any], training: TrainingMechanism | None, segments: int) -> int:
    """Returns the same of a job whose mechanism and number of salts are known.

    A job without privacy pays for none, so it may always repeat all of them: on another machine, or on fewer processes,
    its sums round otherwise, and it begins again.
    """
    steps: int = job.steps_started + job.steps if training is None else training.covers(segments)
    return steps


def training_of(job: Job) -> TrainingMechanism | None:
    """The steps that the job has paid for; None without privacy."""
    return None if job.mechanism is None else MechanismConfig.model_validate(job.mechanism).training


def started_training(session: Session, job: Job, training: TrainingMechanism) -> TrainingMechanism:
    """Returns the mechanism that the started steps are charged as."""
    return training.started(job.steps_started, _segments(session, job))


def _segments(session: Session, job: Job) -> int:
    """Returns the number of salts under which steps were started, or may start."""
    salts = set(session.scalars(SALTS, {"job": job.id}))
    return len(salts | {each.salt for each in job.segments})
