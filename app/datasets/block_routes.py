"""/v1/datasets/{id}/blocks: what a data set grows by."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response
from starlette.concurrency import run_in_threadpool

from app.datasets import appending, growth, sources, storage
from app.datasets.accepting import accept_block
from app.datasets.block_list import block_view
from app.datasets.block_schemas import AppendedBlock, ReadingBlock
from app.datasets.receiving import document_of, received
from app.datasets.register_routes import DATA_FILE
from app.datasets.schemas import findings_of
from app.keys.auth import CurrentKey
from app.ledger import behind
from app.ledger.transparency.heads import Heads
from app.web.deps import Db, Parsing, ServiceSettings
from app.web.route_operation import LOCATION, Operation
from core import leaves
from core.contracts.blocks import BlockSpec
from core.contracts.dataset_spec import DatasetSpec

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
                    "properties": {"spec": SPEC, "file": DATA_FILE, "edges_file": DATA_FILE},
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
    audience="its owner",
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
    """Appends a block: a file with the data set's declaration, and with records that no other block has. For the data
    set's owner alone, as a refusal tells of its other blocks.

    It gets an account of its own with the data set's cap. Jobs that read it pay there, and others do not. A file that
    shares a record with another block, retired and deleted ones included, is refused, and nobody but you is told. With
    a `user_column` people may come back: `max_records_per_user` bounds a person's records in all blocks together, and
    `warnings` tell you how many were left out. Large files are read in the background: the answer's `state` is then
    "reading", and the list of blocks shows the outcome.
    """
    to = await run_in_threadpool(growth.growing, db, caller, dataset_id)
    labels: list[str] = []

    def declared(content: bytes) -> DatasetSpec:
        block_spec = document_of(content, BlockSpec)
        labels.append(block_spec.label)
        return growth.declaration(to, block_spec)

    def appended() -> AppendedBlock | ReadingBlock:
        if arrived.size > settings.read_at_once_bytes:
            row = accept_block(db, settings, caller, to, labels[0], arrived)
            arrived.consume_uploads(settings)
            return ReadingBlock.of(row, caller)
        sources.fetch(arrived.sources, arrived.folder, settings, parsers)
        block = appending.append(db, settings, parsers, caller, to, labels[0], arrived)
        arrived.consume_uploads(settings)
        behind.record_soon(db, Heads.of(settings), block.dataset.id)
        view = block_view(db, block.dataset.id, is_behind=False).model_dump()
        readings, warnings = findings_of(block.findings, caller)
        return AppendedBlock(**view, read=readings, warnings=warnings)

    with storage.staging(settings.arrivals_root) as folder:
        arrived = await received(request, folder, db, settings, caller, declared, at="")
        view = await run_in_threadpool(appended)
    response.headers["Location"] = f"/v1/datasets/{view.id}"
    return view
