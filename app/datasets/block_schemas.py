"""The shapes of blocks in the REST contract."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel

from app.datasets.schemas import Read, Shape
from app.ledger.schemas import LedgerView

BlockState = Literal["ready", "behind", "retired"]


class BlockView(BaseModel):
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


class BlockList(BaseModel):
    """All blocks of a data set, in the order of their arrival."""

    items: list[BlockView]


class AppendedBlock(BlockView):
    """An accepted block, with what its owner alone is told."""

    read: Read
    warnings: list[str]
