"""The one ASGI layer around the routes: what every request passes on its way in, and every answer on its way out.

    in    id, span → host → origin → (with a body:) session or key → body
    out   (HEAD: no body) → refusals noted → plain text as problems → status, counted → headers → id

A step inside sees what the steps before it let through, and its answer passes all steps outside it. Each step's rules
are in its own module. Scopes other than http go straight to the application.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from starlette.datastructures import Headers
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.audit.origin import Origins
from app.audit.record import CURRENT, Origin
from app.dashboard import session_gate
from app.dashboard.viewer import LOGIN, SignInNeeded
from app.db.database import Database
from app.keys.gate import KeyGate, NamedCheck
from app.lifecycle.measures import Measures
from app.logs import about
from app.settings import Settings
from app.system.prometheus import count_request
from app.web import problems
from app.web.body_limits import BodyLimit
from app.web.headers import HostCheck, added_headers, announces_body, as_get, is_stream
from app.web.request_ids import HEADER, RequestLog
from core.errors import RequestError, UnknownHost

ID_HEADER = HEADER.lower().encode()


class Front:
    """Answers a request by the application, or refuses it before.

    Args:
        routes: those of the application, in its order.
        checks: by a route's path: what a route with large bodies names.
    """

    def __init__(
        self,
        app: ASGIApp,
        settings: Settings,
        db: Database,
        measures: Measures,
        routes: Sequence[BaseRoute],
        checks: Mapping[str, NamedCheck],
    ) -> None:
        self.app, self.measures, self.behind_tls = app, measures, settings.behind_tls
        self.log = RequestLog(settings.access_log, settings.trusted_proxies)
        self.hosts = HostCheck(settings.allowed_hosts)
        self.origins = Origins(db, settings.trusted_proxies)
        self.keys, self.bodies = KeyGate(routes, checks), BodyLimit(settings)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers, began = Headers(scope=scope), time.perf_counter()
        request_id = self.log.id_of(headers)
        answer = _Answer(self, scope, receive, send, request_id)
        with about({"request": request_id}), self.log.span(scope, headers) as span:
            try:
                await self._guarded(scope, headers, receive, answer)
            finally:
                took_s = time.perf_counter() - began
                count_request(self.measures, scope, answer.status, took_s)
                self.log.end(scope, request_id, answer.status, took_s, span)

    async def _guarded(self, scope: Scope, headers: Headers, receive: Receive, answer: _Answer) -> None:
        """Turns an exception without a handler into a problem, unless the answer has begun."""
        try:
            await self._named_host(scope, headers, receive, answer)
        except Exception as error:
            if answer.started:
                raise
            await problems.of_exception(error, scope)(scope, receive, answer.send)

    async def _named_host(self, scope: Scope, headers: Headers, receive: Receive, answer: _Answer) -> None:
        try:
            self.hosts.require(headers)
        except UnknownHost as refusal:
            await problems.problem(refusal)(scope, receive, answer.send)
            return
        answer.origin = self.origins.of(scope, headers)
        token = CURRENT.set(answer.origin)
        try:
            await self._as_get(scope, headers, receive, answer)
        finally:
            CURRENT.reset(token)

    async def _as_get(self, scope: Scope, headers: Headers, receive: Receive, answer: _Answer) -> None:
        """Answers HEAD as GET without the body. Event streams are excluded: they have no end."""
        if scope["method"] != "HEAD" or is_stream(headers):
            await self._admitted(scope, headers, receive, answer.pass_on)
            return
        inner = as_get(scope)
        try:
            await self._admitted(inner, headers, receive, answer.pass_on_empty)
        finally:
            scope["route"] = inner.get("route")

    async def _admitted(self, scope: Scope, headers: Headers, receive: Receive, send: Send) -> None:
        """Checks the sender of a body, reads the body, and asks the application."""
        if not announces_body(headers):
            if scope["method"] in ("GET", "HEAD"):
                await self.app(scope, receive, send)
            else:
                await self.bodies.pass_on(self.app, scope, headers, receive, send)
            return
        refusal: Response | None = None
        try:
            await session_gate.admit(scope)
            await self.keys.admit(scope)
        except SignInNeeded:
            refusal = RedirectResponse(LOGIN, 303)
        except RequestError as error:
            refusal = problems.answer(error)
        if refusal is not None:
            await refusal(scope, receive, send)
        else:
            await self.bodies.pass_on(self.app, scope, headers, receive, send)


class _Answer:
    """One answer on its way out.

    Attributes:
        status: of the answer that was sent; 500 before.
        started: True once something began to answer.
        origin: of a request that was let in.
    """

    __slots__ = ("front", "id_header", "origin", "outward", "receive", "replaced", "scope", "started", "status")

    def __init__(self, front: Front, scope: Scope, receive: Receive, send: Send, request_id: str) -> None:
        self.front, self.scope, self.receive, self.outward = front, scope, receive, send
        self.id_header = (ID_HEADER, request_id.encode())
        self.status, self.started, self.replaced = 500, False, False
        self.origin: Origin | None = None

    async def pass_on(self, message: Message) -> None:
        """A message of the application, or of a gate before it."""
        if message["type"] == "http.response.start" and self.origin is not None:
            await self.front.origins.watch(self.scope, self.origin, message["status"])
        await self.send(message)

    async def pass_on_empty(self, message: Message) -> None:
        """The same for HEAD."""
        await self.pass_on({**message, "body": b""} if message["type"] == "http.response.body" else message)

    async def send(self, message: Message) -> None:
        """Any message: a problem in place of plain text, with the headers that all answers have."""
        if message["type"] != "http.response.start":
            if not self.replaced:
                await self.outward(message)
            return
        self.started = True
        problem = problems.of_plain_text(message)
        if problem is not None:
            await problem(self.scope, self.receive, self.send)
            self.replaced = True
            return
        self.status = message["status"]
        tls = self.front.behind_tls or self.scope["scheme"] == "https"
        added = added_headers(self.scope["path"], tls, message["headers"])
        await self.outward({**message, "headers": [*message["headers"], *added, self.id_header]})
