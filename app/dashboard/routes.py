"""/dashboard: pages rendered on the server, with the same functions and queries as the REST API.

/dashboard                       jobs             /dashboard/live/…      the parts of a page that change, polled
/dashboard/jobs/{id}             one job          /dashboard/login       with an API key /dashboard/datasets[/{id}]
budgets          /dashboard/static/…    our own CSS and JavaScript, nothing else's
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Form, Path, Query, Request, Response
from fastapi.responses import FileResponse, JSONResponse, RedirectResponse
from pydantic import ValidationError
from starlette.staticfiles import StaticFiles

from app.audit import record as audit
from app.dashboard import views
from app.dashboard.answers import answers_of
from app.dashboard.entry_pages import AskedEntries, EntriesQuery
from app.dashboard.page import HERE, PageRoute, address, render
from app.dashboard.session import (
    HOME,
    LOGIN,
    CurrentViewer,
    PostingViewer,
    Viewer,
    check_login_form,
    current_viewer,
    login_token,
    safe_next,
    sign_in,
    sign_out,
    start_login,
)
from app.dashboard.shapes import CARD, shapes_of
from app.dashboard.utility import utility_of
from app.datasets import readings
from app.datasets.routes import list_datasets, states_of
from app.datasets.schemas import DatasetView, ReadingDataset
from app.db.engine import Database
from app.db.models import ApiKey, Job
from app.grants.service import Access, require, visible
from app.jobs import steering as job_service
from app.jobs.labels import LONGEST_NOTES, LONGEST_TAG, MOST_TAGS, JobLabels, edit
from app.jobs.repository import JobOrder, count_by_status
from app.jobs.repository import artifact as artifact_of
from app.jobs.routes import JobsQuery, Pricing, Status, download_artifact, jobs_among, page_of_jobs, show_certificate
from app.keys import service as keys
from app.keys.auth import authenticated
from app.keys.service import Caller
from app.ledger import summary
from app.ledger.certificate_checks import check as check_certificate
from app.ledger.checks import last_check
from app.lifecycle.queue.presence import GpuWorkers
from app.settings import Settings
from app.storage import objects
from app.web.deps import Db, Gpus, RecordedHeads, ServiceSettings, gpus_of
from app.web.headers import is_head
from app.web.operations import Page
from app.web.pagination import After
from app.web.static_files import static_file
from core.contracts.base import NO_NUL
from core.contracts.kinds import ANSWERS_FILE, UTILITY_FILE
from core.errors import InvalidRequest, NotFound, RequestError, Unauthenticated

root = APIRouter(include_in_schema=False)
router = APIRouter(prefix=HOME, include_in_schema=False, route_class=PageRoute)
static_files = StaticFiles(directory=HERE / "static")

Id = Annotated[str, Path(pattern=r"^[A-Za-z0-9_]{1,100}$")]
ROWS = 25
# The files that a job's page shows: the page's member, and what reads them.
SHOWN = {CARD: ("shapes", shapes_of), ANSWERS_FILE: ("answers", answers_of), UTILITY_FILE: ("utility", utility_of)}
WRONG_KEY = "This key is unknown, expired or revoked."
STALE_FORM = "The form was out of date. Please try again; cookies must be allowed for this site."


@root.get("/")
@Page("anyone")
def start() -> RedirectResponse:
    """Leads a person who types the service's address to the dashboard."""
    return RedirectResponse(HOME, 303)


@router.get("/static/{path:path}")
@Page("anyone")
async def static(path: str, request: Request) -> Response:
    """Our own CSS and JavaScript; open, because the login page needs them."""
    return await static_file(static_files, path, request)


@router.get("/login")
@Page("anyone")
def login_page(request: Request, db: Db, settings: ServiceSettings, next: str | None = None) -> Response:
    """Shows the login form."""
    try:
        current_viewer(request, db, settings, None)
    except RequestError:
        return _login(request, settings, next)
    return RedirectResponse(safe_next(next), 303)


@router.post("/login")
@Page("anyone", audit="dashboard.signed_in")
def login(
    request: Request,
    db: Db,
    settings: ServiceSettings,
    key: Annotated[str, Form()] = "",
    csrf: Annotated[str, Form()] = "",
    next: Annotated[str | None, Form()] = None,
) -> Response:
    """Turns an API key into a session."""
    if not check_login_form(request, settings, csrf):
        return _login(request, settings, next, problem=STALE_FORM, status=403)
    token = key.strip()
    plain = token.isascii() and token.isprintable() and len(token) <= 200
    try:
        caller = authenticated(request, db, token if plain else "")  # counted as a wrong key all the same
    except Unauthenticated:
        with db.write() as session:
            audit.record(session, "dashboard.signed_in", outcome="failed")
        return _login(request, settings, next, problem=WRONG_KEY, status=401)
    with db.write() as session:
        audit.record(session, "dashboard.signed_in", caller.id)
        sign_outs = session.get_one(ApiKey, caller.id).sign_outs
    response = RedirectResponse(safe_next(next), 303)
    sign_in(response, request, settings, caller, sign_outs)
    return response


