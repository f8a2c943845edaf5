"""The session before the body: of a large form only the headers are read until its sender is known."""

from __future__ import annotations

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.types import Scope

from app.dashboard.viewer import HOME, signed_in
from app.keys.auth import check_role, identified, token_in
from app.keys.service import Caller
from app.web.body_limits import SENDER

PREFIX = f"{HOME}/register/"


async def admit(scope: Scope) -> None:
    """Notes the sender of a large form in its scope, before the body is read. The form's token is left to the route.

    Raises:
        SignInNeeded: there is no session: visitors are sent to the login.
        RequestError: an invalid Bearer key, or another role than an owner's.
    """
    if scope["path"].startswith(PREFIX):
        request = Request(scope)
        caller = await run_in_threadpool(_caller_of, request, token_in(request.headers))
        check_role(caller, "owner")
        scope[SENDER] = caller.id


def _caller_of(request: Request, token: str | None) -> Caller:
    return signed_in(request) if token is None else identified(request, token)
