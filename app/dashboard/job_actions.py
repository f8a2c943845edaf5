"""/dashboard/jobs/{id}/…: what a job's page can do."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Form, Response
from fastapi.responses import RedirectResponse
from pydantic import ValidationError

from app.dashboard.page import Id, PageRoute
from app.dashboard.viewer import (
    HOME,
    PostingViewer,
)
from app.jobs import steering as job_service
from app.jobs.labels import LONGEST_NOTES, LONGEST_TAG, MOST_TAGS, JobLabels, edit
from app.web.deps import Db, RecordedHeads
from app.web.route_operation import Page
from core.errors import InvalidRequest

router = APIRouter(prefix=HOME, include_in_schema=False, route_class=PageRoute)


@router.post("/jobs/{job_id}/cancel")
@Page("own", audit="job.cancelled")
def cancel_job(job_id: Id, db: Db, heads: RecordedHeads, viewer: PostingViewer) -> Response:
    """Cancels a job, then shows it."""
    job_service.cancel(db, viewer.caller, job_id, heads)
    return RedirectResponse(f"{HOME}/jobs/{job_id}", 303)


@router.post("/jobs/{job_id}/pause")
@Page("own", audit="job.paused")
def pause_job(job_id: Id, db: Db, viewer: PostingViewer) -> Response:
    """Pauses a job, then shows it."""
    job_service.pause(db, viewer.caller, job_id)
    return RedirectResponse(f"{HOME}/jobs/{job_id}", 303)


@router.post("/jobs/{job_id}/resume")
@Page("own", audit="job.resumed")
def resume_job(job_id: Id, db: Db, viewer: PostingViewer) -> Response:
    """Lets a paused job go on, then shows it."""
    job_service.resume(db, viewer.caller, job_id)
    return RedirectResponse(f"{HOME}/jobs/{job_id}", 303)


@router.post("/jobs/{job_id}/labels")
@Page("own", audit="job.labelled")
def label_job(
    job_id: Id,
    db: Db,
    viewer: PostingViewer,
    tags: Annotated[str, Form(max_length=1000)] = "",
    notes: Annotated[str, Form(max_length=2 * LONGEST_NOTES)] = "",
) -> Response:
    """Changes a job's tags, which stand between commas, and its notes; then shows the job."""
    words = [each for each in tags.split(",") if each.strip()]
    try:
        labels = JobLabels(tags=words, notes=notes.replace("\r\n", "\n").strip())
    except ValidationError:
        raise InvalidRequest(
            f"give at most {MOST_TAGS} tags of at most {LONGEST_TAG} characters, and at most {LONGEST_NOTES} "
            "characters of notes"
        ) from None
    with db.write() as session:
        edit(session, viewer.caller, job_id, labels)
    return RedirectResponse(f"{HOME}/jobs/{job_id}", 303)
