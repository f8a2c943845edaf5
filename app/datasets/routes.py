"""/v1/datasets: owners and admins register data sets; keys see those that they are granted."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Header, Request, Response
from starlette.concurrency import run_in_threadpool

from app.datasets import declaring, readings, repository, resumable, service, sources, storage, stream
from app.datasets.parsing import Parsers
from app.datasets.receiving import document_of, received
from app.datasets.schemas import (
    CheckedDataset,
    DatasetList,
    DatasetView,
    Read,
    Reading,
    ReadingDataset,
    ReadingProgress,
    RedeclaredDataset,
    RegisteredDataset,
    Shape,
    State,
    findings_of,
)
from app.datasets.sources import Arrived
from app.db.engine import Database
from app.db.models import Account, Dataset, DatasetReading
from app.grants import service as grants
from app.jobs.stream import EventStream
from app.keys.auth import CurrentKey, OwnerKey
from app.keys.service import Caller
from app.ledger import summary
from app.ledger.behind import problems
from app.ledger.transparency.heads import Heads
from app.pricing.service import PricingService
from app.settings import Settings
from app.web import examples
from app.web.deps import Db, RecordedHeads, ServiceSettings, get_parsers, get_pricing
from app.web.examples import DATASET_SPECS, SPECS_WITHOUT_FILE
from app.web.headers import is_stream
from app.web.operations import LOCATION, NOTHING, Operation
from app.web.pagination import After, Limit, decode_row, encode_cursor
from core import leaves
from core.contracts.dataset_spec import DatasetSpec
from core.contracts.redeclaration import Redeclaration
from core.contracts.slots import rounded
from core.errors import Conflict, PrivacyError
from core.ids import rfc3339

router = APIRouter(prefix="/v1/datasets", tags=["datasets"])
Pricing = Annotated[PricingService, Depends(get_pricing)]
Parsing = Annotated[Parsers, Depends(get_parsers)]
STREAM: dict[int | str, dict[str, Any]] = {
    200: {"content": {"text/event-stream": {"schema": {"type": "string"}, "example": stream.EXAMPLE}}}
}


# The body is read by hand, so that nothing is stored before its size is bounded. It is documented all the same.
DATA_FILE = {"type": "string", "format": "binary"}
SPEC = {"$ref": "#/components/schemas/DatasetSpec"}
UPLOAD = {
    "type": "object",
    "required": ["spec", "file"],
    "properties": {"spec": SPEC, "file": DATA_FILE, "holdout_file": DATA_FILE},
}
BODY = {
    "requestBody": {
        "required": True,
        "content": {
            "multipart/form-data": {
                "schema": UPLOAD,
                "encoding": {"spec": {"contentType": "application/json"}},
                "examples": {
                    name: {"value": {"spec": spec, "file": "(the file)"}} for name, spec in DATASET_SPECS.items()
                },
            },
            "application/json": {
                "schema": {
                    "anyOf": [
                        {"$ref": "#/components/schemas/DatasetSpecByPath"},
                        {"$ref": "#/components/schemas/DatasetSpecByUpload"},
                    ]
                },
                "examples": {name: {"value": spec} for name, spec in SPECS_WITHOUT_FILE.items()},
            },
        },
    }
}


@router.post("", status_code=201, openapi_extra=BODY)
@Operation(
    "The data set.",
    audience="owners",
    leaves=leaves.FOR_OWNER,
    command="datasets add",
    audit="dataset.registered",
    problems=("forbidden", "duplicate-name", "duplicate-content", "ledger-behind", "quota-exceeded", "limit-exceeded"),
    headers=LOCATION,
    answer={
        **examples.DATASET_VIEW,
        "access": "own",
        "read": {"records": 25000, "dropped": 0, "units": 25000, "train": 20013, "holdout": 4987},
        "warnings": [],
    },
)
async def register_dataset(
    request: Request,
    response: Response,
    db: Db,
    settings: ServiceSettings,
    pricing: Pricing,
    parsers: Parsing,
    caller: OwnerKey,
) -> RegisteredDataset | ReadingDataset:
    """Registers a data set: its file in the request (multipart: `spec`, `file`, `holdout_file`), by `upload` (the id of
    an upload in pieces, which this deletes), or by `path`: under the data root, or `s3://bucket/key` in a bucket that
    the service lists.

    Checks the data against the declaration; errors name columns and counts. Refuses content that you registered before,
    if either registration is private. Large files are read in the background: the answer's `state` is then "reading",
    and the data set's address shows progress and outcome.
    """
    with storage.staging(settings.storage_root) as folder:
        arrived = await received(request, folder, db, settings, caller, _spec)
        view = await run_in_threadpool(_register, db, settings, pricing, parsers, caller, arrived, folder)
    response.headers["Location"] = f"/v1/datasets/{view.id}"
    return view


@router.post("/check", openapi_extra=BODY)
@Operation(
    "What a registration would answer.",
    audience="owners",
    leaves=leaves.FOR_OWNER,
    command="datasets check",
    audit=NOTHING,
    problems=("forbidden", "quota-exceeded", "limit-exceeded"),
)
async def check_dataset(
    request: Request, db: Db, settings: ServiceSettings, pricing: Pricing, parsers: Parsing, caller: OwnerKey
) -> CheckedDataset:
    """Checks a data set against its declaration, as a registration does, and stores nothing.

    Answers how many records were read and dropped, with warnings, and suggests a rounded number of records and slots.
    """
    with storage.staging(settings.storage_root) as folder:
        arrived = await received(request, folder, db, settings, caller, _spec)
        return await run_in_threadpool(_check, db, settings, pricing, parsers, caller, arrived, folder)


@router.get("")
@Operation(
    "A page of data sets.",
    audience="every key",
    leaves=leaves.OWNERS_ACTIONS,
    command="datasets list",
    answer={"items": [examples.DATASET_VIEW], "next": None},
)
def list_datasets(
    db: Db, heads: RecordedHeads, caller: CurrentKey, after: After = None, limit: Limit = 50
) -> DatasetList:
    """Lists the data sets that this key may see, newest first, each with its ledger's balances; and the key's own that
    are still being read."""
    key = decode_row(after)
    with db.read() as session:
        stored = {each[0].id: each for each in repository.page(session, caller, after=key, limit=limit)}
        reading = {each.id: each for each in readings.page(session, caller, after=key, limit=limit)}
        rows: list[Dataset | DatasetReading] = [*(each[0] for each in stored.values()), *reading.values()]
        rows.sort(key=lambda row: (row.created_at, row.id), reverse=True)
        more, rows = len(rows) > limit, rows[:limit]
        found = [stored[row.id] for row in rows if row.id in stored]
        ledgers = {of.id: summary.brief(session, of, account) for of, account, _ in found if account is not None}
    last = encode_cursor(rfc3339(rows[-1].created_at), rows[-1].id) if more else None
    states = states_of(db, heads, [each[0].id for each in found])
    shown = {of.id: DatasetView.of(of, ledgers.get(of.id), access, states[of.id]) for of, _, access in found}
    return DatasetList(
        items=[shown.get(row.id) or ReadingDataset.of(reading[row.id], caller) for row in rows], next=last
    )


def brief_dataset(db: Database, heads: Heads, caller: Caller, dataset: str) -> DatasetView:
    """One data set, by its id or name, as the list shows it.

    Raises:
        NotFound: there is none, or this key may not see it.
    """
    with db.read() as session:
        found, access = grants.find(session, caller, dataset)
        account = session.get(Account, found.id)
        ledger = None if account is None else summary.brief(session, found, account)
    return DatasetView.of(found, ledger, access, states_of(db, heads, [found.id])[found.id])


@router.get("/{dataset_id}")
@Operation(
    "The data set.", audience="view", leaves=leaves.FOR_OWNER, command="datasets show", answer=examples.DATASET_VIEW
)
def show_dataset(
    dataset_id: str, db: Db, heads: RecordedHeads, pricing: Pricing, caller: CurrentKey
) -> DatasetView | ReadingDataset:
    """Shows one data set, by its id or name; how far it is read, if it is not ready."""
    with db.read() as session:
        try:
            dataset, access = grants.find(session, caller, dataset_id)
        except Conflict:
            return ReadingDataset.of(readings.require(session, caller, dataset_id), caller)
        outcome = readings.outcome(session, caller, dataset.id)
    ledger = summary.figures(db, pricing, dataset.id)
    view = DatasetView.of(dataset, ledger, access, states_of(db, heads, [dataset.id])[dataset.id])
    return view if outcome is None else view.model_copy(update={"reading": Reading.of(outcome, caller)})


@router.get("/{dataset_id}/events", response_model=ReadingProgress, responses=STREAM)
@Operation(
    "How far its file is read, or a stream of that.", audience="view", leaves=leaves.FOR_OWNER, command="datasets add"
)
def show_reading(
    request: Request,
    dataset_id: str,
    db: Db,
    caller: CurrentKey,
    last_event_id: Annotated[str | None, Header(max_length=64, pattern=r"^[0-9a-f]+$")] = None,
) -> ReadingProgress | EventStream:
    """Tells how far a data set's file is read.

    With `Accept: text/event-stream` it tells so on each change (`reading`), and ends after `ready` or `rejected`;
    Last-Event-ID resumes. The stream ends when the key does, or when the owner withdraws the registration. The number
    of open streams is bounded: beyond it the answer is 429 for the key, 503 for the process.
    """
    found, told = stream.progress(db, caller, dataset_id)
    if not is_stream(request.headers):
        return told
    hubs = request.app.state
    return EventStream(hubs.hub, caller, stream.follow(hubs.lists, caller, found, last_event_id))


@router.post("/{dataset_id}/declarations", status_code=201)
@Operation(
    "The data set with its new declaration.",
    audience="own",
    leaves=leaves.FOR_OWNER,
    command="datasets declare",
    audit="dataset.redeclared",
    problems=("forbidden", "content-deleted", "wrong-state", "ledger-behind", "limit-exceeded", "not-ready"),
    requests={"another number of records": {"records": 24000}, "what it would say": {"dry_run": True}},
)
def redeclare_dataset(
    dataset_id: str, body: Redeclaration, db: Db, settings: ServiceSettings, parsers: Parsing, caller: CurrentKey
) -> RedeclaredDataset:
    """Declares a data set's records, slots, classes, scale or ranges anew. Jobs keep the version that they were priced
    with.

    Fewer slots than stored records are refused. Unit, relation, filter, order and split never change. An exact number
    of records becomes public: the answer suggests a rounded one. `dry_run` answers the same and changes nothing.
    """
    made = declaring.redeclare(db, settings, parsers, caller, dataset_id, body)
    with db.read() as session:
        access = grants.find(session, caller, made.dataset.id)[1]
        ledger = None if made.account is None else summary.brief(session, made.dataset, made.account)
    view = DatasetView.of(made.dataset, ledger, access)
    read, warnings = findings_of(made.findings, caller)
    return RedeclaredDataset(
        **view.model_dump(),
        read=read,
        warnings=warnings,
        suggested_records=None if read is None else rounded(read.units),
        slots=made.slots,
        default_slots=made.default_slots,
    )


def states_of(db: Database, heads: Heads, dataset_ids: list[str]) -> dict[str, State]:
    """Which of these data sets' ledgers are complete in the database."""
    found = problems(db, heads, dataset_ids)
    return {each: "behind" if each in found else "ready" for each in dataset_ids}


