"""POST /v1/datasets: registers a data set, or checks it."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response
from starlette.concurrency import run_in_threadpool

from app.datasets import service, sources, storage
from app.datasets.accepting import accept
from app.datasets.receiving import document_of, received
from app.datasets.schemas import (
    CheckedDataset,
    DatasetView,
    Read,
    ReadingDataset,
    RegisteredDataset,
    Shape,
    findings_of,
)
from app.grants.service import OWN
from app.keys.auth import OwnerKey
from app.ledger import summary
from app.web import examples
from app.web.deps import Db, Parsing, Pricing, ServiceSettings
from app.web.examples import DATASET_SPECS, SPECS_WITHOUT_FILE
from app.web.route_operation import LOCATION, NOTHING, Operation
from core import leaves
from core.contracts.dataset_spec import DatasetSpec
from core.contracts.slots import rounded
from core.errors import PrivacyError

router = APIRouter(prefix="/v1/datasets", tags=["datasets"])


# The body is read by hand, so that nothing is stored before its size is bounded. It is documented all the same.
DATA_FILE = {"type": "string", "format": "binary"}
SPEC = {"$ref": "#/components/schemas/DatasetSpec"}
UPLOAD = {
    "type": "object",
    "required": ["spec", "file"],
    "properties": {"spec": SPEC, "file": DATA_FILE, "holdout_file": DATA_FILE, "edges_file": DATA_FILE},
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
    """Registers a data set: its file in the request (multipart: `spec`, `file`, `holdout_file`, `edges_file`), by
    `upload` (the id of an upload in pieces, which this deletes), or by `path`: under the data root, or
    `s3://bucket/key` in a bucket that the service lists.

    Checks the data against the declaration; errors name columns and counts. Refuses content that you registered before,
    if either registration is private. Large files are read in the background: the answer's `state` is then "reading",
    and the data set's address shows progress and outcome.
    """

    def registered() -> RegisteredDataset | ReadingDataset:
        if arrived.size > settings.read_at_once_bytes:
            row = accept(db, settings, pricing.of(caller.id), caller, arrived)
            arrived.consume_uploads(settings)
            return ReadingDataset.of(row, caller)
        sources.fetch(arrived.sources, arrived.folder, settings, parsers)
        registration = service.register(db, settings, pricing.of(caller.id), parsers, caller, arrived)
        arrived.consume_uploads(settings)
        ledger = None if registration.account is None else summary.view(registration.dataset, registration.account)
        view = DatasetView.of(registration.dataset, ledger, OWN).model_dump()
        readings, warnings = findings_of(registration.findings, caller)
        if readings is None:
            raise PrivacyError("whoever registers a data set is its owner")
        return RegisteredDataset(**view, read=readings, warnings=warnings)

    with storage.staging(settings.arrivals_root) as folder:
        arrived = await received(request, folder, db, settings, caller, _spec)
        view = await run_in_threadpool(registered)
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

    def checked() -> CheckedDataset:
        sources.fetch(arrived.sources, arrived.folder, settings, parsers)
        findings = service.check(db, settings, pricing.of(caller.id), parsers, caller, arrived)
        return CheckedDataset(
            name=findings.spec.name,
            privacy=findings.spec.privacy.model_dump(mode="json"),
            shape=Shape.model_validate(findings.shape, from_attributes=True),
            read=Read.of(findings.counts),
            suggested_records=rounded(findings.counts.units),
            suggested_slots=findings.suggested_slots,
            warnings=findings.warnings,
        )

    with storage.staging(settings.arrivals_root) as folder:
        arrived = await received(request, folder, db, settings, caller, _spec)
        return await run_in_threadpool(checked)


def _spec(content: bytes) -> DatasetSpec:
    return document_of(content, DatasetSpec)
