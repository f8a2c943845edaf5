"""/dashboard/jobs/{id}/egresses and /dashboard/datasets/{id}/erasure-note, with the functions of the REST API.

egresses        whom a job's files left for, a form to ask for one, and links to the archives
erasure-note    which models were made with what was erased
"""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Form, Request, Response
from fastapi.responses import RedirectResponse
from pydantic import ValidationError

from app.dashboard.page import Id, PageRoute, render
from app.dashboard.viewer import HOME, CurrentViewer, PostingViewer, Viewer
from app.db.database import Database
from app.egress import note_routes, routes, service
from app.egress.routes import Number
from app.egress.schemas import EgressRequest
from app.grants.service import access_to_job, require_job
from app.web.deps import Db, ServiceSettings
from app.web.problems import errors_of, validation_errors
from app.web.route_operation import Page
from core.errors import RequestError

router = APIRouter(prefix=HOME, include_in_schema=False, route_class=PageRoute)
Text = Annotated[str, Form(max_length=2000)]


@router.get("/jobs/{job_id}/egresses")
@Page("view")
def egresses(request: Request, job_id: Id, db: Db, viewer: CurrentViewer) -> Response:
    """Shows whom a job's files left for."""
    return _page(request, job_id, db, viewer)


@router.post("/jobs/{job_id}/egresses")
@Page("train", audit="egress.asked")
def ask(
    request: Request,
    job_id: Id,
    db: Db,
    settings: ServiceSettings,
    viewer: PostingViewer,
    recipient: Text = "",
    reason: Text = "",
) -> Response:
    """Asks for an egress."""
    with db.read() as session:
        require_job(session, viewer.caller, job_id, "train")
    try:
        body = EgressRequest.model_validate({"recipient": recipient, "reason": reason})
        routes.ask_egress(job_id, body, db, settings, viewer.caller)
    except ValidationError as wrong:
        problems = validation_errors(errors_of(wrong), {}, None)
        problem = "; ".join(f"{each['pointer'][1:]}: {each['detail']}" for each in problems)
        return _page(request, job_id, db, viewer, problem, 422)
    except RequestError as wrong:
        return _page(request, job_id, db, viewer, str(wrong), wrong.status)
    return RedirectResponse(f"{HOME}/jobs/{job_id}/egresses", 303)


@router.get("/jobs/{job_id}/egress")
@Page("train", audit="egress.downloaded")
def download(
    request: Request, job_id: Id, db: Db, settings: ServiceSettings, viewer: CurrentViewer, number: Number = None
) -> Response:
    """Sends an egress."""
    return routes.download_egress(request, job_id, db, settings, viewer.caller, number)


@router.get("/datasets/{dataset_id}/erasure-note")
@Page("own")
def erasure_note(request: Request, dataset_id: Id, db: Db, viewer: CurrentViewer) -> Response:
    """Shows which models were made with what was erased."""
    note = note_routes.show_erasure_note(dataset_id, db, viewer.caller)
    return render(request, "erasure.html", viewer=viewer, note=note)


def _page(
    request: Request, job_id: str, db: Database, viewer: Viewer, problem: str = "", status: int = 200
) -> Response:
    with db.read() as session:
        job = require_job(session, viewer.caller, job_id)
        access = access_to_job(session, viewer.caller, job)
        views = [service.shown(session, each) for each in service.of_job(session, job.id)]
        context = {
            "job": job.id,
            "name": job.name or job.id,
            "egresses": views,
            "may_ask": access is not None and access.covers("train"),
            "problem": problem,
        }
    return render(request, "egress.html", viewer=viewer, status=status, **context)
