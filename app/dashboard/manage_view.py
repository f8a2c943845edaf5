"""What the page of a data set's owner shows."""

from __future__ import annotations

from dataclasses import dataclass

from app.budgets.spending import SpendingView, spending
from app.datasets.block_list import list_blocks
from app.datasets.block_schemas import BlockView, ReadingBlock
from app.datasets.schemas import DatasetView
from app.db.database import Database
from app.grants import service as grants
from app.keys.service import Caller
from app.ledger.accounts import account_of
from app.ledger.entries import cap_version
from app.ledger.transparency.heads import Heads


@dataclass(frozen=True)
class ManagePage:
    """What the page shows.

    Attributes:
        version: of the cap; empty for a public data set, which has none.
        spent: by key, the one that spent most first; None for a public data set.
        is_owner: the viewer registered it, and may append to it.
    """

    dataset: DatasetView
    version: str
    blocks: list[BlockView | ReadingBlock]
    spent: SpendingView | None
    is_owner: bool

    @property
    def has_grown(self) -> bool:
        """True if there are blocks beside the registration's own; one that is being read is none yet."""
        return sum(isinstance(each, BlockView) for each in self.blocks) > 1


def manage_page_of(db: Database, heads: Heads, caller: Caller, dataset_id: str) -> ManagePage:
    """Gathers the page.

    Raises:
        NotFound: no such data set.
        Forbidden: the caller is not its owner.
    """
    with db.read() as session:
        row, access = grants.find(session, caller, dataset_id, "own")
        account = account_of(session, row.id) if row.spec["privacy"]["sensitivity"] == "private" else None
        spent = None if account is None else spending(session, caller, row.id)
        version = "" if account is None else cap_version(account)
        dataset, is_owner = DatasetView.of(row, None, access), caller.id == row.owner_key
    blocks = list_blocks(row.id, db, heads, caller).items if account else []
    return ManagePage(dataset, version, blocks, spent, is_owner)
