"""Headers of every response, including errors, redirects and streams; the Host check; HEAD.

Scripts and styles load only from our own files, so markup that escapes escaping cannot run. An API response is not a
page: if a browser shows it as one, it may load nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import cache

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.errors import UnknownHost
from app.web.problems import problem

NOTHING = "default-src 'none'; base-uri 'none'; frame-ancestors 'none'"
OWN_FILES = "script-src 'self'; connect-src 'self'"
POLICIES = {
    "/dashboard": f"{NOTHING}; {OWN_FILES}; style-src 'self'; img-src 'self'; form-action 'self'",
    # Swagger UI sets styles on its elements and draws its icons from data: addresses.
    "/docs": f"{NOTHING}; {OWN_FILES}; style-src 'self'; img-src 'self' data:; form-action 'none'",
}
API_POLICY = f"{NOTHING}; form-action 'none'"

EVERYWHERE = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), display-capture=(), geolocation=(), microphone=(), payment=(), usb=()",
}
HSTS = "max-age=31536000"


class SecurityHeaders:
    """Adds the headers above to every response of the application."""

    def __init__(self, app: ASGIApp, behind_tls: bool = False) -> None:
        self.app, self.behind_tls = app, behind_tls

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                tls = self.behind_tls or scope["scheme"] == "https"
                added = _raw(policy_of(scope["path"]), tls, _says_cache_control(message["headers"]))
                message = {**message, "headers": [*message["headers"], *added]}
            await send(message)

        await self.app(scope, receive, with_headers)


@cache
def _raw(policy: str, tls: bool, cache_control: bool) -> list[tuple[bytes, bytes]]:
    """The added headers as raw bytes. Nothing inside sets these headers, so none appears twice."""
    headers = EVERYWHERE | {"Content-Security-Policy": policy}
    # Responses may hold what only this caller may see. Static files set their own Cache-Control.
    headers |= {} if cache_control else {"Cache-Control": "no-store"}
    headers |= {"Strict-Transport-Security": HSTS} if tls else {}
    return [(name.lower().encode(), value.encode()) for name, value in headers.items()]


def _says_cache_control(headers: Iterable[tuple[bytes, bytes]]) -> bool:
    return any(name == b"cache-control" for name, _ in headers)


def policy_of(path: str) -> str:
    """The content security policy of an address."""
    for prefix, policy in POLICIES.items():
        if path == prefix or path.startswith(prefix + "/"):
            return policy
    return API_POLICY


class HostCheck:
    """Answers only to hosts that the operator named. Otherwise another site's script could reach the service through a
    name of its own that resolves to 127.0.0.1.

    Args:
        app: the protected application.
        allowed_hosts: names without ports; `*.example.com` matches all names below it, `*` matches every name.
    """

    def __init__(self, app: ASGIApp, allowed_hosts: Sequence[str]) -> None:
        self.app, self.allowed_hosts = app, [host.lower() for host in allowed_hosts]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and not self._is_allowed(Headers(scope=scope).get("host", "")):
            refused = UnknownHost("the Host header names no host of this service; an operator allows names by setting")
            await problem(refused)(scope, receive, send)
            return
        await self.app(scope, receive, send)

    def _is_allowed(self, host: str) -> bool:
        name = re.sub(r":\d{1,5}$", "", host.lower())
        return any(
            pattern in ("*", name) or (pattern.startswith("*.") and name.endswith(pattern[1:]))
            for pattern in self.allowed_hosts
        )


class HeadAsGet:
    """Answers HEAD as GET without the body. Event streams are excluded: they have no end."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "HEAD" or is_stream(scope):
            await self.app(scope, receive, send)
            return

        async def without_body(message: Message) -> None:
            await send({**message, "body": b""} if message["type"] == "http.response.body" else message)

        asked = {**scope, "method": "GET", "scrimp.head": True}
        try:
            await self.app(asked, receive, without_body)
        finally:
            scope["route"] = asked.get("route")  # for the middleware that counts requests by route


def announces_body(headers: Headers) -> bool:
    """Returns True if the headers announce a body, whatever the method."""
    return headers.get("content-length", "0") != "0" or "transfer-encoding" in headers


def is_head(scope: Scope) -> bool:
    """Returns True if a GET was a HEAD request: its body is dropped."""
    return bool(scope.get("scrimp.head", False))


def is_stream(scope: Scope) -> bool:
    """Returns True for an event stream's address."""
    return "text/event-stream" in Headers(scope=scope).get("accept", "")
