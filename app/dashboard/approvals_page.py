"""/dashboard/approvals: what waits for a second person, with the functions and rules of the REST API.

Listed is what `GET /v1/approvals` lists for the viewer's key. A person agrees or denies; others see who has.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated

from fastapi import APIRouter, Path, Request, Response
from fastapi.responses import RedirectResponse

from app.approvals import routes, service
from app.approvals.schemas import ApprovalView
from app.dashboard.page import PageRoute, render
from app.dashboard.viewer import HOME, CurrentViewer, PostingViewer, Viewer
from app.db.database import Database
from app.web.deps import Db, RecordedHeads
from app.web.pagination import After
from app.web.route_operation import Page
from core.errors import RequestError

router = APIRouter(prefix=f"{HOME}/approvals", include_in_schema=False, route_class=PageRoute)
Id = Annotated[str, Path(pattern=r"^[A-Za-z0-9_]{1,100}$")]


@dataclass(frozen=True)
class Listed:
    """An approval on the page.

    Attributes:
        person: whom the viewer's key belongs to; None: of none of the persons.
    """

    approval: ApprovalView
    person: str | None

    @property
    def may_agree(self) -> bool:
        """The viewer's word is missing."""
        agreed = {each.person for each in self.approval.agreements}
        return self.approval.status == "open" and self.person is not None and self.person not in agreed


@router.get("")
@Page("every key")
def approvals(request: Request, db: Db, viewer: CurrentViewer, after: After = None) -> Response:
    """Shows what waits, and what was decided."""
    return _page(request, db, viewer, after)


@router.post("/{approval_id}/agree")
@Page("every key", audit="approval.agreed")
def agree(request: Request, approval_id: Id, db: Db, heads: RecordedHeads, viewer: PostingViewer) -> Response:
    """Agrees, as the person to whom the viewer's key belongs."""
    return _decided(request, db, viewer, lambda: routes.agree_approval(approval_id, db, viewer.caller, heads))


@router.post("/{approval_id}/deny")
@Page("every key", audit="approval.denied")
def deny(request: Request, approval_id: Id, db: Db, viewer: PostingViewer) -> Response:
    """Denies an act, or withdraws one's own."""
    return _decided(request, db, viewer, lambda: routes.deny_approval(approval_id, db, viewer.caller))


def _decided(request: Request, db: Database, viewer: Viewer, decide: Callable[[], ApprovalView]) -> Response:
    try:
        decide()
    except RequestError as wrong:
        if wrong.status == 404:
            raise
        return _page(request, db, viewer, None, str(wrong), wrong.status)
    return RedirectResponse(f"{HOME}/approvals", 303)


def _page(
    request: Request, db: Database, viewer: Viewer, after: str | None, problem: str = "", status: int = 200
) -> Response:
    page = routes.list_approvals(db, viewer.caller, None, after, 50)
    with db.read() as session:
        persons = {each.dataset: service.persons_of(session, each.dataset) for each in page.items}
    listed = [Listed(each, persons[each.dataset].get(viewer.caller.id)) for each in page.items]
    context = {"listed": listed, "following": page.next, "problem": problem}
    return render(request, "approvals.html", viewer=viewer, status=status, **context)
