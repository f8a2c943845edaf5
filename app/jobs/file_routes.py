"""What a job delivers: its files and its certificate."""

from __future__ import annotations

from email.utils import format_datetime
from functools import partial
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import FileResponse

from app.approvals import kept
from app.approvals.service import require_loose
from app.audit import record as audit
from app.grants.service import require_job
from app.jobs import artifacts, repository
from app.jobs.job_certificate import require_certificate, require_handed_out
from app.jobs.schemas import (
    CertificateDocument,
)
from app.keys.auth import CurrentKey
from app.storage import objects
from app.web.deps import Db, ServiceSettings
from app.web.headers import is_head
from app.web.route_operation import Operation
from core import leaves

router = APIRouter(prefix="/v1", tags=["jobs"])
PROBLEM = {"$ref": "#/components/schemas/Problem"}
Responses = dict[int | str, Any]
FILE: Responses = {
    200: {"content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}},
    206: {"description": "The part of the file that the Range header asked for."},
    416: {"description": "The file has no such range.", "content": {"application/problem+json": {"schema": PROBLEM}}},
}


@router.get("/jobs/{job_id}/artifacts/{name}", response_class=FileResponse, responses=FILE)
@Operation(
    "The file.",
    audience="train",
    leaves=leaves.WEIGHTS,
    command="jobs fetch",
    audit="artifact.downloaded",
    problems=("forbidden", "artifact-damaged", "storage-full", "ledger-behind"),
    headers={
        "Digest-SHA256": "SHA-256 of the file, in hex.",
        "ETag": "SHA-256 of the file, in hex.",
        "Content-Disposition": "The file's name.",
    },
)
def download_artifact(
    request: Request, job_id: str, name: str, db: Db, settings: ServiceSettings, caller: CurrentKey
) -> FileResponse:
    """Sends an artifact's file, such as `model.safetensors` or `README.md`. For keys that may train on the data set.

    Where the owner has named persons, files leave as an egress alone.

    The file is hashed while it is sent. If the disk has changed it, the download breaks off before its end, and later
    requests answer 409.
    """
    kept.of_job(db, settings, caller, job_id)
    with db.read() as session:
        job = require_job(session, caller, job_id, "train")
        artifact = repository.artifact(session, job_id, name)
        require_handed_out(session, job)
        require_loose(session, job)
    path = artifacts.local(db, objects.of(settings), artifact)
    if "range" in request.headers or artifact.damaged_at is not None:
        artifacts.check(db, artifact, path)
    if not is_head(request.scope):
        with db.write() as session:
            audit.record(session, "artifact.downloaded", job_id, name=name)
    # Not the file's own time, nor headers made from it: it reveals the end of training to a fraction of a second.
    headers = {
        "Digest-SHA256": artifact.sha256,
        "ETag": f'"{artifact.sha256}"',
        "Last-Modified": format_datetime(job.finished_at or job.created_at, usegmt=True),
    }
    mark = partial(artifacts.mark, db, artifact, damaged=True)
    return artifacts.CheckedFile(path, artifact.sha256, mark, name=name, headers=headers)


@router.get("/jobs/{job_id}/certificate")
@Operation(
    "The certificate.",
    audience="view",
    leaves=leaves.CERTIFIED,
    command="certificates show",
    audit="certificate.downloaded",
    problems=("wrong-state", "certificate-pending", "storage-full"),
)
def show_certificate(request: Request, job_id: str, db: Db, caller: CurrentKey) -> CertificateDocument:
    """Shows the signed privacy certificate; it is issued soon after the job has finished."""
    with db.read() as session:
        certificate = require_certificate(session, require_job(session, caller, job_id))
    if not is_head(request.scope):
        with db.write() as session:
            audit.record(session, "certificate.downloaded", job_id)
    return CertificateDocument.model_validate(certificate.body)
