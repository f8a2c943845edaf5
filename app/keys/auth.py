"""Authentication: the `Authorization: Bearer` key of every route but /healthz, or a dashboard session.

A session's cookie counts only with the session's token in the X-CSRF-Token header: another site can make a browser send
the cookie, but it can neither read the token nor set the header.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Annotated, cast

from fastapi import Depends, Request
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from fastapi.security.utils import get_authorization_scheme_param
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers

from app.audit import record as audit
from app.db.database import Database
from app.keys import service, sessions
from app.keys.recent import STAMP, RecentKeys
from app.keys.service import Caller, KeyLike
from app.settings import Settings
from app.web.deps import database_of
from app.web.ratelimit import RequestLimits
from core.errors import Forbidden, Unauthenticated

# Where app.keys.gate stores the caller of a request with a body, and how long the route trusts it: with the time that a
# key's row is kept (app.keys.recent), a second.
CALLER = "scrimp.caller"
FRESH_S = 0.5
bearer = HTTPBearer(auto_error=False, description="An API key: `Authorization: Bearer scrimp_key_…`.")


def limits_of(request: Request) -> RequestLimits:
    """The process' request limits."""
    return cast(RequestLimits, request.app.state.limits)


Credentials = Annotated[HTTPAuthorizationCredentials | None, Depends(bearer)]


@dataclass(frozen=True)
class KnownCaller:
    """An authenticated caller and the time on the monotonic clock: a body may take its time after that."""

    caller: Caller
    at_s: float

    @property
    def is_fresh(self) -> bool:
        """Returns True while the route may rely on this authentication."""
        return time.monotonic() - self.at_s < FRESH_S


def admitted(request: Request, key: KeyLike | None, token: str) -> Caller:
    """Counts the request; returns its caller and the key found under its token's id.

    Raises:
        Unauthenticated: the token is not valid.
        TooManyRequests: the key, or an address that sends invalid keys, exceeded its limit.
    """
    peppers: tuple[bytes, ...] = request.app.state.peppers
    try:
        try:
            caller = service.check(key, peppers[0], token)
        except Unauthenticated:
            caller = service.renewed(database_of(request), peppers, key, token)
    except Unauthenticated:
        _count_failure(request)
        raise
    audit.authenticated(caller.id)
    limits_of(request).request(caller.id, caller.requests_per_minute)
    return caller


def authenticated(request: Request, db: Database, token: str) -> Caller:
    """Looks the key up, unless the token has just been used, then does the same as `admitted`."""
    recent = cast(RecentKeys, request.app.state.recent_keys)
    token_hmac, stamp = service.digest(request.app.state.peppers[0], token), STAMP.now
    key = recent.row(token_hmac)
    if key is not None:
        return admitted(request, key, token)
    with db.quick_read() as connection:
        key = connection.execute(service.BY_ID, {"key": service.id_in(token)}).one_or_none()
    caller = admitted(request, key, token)
    if key is not None:
        recent.keep(token_hmac, key, stamp)
    return caller


def token_in(headers: Headers) -> str | None:
    """The request's Bearer token, if it has one."""
    scheme, token = get_authorization_scheme_param(headers.get("authorization"))
    return token if token and scheme.lower() == "bearer" else None


def identified(request: Request, token: str | None) -> Caller:
    """The caller of a request by its headers alone.

    Raises:
        Unauthenticated: no key and no session, or an invalid one.
        TooManyRequests: as `admitted`.
    """
    return _signed_in(request) if token is None else authenticated(request, database_of(request), token)


async def require_some_key(request: Request) -> None:
    """Refuses a request with neither key nor session before its parameters are checked, for routes that look the key up
    themselves.

    Raises:
        Unauthenticated, TooManyRequests: as `identified`.
    """
    if token_in(request.headers) is None and sessions.SESSION_COOKIE not in request.cookies:
        _signed_in(request)


def _signed_in(request: Request) -> Caller:
    """The caller of a session. A missing session counts against the address like an invalid key.

    Raises:
        Unauthenticated, TooManyRequests: as `identified`.
    """
    cookie, sent = request.cookies.get(sessions.SESSION_COOKIE, ""), request.headers.get(sessions.CSRF_HEADER, "")
    settings: Settings = request.app.state.settings
    try:
        if not (cookie and sent and sessions.is_form_token(settings, cookie, sent)):
            raise Unauthenticated("send your key as `Authorization: Bearer …`")
        caller = sessions.caller_of(cookie, database_of(request), settings)
    except Unauthenticated:
        _count_failure(request)
        raise
    audit.authenticated(caller.id)
    limits_of(request).request(caller.id, caller.requests_per_minute)
    return caller


def _count_failure(request: Request) -> None:
    limits_of(request).failure(request.client.host if request.client else None)


async def current_key(request: Request, _credentials: Credentials) -> Caller:
    """The caller.

    Raises:
        Unauthenticated: no key, or an invalid one.
        TooManyRequests: as `admitted`.
    """
    caller: KnownCaller | None = request.scope.get(CALLER)
    if caller is not None and caller.is_fresh:
        return caller.caller
    return await run_in_threadpool(identified, request, token_in(request.headers))


CurrentKey = Annotated[Caller, Depends(current_key)]


def check_role(caller: Caller, role: str) -> None:
    """Admits the roles that are enough for one.

    Raises:
        Forbidden: the key has another role.
    """
    if not caller.may(role):
        needed = " or ".join(service.AS_MUCH[role])
        raise Forbidden(f"this needs a key with the role {needed}; yours has the role {caller.role}")


def require_role(role: str) -> Callable[[Caller], Awaitable[Caller]]:
    """Makes a dependency on `check_role`."""

    async def check(caller: CurrentKey) -> Caller:
        check_role(caller, role)
        return caller

    check.role = role  # type: ignore[attr-defined] # read before the body (app.keys.gate)
    return check


SubmitterKey = Annotated[Caller, Depends(require_role("analyst"))]
OwnerKey = Annotated[Caller, Depends(require_role("owner"))]
AdminKey = Annotated[Caller, Depends(require_role("admin"))]
