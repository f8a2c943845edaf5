"""The API under load, with PostgreSQL (every commit on the disk), Redis and the relay on one machine.

    python benchmarks/bench_load.py [--rows 1000000] [--seconds 6] [--runs 3] [--apis 2] [--only GET]

Writes benchmarks/reports/load.md. The client is on the same cores: its share is in the report.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import httpx  # noqa: E402
import psutil  # noqa: E402
import psycopg  # noqa: E402

from app.db.database import Database  # noqa: E402
from app.lifecycle.states import append_event  # noqa: E402
from benchmarks import load_client as client  # noqa: E402
from benchmarks import load_profile  # noqa: E402
from benchmarks.load_report import Phase, write_report  # noqa: E402
from core.contracts.base import Document  # noqa: E402
from tests import servers  # noqa: E402

JOB = {
    "optimizer": {"kind": "dp_sgd", "learning_rate": 1.0, "momentum": 0.9},
    "privacy": {"target_epsilon": 0.005},
    "sampling": {"kind": "full_batch"},
    "length": {"steps": 50},
    "evaluation": {"on": "holdout", "noise_mu": 0.001},
}


class Mark(Document):
    """An event that says when it was written."""

    mark: str


READERS, READ_JOBS, EVENTS_PER_S = 200, 50, 40
# Finished jobs as the service leaves them: an attempt, a score and an artifact each.
FILL = """
INSERT INTO jobs (id, dataset_id, key_id, idempotency_key, request_sha256, name, status, spec, mechanism, quote,
                  segments, steps, attempt, steps_started, step, warnings, events, created_at, started_at, finished_at)
SELECT 'job_' || lpad(n::text, 21, '0'), dataset_id, key_id, 'fill ' || n, request_sha256, name, 'succeeded', spec,
       mechanism, quote, segments, steps, 1, steps, steps, warnings, 6,
       created_at - n * interval '1 second', created_at - n * interval '1 second', created_at - n * interval '1 second'
