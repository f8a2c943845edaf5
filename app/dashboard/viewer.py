"""The dashboard's viewer: a session's cookie (app.keys.sessions), or the key itself as a Bearer header.

Signing out ends all sessions of the key, even with a copied cookie. Every form carries the session's token.
"""

from __future__ import annotations

import hmac
import re
import secrets
from dataclasses import dataclass
from typing import Annotated
from urllib.parse import quote

from fastapi import Depends, Form, Header, Request, Response
from fastapi.security import HTTPAuthorizationCredentials

from app.audit import record as audit
from app.keys.auth import authenticated, bearer, limits_of
from app.keys.service import Caller
from app.keys.sessions import NOT_SIGNED_IN, SESSION_COOKIE, caller_of, cookie_for, form_token, is_form_token
from app.settings import Settings
from app.web.deps import Db, ServiceSettings, database_of
from core.errors import Forbidden, RequestError, Unauthenticated

HOME = "/dashboard"
LOGIN = "/dashboard/login"
SIGN_IN = "/dashboard/sign-in"  # at the identity provider
LOGIN_COOKIE = "scrimp_login"  # ties a login form to the browser that received it
LOGIN_MINUTES = 60
# Local pages only: no scheme, no host, no "//", no backslash, no dot segments.
SAFE_NEXT = re.compile(r"/docs|/dashboard(/[A-Za-z0-9_-]+)*(\?[A-Za-z0-9_=&%.-]*)?")


class SignInNeeded(RequestError):
    """Nobody is signed in: the page redirects to the login form."""

    code = "sign-in-needed"
    status = 303
    title = "Sign in first"


@dataclass(frozen=True)
class Viewer:
    """The signed-in caller. `csrf` is the token of this viewer's forms; None if a Bearer key made the request."""

    caller: Caller
    csrf: str | None


def current_viewer(
    request: Request,
    db: Db,
    settings: ServiceSettings,
    credentials: Annotated[HTTPAuthorizationCredentials | None, Depends(bearer)],
) -> Viewer:
    """The signed-in caller of every page.

    Raises:
        SignInNeeded: no session, an expired or forged one, or its key is no longer valid.
        Unauthenticated: an invalid Bearer key.
        TooManyRequests: the key exceeded its limit.
    """
    if credentials is not None:
        return Viewer(authenticated(request, db, credentials.credentials), None)
    cookie = request.cookies.get(SESSION_COOKIE, "")
    try:
        caller = caller_of(cookie, db, settings)
    except Unauthenticated:
        raise SignInNeeded(NOT_SIGNED_IN) from None
    audit.authenticated(caller.id)
    limits_of(request).request(caller.id, caller.requests_per_minute)
    return Viewer(caller, form_token(settings, cookie))


def signed_in(request: Request) -> Caller:
    """The caller of the request's session. Counts nothing: the route does.

    Raises:
        SignInNeeded: the cookie is not a valid session's.
    """
    try:
        return caller_of(request.cookies.get(SESSION_COOKIE, ""), database_of(request), request.app.state.settings)
    except Unauthenticated:
        raise SignInNeeded(NOT_SIGNED_IN) from None


def is_signed_in(request: Request) -> bool:
    """Returns True if the request's cookie is a valid session's. Counts nothing, as `signed_in`."""
    try:
        signed_in(request)
    except SignInNeeded:
        return False
    return True


CurrentViewer = Annotated[Viewer, Depends(current_viewer)]


def posting_viewer(viewer: CurrentViewer, csrf: Annotated[str, Form(max_length=200)] = "") -> Viewer:
    """The viewer who sent a form, after checking that the form is ours. No other site can send a Bearer header.

    Raises:
        Forbidden: the form's token does not belong to this session.
    """
    if viewer.csrf is not None and not hmac.compare_digest(viewer.csrf.encode(), csrf.encode()):
        raise Forbidden("this form is out of date: go back, reload the page and send it again")
    return viewer


PostingViewer = Annotated[Viewer, Depends(posting_viewer)]


def uploading_viewer(viewer: CurrentViewer, x_csrf_token: Annotated[str, Header(max_length=200)] = "") -> Viewer:
    """The viewer who sends a file: the form's token comes in a header, so that it is checked before the body is read.

    Raises:
        Forbidden: as `posting_viewer`.
    """
    return posting_viewer(viewer, x_csrf_token)


UploadingViewer = Annotated[Viewer, Depends(uploading_viewer)]


def sign_in(
    response: Response, request: Request, caller: Caller, sign_outs: int, *, hours: float | None = None
) -> None:
    """Sets the session's cookie. `hours`: until its end, if that may come before the settings' hours."""
    settings: Settings = request.app.state.settings
    lasts = settings.session_hours if hours is None else min(hours, settings.session_hours)
    value = cookie_for(settings, caller, sign_outs, hours)
    # Sent to /docs and the REST API too; the latter takes it only together with the form's token.
    set_cookie(response, request, SESSION_COOKIE, value, lasts * 3600, path="/")
    response.delete_cookie(LOGIN_COOKIE, path=LOGIN)


def sign_out(response: Response) -> None:
    """Removes the session's cookie."""
    response.delete_cookie(SESSION_COOKIE, path="/")


def start_login(response: Response, request: Request, nonce: str) -> None:
    """Gives the browser the other half of the login form's token."""
    set_cookie(response, request, LOGIN_COOKIE, nonce, LOGIN_MINUTES * 60, path=LOGIN)


def login_token(settings: Settings, request: Request) -> tuple[str, str]:
    """The nonce of this browser's login form, reused if it has one, and the token in the form."""
    nonce = request.cookies.get(LOGIN_COOKIE, "")
    if len(nonce) != 43:
        nonce = secrets.token_urlsafe(32)
    return nonce, form_token(settings, nonce)


def check_login_form(request: Request, settings: Settings, csrf: str) -> bool:
    """Returns True if a login form was made for the browser that sends it: prevents a sign-in under somebody else's
    key."""
    nonce = request.cookies.get(LOGIN_COOKIE, "")
    return bool(nonce) and is_form_token(settings, nonce, csrf)


def safe_next(target: str | None) -> str:
    """Where to go after the login: a page of the dashboard or of the API's documentation, or else the first page."""
    return target if target and SAFE_NEXT.fullmatch(target) and not target.startswith((LOGIN, SIGN_IN)) else HOME


def login_url(request: Request) -> str:
    """The login page, with the way back to a page that was requested by GET."""
    path = request.url.path + (f"?{request.url.query}" if request.url.query else "")
    if request.method != "GET" or safe_next(path) == HOME:
        return LOGIN
    return f"{LOGIN}?next={quote(path, safe='')}"


def set_cookie(
    response: Response, request: Request, name: str, value: str, max_age_s: float, *, path: str, strict: bool = True
) -> None:
    """Sets a cookie that no script reads. `strict` False: it comes along when another site's page leads here."""
    response.set_cookie(
        name,
        value,
        max_age=int(max_age_s),
        path=path,
        secure=request.url.scheme == "https" or request.app.state.settings.behind_tls,
        httponly=True,
        samesite="strict" if strict else "lax",
    )