@router.post("/logout")
@Page("every key", audit="dashboard.signed_out")
def logout(db: Db, viewer: PostingViewer) -> Response:
    """Ends all sessions of the key, in this browser and in others."""
    with db.write() as session:
        keys.sign_out(session, viewer.caller.id)
        audit.record(session, "dashboard.signed_out", viewer.caller.id)
    response = RedirectResponse(LOGIN, 303)
    sign_out(response)
    return response


class ListQuery:
    """The filters of the list of jobs, as its address has them."""

    def __init__(
        self,
        status: Status | Literal[""] | None = None,
        dataset: Annotated[str | None, Query(max_length=100)] = None,
        after: After = None,
        q: Annotated[str | None, Query(max_length=200, pattern=NO_NUL)] = None,
        tag: Annotated[str | None, Query(max_length=LONGEST_TAG, pattern=NO_NUL)] = None,
        sort: JobOrder | Literal[""] = "newest",
    ) -> None:
        self.status, self.dataset, self.after = status or None, dataset or None, after or None
        self.q, self.tag = (q or "").strip() or None, (tag or "").strip().lower() or None
        self.sort = sort or "newest"

    @property
    def jobs(self) -> JobsQuery:
        """The same page, as jobs are asked for."""
        return JobsQuery(self.dataset, self.q, self.tag, self.status, self.after, ROWS, self.sort)

    @property
    def is_filtered(self) -> bool:
        """Returns True if some jobs may be left out."""
        return any((self.status, self.dataset, self.q, self.tag))

    def url(self, path: str, **changes: Any) -> str:
        """The address of this list with other filters; a filter that is None is left out."""
        asked = {"q": self.q, "tag": self.tag, "status": self.status, "dataset": self.dataset}
        return address(path, asked | {"sort": self.sort if self.sort != "newest" else None} | changes)


AskedJobs = Annotated[ListQuery, Depends()]


@router.get("")
@Page("every key")
def jobs_page(request: Request, db: Db, viewer: CurrentViewer, gpus: Gpus, asked: AskedJobs) -> Response:
    """Shows the list of jobs."""
    return render(request, "jobs.html", viewer=viewer, **_jobs(db, viewer.caller, gpus, asked))


@router.get("/live/jobs")
@Page("every key")
def live_jobs(request: Request, db: Db, viewer: CurrentViewer, gpus: Gpus, asked: AskedJobs) -> Response:
    """The changing part of the list of jobs."""
    return render(request, "_jobs.html", viewer=viewer, **_jobs(db, viewer.caller, gpus, asked))


@router.get("/jobs/{job_id}")
@Page("view", audit="certificate.shown")
def job_page(
    job_id: Id, request: Request, db: Db, settings: ServiceSettings, viewer: CurrentViewer, check: bool = False
) -> Response:
    """Shows one job; `check` checks its certificate."""
    page = _job(request, db, settings, viewer, job_id)
    checked = None
    if check and page.certificate is not None:
        checked = check_certificate(db, page.certificate.body)
    return render(request, "job.html", viewer=viewer, page=page, checked=checked)


@router.get("/live/jobs/{job_id}")
@Page("view", audit="certificate.shown")
def live_job(job_id: Id, request: Request, db: Db, settings: ServiceSettings, viewer: CurrentViewer) -> Response:
    """The changing part of a job's page."""
    page = _job(request, db, settings, viewer, job_id)
    return render(request, "_job.html", viewer=viewer, page=page, checked=None)


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
    given = [each for each in tags.split(",") if each.strip()]
    try:
        asked = JobLabels(tags=given, notes=notes.replace("\r\n", "\n").strip())
    except ValidationError:
        raise InvalidRequest(
            f"give at most {MOST_TAGS} tags of at most {LONGEST_TAG} characters, and at most {LONGEST_NOTES} "
            "characters of notes"
        ) from None
    with db.write() as session:
        edit(session, viewer.caller, job_id, asked)
    return RedirectResponse(f"{HOME}/jobs/{job_id}", 303)


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


@router.get("/datasets")
@Page("every key")
def datasets_page(
    request: Request, db: Db, heads: RecordedHeads, viewer: CurrentViewer, after: After = None
) -> Response:
    """Shows the list of data sets."""
    page = list_datasets(db, heads, viewer.caller, after or None)
    cards = [(dataset, views.budgets(dataset.ledger)) for dataset in page.items]
    return render(request, "datasets.html", viewer=viewer, cards=cards, following=page.next)