FROM jobs, generate_series(1, %(rows)s) AS n WHERE id = %(like)s;
INSERT INTO attempts (job_id, number, worker, status, started_at, ended_at)
SELECT id, 1, 'a-host:1', 'succeeded', started_at, finished_at FROM jobs WHERE status = 'succeeded';
INSERT INTO metrics (job_id, name, step, value, std, measured_on, released_by)
SELECT id, 'accuracy', 50, 0.8, 0.01, 'holdout', 'noisy_count' FROM jobs WHERE status = 'succeeded';
INSERT INTO artifacts (job_id, name, sha256, size_bytes, path)
SELECT id, 'model.safetensors', request_sha256, 1000, 'jobs/' || id FROM jobs WHERE status = 'succeeded'
"""


class Deployment:
    """PostgreSQL, Redis, APIs and relay, and the job that all others copy."""

    def __init__(self, stack: ExitStack, rows: int, apis: int) -> None:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="load")))
        self.postgres = stack.enter_context(servers.postgres(durable=True))
        redis = stack.enter_context(servers.redis())
        self.url = servers.new_database(self.postgres)
        self.ports = [servers.free_port() for _ in range(apis)]
        self.redis_pid = redis.process.pid if redis.process else 0
        own = {
            "SCRIMP_HOME": str(home),
            "SCRIMP_DATABASE_URL": self.url,
            "SCRIMP_BROKER_URL": redis.url(),
            "SCRIMP_LOG_LEVEL": "WARNING",
            # One key makes all requests here.
            "SCRIMP_REQUESTS_PER_MINUTE": "1000000000",
            "SCRIMP_MAX_QUEUED_JOBS": "1000000000",
            "PYTHONPATH": str(ROOT),
        }
        self.environment, self.log = os.environ | own, (home / "log").open("ab")
        subprocess.run(self._line("prepare"), env=self.environment, check=True, stdout=self.log, stderr=self.log)
        self.token = (home / "admin.key").read_text().strip()
        self.apis = [stack.enter_context(self._running("api", SCRIMP_PORT=str(port))) for port in self.ports]
        self.relay = stack.enter_context(self._running("relay"))
        self._await_apis()
        self.db = Database(self.url)
        stack.callback(self.db.close)
        self.dataset = self._dataset()
        self.job = str(self.http("POST", "/v1/jobs", json=JOB | {"dataset": self.dataset})["id"])
        self.rows, self.filled_s = rows, self._fill(rows)

    @staticmethod
    def _line(service: str) -> list[str]:
        return [sys.executable, "-m", "scrimp.cli", service]

    @contextmanager
    def _running(self, service: str, **more: str) -> Iterator[psutil.Process]:
        environment = self.environment | more
        process = subprocess.Popen(self._line(service), env=environment, stdout=self.log, stderr=self.log)
        try:
            yield psutil.Process(process.pid)
        finally:
            process.terminate()
            process.wait(20)

    def _await_apis(self) -> None:
        deadline = time.monotonic() + 180
        while not all(servers.listens(port) for port in self.ports):
            if time.monotonic() > deadline:
                raise TimeoutError("the API does not listen")
            time.sleep(0.05)

    def http(self, method: str, path: str, **options: Any) -> Any:
        headers = {"Authorization": f"Bearer {self.token}", "Idempotency-Key": f"own {time.time()}"}
        url = f"http://127.0.0.1:{self.ports[0]}{path}"
        answer = httpx.request(method, url, headers=headers, timeout=30, trust_env=False, **options)
        answer.raise_for_status()
        return answer.json()

    def _dataset(self) -> str:
        from tests.factories import add_dataset

        cap = {"epsilon": 20.0, "delta": 1e-5}
        privacy = {"sensitivity": "private", "records": 10_000, "cap": cap, "filter": "gdp"}
        return add_dataset(self.db, privacy=privacy)

    def _fill(self, rows: int) -> float:
        began = time.monotonic()
        with psycopg.connect(self.url.replace("+psycopg", ""), autocommit=True) as connection:
            # These rows are consistent by the way they are made, and may be lost: foreign keys and the disk can wait.
            connection.execute("SET session_replication_role = replica")
            connection.execute("SET synchronous_commit = off")
            for statement in FILL.split(";"):
                connection.execute(statement, {"rows": rows, "like": self.job})
            connection.execute("VACUUM ANALYZE")
        return time.monotonic() - began

    def take_queue_away(self) -> None:
        """Empties the queue in place of workers: none run here, and each submission counts its key's queue. Then has
        the server look at the tables' sizes, as it does by itself each minute: plans of the first seconds are for a
        ledger of two entries."""
        with psycopg.connect(self.url.replace("+psycopg", ""), autocommit=True) as connection:
            connection.execute("UPDATE jobs SET status = 'cancelled', finished_at = now() WHERE status = 'queued'")
            connection.execute("ANALYZE ledger_entries, accounts, audit_entries, outbox, job_events")

    def cpu(self) -> dict[str, float]:
        """Returns the CPU seconds used so far, by process group."""
        used: dict[str, float] = defaultdict(float)
        groups = {"API": list(self.apis), "relay": [self.relay], "client": [psutil.Process()], "pricing": []}
        for api in self.apis:
            groups["pricing"] += api.children(recursive=True)
        groups["Redis"] = [psutil.Process(self.redis_pid)]
        for name, processes in groups.items():
            used[name] = sum(sum(process.cpu_times()[:2]) for process in processes)
        folder = self.postgres.split("host=")[1]
        master = psutil.Process(int((Path(folder) / "postmaster.pid").read_text().split()[0]))
        for each in master.children():
            with suppress(psutil.NoSuchProcess):  # it has ended since, and is the master's then
                used["PostgreSQL"] += sum(each.cpu_times()[:2])
        used["PostgreSQL"] += sum(master.cpu_times()[:4])
        return used

    def explain(self) -> str:
        """Returns PostgreSQL's plan for a page in the middle."""
        query = (
            "EXPLAIN (ANALYZE, BUFFERS, COSTS OFF) SELECT * FROM jobs WHERE (created_at, id) < "
            "((SELECT created_at FROM jobs WHERE id = %s), 'job_') ORDER BY created_at DESC, id DESC LIMIT 51"
        )
        with psycopg.connect(self.url.replace("+psycopg", "")) as connection:
            middle = f"job_{self.rows // 2:021d}"
            return "\n".join(row[0] for row in connection.execute(query, (middle,)))


@dataclass
class Load:
    """A load: its requests, the expected status, and the target rate (none: seven tenths of the maximum)."""

    name: str
    make: client.MakeRequest
    expect: int
    target: float | None


def loads(deployment: Deployment) -> list[Load]:
    chance = random.Random(5)
    ids = [f"job_{chance.randrange(1, deployment.rows + 1):021d}" for _ in range(5000)]
    gets = [client.get(f"/v1/jobs/{job}", deployment.token) for job in ids]
    cursors: list[bytes] = [client.get("/v1/jobs?limit=50", deployment.token)]
    for depth in (0.1, 0.5, 0.9):
        from app.web.pagination import encode_cursor

        job = deployment.http("GET", f"/v1/jobs/job_{int(depth * deployment.rows):021d}")
        after = encode_cursor(job["created_at"], job["id"])
        cursors.append(client.get(f"/v1/jobs?limit=50&after={after}", deployment.token))
    body = json.dumps(JOB | {"dataset": deployment.dataset}).encode()
    submits = client.posts("/v1/jobs", deployment.token, body, "load")
    return [
        Load("GET one job", lambda n: gets[n % len(gets)], 200, 1200.0),
        Load("POST with hold", lambda _n: next(submits), 201, 300.0),
        Load("page of 50", lambda n: cursors[n % len(cursors)], 200, None),
    ]


