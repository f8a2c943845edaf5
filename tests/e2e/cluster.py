"""A deployment without `scrimp serve`: each process by itself, as many as wanted, over one database and broker."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import httpx
import psutil

from scrimp.client import Client
from tests import servers
from tests.e2e.conftest import Patient, csv_spec, seed_of, until, write_csv

FAST = {
    "SCRIMP_NOTIFY_AGAIN_S": "1",
    "SCRIMP_LEASE_S": "15",  # a machine that stands still for seconds loses no job; a killed worker's waits so long
    "SCRIMP_HEARTBEAT_S": "0.5",
    "SCRIMP_REQUESTS_PER_MINUTE": "1000000",  # the tests look often
    "SCRIMP_PRICING_PROCESSES": "1",  # each takes 1.5 s of processor time to start
    "OMP_NUM_THREADS": "1",
}


class Looks(ABC):
    """What tests do through an API, whoever started it."""

    home: Path

    @abstractmethod
    def get(self, path: str, /) -> Any:
        """The JSON itself."""

    @abstractmethod
    def client(self) -> Client: ...

    def verification(self, dataset: str) -> dict[str, Any]:
        """What the relay finds when it verifies a ledger now."""
        with self.client() as client:
            return client.verify_ledger(dataset, again=True).model_dump()

    def register(self, name: str) -> str:
        path = write_csv(self.home.parent / f"{name}.csv", seed=seed_of(name))
        with self.client() as client:
            return client.create_dataset(csv_spec(name), path).id

    def finished(self, jobs: list[str], timeout_s: float = 600.0) -> list[dict[str, Any]]:
        """The jobs, when all have ended, and those that succeeded have their certificates."""

        deadline = time.monotonic() + timeout_s

        def look(job: str) -> dict[str, Any] | None:
            found: dict[str, Any] = self.get(f"/v1/jobs/{job}")
            if found["status"] not in ("succeeded", "failed", "cancelled"):
                return None
            return found if "certificate" in self.get(f"/v1/jobs/{job}/certificate") else None

        # One after the other, so that what they wait for is not kept from working by their questions.
        return [until(lambda job=job: look(job), deadline - time.monotonic()) or {} for job in jobs]

    def assert_once(self, dataset: str, ended: list[dict[str, Any]]) -> Counter[str]:
        """Each of a data set's jobs succeeded in one attempt and was charged once; how many each worker ran."""
        for job in ended:
            assert job["status"] == "succeeded", job
            assert [attempt["status"] for attempt in job["attempts"]] == ["succeeded"], job["attempts"]
        self.assert_charged(dataset, ended)
        return Counter(job["attempts"][0]["worker"] for job in ended)

    def assert_charged(self, dataset: str, ended: list[dict[str, Any]]) -> None:
        ledger = self.get(f"/v1/datasets/{dataset}/ledger")["accounts"]
        for account in ("train", "holdout"):
            assert ledger[account]["spent"] == sum(job["quote"]["charge"][account] for job in ended)
            assert ledger[account]["held"] == 0
        assert self.verification(dataset)["valid"] is True


