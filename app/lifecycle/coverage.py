"""How many steps a job's hold covers if steps differ in cost.

Steps repeated under fresh keys are charged again, out of the same hold. If all steps cost the same, counting them is
enough. If some query their batch twice, the repeated steps may be the expensive ones: from the first repetition on,
every step is counted as the most expensive.
"""

from __future__ import annotations

from sqlalchemy import select
from sqlalchemy.orm import Session

from app.db.models import Block, Job
from app.privacy.mechanism import MechanismConfig, TrainingMechanism


def covered_steps(session: Session, job: Job) -> int:
    """Returns how many steps may start in total, repeated ones included."""
    if job.mechanism is None:
        return job.steps
    training = MechanismConfig.model_validate(job.mechanism).training
    return training.repeatable_steps if training.double_steps and _repeats(session, job) else job.steps


def started_training(session: Session, job: Job, training: TrainingMechanism) -> TrainingMechanism:
    """Returns the mechanism that the started steps are charged as."""
    started = training.model_copy(update={"steps": job.steps_started})
    return started.at_its_most_expensive() if training.double_steps and _repeats(session, job) else started


def _repeats(session: Session, job: Job) -> bool:
    """Returns True if steps were started, or may start, under more than one salt."""
    of_steps = select(Block.salt).where(Block.job_id == job.id, Block.last_step > 0)  # block 0 is the first state's
    salts = set(session.scalars(of_steps.distinct()))
    return len(salts | {each["salt"] for each in job.segments}) > 1
