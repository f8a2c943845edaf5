"""The responses of the data sets' routes: the shapes of the REST contract. A declaration is shown as it is stored, in
the JSON of its release."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, StringConstraints

from app.datasets.declaring import Findings
from app.datasets.for_owner import ForOwner
from app.db.models import Dataset, DatasetReading
from app.db.row_view import Computed, Page, RowView
from app.grants.service import Access, Level
from app.keys.service import Caller
from app.ledger.schemas import LedgerView
from core import leaves
from core.contracts.base import Deferred, Document
from core.contracts.governance import Governance
from core.contracts.slots import Slots
from core.contracts.stored_documents import Counts, ReadingOutcome
from core.contracts.stored_documents import Shape as StoredShape
from core.ids import rfc3339

State = Literal["ready", "behind", "retired"]
ReadingState = Literal["reading", "rejected", "retired"]


ANSWER = ConfigDict(extra="ignore", frozen=False)  # of an answer that shows a stored document


class UploadRequest(Document):
    """A file that will arrive in pieces: its bytes, and its SHA-256 in hex, which its registration then checks."""

    size: Annotated[int, Field(strict=True, ge=1, le=2**53 - 1)]
    sha256: Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")] | None = None


class UploadView(RowView):
    """An upload in pieces. `offset` bytes of `size` have arrived; at `expires_at` it is deleted if no more arrive."""

    id: str
    size: Annotated[int, Computed(lambda row: row.declared.size, "declared")]
    offset: int
    expires_at: Annotated[str | None, Computed(lambda row: rfc3339(row.expires_at), "expires_at")]


@leaves.DECLARED
class Shape(StoredShape):
    """Public sizes: jobs are planned with them. On private data they come from the declared count and fraction.

    `slots`: at most so many units, and records, of each part are registered. It is null for public data, and for data
    registered before there were slots: their jobs compute twice the declared number and 64.
    """

    model_config = ANSWER

    slots: Slots | None = None  # shown as null, which is not stored


class Read(Counts):
    """What a file holds: functions of private data, answered to the owner who sent it. Kept for a day if it was read in
    the background, and otherwise not stored.

    `records`: those in the data file. `dropped`: rows with undeclared ids, and records of users with too many. `units`:
    the protected ones (records, or users) that were kept. `train`, `holdout`: those of each part.
    """

    model_config = ANSWER

    @classmethod
    def of(cls, counts: Counts) -> Read:
        return cls.model_validate(counts, from_attributes=True)


def findings_of(findings: ForOwner[Findings], caller: Caller) -> tuple[Read | None, list[str]]:
    """`read` and `warnings` of an answer: null, and none, for everybody but the owner."""
    mine = findings.told_to(caller) or Findings(None, ())
    return None if mine.counts is None else Read.of(mine.counts), list(mine.warnings)


@leaves.FOR_OWNER
class Reading(Deferred):
    """How a file is read in the background, until a day after the end.

    `bytes_read` of `bytes` are read. `problem`: why it was rejected, as a registration is answered that is refused
    at once, without values of cells. `read` and `warnings`: as a registration answers them; null before the end. These
    three are for the owner alone, and null for admins.
    """

    bytes: int
    bytes_read: int
    problem: dict[str, Any] | None
    read: Read | None
    warnings: list[str] | None
    ended_at: str | None

    @classmethod
    def of(cls, row: DatasetReading, caller: Caller) -> Reading:
        """Shows how far it is."""
        outcome = ForOwner(row.owner_key, row.outcome).told_to(caller) or ReadingOutcome()
        return cls(
            bytes=row.bytes,
            bytes_read=row.bytes_read,
            problem=outcome.problem if isinstance(outcome.problem, dict) else None,
            read=None if outcome.read is None else Read.of(outcome.read),
            warnings=None if outcome.warnings is None else list(outcome.warnings),
            ended_at=rfc3339(row.ended_at),
        )


class ReadingProgress(Deferred):
    """How far a data set's file is read. `reading` is null for who is not told of it, and a day after the end."""

    state: Literal["reading", "rejected", "ready"]
    reading: Reading | None

    @classmethod
    def of(cls, row: DatasetReading | None, caller: Caller) -> ReadingProgress:
        """Shows a registration to those who see it; None: the data set is ready, and nothing else is told."""
        if row is None:
            return cls(state="ready", reading=None)
        return cls.model_validate({"state": row.state, "reading": Reading.of(row, caller)})


DECLARED = ("format", "task", "features", "privacy", "holdout", "governance")


