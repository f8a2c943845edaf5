"""The shapes of blocks in the REST contract."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from app.datasets.schemas import Read, Reading, Shape
from app.db.models import DatasetReading
from app.keys.service import Caller
from app.ledger.schemas import LedgerView
from core import leaves
from core.contracts.base import Deferred
from core.ids import rfc3339

BlockState = Literal["ready", "behind", "retired"]


class BlockView(Deferred):
    """A block of a data set. All of it is public.

    `id` is its ledger's: `/v1/datasets/{id}/ledger` shows entries and proofs. `state`: "retired": nothing more is
    admitted on it. "behind": the database has lost some of its spending. `content_deleted_at`: when its files were
    deleted.
    """

    id: str
    label: str
    dataset: str
    shape: Shape
    ledger: LedgerView
    state: BlockState
    created_at: str
    content_deleted_at: str | None


@leaves.FOR_OWNER
class ReadingBlock(Deferred):
    """A block whose file is read in the background (`state` "reading"), or was "rejected", which its owner alone sees.

    It has the block's id and members; what is not known yet is null. No job reads it.
    """

    id: str
    label: str
    dataset: str
    shape: None = None
    ledger: None = None
    state: Literal["reading", "rejected"]
    created_at: str
    content_deleted_at: None = None
    reading: Reading

    @classmethod
    def of(cls, row: DatasetReading, caller: Caller) -> ReadingBlock:
        """Shows a block that is read to its owner."""
        return cls(
            id=row.id,
            label=row.label or "",
            dataset=row.parent_id or "",
            state="reading" if row.state == "reading" else "rejected",
            created_at=rfc3339(row.created_at) or "",
            reading=Reading.of(row, caller),
        )


class BlockList(Deferred):
    """All blocks of a data set, in the order of their arrival; then those that are being read."""

    items: list[BlockView | ReadingBlock]


class AppendedBlock(BlockView):
    """An accepted block, with what its owner alone is told: to an admin `read` is null and `warnings` are empty."""

    read: Read | None
    warnings: list[str]


NO_REPLAY = (
    "jobs that read this block can no longer be replayed once its files are gone (scrimp replay); "
    "their certificates and models stay"
)


class RetiredBlock(BlockView):
    """A retired block; `warnings` say what goes with it."""

    warnings: list[str] = Field([NO_REPLAY])
