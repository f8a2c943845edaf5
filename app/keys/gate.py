"""Authentication before the body: for a request with a body, only its headers are read until its key is checked."""

from __future__ import annotations

import time

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from app.errors import RequestError
from app.keys.auth import CALLER, KnownCaller, identified, token_in
from app.web.headers import announces_body
from app.web.problems import answer

# Every route below it needs a Bearer key. The dashboard's forms are small, but for those of app.dashboard.gate.
PREFIX = "/v1/"


class KeyFirst:
    """Refuses a request with a body if its key is missing or invalid, before the body is read.

    The caller is passed on, so that the route does not look the key up again.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not scope["path"].startswith(PREFIX):
            await self.app(scope, receive, send)
            return
        request = Request(scope)
        if not announces_body(request.headers):
            await self.app(scope, receive, send)
            return
        try:
            caller = await run_in_threadpool(identified, request, token_in(request.headers))
        except RequestError as error:
            # The rest of the body is not read; the connection ends soon if more arrives (scrimp_server.api).
            await answer(error)(scope, receive, send)
            return
        scope[CALLER] = KnownCaller(caller, time.monotonic())
        await self.app(scope, receive, send)