def measure(deployment: Deployment, load: Load, seconds: float, runs: int) -> list[Phase]:
    """Runs closed loops for the maximum, then open loops at the target, and at a feasible rate if that is lower."""
    ports = deployment.ports

    def closed(for_s: float) -> Any:
        return client.closed(ports, load.make, connections=8, seconds=for_s, expect=load.expect)

    asyncio.run(closed(1.5))  # warm
    most = phase_of(deployment, f"{load.name}, closed loop, 8 connections", lambda: closed(seconds), runs)
    spy = load_profile.profile(deployment.apis[0].pid, seconds)
    asyncio.run(closed(seconds))
    most.profile = load_profile.read(spy)
    for part, share in most.profile.items():
        print(f"    {100 * share:5.1f} % {part}")
    phases, fits = [most], round(most.rate * 0.7)
    for rate in sorted({load.target if load.target and load.target < 1.5 * most.rate else fits, fits}):
        name = f"{load.name}, open loop at {rate:.0f}/s"

        def opened(rate: float = rate) -> Any:
            return client.opened(ports, load.make, rate=rate, connections=64, seconds=seconds, expect=load.expect)

        phases.append(phase_of(deployment, name, opened, runs))
    return phases


def phase_of(deployment: Deployment, name: str, run: Callable[[], Any], runs: int) -> Phase:
    results, shares = [], []
    for _ in range(runs):
        deployment.take_queue_away()
        before = deployment.cpu()
        result = asyncio.run(run())
        after = deployment.cpu()
        results.append(result)
        count = max(1, len(result.latencies))
        shares.append({who: 1e3 * (after[who] - before.get(who, 0.0)) / count for who in after})
        spent = ", ".join(f"{who} {ms:.2f}" for who, ms in shares[-1].items())
        answered = f"{result.rate:.0f}/s, p99 {result.quantile_ms(0.99):.1f} ms, refused {len(result.refused)}"
        print(f"  {name}: {answered}; CPU ms a request: {spent}", flush=True)
    middle = {who: statistics.median(share[who] for share in shares) for who in shares[0]}
    quantiles = {q: statistics.median(each.quantile_ms(q) for each in results) for q in (0.5, 0.95, 0.99)}
    refused = sum(len(each.refused) for each in results)
    return Phase(name, statistics.median(each.rate for each in results), quantiles, middle, refused)


def events_phase(deployment: Deployment, seconds: float) -> Phase:
    """Adds events to jobs with readers; measures each reader's delay from the start of the commit."""
    jobs = [
        deployment.http("POST", "/v1/jobs", json=JOB | {"dataset": deployment.dataset})["id"] for _ in range(READ_JOBS)
    ]
    written: dict[str, float] = {}
    latencies: list[float] = []

    def seen(text: str) -> None:
        at = time.perf_counter()
        for line in text.splitlines():
            if line.startswith("data: ") and '"mark":"' in line:
                latencies.append(at - written[line.split('"mark":"')[1].split('"')[0]])

    def write(stop: threading.Event) -> None:
        for number in range(int(EVENTS_PER_S * seconds)):
            mark = f"m{number}"
            with deployment.db.write() as session:
                append_event(session, jobs[number % READ_JOBS], "ready", Mark(mark=mark))
                session.flush()
                written[mark] = time.perf_counter()
            if stop.wait(1 / EVENTS_PER_S):
                return

    async def read() -> None:
        loop, stop = asyncio.get_running_loop(), threading.Event()
        for number in range(READERS):
            request = client.get(f"/v1/jobs/{jobs[number % READ_JOBS]}/events", deployment.token, "text/event-stream")
            port = deployment.ports[number // READ_JOBS % len(deployment.ports)]
            await loop.create_connection(lambda r=request: client.Reader(r, seen), "127.0.0.1", port)
        await asyncio.sleep(1.0)
        await loop.run_in_executor(None, write, stop)
        await asyncio.sleep(1.5)

    before = deployment.cpu()
    asyncio.run(read())
    after = deployment.cpu()
    expected = int(EVENTS_PER_S * seconds) * READERS // READ_JOBS
    result = client.Result(seconds, latencies)
    used = {who: 1e3 * (after[who] - before.get(who, 0.0)) / seconds for who in after}
    name = f"{READERS} readers on {READ_JOBS} jobs, {EVENTS_PER_S} events/s"
    print(f"  {name}: p95 {result.quantile_ms(0.95):.0f} ms, {len(latencies)} of {expected} seen", flush=True)
    quantiles = {q: result.quantile_ms(q) for q in (0.5, 0.95, 0.99)}
    return Phase(name, result.rate, quantiles, used, expected - len(latencies))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--seconds", type=float, default=6.0)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--apis", type=int, default=2)
    parser.add_argument("--only", default="", help="a part of a load's name; no report is written")
    options = parser.parse_args()
    with ExitStack() as stack:
        deployment = Deployment(stack, options.rows, options.apis)
        print(f"{options.rows} jobs in {deployment.filled_s:.0f} s", flush=True)
        phases = []
        for load in loads(deployment):
            if options.only in load.name:
                phases += measure(deployment, load, options.seconds, options.runs)
        if options.only in "events":
            phases.append(events_phase(deployment, options.seconds))
        if not options.only:
            write_report(phases, options, deployment.explain())


if __name__ == "__main__":
    main()
