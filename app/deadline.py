"""Connections of which every operation ends by one deadline: a peer that sends a byte now and then holds nobody.

The timeouts of httpcore and httpx begin anew with each read.
"""

from __future__ import annotations

import ssl
import time
from collections.abc import Iterable
from typing import Any

import httpcore


class TimedStream(httpcore.NetworkStream):
    """A connection; every operation on it ends by the deadline."""

    def __init__(self, stream: httpcore.NetworkStream, deadline: float) -> None:
        self.stream, self.deadline = stream, deadline

    def _left(self, timeout: float | None) -> float:
        left = self.deadline - time.monotonic()
        if left <= 0:
            raise httpcore.ReadTimeout("past the deadline")
        return left if timeout is None else min(timeout, left)

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        return self.stream.read(max_bytes, self._left(timeout))

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        self.stream.write(buffer, self._left(timeout))

    def close(self) -> None:
        self.stream.close()

    def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore.NetworkStream:
        secured = self.stream.start_tls(ssl_context, server_hostname, self._left(timeout))
        return TimedStream(secured, self.deadline)

    def get_extra_info(self, info: str) -> Any:
        return self.stream.get_extra_info(info)


class TimedBackend(httpcore.NetworkBackend):
    """Connects as usual; what it connects to ends by the deadline."""

    def __init__(self, deadline: float) -> None:
        self.deadline, self.plain = deadline, httpcore.SyncBackend()

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> httpcore.NetworkStream:
        left = self.deadline - time.monotonic()
        if left <= 0:
            raise httpcore.ConnectTimeout("past the deadline")
        within = left if timeout is None else min(timeout, left)
        stream = self.plain.connect_tcp(host, port, within, local_address, socket_options)
        return TimedStream(stream, self.deadline)
