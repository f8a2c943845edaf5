"""/dashboard/jobs/{id}: one job, and what its page can do."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import FileResponse, JSONResponse

from app.audit import record as audit
from app.dashboard import job_view
from app.dashboard.page import Id, PageRoute, render
from app.dashboard.shown_files import SHOWN
from app.dashboard.viewer import (
    HOME,
    CurrentViewer,
    Viewer,
)
from app.db.database import Database
from app.jobs.file_routes import download_artifact, show_certificate
from app.jobs.repository import artifact as artifact_of
from app.ledger.certificate_checks import check as check_certificate
from app.settings import Settings
from app.storage import objects
from app.web.deps import Db, ServiceSettings, gpus_of
from app.web.headers import is_head
from app.web.route_operation import Page

router = APIRouter(prefix=HOME, include_in_schema=False, route_class=PageRoute)


@router.get("/jobs/{job_id}")
@Page("view", audit="certificate.shown")
def job_page(
    job_id: Id, request: Request, db: Db, settings: ServiceSettings, viewer: CurrentViewer, check: bool = False
) -> Response:
    """Shows one job; `check` checks its certificate."""
    files_shown = _job(request, db, settings, viewer, job_id)
    certificate = files_shown["page"].certificate
    checked = check_certificate(db, certificate.body) if check and certificate is not None else None
    return render(request, "job.html", viewer=viewer, checked=checked, **files_shown)


@router.get("/live/jobs/{job_id}")
@Page("view", audit="certificate.shown")
def live_job(job_id: Id, request: Request, db: Db, settings: ServiceSettings, viewer: CurrentViewer) -> Response:
    """The changing part of a job's page."""
    return render(request, "_job.html", viewer=viewer, checked=None, **_job(request, db, settings, viewer, job_id))


@router.get("/jobs/{job_id}/certificate")
@Page("view", audit="certificate.downloaded")
def certificate(request: Request, job_id: Id, db: Db, viewer: CurrentViewer) -> Response:
    """Sends the signed document as a file."""
    document = show_certificate(request, job_id, db, viewer.caller).model_dump(mode="json")
    name = f'attachment; filename="certificate-{job_id}.json"'
    return JSONResponse(document, headers={"Content-Disposition": name})


@router.get("/jobs/{job_id}/artifacts/{name}")
@Page("train", audit="artifact.downloaded")
def artifact(
    request: Request, job_id: Id, name: str, db: Db, settings: ServiceSettings, viewer: CurrentViewer
) -> FileResponse:
    """Sends an artifact's file."""
    return download_artifact(request, job_id, name, db, settings, viewer.caller)


def _job(request: Request, db: Database, settings: Settings, viewer: Viewer, job_id: str) -> dict[str, Any]:
    """A job's page. It shows the whole certificate, and some of its files: the audit log records both."""
    with db.read() as session:
        page = job_view.job_page(session, job_id, viewer, gpus_of(request))
        has = {each.name for each in page.job.artifacts} if page.may_download and page.hands_out_model else set()
        files = {name: artifact_of(session, job_id, name) for name in SHOWN if name in has}
    store = objects.of(settings)
    contents = {
        member: read_file(db, store, files[name]) if name in files else None
        for name, (member, read_file) in SHOWN.items()
    }
    members_shown = [name for name, (member, _) in SHOWN.items() if contents[member] is not None]
    if (page.certificate is not None or members_shown) and not is_head(request.scope):
        with db.write() as session:
            if page.certificate is not None:
                audit.record(session, "certificate.shown", job_id)
            for name in members_shown:
                audit.record(session, "artifact.downloaded", job_id, name=name)
    return {"page": page, **contents}
