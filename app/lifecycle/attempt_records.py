"""What an attempt reads of its job, and what it delivers."""

from __future__ import annotations

from dataclasses import dataclass

from app.contracts.stored import SaltedSteps
from app.db.models import Artifact


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


@dataclass(frozen=True)
class ReleasedBefore:
    """A recorded number, as a later attempt is told of it."""

    name: str
    step: int
    value: float
    std: float
    on: str


@dataclass(frozen=True)
class Delivered:
    """A file that the job delivers; `path` is under the storage root."""

    name: str
    sha256: str
    size_bytes: int
    path: str

    def row(self, job_id: str) -> Artifact:
        """Returns the file's row."""
        return Artifact(job_id=job_id, name=self.name, sha256=self.sha256, size_bytes=self.size_bytes, path=self.path)
