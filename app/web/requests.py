"""Requests have ids: in the answer's header, in every log line that a request causes, and in the access log."""

from __future__ import annotations

import logging
import re
import secrets
import time
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app import tracing
from app.logs import about

if TYPE_CHECKING:
    from opentelemetry.trace import Span

logger = logging.getLogger(__name__)
HEADER = "X-Request-Id"
A_REQUEST = re.compile(r"[A-Za-z0-9_-]{8,64}")
A_JOB = re.compile(r"job_[a-z0-9]{1,60}")


class RequestIds:
    """Names each request, and logs a line for it.

    The line has the route's template, never the address: a query may hold what people search for.

    Args:
        access_log: log at INFO; otherwise at DEBUG.
        trusted_proxies: if there are any, their id and `traceparent` are kept; otherwise a client could choose them.
    """

    def __init__(self, app: ASGIApp, access_log: bool, trusted_proxies: int) -> None:
        self.app, self.level = app, logging.INFO if access_log else logging.DEBUG
        self.trusts = trusted_proxies > 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        request_id = self._given(scope) or secrets.token_hex(8)
        began, status = time.perf_counter(), 500
        header = (HEADER.lower().encode(), request_id.encode())

        async def named(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message = {**message, "headers": [*message["headers"], header]}
            await send(message)

        with about({"request": request_id}), self._span(scope) as span:
            try:
                await self.app(scope, receive, named)
            finally:
                if logger.isEnabledFor(self.level):
                    self._log(scope, status, time.perf_counter() - began)
                if span is not None:
                    route = getattr(scope.get("route"), "path", "unmatched")
                    span.update_name(f"{scope['method']} {route}")
                    span.set_attributes({"scrimp.request": request_id, "http.response.status_code": status})

    def _given(self, scope: Scope) -> str | None:
        given = Headers(scope=scope).get(HEADER, "") if self.trusts else ""
        return given if A_REQUEST.fullmatch(given) else None

    def _span(self, scope: Scope) -> AbstractContextManager[Span | None]:
        """A span of a request that may change something; others are too many to trace."""
        if not tracing.is_on() or scope["method"] in ("GET", "HEAD"):
            return nullcontext()
        parent = Headers(scope=scope).get("traceparent") if self.trusts else None
        return tracing.span("request", parent=parent, kind="server")

    def _log(self, scope: Scope, status: int, took_s: float) -> None:
        route = getattr(scope.get("route"), "path", "unmatched")
        method = scope["method"] if scope["method"].isalpha() and len(scope["method"]) < 8 else "other"
        fields = {"method": method, "route": route, "status": status, "duration_ms": round(1000 * took_s, 1)}
        job = str(scope.get("path_params", {}).get("job_id", ""))
        with about({"job": job} if A_JOB.fullmatch(job) else {}):
            logger.log(self.level, "%s %s %d", method, route, status, extra={"fields": fields})
