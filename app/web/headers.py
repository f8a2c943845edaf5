"""Headers of every response, including errors, redirects and streams; the Host check; HEAD.

Scripts and styles load only from our own files, so markup that escapes escaping cannot run. An API response is not a
page: if a browser shows it as one, it may load nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import cache

from starlette.datastructures import Headers
from starlette.types import Scope

from core.errors import UnknownHost

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


def added_headers(path: str, tls: bool, headers: Iterable[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """The headers above, for a response of this address that has `headers` already."""
    return _raw(policy_of(path), tls, _says_cache_control(headers))


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
        allowed_hosts: names without ports; `*.example.com` matches all names below it, `*` matches every name.
    """

    def __init__(self, allowed_hosts: Sequence[str]) -> None:
        self.allowed_hosts = [host.lower() for host in allowed_hosts]

    def require(self, headers: Headers) -> None:
        """Raises UnknownHost for any other host."""
        if not self.is_allowed(headers.get("host", "")):
            raise UnknownHost("the Host header names no host of this service; an operator allows names by setting")

    def is_allowed(self, host: str) -> bool:
        """Returns True for a named host, with or without its port."""
        name = re.sub(r":\d{1,5}$", "", host.lower())
        return any(
            pattern in ("*", name) or (pattern.startswith("*.") and name.endswith(pattern[1:]))
            for pattern in self.allowed_hosts
        )


def as_get(scope: Scope) -> Scope:
    """The scope of a HEAD request as a GET, whose body is dropped."""
    return {**scope, "method": "GET", "scrimp.head": True}


def announces_body(headers: Headers) -> bool:
    """Returns True if the headers announce a body, whatever the method."""
    return headers.get("content-length", "0") != "0" or "transfer-encoding" in headers


def is_head(scope: Scope) -> bool:
    """Returns True if a GET was a HEAD request: its body is dropped."""
    return bool(scope.get("scrimp.head", False))


def is_stream(headers: Headers) -> bool:
    """Returns True if the headers ask for an event stream, which has no end."""
    return "text/event-stream" in headers.get("accept", "")
