"""GET /v1/datasets/{id}/blocks: each block with its ledger's balances."""

from __future__ import annotations

from fastapi import APIRouter

from app.datasets import growth, readings
from app.datasets.block_schemas import BlockList, BlockView, ReadingBlock
from app.datasets.schemas import Shape
from app.db.database import Database
from app.db.models import Dataset
from app.grants import service as grants
from app.keys.auth import CurrentKey
from app.ledger import accounts, behind, summary
from app.ledger.block_accounts import label_of
from app.ledger.repository import dataset_with_account
from app.web.deps import Db, RecordedHeads
from app.web.route_operation import Operation
from core import leaves
from core.ids import rfc3339

router = APIRouter(prefix="/v1/datasets/{dataset_id}/blocks", tags=["datasets"])


@router.get("")
@Operation(
    "All blocks, the data set's own first.",
    audience="view",
    leaves=leaves.OWNERS_ACTIONS,
    command="blocks list",
    problems=("not-ready",),
)
def list_blocks(dataset_id: str, db: Db, heads: RecordedHeads, caller: CurrentKey) -> BlockList:
    """Lists a data set's blocks in the order of their arrival: each with what is spent, held and free.

    Its owner also sees those whose files are being read, and, for a day, why one was rejected.
    """
    with db.read() as session:
        dataset = dataset_with_account(session, grants.require(session, caller, dataset_id, "view").id)[0]
        members = growth.family(session, dataset.parent_id or dataset.id)
        reading = [ReadingBlock.of(each, caller) for each in readings.blocks_of(session, caller, members[0].id)]
    lost = behind.problems(db, heads, [each.id for each in members])
    return BlockList(items=[*(block_view(db, each.id, each.id in lost) for each in members), *reading])


def block_view(db: Database, block_id: str, is_behind: bool) -> BlockView:
    """Shows a block with its ledger's balances."""
    with db.read() as session:
        block = session.get_one(Dataset, block_id)
        account = accounts.account_of(session, block.id)
        ledger = summary.brief_of_one(session, block, account)
    return BlockView(
        id=block.id,
        label=label_of(block),
        dataset=block.parent_id or block.id,
        shape=Shape.model_validate(block.shape, from_attributes=True),
        ledger=ledger,
        state="behind" if is_behind else "retired" if account.joined_into is not None else "ready",
        created_at=rfc3339(block.created_at) or "",
        content_deleted_at=rfc3339(block.content_deleted_at),
    )
