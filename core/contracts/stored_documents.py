"""Documents that the database's columns hold. Rows of old releases are read for ever: a member that is not in all of
them has a default."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from core import leaves
from core.contracts.base import AccountName, Document, is_none
from core.contracts.extractor import Sha256Hex
from core.contracts.metrics import ReleasedHistogram
from core.contracts.slots import Slots

Role = Literal["pilot", "candidate", "final"]
ReleasedBy = Literal["noisy_count", "noisy_sum", "public_data", "post_processing"]


class Failure(Document):
    """Why a job failed: a code, and its text without values."""

    code: str
    message: str


class SaltedSteps(Document):
    """The salt that keys noise and sampler from a step on, until a later one begins.

    The keys are derived in the worker's supervisor and stored nowhere. `key_id` names the server's secret that they are
    derived from; null until the first attempt.
    """

    from_step: int
    salt: str
    key_id: str | None


class TrialPoint(Document):
    """A trial's part in its study, and its drawn point."""

    role: Role
    level: int | None
    learning_rate: float
    steps: int
    max_grad_norm: float | None
    r: float
    keeps_weights: bool


class Shape(Document):
    """A data set's public sizes, for planning jobs. `outputs`: the number of classes, or 1 for regression. `slots`: of
    a private data set; None for one that was registered before there were slots
    (core.privacy.slot_numbers.slots_of)."""

    records_train: int
    records_holdout: int
    features: int
    outputs: int
    sparse: bool
    slots: Slots | None = Field(default=None, exclude_if=is_none)


class ReleasedNumber(Document):
    """A released number without its value: what the noise on it was. `std` is 0 for an exact value."""

    name: Annotated[str, leaves.SCORE_NAMES]
    step: Annotated[int, leaves.SCORE_NAMES]
    on: Annotated[AccountName, leaves.SCORE_NAMES]
    std: Annotated[float, leaves.SCORE_NAMES]
    released_by: Annotated[ReleasedBy, leaves.SCORE_NAMES]


class Number(ReleasedNumber):
    """A released number. `histogram`: from which `auc` was computed; not part of its event."""

    value: Annotated[float, leaves.SCORES]
    histogram: Annotated[ReleasedHistogram | None, leaves.SCORES] = Field(default=None, exclude_if=is_none)


class ReleasedScore(Document):
    """A released score, for a model's card or a study's trial. `std` is that of its privacy noise, 0 if it is exact."""

    name: Annotated[str, leaves.SCORE_NAMES]
    value: Annotated[float, leaves.SCORES]
    std: Annotated[float, leaves.SCORE_NAMES]
    on: Annotated[AccountName, leaves.SCORE_NAMES]


class ArtifactFile(Document):
    """A file that a job delivers. `path`: absolute while it lies in the attempt's folder, then under the storage
    root."""

    name: str
    path: str
    sha256: Sha256Hex
    size_bytes: Annotated[int, Field(ge=0)]


class StoredFile(Document):
    """Where a parsed part lies under the storage root, and its SHA-256. `bytes`: its size, if it was written down."""

    path: str
    sha256: str
    bytes: int | None = Field(default=None, exclude_if=is_none)


class PartFiles(Document):
    """The parsed parts of a data set; none once its content is deleted."""

    train: StoredFile | None = Field(default=None, exclude_if=is_none)
    holdout: StoredFile | None = Field(default=None, exclude_if=is_none)

    @property
    def all(self) -> tuple[StoredFile, ...]:
        """The parts that are there."""
        return tuple(each for each in (self.train, self.holdout) if each is not None)


class Counts(Document):
    """What a file holds: functions of private data, for the owner alone.

    `records`: those in the data file. `dropped`: rows with undeclared ids, and records of users with too many. `units`:
    the protected ones (records, or users) that were kept. `train`, `holdout`: those of each part.
    """

    records: int
    dropped: int
    units: int
    train: int
    holdout: int


class ReadingOutcome(Document):
    """The end of a registration that was read in the background: what was read, with warnings, or why it is refused.

    Attributes:
        problem: a problem document, as a request would be answered; it is shown and not read.
    """

    read: Counts | None = Field(default=None, exclude_if=is_none)
    warnings: tuple[str, ...] | None = Field(default=None, exclude_if=is_none)
    problem: object = Field(default=None, exclude_if=is_none)
