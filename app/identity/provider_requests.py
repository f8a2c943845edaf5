"""Requests to the identity provider: one deadline for several of them, answers of a limited size, no redirects."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Mapping
from functools import cache
from typing import Any
from urllib.parse import urlencode, urlsplit
from urllib.request import getproxies, proxy_bypass

import httpcore

from app.deadline import TimedBackend

TOTAL_S = 15.0
MAX_BYTES = 1024 * 1024  # of an answer
PLAIN = ("", "identity")


class NoAnswer(Exception):
    """The provider cannot be reached, or answers too late, too much, or otherwise than with a JSON object."""


authorities = cache(httpcore.default_ssl_context)  # reading their certificates takes 20 ms of a sign-in


class Requests:
    """Sends requests until TOTAL_S from now."""

    def __init__(self) -> None:
        self._deadline, self._tls = time.monotonic() + TOTAL_S, authorities()

    def get(self, url: str) -> dict[str, Any]:
        """A published document. Raises NoAnswer."""
        status, document = self._send("GET", url, {}, None)
        if status != 200:
            raise NoAnswer
        return document

    def post(
        self, url: str, form: Mapping[str, str], credentials: tuple[str, str] | None
    ) -> tuple[int, dict[str, Any]]:
        """What a form is answered with: the status and the document.

        Args:
            credentials: of HTTP's basic authentication.

        Raises:
            NoAnswer: there is none.
        """
        headers = {"Content-Type": "application/x-www-form-urlencoded"}
        if credentials is not None:
            headers["Authorization"] = "Basic " + base64.b64encode(":".join(credentials).encode()).decode()
        return self._send("POST", url, headers, urlencode(form).encode())

    def _send(
        self, method: str, url: str, headers: dict[str, str], content: bytes | None
    ) -> tuple[int, dict[str, Any]]:
        sent = {"Accept": "application/json"} | headers
        try:
            with (
                self._pool(url) as pool,
                pool.stream(method, url, headers=list(sent.items()), content=content) as answer,
            ):
                document = json.loads(_body(answer))
        except (httpcore.TimeoutException, httpcore.NetworkError, httpcore.ProtocolError, httpcore.ProxyError):
            raise NoAnswer from None
        except (httpcore.UnsupportedProtocol, OSError, ValueError, RecursionError):  # the last of a deep document
            raise NoAnswer from None
        if not isinstance(document, dict):
            raise NoAnswer
        return answer.status, document

    def _pool(self, url: str) -> httpcore.ConnectionPool:
        """The connections of one request, through the environment's proxy if it names one."""
        backend, parts = TimedBackend(self._deadline), urlsplit(url)
        proxy = getproxies().get(parts.scheme)
        if proxy is None or proxy_bypass(parts.hostname or ""):
            return httpcore.ConnectionPool(ssl_context=self._tls, network_backend=backend, retries=0)
        return httpcore.HTTPProxy(proxy, ssl_context=self._tls, network_backend=backend, retries=0)


def _body(answer: httpcore.Response) -> bytes:
    encodings = [value.decode("latin-1") for name, value in answer.headers if name.lower() == b"content-encoding"]
    if any(each.strip().lower() not in PLAIN for each in encodings):  # unasked; a small answer may be a large document
        raise NoAnswer
    body = bytearray()
    for piece in answer.iter_stream():
        body += piece
        if len(body) > MAX_BYTES:
            raise NoAnswer
    return bytes(body)
