"""/dashboard/audit: who did what, when and from where; for admins, with the functions of /v1/audit."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import StreamingResponse

from app.audit import routes as audit
from app.dashboard.page import PageRoute, render
from app.dashboard.viewer import HOME, CurrentViewer
from app.db.database import Database
from app.keys.auth import check_role
from app.keys.service import Caller
from app.web.deps import Db
from app.web.pagination import After
from app.web.route_operation import Page

router = APIRouter(prefix=f"{HOME}/audit", include_in_schema=False, route_class=PageRoute)
Asked = Annotated[str | None, Query(max_length=200)]
ROWS, BATCH = 50, 500


@router.get("")
@Page("admins")
def audit_page(
    request: Request,
    db: Db,
    viewer: CurrentViewer,
    key: Asked = None,
    action: Asked = None,
    target: Asked = None,
    after: After = None,
    check: bool = False,
) -> Response:
    """Shows a page of entries, the newest first; `check` recomputes the hash chain."""
    caller = viewer.caller
    check_role(caller, "admin")
    key, action, target = key or None, action or None, target or None
    filters = {"key": key, "action": action, "target": target}
    page = audit.list_audit(db, caller, key, action, target, after=after or None, limit=ROWS)
    checked = audit.verify_audit(db, caller) if check else None
    return render(
        request, "audit.html", viewer=viewer, found=page, asked=filters, checked=checked, actions=audit.ACTIONS
    )


@router.get("/entries.jsonl")
@Page("admins")
def export(db: Db, viewer: CurrentViewer) -> Response:
    """Sends every sealed entry as a file, oldest first, a line each: what anybody needs to recompute the chain."""
    caller = viewer.caller
    check_role(caller, "admin")
    return StreamingResponse(
        _lines(db, caller),
        media_type="application/jsonl",
        headers={"Content-Disposition": 'attachment; filename="audit.jsonl"'},
    )


def _lines(db: Database, caller: Caller) -> Iterator[str]:
    """The file's lines, a batch of entries at a time."""
    last = 0
    while page := audit.list_audit(db, caller, since=last, limit=BATCH).items:
        yield "".join(entry.model_dump_json() + "\n" for entry in page)
        last = page[-1].seq or 0
