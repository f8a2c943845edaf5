"""The API's process: `python -m scrimp.api [FD]`. Listens where the settings say, or on a socket it is handed."""

from __future__ import annotations

import socket
import sys

import uvicorn

from app.settings import get_settings


def main() -> None:
    settings = get_settings()
    config = uvicorn.Config(
        "app.main:create_app",
        factory=True,
        host=settings.host,
        port=settings.port,
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=2,
    )
    handed = [socket.socket(fileno=int(sys.argv[1]))] if len(sys.argv) > 1 else None
    uvicorn.Server(config).run(handed)


if __name__ == "__main__":
    main()
