"""`scrimp serve`: the whole service on one machine. Prepares a home, then keeps API, relay and one worker running.

A home is locked as long as any of these processes lives, so that no second service runs in it, and the jobs of a killed
one can be taken up at once. The children die with this process, however it dies.
"""

from __future__ import annotations

import fcntl
import http.client
import logging
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from app.sandbox.processes import loading
from app.settings import Settings
from scrimp_server.children import Child, stop
from scrimp_server.draining import present
from worker.attempt.device_survey import DevicesError, on_this_machine
from worker.attempt.user_checks import UserError, require, user_of

READY_TIMEOUT_S = 300.0  # loading takes a minute on a slow, busy machine; a child that dies is noticed at once
# Celery checks every two seconds if it must stop. Before that, a running attempt has SCRIMP_DRAIN_S to save its state.
STOP_TIMEOUT_S = 8.0
LOCK_TIMEOUT_S = 3.0
TICK_S = 0.1
QUIET_S = 2.0  # for the sizes of logs; signals and ended children are noticed at once
BACKLOG = 512
# A child that fails this often in the first minute will not start by retrying.
MAX_FAILED_STARTS, FIRST_S = 3, 60.0
PUBLIC_KEY_FILE = "signing_key.pub"
PROGRAM = Path(__file__).resolve().parents[1]


class ServeError(Exception):
    """The service cannot start; the message says what to change."""


PYTHON = (sys.executable, "-P", "-m")  # -P: no module is imported from the folder in which the service was started


def commands() -> dict[str, list[str]]:
    """The command lines of API, relay and ingest worker; they read their settings from the environment."""
    modules = {"api": "scrimp_server.api", "relay": "app.lifecycle.relay", "ingest": "app.ingest"}
    return {name: [*PYTHON, module] for name, module in modules.items()}


@dataclass(frozen=True)
class WorkerLine:
    """A worker's process, which computes on one device: its name, command line and settings."""

    name: str
    arguments: list[str]
    settings: dict[str, str]


def worker_lines() -> list[WorkerLine]:
    """One worker's process for each device of SCRIMP_DEVICES.

    Raises:
        ServeError: a device is not there, or the GPUs cannot be asked for; or attempts cannot have a user of their own.
    """
    from app.lifecycle.broker import queues_of  # loads Celery's transports, which takes a while

    settings = Settings()
    try:
        devices = on_this_machine(settings.devices)
    except DevicesError as error:
        raise ServeError(str(error)) from None
    _require_user(settings)
    celery = [*PYTHON, "celery", "--quiet", "--app", "worker.celery_app", "worker"]
    plain = [
        "--pool",
        "solo",
        "--concurrency",
        "1",
        "--loglevel",
        settings.log_level,
        "--without-gossip",
        "--without-mingle",
    ]
    return [
        WorkerLine(
            "worker" if len(devices) == 1 else f"worker-{device.label.replace(':', '')}",
            [*celery, *plain, "--queues", queues_of([device])],
            {"SCRIMP_DEVICES": device.label},
        )
        for device in devices
    ]


def _require_user(settings: Settings) -> None:
    """Checks that attempts can run as the user that the settings name, with a process of that user."""
    try:
        user = user_of(settings)
        if user is None:
            return
        require(user, settings)
    except UserError as error:
        raise ServeError(str(error)) from None
    from worker.attempt.confined import default_memory_bytes, probe

    try:
        probe(default_memory_bytes(), user)
    except (subprocess.SubprocessError, ValueError) as error:
        rights = f"user {user.uid}, group {user.gid} must be able to read {sys.prefix} and {PROGRAM}"
        raise ServeError(f"no process can run as SCRIMP_ATTEMPT_UID ({error}): {rights}") from None


