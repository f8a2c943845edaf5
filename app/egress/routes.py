"""/v1/jobs/{id}/egress: a signed folder of a job's files with their proof."""

from __future__ import annotations

from email.utils import format_datetime
from typing import Annotated

from fastapi import APIRouter, Query, Request
from fastapi.responses import StreamingResponse

from app.approvals import kept
from app.approvals.service import require_own_agreement
from app.audit import record as audit
from app.db.database import Database
from app.egress import archive_sending, service
from app.egress.schemas import EgressList, EgressRequest, EgressView
from app.grants.service import require_job
from app.jobs.artifacts import CheckedStream
from app.jobs.file_routes import FILE, Responses
from app.keys.auth import CurrentKey
from app.storage import objects
from app.web.deps import Db, ServiceSettings
from app.web.headers import is_head
from app.web.route_operation import Operation
from core import leaves
from core.errors import NotFound

router = APIRouter(prefix="/v1/jobs/{job_id}", tags=["jobs"])
Number = Annotated[int | None, Query(ge=1, description="Of the job's egresses; by default the newest that is ready.")]
ARCHIVE: Responses = {200: FILE[200]}


@router.post("/egress", status_code=202)
@Operation(
    "The egress: the relay makes it once it may leave.",
    audience="train",
    leaves=leaves.WEIGHTS,
    command="egress",
    audit="egress.asked",
    problems=(
        "forbidden",
        "wrong-state",
        "certificate-pending",
        "not-ready",
        "too-many-egresses",
        "storage-full",
        "ledger-behind",
    ),
    requests={
        "to a hospital": {"recipient": "University Hospital, ward 7", "reason": "Use in the study, permit 2026/114."}
    },
)
def ask_egress(job_id: str, body: EgressRequest, db: Db, settings: ServiceSettings, caller: CurrentKey) -> EgressView:
    """Asks for a signed folder of a finished job: its files, certificate, statement, proofs, and answers in words.

    Where the data set's owner has named persons, two of them must agree first; `approval` is what they agree to.
    """
    kept.of_job(db, settings, caller, job_id)
    with db.write() as session:
        return service.shown(session, service.ask(session, settings, caller, job_id, body.recipient, body.reason))


@router.get("/egress", response_class=StreamingResponse, responses=ARCHIVE)
@Operation(
    "The archive.",
    audience="train",
    leaves=leaves.WEIGHTS,
    command="egress",
    audit="egress.downloaded",
    problems=("forbidden", "egress-pending", "artifact-damaged", "storage-full", "ledger-behind"),
    headers={
        "Digest-SHA256": "SHA-256 of the file, in hex.",
        "ETag": "SHA-256 of the file, in hex.",
        "Content-Disposition": "The file's name.",
    },
)
def download_egress(
    request: Request, job_id: str, db: Db, settings: ServiceSettings, caller: CurrentKey, number: Number = None
) -> CheckedStream:
    """Sends the folder as a ZIP archive. Each download is recorded.

    If the disk has changed a file, the download breaks off before its end.
    """
    kept.of_job(db, settings, caller, job_id)
    with db.read() as session:
        job = require_job(session, caller, job_id, "train")
        row = service.ready(session, job, number)
        require_own_agreement(session, job, row)
        files = archive_sending.files_of(session, row)
    if row.sha256 is None or row.size_bytes is None or row.made_at is None:
        raise NotFound("this egress has no archive")
    pieces = archive_sending.pieces(objects.of(settings), row, files)
    if not is_head(request.scope):
        _record(db, row.job_id, row.id, row.recipient)
    headers = {
        "Digest-SHA256": row.sha256,
        "ETag": f'"{row.sha256}"',
        "Last-Modified": format_datetime(row.made_at, usegmt=True),
    }
    name = f"egress-{row.job_id}-{row.number}.zip"
    return CheckedStream(pieces, row.sha256, row.size_bytes, name=name, headers=headers)


@router.get("/egresses")
@Operation("A job's egresses.", audience="view", leaves=leaves.WEIGHTS, command="egress")
def list_egresses(job_id: str, db: Db, caller: CurrentKey) -> EgressList:
    """Lists a job's egresses, the newest first: whom its files left for, and what is waited for."""
    with db.read() as session:
        job = require_job(session, caller, job_id)
        return EgressList(items=[service.shown(session, each) for each in service.of_job(session, job.id)])


def _record(db: Database, job_id: str, egress_id: str, recipient: str) -> None:
    with db.write() as session:
        audit.record(session, "egress.downloaded", job_id, egress=egress_id, name=recipient)
