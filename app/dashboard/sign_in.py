"""/dashboard/login and /dashboard/logout."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Form, Request, Response
from fastapi.responses import RedirectResponse

from app.audit import record as audit
from app.dashboard.page import PageRoute, render
from app.dashboard.viewer import (
    HOME,
    LOGIN,
    PostingViewer,
    check_login_form,
    current_viewer,
    login_token,
    safe_next,
    sign_in,
    sign_out,
    start_login,
)
from app.db.models import ApiKey
from app.keys import service as keys
from app.keys.auth import authenticated
from app.web.deps import Db, ServiceSettings
from app.web.route_operation import Page
from core.errors import RequestError, Unauthenticated

router = APIRouter(prefix=HOME, include_in_schema=False, route_class=PageRoute)
WRONG_KEY = "This key is unknown, expired or revoked."
STALE_FORM = "The form was out of date. Please try again; cookies must be allowed for this site."


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
    sign_in(response, request, caller, sign_outs)
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
        has_provider=request.app.state.provider is not None,
        problem=problem,
    )
    start_login(response, request, nonce)
    return response
