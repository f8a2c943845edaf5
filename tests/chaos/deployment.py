"""A deployment that chaos is made in: processes that can be killed and come back, a database that can be set back."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Literal

import httpx
import psutil

from app.db.database import Database
from scrimp_server.children import _die_with
from tests import servers
from tests.e2e.cluster import Cluster
from tests.e2e.conftest import csv_spec, seed_of, until, write_csv

Backing = Literal["sqlite", "postgres"]
LIBFAKETIME = next(iter(sorted(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"))), None)
VICTIMS = ("api", "relay", "worker", "attempt")
PATIENCE_S = 300.0


class Deployment(Cluster):
    """One API, one relay and two workers over a database of its own; all end with the process that made them."""

    def __init__(self, home: Path, backing: Backing, environment: dict[str, str], server: str | None) -> None:
        super().__init__(home, environment)
        self.backing, self.server = backing, server
        self.url = environment.get("SCRIMP_DATABASE_URL", f"sqlite:///{home / 'scrimp.db'}")
        self.backups = home.parent / "backups"
        self.backups.mkdir()

    def _run(self, name: str, *arguments: str, **more: str) -> subprocess.Popen[bytes]:
        parent = os.getpid()
        with (self.home.parent / f"{name}.out").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, *arguments],
                stdout=log,
                stderr=log,
                env=self.environment | more,
                preexec_fn=lambda: _die_with(parent),  # noqa: PLW1509 - however a campaign ends, nothing stays behind
            )
        self.processes.setdefault(name, []).append(process)
        return process

    def up(self) -> Deployment:
        """Starts whatever is not running, and waits until the API answers and two workers are there."""
        for name, count in (("relay", 1), ("worker", 2)):
            for _ in range(count - len(self._living(name))):
                self._run(name, *self._command(name))
        if not self._living("api"):
            self.ports = self.ports or [servers.free_port()]
            self._run("api", *self._command("api"), SCRIMP_PORT=str(self.ports[0]))
        until(lambda: self._answers(0))
        until(lambda: sum(each["alive"] for each in self.get("/v1/workers")["items"]) >= len(self._living("worker")))
        return self

    def get(self, path: str, api: int = 0) -> Any:
        """The JSON itself; an API that was just killed is asked again."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                return super().get(path, api)
            except httpx.TransportError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.1)

    def _living(self, name: str) -> list[subprocess.Popen[bytes]]:
        living = [each for each in self.processes.get(name, []) if each.poll() is None]
        self.processes[name] = living
        return living

    def kill(self, *names: str) -> None:
        """kill -9 of all (of these names), as an accident would."""
        for name in names or tuple(self.processes):
            for process in self._living(name):
                process.kill()
                process.wait()
            self.processes.pop(name, None)
        self._hang_up()

    def _hang_up(self) -> None:
        for client in self._looking.values():
            client.close()
        self._looking.clear()

    def strike(self, victim: str, draw: random.Random) -> bool:
        """kill -9 of one process, which is started again; False where there was none.

        Only for the main thread: what a thread has started ends with the thread."""
        if victim == "attempt":
            found = [each for worker in self._living("worker") for each in _attempts(worker.pid)]
            for each in found:
                with suppress(psutil.Error):
                    each.kill()
            return bool(found)
        living = self._living(victim)
        if not living:
            return False
        killed = draw.choice(living)
        killed.kill()
        killed.wait()
        environment = {"SCRIMP_PORT": str(self.ports[0])} if victim == "api" else {}
        self._run(victim, *self._command(victim), **environment)
        self._living(victim)
        return True

    @contextmanager
    def wrong_clock(self, name: str, skew_s: int) -> Iterator[None]:
        """All processes of this name are replaced by one whose clock is wrong, until the end."""
        self._end(name)
        faked = {"LD_PRELOAD": str(LIBFAKETIME), "FAKETIME_DONT_FAKE_MONOTONIC": "1", "FAKETIME": f"{skew_s:+d}s"}
        self._run(name, *self._command(name), **faked)
        try:
            yield
        finally:
            self._end(name)

    def _end(self, name: str) -> None:
        for process in self._living(name):
            process.send_signal(signal.SIGTERM)
            self._wait(process)
        self.processes.pop(name, None)

    def add(self, name: str, epsilon: float = 8.0) -> str:
        """Registers a data set under a cap of `epsilon`."""
        path = write_csv(self.home.parent / f"{name}.csv", rows=400, seed=seed_of(name))
        spec = csv_spec(name, records=400, cap={"epsilon": epsilon, "delta": 1e-5})
        with self.client() as client:
            return client.create_dataset(spec, path).id

    def backup(self) -> str:
        """The URL of a copy of the database as it is now. SQLite's is made while the service runs; PostgreSQL copies no
        database that somebody is connected to."""
        if self.backing == "postgres":
            assert self.server is not None
            self.kill()
            made = servers.new_database(self.server, servers.database_name(self.url))
            self.up()
            return made
        copy = self.backups / f"{len(list(self.backups.iterdir()))}"
        db = self.database()
        with db.engine.connect() as connection:
            connection.exec_driver_sql("COMMIT")
            connection.exec_driver_sql(f"VACUUM INTO '{copy}'")
        db.close()
        return f"sqlite:///{copy}"

    def restore(self, backup: str) -> None:
        """Every process dies, and the database is what it was at the backup. Nothing is started."""
        self.kill()
        if self.backing == "postgres":
            self.environment["SCRIMP_DATABASE_URL"] = self.url = backup
            return
        for each in self.home.glob("scrimp.db*"):
            each.unlink()
        Path(backup.removeprefix("sqlite:///")).rename(self.home / "scrimp.db")

    def scrimp(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """A command of the operator's, beside the service."""
        line = [sys.executable, "-m", "scrimp.cli", *arguments]
        return subprocess.run(line, env=self.environment, capture_output=True, text=True, timeout=300, check=False)

    def database(self) -> Database:
        """The service's own, for who has its password. The caller closes it."""
        return Database(self.url)

    def content(self, path: str) -> bytes:
        """A file, as it arrives; nothing where it is refused.

        Raises:
            httpx.RemoteProtocolError: it was broken off.
        """
        with self.client() as client:
            answer = client._http.get(path)
            return answer.content if answer.status_code == 200 else b""

    def post(self, path: str, body: dict[str, Any], **headers: str) -> tuple[int, dict[str, Any]]:
        """Status and JSON of an answer, whatever it is."""
        with self.client() as client:
            answer = client._http.post(path, json=body, headers=headers)
            return answer.status_code, answer.json()


def _attempts(worker: int) -> list[psutil.Process]:
    with suppress(psutil.Error):
        return [each for each in psutil.Process(worker).children(recursive=True) if each.name() == "scrimp-attempt"]
    return []


@contextmanager
def deployment(backing: Backing) -> Iterator[Deployment]:
    """A running one, with the servers that it needs; nothing of it is left at the end."""
    with tempfile.TemporaryDirectory(prefix="chaos") as name:
        home = Path(name) / "home"
        if backing == "sqlite":
            made = Deployment(home, backing, {}, None)
            try:
                yield made.up()
            finally:
                made.stop()
            return
        with servers.postgres() as server, servers.redis() as redis:
            environment = {"SCRIMP_DATABASE_URL": servers.new_database(server), "SCRIMP_BROKER_URL": redis.url()}
            made = Deployment(home, backing, environment, server)
            try:
                yield made.up()
            finally:
                made.stop()