class Cluster(Looks):
    """Starts `scrimp prepare`, then any number of `scrimp api | relay | worker`."""

    postgres: str
    redis: servers.Redis

    def __init__(self, home: Path, environment: dict[str, str]) -> None:
        self.home, self.models = home, home.parent / "models"
        self.models.mkdir(exist_ok=True)
        places = {"SCRIMP_HOME": str(home), "SCRIMP_MODELS_ROOT": str(self.models)}
        self.environment = os.environ | FAST | environment | places
        self.processes: dict[str, list[subprocess.Popen[bytes]]] = {}
        self.ports: list[int] = []
        self._looking: dict[int, Client] = {}
        self.home.mkdir(mode=0o700)
        assert self._run("prepare", *self._command("prepare")).wait(300) == 0, self.words("prepare")

    @classmethod
    def over(cls, home: Path, postgres: str, redis: servers.Redis) -> Cluster:
        """One over a new database of these servers."""
        made = cls(home, {"SCRIMP_DATABASE_URL": servers.new_database(postgres), "SCRIMP_BROKER_URL": redis.url()})
        made.postgres, made.redis = postgres, redis
        return made

    @staticmethod
    def _command(service: str) -> list[str]:
        return ["-m", "scrimp.cli", service]

    def _run(self, name: str, *arguments: str, **more: str) -> subprocess.Popen[bytes]:
        with (self.home.parent / f"{name}.out").open("ab") as log:
            line = [sys.executable, *arguments]
            process = subprocess.Popen(line, stdout=log, stderr=log, env=self.environment | more)
        self.processes.setdefault(name, []).append(process)
        return process

    @property
    def logs(self) -> Iterable[Path]:
        return sorted(self.home.parent.glob("*.out"))

    def words(self, name: str) -> str:
        return (self.home.parent / f"{name}.out").read_text()

    def start(self, *, apis: int = 0, relays: int = 0, workers: int = 0, ingests: int = 0) -> Cluster:
        """Starts so many more of each, and waits until the APIs answer and list the workers."""
        for _ in range(ingests):
            self._run("ingest", *self._command("worker"), "--ingest")
        for _ in range(relays):
            self._run("relay", *self._command("relay"))
        for _ in range(workers):
            self._run("worker", *self._command("worker"))
        for _ in range(apis):
            self.ports.append(servers.free_port())
            self._start_api(self.ports[-1])
        for number in range(len(self.ports)):
            until(lambda number=number: self._answers(number))
        until(lambda: len(self.workers()) == len(self.living("worker")))
        until(lambda: len(self.workers("ingest")) == len(self.living("ingest")))
        return self

    def _start_api(self, port: int) -> None:
        self._run("api", *self._command("api"), SCRIMP_PORT=str(port))

    def at_least(self, *, apis: int = 1, workers: int = 0) -> Cluster:
        """Starts what is missing."""
        missing = workers - len(self.living("worker"))
        return self.start(apis=max(0, apis - len(self.ports)), workers=max(0, missing))

    def exactly_one_worker(self) -> Cluster:
        """Stops those that are too many."""
        for process in self.living("worker")[1:]:
            process.terminate()
            self._wait(process)
        return self.at_least(workers=1)

    def living(self, name: str) -> list[subprocess.Popen[bytes]]:
        """The processes of this name that run."""
        return [each for each in self.processes.get(name, []) if each.poll() is None]

    def workers(self, name: str = "worker") -> list[str]:
        """The names under which the workers of this cluster that run have announced themselves."""
        pids = {str(each.pid) for each in self.living(name)}
        listed = self.get("/v1/workers")["items"]
        return [each["name"] for each in listed if each["alive"] and each["name"].rpartition(":")[2] in pids]

    def worker_of(self, job: str) -> subprocess.Popen[bytes]:
        """The process that runs the job's last attempt."""
        name = self.get(f"/v1/jobs/{job}")["attempts"][-1]["worker"]
        return next(each for each in self.living("worker") if name.endswith(f":{each.pid}"))

    def kill_and_start(self) -> None:
        """kill -9 of all processes; as many are started again."""
        counts = {name: len(self.living(name)) for name in ("relay", "worker")}
        for process in (each for name in (*counts, "api") for each in self.processes.pop(name, [])):
            process.kill()
            process.wait()
        for port in self.ports:
            self._start_api(port)
        self.start(relays=counts["relay"], workers=counts["worker"])

    def kill_api(self) -> None:
        """Kills the first API's process, and starts it again."""
        process = self.processes["api"].pop(0)
        process.kill()
        process.wait()
        self.processes["api"].insert(0, self._run("again", *self._command("api"), SCRIMP_PORT=str(self.ports[0])))

    def descendants(self) -> list[psutil.Process]:
        """All processes of the cluster."""
        started = [psutil.Process(each.pid) for name in self.processes for each in self.living(name)]
        return [*started, *(child for each in started for child in each.children(recursive=True))]

    @property
    def port(self) -> int:
        return self.ports[0]

    def start_lossy_relay(self, seed: int) -> None:
        self._run("lossy", "-m", "tests.e2e.lossy_relay", str(seed))

    def start_faulty_worker(self) -> None:
        """One whose attempts have the fault that a job's name begins with (tests.e2e.faulty_attempt)."""
        options = ["--pool", "solo", "--concurrency", "1", "--without-gossip", "--without-mingle"]
        self._run("worker", "-m", "celery", "--app", "tests.e2e.faulty_worker", "worker", *options)
        until(self.workers)

    def _answers(self, api: int) -> bool:
        assert self.processes["api"][api].poll() is None, self.words("api")
        try:
            self.get("/healthz", api)
        except httpx.HTTPError:
            return False
        return True

    def get(self, path: str, api: int = 0) -> Any:
        """The JSON itself, over one connection to each API: tests look often."""
        if api not in self._looking:
            self._looking[api] = self.client(api)
        return self._looking[api]._http.get(path).json()

    def client(self, api: int = 0) -> Client:
        return Patient(f"http://127.0.0.1:{self.ports[api]}", (self.home / "admin.key").read_text().strip())

    def stop(self, *names: str) -> list[int]:
        """Ends all (of these names) in order; their exit codes."""
        for client in self._looking.values():
            client.close()
        self._looking.clear()
        chosen = [process for name in names or list(self.processes) for process in self.processes.pop(name, [])]
        for process in chosen:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
        return [self._wait(process) for process in chosen]

    @staticmethod
    def _wait(process: subprocess.Popen[bytes]) -> int:
        try:
            return process.wait(300)
        except subprocess.TimeoutExpired:
            process.kill()
            return process.wait()
