"""What every answer carries, errors, redirects and streams too; which hosts are answered; HEAD.

Scripts and styles come from our own files alone: markup that slipped through an escaping could run nothing. An answer
of the API is no page: it may load nothing at all, should a browser ever show it as one.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from starlette.datastructures import Headers, MutableHeaders
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
# Answers may hold what only this caller may see. Static files say otherwise themselves.
UNLESS_SAID = {"Cache-Control": "no-store"}
HSTS = "max-age=31536000"


class SecurityHeaders:
    """Adds the headers above to whatever the application answers."""

    def __init__(self, app: ASGIApp, behind_tls: bool = False) -> None:
        self.app, self.behind_tls = app, behind_tls

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in EVERYWHERE.items():
                    headers[name] = value
                headers["Content-Security-Policy"] = policy_of(scope["path"])
                for name, value in UNLESS_SAID.items():
                    headers.setdefault(name, value)
                if self.behind_tls or scope["scheme"] == "https":
                    headers["Strict-Transport-Security"] = HSTS
            await send(message)

        await self.app(scope, receive, with_headers)


def policy_of(path: str) -> str:
    """The content security policy of an address."""
    for prefix, policy in POLICIES.items():
        if path == prefix or path.startswith(prefix + "/"):
            return policy
    return API_POLICY


class HostCheck:
    """Answers only to the hosts that the operator named: another site's script can not reach the service by a name of
    its own that it lets resolve to 127.0.0.1.

    Args:
        app: what is protected.
        allowed_hosts: names without ports; `*.example.com` stands for all names below, `*` for all.
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
    """Answers HEAD as GET without the body. Not of event streams: they have no end."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "HEAD" or is_stream(scope):
            await self.app(scope, receive, send)
            return

        async def without_body(message: Message) -> None:
            await send({**message, "body": b""} if message["type"] == "http.response.body" else message)

        asked = {**scope, "method": "GET"}
        try:
            await self.app(asked, receive, without_body)
        finally:
            scope["route"] = asked.get("route")  # for who counts requests by route


def is_stream(scope: Scope) -> bool:
    return "text/event-stream" in Headers(scope=scope).get("accept", "")
