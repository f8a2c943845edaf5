"""A small HTTP/1.1 load client on raw sockets: closed loops, open loops, and readers of server-sent events.

Open loops send at fixed times, regardless of earlier answers, and time each answer from its DUE time: a stalled server
is charged for every request that should have been sent meanwhile.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

DRAIN_S = 10.0  # how long is waited for answers after the last request
MakeRequest = Callable[[int], bytes]


@dataclass
class Result:
    """Latencies in seconds of the requests with the expected answer, and the status of the others."""

    seconds: float = 0.0
    latencies: list[float] = field(default_factory=list)
    refused: list[int] = field(default_factory=list)
    bytes_read: int = 0

    @property
    def rate(self) -> float:
        return len(self.latencies) / self.seconds if self.seconds else 0.0

    def quantile_ms(self, q: float) -> float:
        found = sorted(self.latencies)
        return 1e3 * found[min(len(found) - 1, int(q * len(found)))] if found else float("nan")


class Connection(asyncio.Protocol):
    """One keep-alive connection with one request at a time."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self.buffer = bytearray()
        self.whole = -1
        self.done: Callable[[Connection, int, int], None] = lambda *_: None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        if self.whole < 0:
            end = self.buffer.find(b"\r\n\r\n")
            if end < 0:
                return
            head = bytes(self.buffer[:end]).lower()
            start = head.find(b"content-length:")
            length = int(head[start + 15 :].split(b"\r\n", 1)[0]) if start >= 0 else 0
            self.whole = end + 4 + length
        if len(self.buffer) >= self.whole:
            status, size = int(self.buffer[9:12]), self.whole
            self.buffer.clear()
            self.whole = -1
            self.done(self, status, size)

    def send(self, request: bytes) -> None:
        assert self.transport is not None
        self.transport.write(request)


async def _connect(ports: list[int], count: int) -> list[Connection]:
    loop = asyncio.get_running_loop()
    turns = itertools.islice(itertools.cycle(ports), count)
    return [(await loop.create_connection(Connection, "127.0.0.1", port))[1] for port in turns]


async def closed(ports: list[int], make: MakeRequest, *, connections: int, seconds: float, expect: int) -> Result:
    """Runs a closed loop: each connection sends its next request after the last answer. Finds the server's maximum."""
    result, numbers = Result(), itertools.count()
    pool = await _connect(ports, connections)
    sent: dict[Connection, float] = {}
    until = time.perf_counter() + seconds
    idle = asyncio.Event()

    def next_of(connection: Connection) -> None:
        sent[connection] = time.perf_counter()
        connection.send(make(next(numbers)))

    def done(connection: Connection, status: int, size: int) -> None:
        at = time.perf_counter()
        _note(result, status, expect, at - sent.pop(connection), size)
        if at < until:
            next_of(connection)
        elif not sent:
            idle.set()

    began = time.perf_counter()
    for connection in pool:
        connection.done = done
        next_of(connection)
    await asyncio.wait_for(idle.wait(), seconds + DRAIN_S)
    result.seconds = time.perf_counter() - began
    _close(pool)
    return result


async def opened(
    ports: list[int], make: MakeRequest, *, rate: float, connections: int, seconds: float, expect: int
) -> Result:
    """Sends `rate` requests a second at equal intervals; a request waits if no connection is free."""
    result = Result()
    pool = await _connect(ports, connections)
    free, waiting = deque(pool), deque[tuple[float, int]]()
    due_of: dict[Connection, float] = {}
    total = int(rate * seconds)

    def send(connection: Connection, due: float, number: int) -> None:
        due_of[connection] = due
        connection.send(make(number))

    def done(connection: Connection, status: int, size: int) -> None:
        _note(result, status, expect, time.perf_counter() - due_of.pop(connection), size)
        if waiting:
            send(connection, *waiting.popleft())
        else:
            free.append(connection)

    for connection in pool:
        connection.done = done
    began, number = time.perf_counter(), 0
    deadline = began + seconds + DRAIN_S
    while number < total or len(result.latencies) + len(result.refused) < total:
        at = time.perf_counter()
        while number < total and began + number / rate <= at:
            due = began + number / rate
            if free:
                send(free.popleft(), due, number)
            else:
                waiting.append((due, number))
            number += 1
        if at > deadline:
            break
        await asyncio.sleep(max(0.0005, began + number / rate - time.perf_counter()) if number < total else 0.005)
    result.seconds = time.perf_counter() - began
    _close(pool)
    return result


class Reader(asyncio.Protocol):
    """Reads a job's events; calls `seen` with each event's text."""

    def __init__(self, request: bytes, seen: Callable[[str], None]) -> None:
        self.request, self.seen, self.buffer = request, seen, b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        transport.write(self.request)

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        *events, self.buffer = self.buffer.split(b"\n\n")
        for event in events:
            self.seen(event.decode())


def _note(result: Result, status: int, expect: int, latency: float, size: int) -> None:
    result.bytes_read += size
    if status == expect:
        result.latencies.append(latency)
    else:
        result.refused.append(status)


def _close(pool: list[Connection]) -> None:
    for connection in pool:
        if connection.transport is not None:
            connection.transport.close()


def get(path: str, token: str, accept: str = "application/json") -> bytes:
    lines = (f"GET {path} HTTP/1.1", "Host: 127.0.0.1", f"Authorization: Bearer {token}", f"Accept: {accept}")
    return "\r\n".join([*lines, "", ""]).encode()


def posts(path: str, token: str, body: bytes, prefix: str) -> Iterator[bytes]:
    """Yields requests with the same document, each under its own Idempotency-Key."""
    fixed = (
        f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {token}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
    ).encode()
    for number in itertools.count():
        yield fixed + f"Idempotency-Key: {prefix}-{number}\r\n\r\n".encode() + body
