"""The API's own server: what it does before a request reaches the application (tests/access/test_doors.py: that the
process has it)."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import suppress

import pytest

from app.settings import Settings
from scrimp_server.api import MAX_HEAD_BYTES, BoundedHttp
from tests.listening import listening

REQUEST = b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n"


@pytest.fixture
def port(settings: Settings) -> Iterator[int]:
    with listening(settings) as url:
        yield int(url.rpartition(":")[2])


def answers(port: int, *parts: bytes) -> bytes:
    """All that the server says to what is sent, until it closes."""
    said = b""
    with socket.create_connection(("127.0.0.1", port), timeout=300) as line:
        # It may have closed before all was sent.
        with suppress(ConnectionError):
            for part in parts:
                line.sendall(part)
        with suppress(ConnectionError):
            while received := line.recv(65536):
                said += received
    return said


def test_a_request_that_waits_is_answered_though_its_connection_s_time_is_over(
    port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server stands still between two requests, for longer than it keeps an idle connection."""
    sent, completed = threading.Event(), BoundedHttp.on_response_complete

    def stands_still(protocol: BoundedHttp) -> None:
        completed(protocol)
        if not sent.is_set():
            sent.wait(300)
            protocol.timeout_keep_alive_handler()

    monkeypatch.setattr(BoundedHttp, "on_response_complete", stands_still)
    with socket.create_connection(("127.0.0.1", port), timeout=300) as line:
        line.sendall(REQUEST + b"\r\n")
        assert line.recv(65536).startswith(b"HTTP/1.1 200")
        line.sendall(REQUEST + b"X-Second: 1\r\nConnection: close\r\n\r\n")
        sent.set()
        assert b"HTTP/1.1 200" in b"".join(iter(lambda: line.recv(65536), b""))


def test_headers_are_bounded(port: int) -> None:
    close = b"Connection: close\r\n\r\n"
    assert answers(port, REQUEST + close).startswith(b"HTTP/1.1 200")
    # Two requests on one line, and a long header that is still allowed.
    long = b"X-Long: " + b"x" * (MAX_HEAD_BYTES // 2) + b"\r\n"
    assert answers(port, REQUEST + long + b"\r\n", REQUEST + long + close).count(b"HTTP/1.1 200") == 2
    piece = b"x" * 10_000
    for endless in (REQUEST + b"X-Endless: ", b"GET /healthz?"):
        said = answers(port, endless, *[piece] * 1000)
        assert said == b"" or said.startswith(b"HTTP/1.1 400"), said[:100]
    many = [b"X-%d: y\r\n" % number * 500 for number in range(200)]
    said = answers(port, REQUEST, *many)
    assert said == b"" or said.startswith(b"HTTP/1.1 400")
