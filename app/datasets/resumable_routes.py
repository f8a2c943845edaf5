"""/v1/uploads: a large file in pieces, resumed where it stopped; only the key that began an upload sees it."""

from __future__ import annotations

from typing import Annotated

from anyio import CancelScope
from fastapi import APIRouter, Header, Request, Response
from starlette.concurrency import run_in_threadpool

from app.audit import record as audit
from app.datasets import quota, resumable
from app.datasets.schemas import UploadRequest, UploadView
from app.keys.auth import SubmitterKey
from app.web import examples
from app.web.body_limits import chunks_of
from app.web.deps import Db, ServiceSettings
from app.web.route_operation import LOCATION, NOTHING, OFFSET, Operation
from core import leaves
from core.errors import too_large
from core.parts.graph_file import MOST_BYTES

router = APIRouter(prefix="/v1/uploads", tags=["datasets"])
Offset = Annotated[int, Header(alias="Upload-Offset", ge=0, description="Where the piece begins: the upload's offset.")]

# The body is written to disk as it arrives. It is documented all the same.
PIECE = {
    "requestBody": {
        "required": True,
        "content": {
            "application/octet-stream": {
                "schema": {"type": "string", "format": "binary"},
                "examples": {"the next bytes": {"value": "(the file from the offset on, or a part of it)"}},
            }
        },
    }
}


@router.post("", status_code=201)
@Operation(
    "The upload, empty.",
    audience="submitters",
    leaves=leaves.UPLOADS,
    command="datasets add",
    audit="upload.begun",
    problems=("forbidden", "too-many-uploads", "quota-exceeded"),
    headers=LOCATION,
    requests={"5 GiB": {"size": 5368709120}},
    answer={**examples.UPLOAD, "offset": 0},
)
def begin_upload(
    body: UploadRequest, db: Db, settings: ServiceSettings, caller: SubmitterKey, response: Response
) -> UploadView:
    """Begins an upload of a large data file, or of a graph. Send its bytes with PATCH, then name its id in a data set's
    `upload`, or to `POST /v1/graphs`. An analyst's may be as large as a graph.
    """
    if not caller.may("owner") and body.size > MOST_BYTES:
        raise too_large(MOST_BYTES)
    quota.require(db, settings, caller.id, body.size)
    with db.write() as session:
        quota.reserve(session, settings, caller.id, body.size)
        upload = resumable.begin(settings, caller.id, body.size, body.sha256)
        audit.record(session, "upload.begun", upload.id)
    response.headers["Location"] = f"/v1/uploads/{upload.id}"
    return UploadView.of(upload)


@router.get("/{upload_id}")
@Operation(
    "The upload.",
    audience="submitters",
    leaves=leaves.UPLOADS,
    command="datasets add",
    problems=("forbidden",),
    headers=OFFSET,
    answer=examples.UPLOAD,
)
def show_upload(upload_id: str, settings: ServiceSettings, caller: SubmitterKey, response: Response) -> UploadView:
    """Shows how much of an upload has arrived, also by HEAD: `Upload-Offset`. To resume, send the bytes from there."""
    return _told(settings, caller.id, upload_id, response)


@router.patch("/{upload_id}", openapi_extra=PIECE)
@Operation(
    "The upload with its new offset.",
    audience="submitters",
    leaves=leaves.UPLOADS,
    command="datasets add",
    audit=NOTHING,
    problems=("forbidden", "wrong-offset", "upload-busy"),
    headers=OFFSET,
    answer=examples.UPLOAD,
)
async def append_to_upload(
    upload_id: str,
    offset: Offset,
    request: Request,
    settings: ServiceSettings,
    caller: SubmitterKey,
    response: Response,
) -> UploadView:
    """Appends the body's bytes at `Upload-Offset`. What arrives before a connection breaks is kept."""
    announced = int(request.headers.get("content-length", "0"))
    writer = await run_in_threadpool(resumable.writer, settings, caller.id, upload_id, offset, announced)
    try:
        async for chunk in chunks_of(request):
            await run_in_threadpool(writer.write, chunk)
    finally:
        with CancelScope(shield=True):
            await run_in_threadpool(writer.close)
    return await run_in_threadpool(_told, settings, caller.id, upload_id, response)


@router.delete("/{upload_id}", status_code=204)
@Operation(
    "The upload is gone.",
    audience="submitters",
    leaves=leaves.UPLOADS,
    no_command="an upload that nobody registers is deleted after a day",
    audit="upload.given_up",
    problems=("forbidden", "upload-busy"),
)
def give_up_upload(upload_id: str, db: Db, settings: ServiceSettings, caller: SubmitterKey) -> None:
    """Gives an upload up: what has arrived is deleted."""
    with db.write() as session:
        resumable.give_up(settings, caller.id, upload_id)
        audit.record(session, "upload.given_up", upload_id)
    resumable.consume(settings, upload_id)


def _told(settings: ServiceSettings, key_id: str, upload_id: str, response: Response) -> UploadView:
    upload = resumable.find(settings, key_id, upload_id)
    response.headers["Upload-Offset"] = str(upload.offset)
    response.headers["Upload-Length"] = str(upload.declared.size)
    return UploadView.of(upload)
