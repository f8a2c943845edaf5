"""/dashboard/workers: the worker processes, what each computes on, and what it runs."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from app.dashboard.page import PageRoute, render
from app.dashboard.viewer import HOME, CurrentViewer
from app.system.workers import list_workers
from app.web.deps import Db, ServiceSettings
from app.web.route_operation import Page

router = APIRouter(prefix=f"{HOME}/workers", include_in_schema=False, route_class=PageRoute)


@router.get("")
@Page("every key")
def workers_page(request: Request, db: Db, settings: ServiceSettings, viewer: CurrentViewer) -> Response:
    """Shows the workers of the last day."""
    return _page(request, "workers.html", db, settings, viewer)


@router.get("/live")
@Page("every key")
def live_workers(request: Request, db: Db, settings: ServiceSettings, viewer: CurrentViewer) -> Response:
    """The changing part of the workers' page."""
    return _page(request, "_workers.html", db, settings, viewer)


def _page(request: Request, template: str, db: Db, settings: ServiceSettings, viewer: CurrentViewer) -> Response:
    workers = list_workers(db, settings, viewer.caller).items
    return render(request, template, viewer=viewer, workers=workers)