def work() -> int:
    """Runs one worker for each device of SCRIMP_DEVICES until SIGINT, SIGTERM or SIGHUP. Returns the exit code.

    Raises:
        ServeError: see `worker_lines`.
    """
    lines = worker_lines()
    present(Settings().home)
    if len(lines) == 1:
        os.environ.update(lines[0].settings)
        os.execv(lines[0].arguments[0], lines[0].arguments)  # noqa: S606 - our own interpreter, a fixed list
    with _stop_signals() as signals:
        children = [Child(line.name, line.arguments, None, (), line.settings) for line in lines]
        try:
            while not signals.received:
                for child in children:
                    news = child.tend()
                    if news is not None:
                        print(news, flush=True)
                signals.wait(QUIET_S if all(child.pid for child in children) else TICK_S)
        finally:
            stop(children, Settings().drain_s + STOP_TIMEOUT_S)
    return 0


def prepare() -> Path:
    """Makes or migrates what a home needs: folders (0700), secrets (0600), tables, the first admin key; and publishes
    the key that signs certificates.

    Returns:
        The admin key's file.

    Raises:
        ServeError: the home is not writable.
    """
    from app.datasets import volume
    from app.db.database import Database
    from app.db.migrate import upgrade
    from app.keys.service import ensure_admin_key
    from app.ledger.signer import public_key
    from app.ledger.signing_keys import signing_key
    from app.secrets import ensure_secrets, write_private

    settings = Settings()
    _make_folders(settings)
    ensure_secrets(settings)
    volume.ensure(settings)
    if settings.secrets_dir is None:  # otherwise only the relay holds the signing key
        public = public_key(signing_key(settings)) + "\n"
        write_private(settings.home / PUBLIC_KEY_FILE, public, overwrite=True)
    logging.getLogger("alembic").setLevel(logging.WARNING)
    upgrade(settings.effective_database_url)
    with closing(Database.of(settings)) as db:
        return ensure_admin_key(db, settings)


def serve() -> int:
    """Runs the service until SIGINT, SIGTERM or SIGHUP. Returns the exit code.

    Raises:
        ServeError: another service uses the home or the port, or a process does not start.
    """
    settings = Settings()
    workers = worker_lines()
    _make_folders(settings)
    prepared, go = map(os.fdopen, os.pipe(), "rw")
    with _stop_signals() as signals, _locked(settings) as lock, _listening(settings) as listener, prepared, go:
        logs, lines = settings.home / "logs", commands()
        handles = [listener.fileno(), prepared.fileno()]
        api = Child("api", [*lines["api"], *map(str, handles)], logs / "api.log", [lock, *handles])
        children = [Child("relay", lines["relay"], logs / "relay.log", [lock])]
        children += [
            Child(line.name, line.arguments, logs / f"{line.name}.log", [lock], line.settings) for line in workers
        ]
        try:
            api.tend()  # it loads its libraries while the home is prepared
            with loading():
                admin_key = prepare()
            print(f"Scrimp at {settings.url}  (admin key in {admin_key})", flush=True)
            if not settings.database_url:
                _take_back_jobs(settings)
            go.close()
            _tend(api, children, settings, signals)
        finally:
            stop([api, *children], settings.drain_s + STOP_TIMEOUT_S)
        print("stopped", flush=True)
    return 0


def _tend(api: Child, siblings: Sequence[Child], settings: Settings, signals: _Signals) -> None:
    """Keeps the children running until a signal comes. The others start when the API answers: with them it would answer
    later, and without it nobody asks for them."""
    began = time.monotonic()
    ready = False
    while not signals.received:
        children = [api, *siblings] if ready else [api]
        for child in children:
            news = child.tend()
            if news is not None:
                print(news, flush=True)
            if child.failed_starts >= MAX_FAILED_STARTS and time.monotonic() - began < FIRST_S:
                raise ServeError(f"the {child.name} does not start. The end of {child.log}:\n{child.last_words()}")
        if not ready and _answers(settings):
            ready = True
            took = time.monotonic() - began
            places = f"dashboard {settings.url}/dashboard, logs {settings.home / 'logs'}"
            print(f"ready in {took:.1f} s, and workers start: {places}", flush=True)
        if not ready and time.monotonic() - began > READY_TIMEOUT_S:
            raise ServeError(f"the API does not answer after {READY_TIMEOUT_S:g} s; see {api.log}")
        signals.wait(QUIET_S if len(children) > 1 and all(child.pid for child in children) else TICK_S)


