"""The real service: `scrimp serve` as a process, with its API, relay and worker.

The services of a test process end with its last test of this folder: an idle relay costs what it does all the time.
"""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, runtime_checkable
from zlib import crc32

import numpy as np
import psutil
import pytest

from scrimp.client import Client
from scrimp.models import SignedCertificate, Verification
from scripts.draw_trace import Collector
from tests import processes, servers
from tests.conftest import BACKINGS
from tests.processes import alive

if TYPE_CHECKING:
    from tests.e2e.cluster import Cluster

T = TypeVar("T")
Answers = list[dict[str, Any]]
LINES = 200  # of a log, with a failed test


def until(what: Callable[[], T], timeout_s: float = 300.0) -> T:
    """See `processes.until`. Each look is a request: 15 ms of processor time."""
    return processes.until(what, timeout_s, every_s=0.2)


@runtime_checkable
class Logged(Protocol):
    @property
    def logs(self) -> Iterable[Path]: ...


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A test that fails shows the end of its service's logs: their folder may be gone afterwards."""
    report = yield
    if report.failed:
        for service in vars(item).get("funcargs", {}).values():
            if isinstance(service, Logged):
                report.sections += [(str(each), last_lines(each)) for each in service.logs]
    return report


def last_lines(log: Path) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-LINES:])


class Patient(Client):
    """The product's client, which gives up where a slow or busy machine would still answer."""

    def __init__(self, base_url: str, key: str) -> None:
        super().__init__(base_url, key, timeout_s=300.0)

    def certificate(self, job_id: str, timeout_s: float = 300.0) -> SignedCertificate:
        return super().certificate(job_id, timeout_s)

    def verify_ledger(self, dataset: str, *, again: bool = False, timeout_s: float = 300.0) -> Verification:
        return super().verify_ledger(dataset, again=again, timeout_s=timeout_s)

    def predict(self, job_id: str, records: list[Any], *, top: int = 10, timeout: float = 300.0) -> Answers:
        return super().predict(job_id, records, top=top, timeout=timeout)


