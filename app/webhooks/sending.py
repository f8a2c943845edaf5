"""Tries one delivery: a signed POST to a checked address, under one deadline.

The URL keeps its host name, so TLS checks the name's certificate and the Host header carries the name. Only the
connection goes to the checked address. This module uses httpcore directly because httpx cannot do that. httpcore by
itself follows neither the environment's proxies nor redirects.
"""

from __future__ import annotations

import ssl
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Literal

import httpcore
from standardwebhooks import Webhook

from app.deadline import TimedBackend
from app.webhooks.targets import Target

CONNECT_S, TOTAL_S = 5.0, 15.0
MAX_ANSWER_BYTES = 64 * 1024
GONE = 410
AGENT = f"Scrimp/{version('scrimp')}"
Error = Literal[
    "target-refused",
    "name-not-found",
    "timeout",
    "not-connected",
    "tls-failed",
    "not-http",
    "redirected",
    "refused",
    "gone",
    "no-access",
    "disabled",
    "secret-unreadable",
]


@dataclass(frozen=True)
class Result:
    """A try's result. Of the receiver's answer only the status is kept."""

    status_code: int | None
    error: Error | None  # None: delivered


class _Pinned(httpcore.NetworkBackend):
    """Connects to the first given address that answers, for any host name."""

    def __init__(self, addresses: Sequence[str], deadline: float) -> None:
        self.addresses, self.deadline, self.timed = addresses, deadline, TimedBackend(deadline)

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> httpcore.NetworkStream:
        until = min(self.deadline, time.monotonic() + CONNECT_S)
        failure: Exception = httpcore.ConnectTimeout("past the deadline")
        for address in self.addresses:
            left = until - time.monotonic()
            if left <= 0:
                break
            try:
                return self.timed.connect_tcp(address, port, left)
            except (httpcore.ConnectError, httpcore.ConnectTimeout) as error:
                failure = error
        raise failure


def trust(ca_file: Path | None) -> ssl.SSLContext:
    """Returns the TLS context: trusts the usual certificate authorities and the operator's own."""
    context: ssl.SSLContext = httpcore.default_ssl_context()
    if ca_file is not None:
        context.load_verify_locations(ca_file)
    return context


def signed(message_id: str, body: bytes, secrets: Sequence[str], at: datetime) -> dict[str, str]:
    """Returns the headers of Standard Webhooks: one signature for each secret, the newest first."""
    at = at.astimezone(UTC)
    signatures = [Webhook(secret).sign(message_id, at, body.decode()) for secret in secrets]
    return {
        "webhook-id": message_id,
        "webhook-timestamp": str(int(at.timestamp())),
        "webhook-signature": " ".join(signatures),
    }


def send(target: Target, addresses: Sequence[str], headers: dict[str, str], body: bytes, tls: ssl.SSLContext) -> Result:
    """POSTs a body and returns the result. Never raises for the receiver's errors."""
    deadline = time.monotonic() + TOTAL_S
    fixed = {
        "host": target.authority,
        "content-type": "application/json",
        "user-agent": AGENT,
    }
    # Built from the checked parts, as another parser might read the whole URL differently.
    url = httpcore.URL(scheme=target.scheme, host=target.host, port=target.port, target=target.path)
    backend = _Pinned(addresses, deadline)
    try:
        with (
            httpcore.ConnectionPool(ssl_context=tls, network_backend=backend, retries=0) as pool,
            pool.stream("POST", url, headers=list((fixed | headers).items()), content=body) as answer,
        ):
            with suppress(httpcore.TimeoutException, httpcore.NetworkError, httpcore.ProtocolError):
                _drain(answer)
            return _judged(answer.status)
    except httpcore.TimeoutException:
        return Result(None, "timeout")
    except (httpcore.NetworkError, OSError) as error:
        by_tls = any(isinstance(each, ssl.SSLError) for each in error.args)  # httpcore keeps the original error here
        return Result(None, "tls-failed" if by_tls else "not-connected")
    except httpcore.ProtocolError:
        return Result(None, "not-http")


def _drain(answer: httpcore.Response) -> None:
    """Reads the answer up to MAX_ANSWER_BYTES, so that the receiver sees no broken connection."""
    received = 0
    for chunk in answer.iter_stream():
        received += len(chunk)
        if received > MAX_ANSWER_BYTES:
            return


def _judged(status: int) -> Result:
    if 200 <= status < 300:
        return Result(status, None)
    if status == GONE:
        return Result(status, "gone")
    return Result(status, "redirected" if 300 <= status < 400 else "refused")
