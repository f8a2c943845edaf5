"""The API behind its own server on a real port, in a thread of this process: a process of its own loads for 4 s."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn

from app.main import create_app
from app.settings import Settings
from scrimp_server.api import BoundedHttp


@contextmanager
def listening(settings: Settings) -> Iterator[str]:
    """The API over a home; its address. What the server's `main` sets up needs a process: `api_process`."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        config = uvicorn.Config(
            create_app(settings),
            server_header=False,
            proxy_headers=False,
            log_config=None,
            access_log=False,
            loop="uvloop",
            http=BoundedHttp,
            timeout_graceful_shutdown=2,
        )
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [bound]})
        thread.start()
        try:
            deadline = time.monotonic() + 300
            while not server.started:
                assert thread.is_alive() and time.monotonic() < deadline, "the API does not start"
                time.sleep(0.01)
            yield f"http://127.0.0.1:{bound.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join(300)