def _register(
    db: Database,
    settings: Settings,
    pricing: PricingService,
    parsers: Parsers,
    caller: Caller,
    arrived: Arrived,
    folder: Path,
) -> RegisteredDataset | ReadingDataset:
    view: RegisteredDataset | ReadingDataset
    if arrived.size > settings.read_at_once_bytes:
        row = readings.accept(db, settings, pricing.of(caller.id), caller, arrived, folder)
        view = ReadingDataset.of(row, caller)
    else:
        sources.fetch(arrived.sources, folder, settings, parsers)
        made = service.register(db, settings, pricing.of(caller.id), parsers, caller, arrived, folder)
        ledger = None if made.account is None else summary.view(made.dataset, made.account)
        shown = DatasetView.of(made.dataset, ledger, grants.OWN).model_dump()
        read, warnings = findings_of(made.findings, caller)
        if read is None:
            raise PrivacyError("whoever registers a data set is its owner")
        view = RegisteredDataset(**shown, read=read, warnings=warnings)
    for upload in arrived.uploads:
        resumable.consume(settings, upload)
    return view


def _check(
    db: Database,
    settings: Settings,
    pricing: PricingService,
    parsers: Parsers,
    caller: Caller,
    arrived: Arrived,
    folder: Path,
) -> CheckedDataset:
    sources.fetch(arrived.sources, folder, settings, parsers)
    found = service.check(db, settings, pricing.of(caller.id), parsers, caller, arrived.spec, folder)
    return CheckedDataset(
        name=found.spec.name,
        privacy=found.spec.privacy.model_dump(mode="json"),
        shape=Shape.model_validate(found.shape, from_attributes=True),
        read=Read.of(found.counts),
        suggested_records=rounded(found.counts.units),
        suggested_slots=found.suggested_slots,
        warnings=found.warnings,
    )


def _spec(content: bytes) -> DatasetSpec:
    return document_of(content, DatasetSpec)
