"""The API's process: `python -m scrimp.api [FD]`. Listens where the settings say, or on a socket it is handed."""

from __future__ import annotations

import socket
import sys

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from app.settings import get_settings

MAX_HEAD_BYTES = 64 * 1024


class BoundedHttp(HttpToolsProtocol):
    """httptools keeps whatever comes before the end of the headers: here who sends too much of it is cut off."""

    head_bytes = 0  # of the request whose headers are not complete

    def data_received(self, data: bytes) -> None:
        self.head_bytes += len(data)
        super().data_received(data)
        if self.head_bytes > MAX_HEAD_BYTES and not self.transport.is_closing():
            self.send_400_response("The headers are too large.")

    def on_headers_complete(self) -> None:
        super().on_headers_complete()
        self.head_bytes = -sys.maxsize  # a body has bounds of its own

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self.head_bytes = 0


def main() -> None:
    settings = get_settings()
    config = uvicorn.Config(
        "app.main:create_app",
        factory=True,
        host=settings.host,
        port=settings.port,
        server_header=False,
        proxy_headers=False,
        # /metrics counts requests, the audit log says who did what; a line for each costs more than some requests.
        access_log=settings.log_level == "DEBUG",
        loop="uvloop",
        http=BoundedHttp,
        timeout_graceful_shutdown=2,
    )
    handed = [socket.socket(fileno=int(sys.argv[1]))] if len(sys.argv) > 1 else None
    uvicorn.Server(config).run(handed)


if __name__ == "__main__":
    main()
