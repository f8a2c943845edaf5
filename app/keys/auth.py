"""Who is asking: the `Authorization: Bearer` key of every route but /healthz."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Annotated, cast

from fastapi import Depends, Request
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

from app.audit import record as audit
from app.db.engine import Database
from app.errors import Forbidden, Unauthenticated
from app.keys import service
from app.keys.service import Caller, KeyLike
from app.web.deps import Db
from app.web.ratelimit import RequestLimits

bearer = HTTPBearer(auto_error=False, description="An API key: `Authorization: Bearer scrimp_key_…`.")


def limits_of(request: Request) -> RequestLimits:
    return cast(RequestLimits, request.app.state.limits)


Credentials = Annotated[HTTPAuthorizationCredentials | None, Depends(bearer)]


def admitted(request: Request, key: KeyLike | None, token: str) -> Caller:
    """The caller of a request that shows a token, and the key that was found under its id; the request is counted.

    Raises:
        Unauthenticated: the token does not hold.
        TooManyRequests: the key, or the address that sends keys that do not hold, is past its limit.
    """
    try:
        caller = service.check(key, request.app.state.pepper, token)
    except Unauthenticated:
        limits_of(request).failure(request.client.host if request.client else None)
        raise
    audit.authenticated(caller.id)
    limits_of(request).request(caller.id, caller.requests_per_minute)
    return caller


def authenticated(request: Request, db: Database, token: str) -> Caller:
    """As `admitted`; looks the key up."""
    with db.glance() as connection:
        key = connection.execute(service.BY_ID, {"key": service.id_in(token)}).one_or_none()
    return admitted(request, key, token)


def shown_token(credentials: HTTPAuthorizationCredentials | None) -> str:
    if credentials is None:
        raise Unauthenticated("send your key as `Authorization: Bearer …`")
    return credentials.credentials


def current_key(request: Request, db: Db, credentials: Credentials) -> Caller:
    """The caller.

    Raises:
        Unauthenticated: no key, or one that does not hold.
        TooManyRequests: as `admitted`.
    """
    return authenticated(request, db, shown_token(credentials))


CurrentKey = Annotated[Caller, Depends(current_key)]


def require_role(role: str) -> Callable[[Caller], Awaitable[Caller]]:
    """A dependency that lets `role` and admins pass."""

    needed = "admin" if role == "admin" else f"{role} or admin"

    async def check(caller: CurrentKey) -> Caller:
        if not caller.may(role):
            raise Forbidden(f"this needs a key with the role {needed}; yours is {caller.role}")
        return caller

    return check


OwnerKey = Annotated[Caller, Depends(require_role("owner"))]
AdminKey = Annotated[Caller, Depends(require_role("admin"))]
