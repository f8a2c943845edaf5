"""/dashboard/keys: API keys and grants, with the functions of /v1/keys and /v1/datasets/{id}/grants, and their rules.

Everybody sees and rotates the own key. Admins make, list, rotate and revoke keys. Owners and admins grant access to
their data sets. A token is shown once, on the page that answers the form.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, get_args

from fastapi import APIRouter, Form, Request, Response
from fastapi.responses import RedirectResponse
from pydantic import ValidationError

from app.dashboard.page import Id, PageRoute, render
from app.dashboard.viewer import HOME, CurrentViewer, PostingViewer, Viewer
from app.db.database import Database
from app.grants import routes as grants
from app.grants.service import list_all, own_datasets
from app.keys import routes as keys
from app.keys.auth import check_role
from app.keys.service import Role
from app.settings import Settings
from app.web.deps import Db, ServiceSettings
from app.web.route_operation import Page
from core.errors import Conflict, Forbidden, InvalidRequest, NotFound
from core.ids import now

PAGE = f"{HOME}/keys"
router = APIRouter(prefix=PAGE, include_in_schema=False, route_class=PageRoute)
Text = Annotated[str, Form(max_length=200)]
DAYS = {"": "never", "7": "in 7 days", "30": "in 30 days", "90": "in 90 days", "365": "in a year"}
OVERLAPS = {"0": "at once", "3600": "in an hour", "86400": "in a day"}
REFUSALS = (InvalidRequest, Conflict, Forbidden, NotFound)


@router.get("")
@Page("every key")
def keys_page(request: Request, db: Db, settings: ServiceSettings, viewer: CurrentViewer) -> Response:
    """Shows the keys and grants that the viewer may see."""
    return _page(request, db, settings, viewer)


@router.post("")
@Page("admins", audit="key.created")
def create(
    request: Request,
    db: Db,
    settings: ServiceSettings,
    viewer: PostingViewer,
    name: Text = "",
    role: Text = "",
    days: Text = "",
) -> Response:
    """Makes a key, for admins; only the page that answers shows its token."""
    caller = viewer.caller
    check_role(caller, "admin")
    try:
        expires_at = now() + timedelta(days=int(days)) if days in DAYS and days else None
        key_request = keys.KeyRequest.model_validate({"name": name.strip(), "role": role, "expires_at": expires_at})
        new_key = keys.create_key(request, key_request, db, settings, caller)
    except ValidationError:
        return _page(request, db, settings, viewer, problem="Give the key a name and a role.", status=422)
    return _page(request, db, settings, viewer, new_key=new_key)


@router.post("/{key_id}/rotate")
@Page("admins, or the key itself", audit="key.rotated")
def rotate(
    request: Request, key_id: Id, db: Db, settings: ServiceSettings, viewer: PostingViewer, overlap: Text = "0"
) -> Response:
    """Gives a key a new token: one's own, or for admins any."""
    try:
        rotation = keys.Rotation(overlap_s=int(overlap) if overlap in OVERLAPS else 0)
        new_key = keys.rotate_key(request, key_id, db, settings, viewer.caller, rotation)
    except (Conflict, Forbidden) as refused:
        return _page(request, db, settings, viewer, problem=refused.message, status=refused.status)
    return _page(request, db, settings, viewer, new_key=new_key)


@router.post("/{key_id}/revoke")
@Page("admins", audit="key.revoked")
def revoke(request: Request, key_id: Id, db: Db, settings: ServiceSettings, viewer: PostingViewer) -> Response:
    """Revokes a key for good, for admins."""
    caller = viewer.caller
    check_role(caller, "admin")
    try:
        keys.revoke_key(key_id, db, settings, caller)
    except Conflict as refused:
        return _page(request, db, settings, viewer, problem=refused.message, status=refused.status)
    return RedirectResponse(f"{PAGE}#{key_id}", 303)


@router.post("/grants")
@Page("every key", audit="grant.set")
def grant(
    request: Request,
    db: Db,
    settings: ServiceSettings,
    viewer: PostingViewer,
    dataset: Text = "",
    key: Text = "",
    access: Text = "",
    epsilon: Text = "",
    until: Text = "",
    purpose: Text = "",
    permit: Text = "",
) -> Response:
    """Grants a key access to a data set, for its owner and admins; replaces its earlier grant."""
    try:
        grant_request = grants.GrantRequest.model_validate(
            {
                "access": access,
                "max_epsilon_per_job": float(epsilon) if epsilon.strip() else None,
                "ends_at": f"{until}T00:00:00Z" if until else None,
                "purpose": purpose.strip() or None,
                "permit": permit.strip() or None,
            }
        )
        grants.set_grant(dataset, key.strip(), grant_request, db, viewer.caller)
    except (ValidationError, ValueError):
        problem = "Choose an access. Give the largest ε as a number and the end as a day, or leave them empty."
        return _page(request, db, settings, viewer, problem=problem, status=422)
    except REFUSALS as refused:
        return _page(request, db, settings, viewer, problem=refused.message, status=refused.status)
    return RedirectResponse(f"{PAGE}#grants", 303)


@router.post("/grants/remove")
@Page("every key", audit="grant.removed")
def remove(
    request: Request, db: Db, settings: ServiceSettings, viewer: PostingViewer, dataset: Text = "", key: Text = ""
) -> Response:
    """Ends a grant, for the data set's owner and admins."""
    try:
        grants.remove_grant(dataset, key, db, viewer.caller)
    except REFUSALS as refused:
        return _page(request, db, settings, viewer, problem=refused.message, status=refused.status)
    return RedirectResponse(f"{PAGE}#grants", 303)


def _page(
    request: Request,
    db: Database,
    settings: Settings,
    viewer: Viewer,
    *,
    new_key: keys.NewKey | None = None,
    problem: str = "",
    status: int = 200,
) -> Response:
    caller = viewer.caller
    keys_listed = keys.list_keys(db, settings, caller).items if caller.is_admin else []
    own_key = keys.show_own_key(db, settings, caller)
    with db.read() as session:
        grant_rows = [(row.name, grants.shown(grant_, key_)) for grant_, key_, row in list_all(session, caller)]
        datasets = own_datasets(session, caller)
    return render(
        request,
        "keys.html",
        viewer=viewer,
        status=status,
        keys=keys_listed,
        own=own_key,
        grants=grant_rows,
        datasets=datasets,
        made=new_key,
        problem=problem,
        roles=get_args(Role),
        days=DAYS,
        overlaps=OVERLAPS,
        now=now(),
    )
