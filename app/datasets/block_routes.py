"""/v1/datasets/{id}/blocks: what a data set grows by."""

from __future__ import annotations

from pathlib import Path

from fastapi import APIRouter, Request, Response
from starlette.concurrency import run_in_threadpool

from app.datasets import appending, blocks, readings, resumable, sources, storage
from app.datasets.block_schemas import AppendedBlock, BlockList, BlockView, ReadingBlock
from app.datasets.blocks import Growing
from app.datasets.parsing import Parsers
from app.datasets.receiving import document_of, received
from app.datasets.routes import DATA_FILE, Parsing
from app.datasets.schemas import Shape, findings_of
from app.datasets.sources import Arrived
from app.db.engine import Database
from app.db.models import Dataset
from app.grants import service as grants
from app.keys.auth import CurrentKey
from app.keys.service import Caller
from app.ledger import accounts, behind, summary
from app.ledger.blocks import label_of
from app.ledger.repository import dataset_with_account
from app.ledger.transparency.heads import Heads
from app.settings import Settings
from app.web.deps import Db, RecordedHeads, ServiceSettings
from app.web.operations import LOCATION, Operation
from core import leaves
from core.contracts.blocks import BlockSpec
from core.contracts.dataset_spec import DatasetSpec
from core.ids import rfc3339

router = APIRouter(prefix="/v1/datasets/{dataset_id}/blocks", tags=["datasets"])
SPEC = {"$ref": "#/components/schemas/BlockSpec"}
BODY = {
    "requestBody": {
        "required": True,
        "content": {
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "required": ["spec", "file"],
                    "properties": {"spec": SPEC, "file": DATA_FILE},
                },
                "encoding": {"spec": {"contentType": "application/json"}},
                "examples": {
                    "a month": {"value": {"spec": {"label": "2026-10", "records": 5000}, "file": "(the file)"}}
                },
            },
            "application/json": {
                "schema": SPEC,
                "examples": {
                    "a month": {"value": {"label": "2026-10", "records": 5000, "path": "reviews/2026-10.csv"}}
                },
            },
        },
    }
}


@router.post("", status_code=201, openapi_extra=BODY)
@Operation(
    "The block.",
    audience="own",
    leaves=leaves.FOR_OWNER,
    command="blocks add",
    audit="block.appended",
    problems=(
        "forbidden",
        "duplicate-label",
        "duplicate-content",
        "wrong-state",
        "ledger-behind",
        "quota-exceeded",
        "limit-exceeded",
        "not-ready",
    ),
    headers=LOCATION,
)
async def append_block(
    dataset_id: str,
    request: Request,
    response: Response,
    db: Db,
    settings: ServiceSettings,
    parsers: Parsing,
    caller: CurrentKey,
) -> AppendedBlock | ReadingBlock:
    """Appends a block: a file with the data set's declaration, and with records that no other block has.

    It gets an account of its own with the data set's cap. Jobs that read it pay there, and others do not. A file that
    shares a record with another block, retired and deleted ones included, is refused, and nobody but you is told. With
    a `user_column` people may come back: `max_records_per_user` bounds a person's records in all blocks together, and
    `warnings` tell you how many were left out. Large files are read in the background: the answer's `state` is then
    "reading", and the list of blocks shows the outcome.
    """
    to = await run_in_threadpool(blocks.growing, db, caller, dataset_id)
    labels: list[str] = []

    def declared(content: bytes) -> DatasetSpec:
        asked = document_of(content, BlockSpec)
        labels.append(asked.label)
        return blocks.declaration(to, asked)

    with storage.staging(settings.storage_root) as folder:
        arrived = await received(request, folder, db, settings, caller, declared)
        view = await run_in_threadpool(_append, db, settings, parsers, caller, to, labels[0], arrived, folder)
    response.headers["Location"] = f"/v1/datasets/{view.id}"
    return view


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
        members = blocks.family(session, dataset.parent_id or dataset.id)
        reading = [ReadingBlock.of(each, caller) for each in readings.blocks_of(session, caller, members[0].id)]
    lost = behind.problems(db, heads, [each.id for each in members])
    return BlockList(items=[*(block_view(db, each.id, each.id in lost) for each in members), *reading])


def _append(
    db: Database,
    settings: Settings,
    parsers: Parsers,
    caller: Caller,
    to: Growing,
    label: str,
    arrived: Arrived,
    folder: Path,
) -> AppendedBlock | ReadingBlock:
    if arrived.size > settings.read_at_once_bytes:
        row = appending.accept(db, settings, caller, to, label, arrived, folder)
        _consume(settings, arrived)
        return ReadingBlock.of(row, caller)
    sources.fetch(arrived.sources, folder, settings, parsers)
    made = appending.append(db, settings, parsers, caller, to, label, arrived, folder)
    _consume(settings, arrived)
    behind.record_soon(db, Heads.of(settings), made.dataset.id)
    shown = block_view(db, made.dataset.id, is_behind=False).model_dump()
    read, warnings = findings_of(made.findings, caller)
    return AppendedBlock(**shown, read=read, warnings=warnings)


def _consume(settings: Settings, arrived: Arrived) -> None:
    for upload in arrived.uploads:
        resumable.consume(settings, upload)


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
