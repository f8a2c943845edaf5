"""/docs and /openapi.json: the API's documentation, for a key or a signed-in dashboard user.

static/ holds our page, and two unchanged files of the npm package swagger-ui-dist 5.35.0 (Apache-2.0):
swagger-ui-bundle.js and swagger-ui.css. Nothing comes from another host.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from fastapi import APIRouter, Depends, Request, Response
from fastapi.responses import FileResponse, JSONResponse
from fastapi.security import HTTPAuthorizationCredentials
from starlette.staticfiles import StaticFiles

from app.dashboard.page import PageRoute
from app.dashboard.viewer import CurrentViewer, SignInNeeded, Viewer, current_viewer
from app.keys.auth import bearer
from app.web.deps import Db, ServiceSettings
from app.web.route_operation import Page
from app.web.static_files import static_file
from core.errors import Unauthenticated

HERE = Path(__file__).parent / "static"

router = APIRouter(include_in_schema=False)
pages = APIRouter(prefix="/docs", include_in_schema=False, route_class=PageRoute)
static_files = StaticFiles(directory=HERE)


def reader(
    request: Request,
    db: Db,
    settings: ServiceSettings,
    credentials: Annotated[HTTPAuthorizationCredentials | None, Depends(bearer)],
) -> Viewer:
    """The document's reader. It is not a page, so without a sign-in the response is 401 and no login form."""
    try:
        return current_viewer(request, db, settings, credentials)
    except SignInNeeded:
        raise Unauthenticated("send your key as `Authorization: Bearer …`, or sign in to the dashboard") from None


@router.get("/openapi.json", dependencies=[Depends(reader)])
@Page("every key")
def openapi(request: Request) -> JSONResponse:
    """Serves the OpenAPI document."""
    return JSONResponse(request.app.openapi())


@pages.get("")
@Page("every key")
def page(_viewer: CurrentViewer) -> FileResponse:
    """Serves the documentation's page."""
    return FileResponse(HERE / "page.html", headers={"Cache-Control": "no-store"})


@pages.get("/session.json")
@Page("every key")
def session(viewer: CurrentViewer) -> JSONResponse:
    """The session's token, which "Try it out" sends. Only our own pages can read it; a Bearer key needs none."""
    return JSONResponse({"csrf": viewer.csrf}, headers={"Cache-Control": "no-store"})


@pages.get("/static/{path:path}")
@Page("anyone")
async def static(path: str, request: Request) -> Response:
    """Serves our page's files; open, like the dashboard's."""
    return await static_file(static_files, path, request)


router.include_router(pages)
