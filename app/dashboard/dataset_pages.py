"""/dashboard/datasets: data sets with their budgets, and how far a file is read."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from app.dashboard import dataset_view
from app.dashboard.balances import budgets
from app.dashboard.entry_pages import AskedEntries, EntriesQuery
from app.dashboard.page import Id, PageRoute, render
from app.dashboard.viewer import (
    HOME,
    CurrentViewer,
)
from app.datasets import readings
from app.datasets.briefs import states_of
from app.datasets.routes import list_datasets
from app.datasets.schemas import DatasetView, ReadingDataset
from app.grants.service import Access
from app.jobs.list_routes import JobsQuery, page_of_jobs
from app.ledger.verifications import last_check
from app.web.deps import Db, RecordedHeads, gpus_of
from app.web.pagination import After
from app.web.route_operation import Page
from core.errors import NotFound

JOBS_ON_DATASET = 5
router = APIRouter(prefix=HOME, include_in_schema=False, route_class=PageRoute)


@router.get("/datasets")
@Page("every key")
def datasets_page(
    request: Request, db: Db, heads: RecordedHeads, viewer: CurrentViewer, after: After = None
) -> Response:
    """Shows the list of data sets."""
    page = list_datasets(db, heads, viewer.caller, after or None)
    cards = [(dataset, budgets(dataset.ledger)) for dataset in page.items]
    return render(request, "datasets.html", viewer=viewer, cards=cards, following=page.next)


@router.get("/datasets/{dataset_id}")
@Page("view")
def dataset_page(
    dataset_id: Id,
    request: Request,
    db: Db,
    heads: RecordedHeads,
    viewer: CurrentViewer,
    query: AskedEntries,
    check: bool = False,
) -> Response:
    """Budgets, entries and jobs of a data set; `check` shows the last verification. If it is not ready: how far."""
    with db.read() as session:
        reading = readings.find(session, viewer.caller, dataset_id)
        if reading is not None:
            return render(request, "reading.html", viewer=viewer, dataset=ReadingDataset.of(reading, viewer.caller))
        page = dataset_view.dataset_page(session, dataset_id, viewer, query)
        checked = last_check(session, page.dataset.id) if check and page.ledger else None
    recent = page_of_jobs(
        db, viewer.caller, gpus_of(request), JobsQuery(dataset=page.dataset.id, limit=JOBS_ON_DATASET)
    )
    usable = page.dataset.state == "ready" and states_of(db, heads, [page.dataset.id])[page.dataset.id] == "ready"
    may_start = usable and Access(page.dataset.access).covers("train") and viewer.caller.role != "viewer"
    return render(
        request, "dataset.html", viewer=viewer, page=page, checked=checked, jobs=recent.items, may_start=may_start
    )


@router.get("/live/datasets/{dataset_id}")
@Page("view")
def live_dataset(dataset_id: Id, request: Request, db: Db, viewer: CurrentViewer, query: AskedEntries) -> Response:
    """The changing part of a data set's page."""
    with db.read() as session:
        page = dataset_view.dataset_page(session, dataset_id, viewer, query)
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
            view: ReadingDataset | DatasetView = ReadingDataset.of(reading, viewer.caller)
        else:
            view = dataset_view.dataset_page(session, dataset_id, viewer, EntriesQuery()).dataset
    return render(request, "_reading.html", viewer=viewer, dataset=view)