def _answers(settings: Settings) -> bool:
    """Returns True if the API answers. The port is ours, so nobody else can answer."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(settings.host, settings.host)  # noqa: S104 - read, not bound
    connection = http.client.HTTPConnection(host, settings.port, timeout=0.5)
    try:
        connection.request("GET", "/healthz")
        connection.getresponse()
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
    return True


def _make_folders(settings: Settings) -> None:
    try:
        for folder in (settings.home, settings.storage_root, settings.broker_dir, settings.home / "logs"):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise ServeError(f"cannot make {error.filename}: {error.strerror} (choose another --home)") from None


@contextmanager
def _locked(settings: Settings) -> Iterator[int]:
    """Holds HOME/serve.lock. The children inherit its descriptor: the lock is free when the last of them is gone.

    The children of a killed service end a moment later: hence the short wait.
    """
    path = settings.home / "serve.lock"
    lock = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        deadline = time.monotonic() + LOCK_TIMEOUT_S
        while not _try_lock(lock):
            if time.monotonic() >= deadline:
                holder = path.read_text().strip() or "unknown"
                raise ServeError(f"another service runs in {settings.home} ({holder}; it holds {path})")
            time.sleep(TICK_S)
        os.truncate(lock, 0)
        os.pwrite(lock, f"pid {os.getpid()}, {settings.url}\n".encode(), 0)
        yield lock
    finally:
        os.close(lock)


def _try_lock(lock: int) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@contextmanager
def _listening(settings: Settings) -> Iterator[socket.socket]:
    """The API's port, held from before anything is written until the end.

    Callers wait while the API starts or restarts, and no other program can take the port.
    """
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    with socket.socket(family) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((settings.host, settings.port))
            listener.listen(BACKLOG)
        except OSError as error:
            reason = f"cannot listen on {settings.host}:{settings.port}: {error.strerror}"
            raise ServeError(f"{reason} (choose another --port or --host)") from None
        yield listener


def _take_back_jobs(settings: Settings) -> None:
    """Takes back this home's jobs without waiting for their leases: only this home's worker runs them, and the lock
    proves that none is alive."""
    from app.db.database import Database
    from app.lifecycle.sweeper import expire_all_leases

    with closing(Database.of(settings)) as db:
        expire_all_leases(db)


class _Signals:
    """The stop signals received so far, and a wait that any signal ends, also that a child has ended."""

    def __init__(self, socket_of_signals: socket.socket) -> None:
        self.received: list[int] = []
        self._socket = socket_of_signals

    def note(self, number: int, _frame: FrameType | None) -> None:
        """Notes a stop signal; a second one ends this process and its children at once."""
        self.received.append(number)
        signal.signal(number, signal.SIG_DFL)

    def wait(self, seconds: float) -> None:
        """Returns at the next signal, and after `seconds` at the latest."""
        if select.select([self._socket], [], [], seconds)[0]:
            self._socket.recv(1024)


@contextmanager
def _stop_signals() -> Iterator[_Signals]:
    """Handles signals in a `_Signals` until the end."""
    reader, writer = socket.socketpair()
    with reader, writer:
        writer.setblocking(False)
        signals = _Signals(reader)
        numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        handlers = {number: signal.signal(number, signals.note) for number in numbers}
        # A handler that does nothing, as an ignored signal would not end the wait.
        handlers[signal.SIGCHLD] = signal.signal(signal.SIGCHLD, lambda *_: None)
        old = signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
        try:
            yield signals
        finally:
            signal.set_wakeup_fd(old)
            for number, handler in handlers.items():
                signal.signal(number, handler)
