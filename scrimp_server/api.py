"""The API's process: `python -m scrimp_server.api [SOCKET [PIPE]]`. Listens where settings say, or on an inherited
socket. It loads its libraries at once, and reads nothing of the home before the inherited pipe is closed."""

from __future__ import annotations

import asyncio
import os
import select
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from types import FrameType

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from app.sandbox.processes import loading, use_few_arenas
from app.settings import get_settings

MAX_HEAD_BYTES = 64 * 1024
TICK_S = 1.0
TICKS = 10  # of uvicorn's own, a tenth of a second each, in one of ours


class BoundedHttp(HttpToolsProtocol):
    """Bounds on the data before a body, and on the data after its refusal; a kept connection's end.

    httptools buffers everything before the end of the headers: a client that sends too much, or takes too long, is cut
    off. A request that was answered before its body was read has the same time to end it.
    """

    head_time_s = 10.0
    head_bytes = 0  # of the request whose headers are incomplete
    in_body = False
    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as uvicorn's own
        """Starts the time for the first headers."""
        super().connection_made(transport)
        self._expect()

    def connection_lost(self, exc: Exception | None) -> None:
        self._met()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Refuses headers above MAX_HEAD_BYTES."""
        if self._deadline is None and not self.in_body:  # the first bytes of another request on a kept connection
            self._expect()
        self.head_bytes += len(data)
        super().data_received(data)
        if self.head_bytes > MAX_HEAD_BYTES and not self.transport.is_closing():
            self.send_400_response("The headers are too large.")

    def on_headers_complete(self) -> None:
        """Ends the bounds on headers."""
        super().on_headers_complete()
        self.head_bytes, self.in_body = -sys.maxsize, True  # a body has bounds of its own
        self._met()

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self.head_bytes, self.in_body = 0, False
        self._met()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.in_body:
            self._expect()

    def timeout_keep_alive_handler(self) -> None:
        """Closes an idle connection; not one whose next request is there, unread as this process stood still: closing
        would reset it."""
        if self.transport.is_closing():
            return
        poll = select.poll()
        poll.register(self.transport.get_extra_info("socket").fileno(), select.POLLIN)
        if not poll.poll(0):
            super().timeout_keep_alive_handler()

    def _expect(self) -> None:
        """Closes the connection unless `_met` comes in time."""
        self._met()
        self._deadline = self.loop.call_later(self.head_time_s, self._cut_off)

    def _met(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _cut_off(self) -> None:
        if not self.transport.is_closing():
            self.transport.close()


class Server(uvicorn.Server):
    """uvicorn's server, which wakes up once a second for its `Date` header in place of ten times, and for signals."""

    _wake: Callable[[], object] | None = None

    async def main_loop(self) -> None:
        """Ticks until a signal comes."""
        woken = asyncio.Event()
        self._wake = partial(asyncio.get_running_loop().call_soon_threadsafe, woken.set)
        counter = 0
        while not await self.on_tick(counter):
            counter += TICKS
            with suppress(TimeoutError):
                await asyncio.wait_for(woken.wait(), TICK_S)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Notes a signal, and ends the wait for the next tick."""
        super().handle_exit(sig, frame)
        if self._wake is not None:
            self._wake()


def main() -> None:
    """Runs the API in this process."""
    use_few_arenas()
    with loading():
        import app.logs
        import app.main
        import app.tracing
    if len(sys.argv) > 2:
        os.read(int(sys.argv[2]), 1)
    settings = get_settings()
    app.logs.configure("api", settings.log_format, settings.log_level)
    app.tracing.configure("api", settings.otel_endpoint)
    BoundedHttp.head_time_s = settings.head_time_s
    config = uvicorn.Config(
        app.main.create_app,
        factory=True,
        host=settings.host,
        port=settings.port,
        server_header=False,
        proxy_headers=False,
        log_config=None,  # app.logs has set them up
        access_log=False,  # app.web.request_ids writes it, without queries
        loop="uvloop",
        http=BoundedHttp,
        timeout_graceful_shutdown=2,
    )
    handed = [socket.socket(fileno=int(sys.argv[1]))] if len(sys.argv) > 1 else None
    Server(config).run(handed)
    app.tracing.close()


if __name__ == "__main__":
    main()
