"""The session before the body: of a large form only the headers are read until its sender is known."""

from __future__ import annotations

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import RedirectResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from app.dashboard.session import HOME, LOGIN, SignInNeeded, signed_in
from app.errors import RequestError
from app.keys.auth import check_role, identified, token_in
from app.keys.service import Caller
from app.web.headers import announces_body
from app.web.limits import SENDER
from app.web.problems import answer

PREFIX = f"{HOME}/register/"


class SessionFirst:
    """Sends visitors without a session to the login, and refuses invalid Bearer keys and other roles than owners',
    before the body is read.

    The form's token is left to the route.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"].startswith(PREFIX):
            request = Request(scope)
            token = token_in(request.headers)
            if announces_body(request.headers):
                try:
                    caller = await run_in_threadpool(_caller_of, request, token)
                    check_role(caller, "owner")
                    scope[SENDER] = caller.id
                except SignInNeeded:
                    await RedirectResponse(LOGIN, 303)(scope, receive, send)
                    return
                except RequestError as error:
                    await answer(error)(scope, receive, send)
                    return
        await self.app(scope, receive, send)


def _caller_of(request: Request, token: str | None) -> Caller:
    return signed_in(request) if token is None else identified(request, token)