class DatasetView(Deferred):
    """A data set. Everything but `content_sha256` is public.

    `privacy` holds the resolved cap (its δ) and order. `ledger` is null on public data, where no privacy is claimed.
    `content_sha256`, a function of the data without noise, is null for everyone but the data set's owner and admins.
    `state` is "behind" if the database has lost spent entries: nothing is admitted until it is restored. It is
    "retired" if its owner took it back before anything was held on it. `declaration` is the version of the
    declaration; jobs keep the version that they were priced with. `content_deleted_at`: when its files were deleted;
    its ledger stays. `access` is what the calling key may do; `max_epsilon_per_job` is the owner's policy for it (null:
    the cap alone). `reading`: what its owner is told, for a day, of a file that was read in the background.
    `governance`: who answers for the data, and what jobs must say of their use.
    """

    id: Annotated[str, leaves.OWNERS_ACTIONS]
    name: Annotated[str, leaves.DECLARED]
    owner: Annotated[str, leaves.OWNERS_ACTIONS]
    format: Annotated[str, leaves.DECLARED]
    task: Annotated[dict[str, Any], leaves.DECLARED]
    features: Annotated[dict[str, Any], leaves.DECLARED]
    privacy: Annotated[dict[str, Any], leaves.DECLARED]
    holdout: Annotated[dict[str, Any] | None, leaves.DECLARED]
    shape: Annotated[Shape, leaves.DECLARED]
    content_hmac: Annotated[str, leaves.KEYED_HASH]
    content_sha256: Annotated[str | None, leaves.FOR_OWNER]
    ledger: Annotated[LedgerView | None, leaves.OWNERS_ACTIONS]
    created_at: Annotated[str, leaves.OWNERS_ACTIONS]
    access: Annotated[Level, leaves.OWNERS_ACTIONS]
    max_epsilon_per_job: Annotated[float | None, leaves.OWNERS_ACTIONS]
    state: Annotated[State, leaves.RESTORED] = "ready"
    content_deleted_at: Annotated[str | None, leaves.OWNERS_ACTIONS] = None
    declaration: Annotated[int, leaves.OWNERS_ACTIONS] = 1
    reading: Annotated[Reading | None, leaves.FOR_OWNER] = None
    governance: Annotated[Governance | None, leaves.DECLARED] = None

    @classmethod
    def of(cls, dataset: Dataset, ledger: LedgerView | None, access: Access, state: State = "ready") -> DatasetView:
        """Shows a data set to a caller with this access."""
        return cls(
            **{name: dataset.spec.get(name) for name in DECLARED},
            id=dataset.id,
            name=dataset.name,
            owner=dataset.owner_key,
            shape=Shape.model_validate(dataset.shape, from_attributes=True),
            content_hmac=dataset.content_hmac,
            content_sha256=(dataset.content_sha256 or None) if access.level == "own" else None,
            ledger=ledger,
            created_at=rfc3339(dataset.created_at) or "",
            content_deleted_at=rfc3339(dataset.content_deleted_at),
            access=access.level,
            max_epsilon_per_job=access.max_epsilon,
            state="retired" if dataset.retired_at is not None and state == "ready" else state,
            declaration=dataset.declaration,
        )


@leaves.FOR_OWNER
class ReadingDataset(Deferred):
    """A registration whose file is read in the background (`state` "reading"), or was "rejected"; its owner may take
    either back ("retired"). It has the data set's id and members; what is not known yet is null.

    No job can be priced or submitted on it (409 `not-ready`), and nobody but its owner and admins sees it.
    """

    id: str
    name: str
    owner: str
    format: str
    task: dict[str, Any]
    features: dict[str, Any]
    privacy: dict[str, Any]
    holdout: dict[str, Any] | None
    shape: None = None
    content_hmac: None = None
    content_sha256: None = None
    ledger: None = None
    created_at: str
    access: Literal["own"] = "own"
    max_epsilon_per_job: None = None
    state: ReadingState
    content_deleted_at: None = None
    declaration: int = 1
    reading: Reading
    read: None = None
    warnings: list[str] = Field([])

    @classmethod
    def of(cls, row: DatasetReading, caller: Caller, state: ReadingState | None = None) -> ReadingDataset:
        """Shows a registration to its owner, or an admin."""
        return cls(
            **{name: row.spec[name] for name in ("name", "format", "task", "features", "privacy", "holdout")},
            id=row.id,
            owner=row.owner_key,
            created_at=rfc3339(row.created_at) or "",
            state=state or ("reading" if row.state == "reading" else "rejected"),
            reading=Reading.of(row, caller),
        )


class RegisteredDataset(DatasetView):
    """The response to the owner who registers. `read` and `warnings` describe the file's content and
    are not stored."""

    read: Annotated[Read, leaves.FOR_OWNER]
    warnings: Annotated[list[str], leaves.FOR_OWNER]


class RedeclaredDataset(DatasetView):
    """The response to the owner who declares anew: an exact count becomes public, and `suggested_records` is a rounded
    one. With `dry_run`, the data set as it stays. `read` and `suggested_records` are null where the data set has grown
    and its own block is gone, and for an admin who is not its owner. `slots` are those of the new version;
    `default_slots` it would have without declared ones. Both are public numbers."""

    read: Annotated[Read | None, leaves.FOR_OWNER]
    warnings: Annotated[list[str], leaves.FOR_OWNER]
    suggested_records: Annotated[int | None, leaves.FOR_OWNER]
    slots: Annotated[Slots | None, leaves.FOR_OWNER]
    default_slots: Annotated[Slots | None, leaves.FOR_OWNER]


class CheckedDataset(Deferred):
    """What a registration would answer. Nothing is stored.

    `privacy` holds the resolved cap and order; `shape` the public sizes that jobs would be planned with. An exact count
    of records becomes public once it is declared; `suggested_records` is a rounded one. `suggested_slots` have a margin
    over what the file holds (null for public data); better ones are known without it.
    """

    name: str
    privacy: dict[str, Any]
    shape: Shape
    read: Read
    suggested_records: int
    suggested_slots: Slots | None
    warnings: list[str]


class DatasetList(Page[DatasetView | ReadingDataset]):
    """A page of data sets; `next` is the cursor of the next page, null on the last."""
