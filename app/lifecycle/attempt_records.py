"""What an attempt reads of its job."""

from __future__ import annotations

from dataclasses import dataclass

from app.db.models import Job
from core.contracts.stored_documents import Number, SaltedSteps


@dataclass(frozen=True)
class Begun:
    """What an attempt learns once it has proved that it holds its job.

    Attributes:
        reads: the ids of the data sets, or blocks of one, whose records it reads.
        published: the job's files that artifact rows name, its study's rows included: paths under the storage root.
        limits_s: the job's time limits, in seconds: by its specification and by its key.
        ran_s: seconds that earlier attempts ran.
    """

    dataset_id: str
    reads: tuple[str, ...]
    published: frozenset[str]
    limits_s: tuple[float, ...] = ()
    ran_s: float = 0.0


@dataclass(frozen=True)
class Resalted:
    """A fresh salt, and how many more steps may start."""

    segment: SaltedSteps
    allowed_steps: int


@dataclass(frozen=True)
class StartedBlock:
    """A recorded block, with the digest of the state after it; None if its end is not recorded."""

    first_step: int
    last_step: int
    digest: str | None


Recorded = tuple[Job, dict[str, list[StartedBlock]], list[Number]]  # a job, its blocks by salt, its released numbers
