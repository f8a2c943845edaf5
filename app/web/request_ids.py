"""Requests have ids: in the answer's header, in every log line that a request causes, and in the access log."""

from __future__ import annotations

import logging
import re
import secrets
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

from starlette.datastructures import Headers
from starlette.types import Scope

from app import tracing
from app.logs import about

if TYPE_CHECKING:
    from opentelemetry.trace import Span

logger = logging.getLogger(__name__)
HEADER = "X-Request-Id"
A_REQUEST = re.compile(r"[A-Za-z0-9_-]{8,64}")
A_JOB = re.compile(r"job_[a-z0-9]{1,60}")


class RequestLog:
    """Names each request, and logs a line for it.

    The line has the route's template, never the address: a query may hold what people search for.

    Args:
        access_log: log at INFO; otherwise at DEBUG.
        trusted_proxies: if there are any, their id and `traceparent` are kept; otherwise a client could choose them.
    """

    def __init__(self, access_log: bool, trusted_proxies: int) -> None:
        self.level, self.trusts = logging.INFO if access_log else logging.DEBUG, trusted_proxies > 0

    def id_of(self, headers: Headers) -> str:
        """The request's id: that of a trusted proxy, or a new one."""
        sent = headers.get(HEADER, "") if self.trusts else ""
        return sent if A_REQUEST.fullmatch(sent) else secrets.token_hex(8)

    def span(self, scope: Scope, headers: Headers) -> AbstractContextManager[Span | None]:
        """A span of a request that may change something; others are too many to trace."""
        if not tracing.is_on() or scope["method"] in ("GET", "HEAD"):
            return nullcontext()
        parent = headers.get("traceparent") if self.trusts else None
        return tracing.span("request", parent=parent, kind="server")

    def end(self, scope: Scope, request_id: str, status: int, took_s: float, span: Span | None) -> None:
        """Logs an answered request, and completes its span."""
        route = route_of(scope)
        if logger.isEnabledFor(self.level):
            self._log(scope, route, status, took_s)
        if span is not None:
            span.update_name(f"{scope['method']} {route}")
            span.set_attributes({"scrimp.request": request_id, "http.response.status_code": status})

    def _log(self, scope: Scope, route: str, status: int, took_s: float) -> None:
        method = scope["method"] if scope["method"].isalpha() and len(scope["method"]) < 8 else "other"
        fields = {"method": method, "route": route, "status": status, "duration_ms": round(1000 * took_s, 1)}
        job = str(scope.get("path_params", {}).get("job_id", ""))
        with about({"job": job} if A_JOB.fullmatch(job) else {}):
            logger.log(self.level, "%s %s %d", method, route, status, extra={"fields": fields})


def route_of(scope: Scope) -> str:
    """The template of a request's route, without the ids in its address."""
    return str(getattr(scope.get("route"), "path", "unmatched"))