class Service:
    """One home, and the `scrimp serve` that runs in it; `under` is a command that starts it."""

    def __init__(self, home: Path, environment: dict[str, str] | None = None, under: Sequence[str] = ()) -> None:
        self.under = under
        self.port = servers.free_port()
        self.models = home.parent / "models"
        self.models.mkdir(exist_ok=True)
        self.home, self.environment = home, {"SCRIMP_MODELS_ROOT": str(self.models), **(environment or {})}
        self.output = home.parent / "serve.out"
        self.starts = 0
        self.process: subprocess.Popen[str] | None = None
        self._looking: Client | None = None

    def start(self) -> Service:
        self.starts += 1
        with self.output.open("a") as log:
            self.process = subprocess.Popen(
                [
                    *self.under,
                    sys.executable,
                    "-m",
                    "scrimp.cli",
                    "serve",
                    "--home",
                    str(self.home),
                    "--port",
                    str(self.port),
                ],
                stdout=log,
                stderr=subprocess.STDOUT,
                text=True,
                env=os.environ | self.environment,
            )
        until(self._answers)
        return self

    def _answers(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, self.output.read_text()
        # Its own word: just after a kill, the port may still be held by what is about to die.
        return self.output.read_text().count("ready in") == self.starts

    def kill(self) -> None:
        """kill -9, as an accident would."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()
        self._hang_up()

    def kill_and_start(self) -> None:
        """Its children die with it, but not in a time that is known: they hold the home's lock until then."""
        family = self.descendants()
        self.kill()
        until(lambda: all_gone(family))
        self.start()

    def kill_api(self) -> None:
        """Kills the API's process alone; `scrimp serve` starts it again."""
        api = self.running("scrimp_server.api")
        assert api is not None
        api.kill()

    def descendants(self) -> list[psutil.Process]:
        """All processes of the service."""
        assert self.process is not None
        return psutil.Process(self.process.pid).children(recursive=True)

    def running(self, word: str) -> psutil.Process | None:
        """The process whose command line has this word; None if none does."""
        for process in self.descendants():
            with suppress(psutil.Error):  # it ended meanwhile
                if word in process.cmdline():
                    return process
        return None

    def stop(self) -> int:
        assert self.process is not None
        self._hang_up()
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self.process.wait(300)

    def client(self) -> Client:
        return Patient(f"http://127.0.0.1:{self.port}", (self.home / "admin.key").read_text().strip())

    def get(self, path: str) -> Any:
        """The JSON itself, whatever the client's models make of it. Over one connection: tests look often."""
        self._looking = self._looking or self.client()
        return self._looking._http.get(path).json()

    def verification(self, dataset: str) -> dict[str, Any]:
        """What the relay finds when it verifies a ledger now."""
        with self.client() as client:
            return client.verify_ledger(dataset, again=True).model_dump()

    @property
    def logs(self) -> Iterable[Path]:
        return (self.output, *sorted((self.home / "logs").glob("*.log")))

    def _hang_up(self) -> None:
        if self._looking is not None:
            self._looking.close()
        self._looking = None


def all_gone(family: list[psutil.Process]) -> bool:
    return not any(alive(each) for each in family)


def write_csv(path: Path, rows: int = 2000, features: int = 5, seed: int = 0) -> Path:
    """A learnable two-class problem."""
    generator = np.random.default_rng(seed)
    x = generator.normal(size=(rows, features))
    y = (x @ np.arange(1, features + 1) > 0).astype(int)
    header = ",".join([f"x{i}" for i in range(features)] + ["y"])
    np.savetxt(path, np.column_stack([x, y]), delimiter=",", header=header, comments="", fmt="%.6f")
    return path


def seed_of(name: str) -> int:
    """A service refuses the same private content under a second name."""
    return crc32(name.encode())


def csv_spec(name: str, **privacy: Any) -> dict[str, Any]:
    return {
        "name": name,
        "format": "csv",
        "task": {"kind": "classification", "label": "y", "classes": [0, 1]},
        "features": {"kind": "columns", "columns": [f"x{i}" for i in range(5)]},
        "privacy": {
            "sensitivity": "private",
            "records": 2000,
            "cap": {"epsilon": 8.0, "delta": 1e-5},
            "filter": "gdp",
        }
        | privacy,
        "holdout": {"kind": "split", "fraction": 0.25},
    }


def job_of(dataset: str, **changes: Any) -> dict[str, Any]:
    return {
        "dataset": dataset,
        "optimizer": {"kind": "dp_sgd", "learning_rate": 1.0, "momentum": 0.9, "free_step": True},
        "privacy": {"target_epsilon": 2.0},
        "sampling": {"kind": "full_batch"},
        "length": {"steps": 30},
        "evaluation": {"on": "holdout", "noise_mu": 0.2, "points": 3},
    } | changes


# A lease need not run out where an embedded home knows that its worker is dead. Logs are searched for secrets.
SERVED = {
    "SCRIMP_LOG_LEVEL": "DEBUG",
    "SCRIMP_NOTIFY_AGAIN_S": "1",
    "SCRIMP_REQUESTS_PER_MINUTE": "1000000",
    "SCRIMP_PRICING_PROCESSES": "1",
}
# Tells all that a service can: JSON logs with every request, and traces. The cluster has neither, as by default.
OBSERVED = {"SCRIMP_LOG_FORMAT": "json", "SCRIMP_ACCESS_LOG": "true"}
REDIS_DATABASES = itertools.count(1)


def on_postgres(request: pytest.FixtureRequest) -> dict[str, str]:
    """The settings of an empty PostgreSQL database, and of a Redis database of one's own."""
    return {
        "SCRIMP_DATABASE_URL": servers.new_database(request.getfixturevalue("postgres_server")),
        "SCRIMP_BROKER_URL": request.getfixturevalue("redis_server").url(next(REDIS_DATABASES)),
        "SCRIMP_LEASE_S": "15",  # see FAST of tests.e2e.cluster
        "SCRIMP_HEARTBEAT_S": "0.5",
    }


@pytest.fixture(scope="package")
def collector() -> Iterator[Collector]:
    with Collector() as made:
        yield made


@pytest.fixture(scope="package")
def served(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, collector: Collector
) -> Iterator[Callable[[str], Service]]:
    """`scrimp serve`, one on each backing for all tests of this process: a start costs ten seconds of processor time.
    The one on SQLite is OBSERVED. Who kills it starts it."""
    made: dict[str, Service] = {}

    def on(backing: str) -> Service:
        if backing not in made:
            home = tmp_path_factory.mktemp("service") / "home"
            observed = OBSERVED | {"SCRIMP_OTEL_ENDPOINT": collector.url}
            more = on_postgres(request) if backing == "postgres" else observed
            made[backing] = Service(home, SERVED | more).start()
        return made[backing]

    yield on
    for each in made.values():
        family = each.descendants()
        assert each.stop() == 0
        until(lambda family=family: all_gone(family))
        assert each.output.read_text().splitlines()[-1] == "stopped"


@pytest.fixture(scope="package")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """An API and a relay as processes by themselves, for all tests of this process; workers as tests ask for them.

    Its PostgreSQL and Redis are its own, so that a test may take them away.
    """
    from tests.e2e.cluster import Cluster

    with ExitStack() as stack:
        postgres, redis = stack.enter_context(servers.postgres()), stack.enter_context(servers.redis())
        home = tmp_path_factory.mktemp("cluster") / "home"
        made = Cluster.over(home, postgres, redis)
        stack.callback(made.stop)
        yield made.start(apis=1, relays=1)


@pytest.fixture(params=BACKINGS)
def service(request: pytest.FixtureRequest) -> Service | Cluster:
    """The whole service: `scrimp serve` on SQLite, or a cluster on PostgreSQL; `served` is the former on the latter."""
    if request.param == "postgres":
        found: Cluster = request.getfixturevalue("cluster")
        return found.at_least(workers=1)
    made: Service = request.getfixturevalue("served")("sqlite" if request.param == "sqlite" else "postgres")
    return made


# By night: `scrimp serve` over PostgreSQL and Redis.
SERVED_ON_POSTGRES = pytest.param("served-postgres", marks=pytest.mark.nightly)