@router.get("/datasets/{dataset_id}")
@Page("view")
def dataset_page(
    dataset_id: Id,
    request: Request,
    db: Db,
    heads: RecordedHeads,
    viewer: CurrentViewer,
    asked: AskedEntries,
    check: bool = False,
) -> Response:
    """Budgets, entries and jobs of a data set; `check` shows the last verification. If it is not ready: how far."""
    with db.read() as session:
        reading = readings.find(session, viewer.caller, dataset_id)
        if reading is not None:
            return render(request, "reading.html", viewer=viewer, dataset=ReadingDataset.of(reading, viewer.caller))
        page = views.dataset_page(session, dataset_id, viewer, asked)
        checked = last_check(session, page.dataset.id) if check and page.ledger else None
    recent = page_of_jobs(db, viewer.caller, gpus_of(request), JobsQuery(page.dataset.id, limit=views.JOBS_ON_DATASET))
    usable = page.dataset.state == "ready" and states_of(db, heads, [page.dataset.id])[page.dataset.id] == "ready"
    may_start = usable and Access(page.dataset.access).covers("train") and viewer.caller.role != "viewer"
    return render(
        request, "dataset.html", viewer=viewer, page=page, checked=checked, jobs=recent.items, may_start=may_start
    )


@router.get("/live/datasets/{dataset_id}")
@Page("view")
def live_dataset(dataset_id: Id, request: Request, db: Db, viewer: CurrentViewer, asked: AskedEntries) -> Response:
    """The changing part of a data set's page."""
    with db.read() as session:
        page = views.dataset_page(session, dataset_id, viewer, asked)
    if page.ledger is None:
        raise NotFound("this data set is public: it has no ledger")
    return render(request, "_ledger.html", viewer=viewer, page=page)


@router.get("/live/readings/{dataset_id}")
@Page("view")
def live_reading(dataset_id: Id, request: Request, db: Db, viewer: CurrentViewer) -> Response:
    """How far a data set's file is read."""
    with db.read() as session:
        reading = readings.find(session, viewer.caller, dataset_id)
        if reading:
            shown: ReadingDataset | DatasetView = ReadingDataset.of(reading, viewer.caller)
        else:
            shown = views.dataset_page(session, dataset_id, viewer, EntriesQuery()).dataset
    return render(request, "_reading.html", viewer=viewer, dataset=shown)


@router.get("/live/datasets/{dataset_id}/comparison")
@Page("view")
def live_comparison(dataset_id: Id, request: Request, db: Db, pricing: Pricing, viewer: CurrentViewer) -> Response:
    """Other accountants' figures: a page of its own, because composing many jobs can take seconds."""
    with db.read() as session:
        dataset = require(session, viewer.caller, dataset_id, "view")
    figures = summary.overview(db, pricing, dataset.id)
    return render(request, "_comparison.html", viewer=viewer, ledger=figures)


@router.get("/{path:path}")
@Page("every key")
def nothing_here(path: str, _viewer: CurrentViewer) -> Response:
    """Answers 404 as a page."""
    if not path:
        return RedirectResponse(HOME, 303)
    raise NotFound("there is no such page")


def _job(request: Request, db: Database, settings: Settings, viewer: Viewer, job_id: str) -> views.JobPage:
    """A job's page. It shows the whole certificate, and some of its files: the audit log records both."""
    with db.read() as session:
        page = views.job_page(session, job_id, viewer, gpus_of(request))
        has = {each.name for each in page.job.artifacts} if page.may_download and page.hands_out_model else set()
        files = {name: artifact_of(session, job_id, name) for name in SHOWN if name in has}
    store, contents = objects.of(settings), dict[str, Any]()
    for name, file in files.items():
        member, read = SHOWN[name]
        contents[member] = read(db, store, file)
    shown = [name for name in files if contents[SHOWN[name][0]] is not None]
    if (page.certificate is not None or shown) and not is_head(request.scope):
        with db.write() as session:
            if page.certificate is not None:
                audit.record(session, "certificate.shown", job_id)
            for name in shown:
                audit.record(session, "artifact.downloaded", job_id, name=name)
    return replace(page, **contents)


def _jobs(db: Database, caller: Caller, gpus: GpuWorkers, asked: ListQuery) -> dict[str, Any]:
    """One page of jobs, and the data that its filters need."""
    page = page_of_jobs(db, caller, gpus, asked.jobs)
    with db.read() as session:
        counts = count_by_status(session, jobs_among(session, caller, asked.jobs))
        return {
            "asked": asked,
            "page": page,
            "counts": counts,
            "matching": counts.get(asked.status, 0) if asked.status else sum(counts.values()),
            "is_empty": not counts and not count_by_status(session, visible(caller, Job.dataset_id)),
            "names": views.dataset_names(session, caller),
            "may_submit": caller.role != "viewer",
            "is_active": any(job.status in views.ACTIVE for job in page.items),
        }


def _login(
    request: Request, settings: ServiceSettings, following: str | None, *, problem: str = "", status: int = 200
) -> Response:
    nonce, csrf = login_token(settings, request)
    response = render(
        request,
        "login.html",
        viewer=None,
        status=status,
        csrf=csrf,
        following=safe_next(following),
        problem=problem,
    )
    start_login(response, request, nonce)
    return response
