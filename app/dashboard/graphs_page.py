"""/dashboard/graphs: the viewer's own models: their files are sent, listed and deleted, by the functions of /v1/graphs.

The file goes the way of the API, in pieces (static/graphs.js): a session's cookie and its form's token are enough
there.
"""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Request, Response
from fastapi.responses import RedirectResponse

from app.dashboard.page import PageRoute, render
from app.dashboard.viewer import HOME, CurrentViewer, PostingViewer
from app.graphs import routes as graphs
from app.graphs.uploads import MOST_GRAPHS
from app.keys.auth import check_role
from app.web.deps import Db, ServiceSettings
from app.web.route_operation import Page
from core.errors import Conflict
from core.parts.graph_file import MOST_BYTES

PAGE = f"{HOME}/graphs"
router = APIRouter(prefix=PAGE, include_in_schema=False, route_class=PageRoute)
Sha256 = Annotated[str, Path(pattern=r"^[0-9a-f]{64}$")]


@router.get("")
@Page("submitters")
def graphs_page(request: Request, db: Db, viewer: CurrentViewer) -> Response:
    """Shows the viewer's graphs."""
    check_role(viewer.caller, "analyst")
    return _page(request, db, viewer)


@router.post("/{sha256}/delete")
@Page("submitters", audit="graph.deleted")
def delete(request: Request, sha256: Sha256, db: Db, settings: ServiceSettings, viewer: PostingViewer) -> Response:
    """Deletes one of the viewer's graphs."""
    check_role(viewer.caller, "analyst")
    try:
        graphs.delete_graph(sha256, db, settings, viewer.caller)
    except Conflict as refused:
        return _page(request, db, viewer, problem=refused.message, status=refused.status)
    return RedirectResponse(PAGE, 303)


def _page(request: Request, db: Db, viewer: CurrentViewer, *, problem: str = "", status: int = 200) -> Response:
    return render(
        request,
        "graphs.html",
        viewer=viewer,
        status=status,
        graphs=graphs.graphs_of(db, viewer.caller.id),
        most=MOST_GRAPHS,
        most_bytes=MOST_BYTES,
        problem=problem,
    )
