"""The write-ahead record's rows: steps that start, and the digests of the states after them.

Each is written in a transaction that has fenced its job, by the one attempt that holds it. The statements read no
document of the job.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Row, and_, bindparam, case, func, insert, select, update
from sqlalchemy.engine import Connection

from app.db.models import Block, Job, table_of
from app.db.statement_batch import Values
from app.lifecycle.coverage import covered
from core.contracts.stored_documents import SaltedSteps
from core.errors import PrivacyError
from core.privacy.mechanism import TrainingMechanism

BLOCKS, JOBS = table_of(Block), table_of(Job)
OF_JOB = BLOCKS.c.job_id == bindparam("job")
UNDER = BLOCKS.c.salt == bindparam("under")
IS_SAME = and_(UNDER, BLOCKS.c.first_step == bindparam("first"), BLOCKS.c.last_step == bindparam("last"))
IS_OTHER = and_(BLOCKS.c.last_step > 0, BLOCKS.c.salt.not_in(bindparam("salts", expanding=True)))
# The last step ever started under a salt, 0 if there is none; if this very block was; and how many salts under which
# steps were started are none of the job's segments'.
STARTED = select(
    func.coalesce(func.max(case((UNDER, BLOCKS.c.last_step), else_=0)), 0).label("last"),
    func.coalesce(func.max(case((IS_SAME, 1), else_=0)), 0).label("is_recorded"),
    func.count(case((IS_OTHER, BLOCKS.c.salt)).distinct()).label("others"),
).where(OF_JOB)
AT_END = (OF_JOB, UNDER, BLOCKS.c.last_step == bindparam("last"))
RECORD_DIGEST = (
    update(BLOCKS)
    .where(*AT_END)
    .values(digest=func.coalesce(BLOCKS.c.digest, bindparam("state")))
    .returning(BLOCKS.c.digest)
)
COUNT_STEPS = update(JOBS).where(JOBS.c.id == bindparam("job")).values(steps_started=bindparam("started"))
ADD = insert(BLOCKS)


def start(
    connection: Connection, job: Row[Any], attempt: int, steps: tuple[int, int], training: TrainingMechanism | None
) -> tuple[int, str]:
    """Records that the steps first…last start; those that were started before under the same salt are not counted.

    Args:
        job: as `claims.fence_alone` answers it.
        training: the steps that the job has paid for; None without privacy.

    Returns:
        How many steps the job has started now, and the salt of these.

    Raises:
        PrivacyError: more steps would start than the job's hold covers.
    """
    first, last = steps
    salts, salt = {each.salt for each in job.segments}, _salt_at(job.segments, first)
    block = {"job": job.id, "under": salt, "first": first, "last": last, "salts": sorted(salts)}
    recorded = connection.execute(STARTED, block).one()
    new = max(0, last - max(recorded.last, first - 1))
    started = job.steps_started + new
    if new and started > covered(job, training, len(salts) + recorded.others):
        raise PrivacyError("this block would start more steps than the job's hold covers")
    if new:
        connection.execute(COUNT_STEPS, {"job": job.id, "started": started})
    if not recorded.is_recorded:
        connection.execute(ADD, _row(job, attempt, salt, steps, None))
    return started, salt


def record_digest(connection: Connection, job: Row[Any], attempt: int, step: int, digest: str) -> str:
    """Records the digest of the state after `step`, which ends a recorded block. Returns the salt of the step.

    Raises:
        PrivacyError: no block ends there; or another digest is recorded for that step and salt.
    """
    salt = _salt_at(job.segments, step)
    end = {"job": job.id, "under": salt, "last": step}
    # A digest that is there stays, and comes back: another one ends the transaction.
    recorded = connection.execute(RECORD_DIGEST, end | {"state": digest}).scalars().all()
    if any(each != digest for each in recorded):
        raise PrivacyError("a replay differs from the recorded digest, but continued under the same keys")
    if not recorded and step > 0:
        raise PrivacyError("a digest without a started block")
    if not recorded:
        connection.execute(ADD, _row(job, attempt, salt, (0, 0), digest))
    return salt


def _row(job: Row[Any], attempt: int, salt: str, steps: tuple[int, int], digest: str | None) -> Values:
    first, last = steps
    return {
        "job_id": job.id,
        "attempt": attempt,
        "salt": salt,
        "first_step": first,
        "last_step": last,
        "digest": digest,
    }


def _salt_at(segments: Sequence[SaltedSteps], step: int) -> str:
    """The salt that keys `step`."""
    return max((each for each in segments if each.from_step <= step), key=lambda segment: segment.from_step).salt
