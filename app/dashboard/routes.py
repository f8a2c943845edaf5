"""/dashboard: pages rendered on the server, with the same functions and queries as the REST API.

/dashboard                       jobs             /dashboard/live/…      the parts of a page that change, polled
/dashboard/jobs/{id}             one job          /dashboard/login       with an API key /dashboard/datasets[/{id}]
budgets          /dashboard/static/…    our own CSS and JavaScript, nothing else's
"""

from __future__ import annotations

from fastapi import APIRouter, Request, Response
from fastapi.responses import RedirectResponse
from starlette.staticfiles import StaticFiles

from app.dashboard.page import HERE, PageRoute
from app.dashboard.viewer import (
    HOME,
    CurrentViewer,
)
from app.web.route_operation import Page
from app.web.static_files import static_file
from core.errors import NotFound

root = APIRouter(include_in_schema=False)
router = APIRouter(prefix=HOME, include_in_schema=False, route_class=PageRoute)
static_files = StaticFiles(directory=HERE / "static")


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


@router.get("/{path:path}")
@Page("every key")
def nothing_here(path: str, _viewer: CurrentViewer) -> Response:
    """Answers 404 as a page."""
    if not path:
        return RedirectResponse(HOME, 303)
    raise NotFound("there is no such page")
