"""What one tenant can do to the others: attacks on a running service, each with what another tenant sees meanwhile.

    python benchmarks/bench_tenants.py [--tree DIR] [--only bodies,quotes,…] --to FILE
    python benchmarks/bench_tenants.py --report BEFORE AFTER

Starts API and relay from a source tree (another one for the figures of before) on SQLite in a fresh home, attacks it
over loopback, and writes what it measured as JSON. With `--report` it writes benchmarks/reports/tenants.md from two
such files.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import psutil

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests import servers  # noqa: E402

REPORT = ROOT / "benchmarks" / "reports" / "tenants.md"
MIB = 2**20
ENTRIES = 20_000
# Runs in the tree that is measured. Prints the data set.
FILL = """
import sys
from app.db.database import Database
from app.ledger import accounts
from app.settings import get_settings
db, dataset, pairs = Database.of(get_settings()), sys.argv[1], int(sys.argv[2]) // 2
for start in range(0, pairs, 500):
    with db.write() as session:
        for number in range(start, min(start + 500, pairs)):
            job = f"job_bench{number}"
            accounts.hold(session, dataset_id=dataset, job_id=job, train=1, holdout=0, actor="bench")
            accounts.void(session, dataset_id=dataset, job_id=job, actor="bench")
"""


@dataclass
class Service:
    """A running service of a tree, and keys of several tenants."""

    home: Path
    url: str
    api: psutil.Process
    environment: dict[str, str]
    http: httpx.Client
    tokens: dict[str, str] = field(default_factory=dict)

    def ask(self, who: str, method: str, path: str, **more: Any) -> httpx.Response:
        headers = {"Authorization": f"Bearer {self.tokens[who]}", **more.pop("headers", {})}
        return self.http.request(method, path, headers=headers, **more)

    def json(self, who: str, method: str, path: str, **more: Any) -> Any:
        answer = self.ask(who, method, path, **more)
        if answer.is_error:
            raise RuntimeError(f"{method} {path}: {answer.text[:500]}")
        return answer.json()

    def dataset(self, name: str, who: str = "owner") -> str:
        """A private data set of 2,000 records, which analysts and viewers may use."""
        rows = "".join(f"{n % 97},{n * n % 89},{n % 2},{name}{n}\n" for n in range(2000))
        spec = {
            "name": name,
            "format": "csv",
            "task": {"kind": "classification", "label": "y", "classes": [0, 1]},
            "features": {"kind": "columns", "columns": ["a", "b"]},
            "privacy": {
                "sensitivity": "private",
                "records": 2000,
                "cap": {"epsilon": 50.0, "delta": 1e-5},
                "filter": "rdp",
            },
        }
        files = {"spec": (None, json.dumps(spec), "application/json"), "file": ("f", f"a,b,y,c\n{rows}".encode())}
        made = str(self.json(who, "POST", "/v1/datasets", files=files)["id"])
        for each, access in (("analyst", "train"), ("greedy", "train"), ("viewer", "view")):
            key = self.json(each, "GET", "/v1/keys/self")["id"]
            self.json(who, "PUT", f"/v1/datasets/{made}/grants/{key}", json={"access": access})
        return made


@contextmanager
def service(tree: Path, **settings: str) -> Iterator[Service]:
    """API and relay from a tree, in a fresh home."""
    with ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tenants")))
        port = servers.free_port()
        own = {"SCRIMP_HOME": str(home), "SCRIMP_PORT": str(port), "PYTHONPATH": str(tree), "OMP_NUM_THREADS": "1"}
        environment = os.environ | own | {"SCRIMP_LOG_LEVEL": "ERROR", "SCRIMP_HEARTBEAT_S": "1"} | settings
        log = stack.enter_context((home / "log").open("ab"))

        def start(command: str) -> subprocess.Popen[bytes]:
            line = [sys.executable, "-m", "scrimp.cli", command]
            return subprocess.Popen(line, env=environment, cwd=tree, stdout=log, stderr=log)

        if start("prepare").wait():
            raise RuntimeError((home / "log").read_text())
        processes = [start(name) for name in ("api", "relay")]
        for process in processes:
            stack.callback(process.wait, 30)
            stack.callback(process.terminate)
        deadline = time.monotonic() + 120
        while not servers.listens(port):
            if time.monotonic() > deadline:
                raise TimeoutError((home / "log").read_text())
            time.sleep(0.05)
        url = f"http://127.0.0.1:{port}"
        limits = httpx.Limits(max_connections=None)
        http = stack.enter_context(httpx.Client(base_url=url, timeout=120, trust_env=False, limits=limits))
        made = Service(home, url, psutil.Process(processes[0].pid), environment, http)
        made.tokens["admin"] = (home / "admin.key").read_text().strip()
        roles = {"owner": "owner", "other": "owner", "analyst": "analyst", "greedy": "analyst", "viewer": "viewer"}
        for name, role in roles.items():
            body = {"name": name, "role": role}
            made.tokens[name] = made.json("admin", "POST", "/v1/keys", json=body)["token"]
        yield made


def p95(seconds: Sequence[float]) -> float:
    return sorted(seconds)[int(len(seconds) * 0.95)] if seconds else float("nan")


class Seen:
    """What another tenant sees: /healthz and a keyed list, one after the other, until the end of the block."""

    def __init__(self, at: Service) -> None:
        self._at, self._stop = at, threading.Event()
        self.times: dict[str, list[float]] = {"/healthz": [], "/v1/jobs": []}

    def __enter__(self) -> Seen:
        self._thread = threading.Thread(target=self._look)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _look(self) -> None:
        headers = {"Authorization": f"Bearer {self._at.tokens['analyst']}"}
        with httpx.Client(base_url=self._at.url, headers=headers, timeout=120, trust_env=False) as client:
            while not self._stop.wait(0.02):
                for path, times in self.times.items():
                    began = time.perf_counter()
                    client.get(path).raise_for_status()
                    times.append(time.perf_counter() - began)

    @property
    def said(self) -> str:
        return ", ".join(f"{path} p95 {p95(times) * 1000:.0f} ms" for path, times in self.times.items())


def flood(at: Service, who: str, path: str, body: bytes, seconds: float, senders: int = 12) -> dict[int, int]:
    """So many senders at once, each again and again; counts the answers by status (0: cut off while it sent)."""
    counts: dict[int, int] = {}
    headers = {"Authorization": f"Bearer {at.tokens[who]}", "Content-Type": "application/json"}

    async def send(client: httpx.AsyncClient, end: float) -> None:
        while time.monotonic() < end:
            status = 0
            with suppress(httpx.HTTPError):
                status = (await client.post(path, content=body, headers=headers)).status_code
            counts[status] = counts.get(status, 0) + 1

    async def run() -> None:
        end = time.monotonic() + seconds
        async with httpx.AsyncClient(base_url=at.url, timeout=60, trust_env=False) as client:
            await asyncio.gather(*(send(client, end) for _ in range(senders)))

    asyncio.run(run())
    return counts


def bodies(at: Service) -> dict[str, str]:
    """12 bodies of 1 MB at once, of a viewer who may not send them and of an owner who may."""
    with Seen(at) as idle:
        time.sleep(3)
    found = {"nobody attacks": idle.said}
    columns = json.dumps({"features": {"kind": "columns", "columns": [1] * 190_000}}).encode()
    large = columns + b" " * (10**6 - len(columns))
    for who, why in (("viewer", "may not"), ("owner", "may")):
        before = at.api.memory_info().rss
        with Seen(at) as seen:
            counts = flood(at, who, "/v1/datasets", large, 12)
        time.sleep(12)
        at.ask("owner", "POST", "/v1/datasets", json={"name": "x" * 70_000})  # what follows an attack
        after = at.api.memory_info().rss
        memory = f"memory {before / MIB:.0f} MiB, {after / MIB:.0f} MiB after it"
        found[f"12 bodies of 1 MB of {who}, who {why}"] = f"{seen.said}; {memory}; answers {counts}"
    return found


def quotes(at: Service) -> dict[str, str]:
    """24 expensive quotes of one key at a time, and 8 cheap ones of another."""
    dataset, number = at.dataset("quoted"), iter(range(10**6))

    def job(epsilon: float, steps: int) -> dict[str, Any]:
        return {
            "dataset": dataset,
            "optimizer": {"kind": "dp_sgd", "learning_rate": 1.0},
            "privacy": {"target_epsilon": epsilon},
            "sampling": {"kind": "poisson", "expected_batch_size": 20},
            "length": {"steps": steps},
        }

    stop = threading.Event()

    def greedy() -> None:
        while not stop.is_set():
            if at.ask("greedy", "POST", "/v1/quotes", json=job(0.5 + next(number) * 1e-5, 50_000)).status_code == 503:
                stop.wait(0.2)

    def modest(epsilon: float) -> float:
        began = time.perf_counter()
        at.json("analyst", "POST", "/v1/quotes", json=job(epsilon, 50))
        return time.perf_counter() - began

    alone = [modest(1.0 + each / 100) for each in range(4)]
    with ThreadPoolExecutor(24) as pool:
        asking = [pool.submit(greedy) for _ in range(24)]
        time.sleep(5)
        beside = [modest(2.0 + each / 100) for each in range(8)]
        stop.set()
        for each in asking:
            each.result()
    median = sorted(beside)[len(beside) // 2]
    said = f"another's quote: {max(alone):.1f} s alone; beside them median {median:.1f} s, {max(beside):.1f} s at most"
    return {"24 quotes of one key at a time": said}


def uploads(at: Service) -> dict[str, str]:
    """Declares what the disk has, sends nothing, and looks at what another owner may then begin."""
    free = psutil.disk_usage(str(at.home)).free
    sizes, begun = free // 8 - 64 * MIB, 0
    for _ in range(8):
        begun += at.ask("owner", "POST", "/v1/uploads", json={"size": sizes}).status_code == 201
    other = at.ask("other", "POST", "/v1/uploads", json={"size": free // 10}).status_code
    upload = at.ask("other", "POST", "/v1/uploads", json={"size": 1000}).json()
    kept = "none began"
    if "expires_at" in upload:
        left = datetime.fromisoformat(upload["expires_at"]) - datetime.now(UTC)
        kept = f"one of 0 bytes is kept {left.total_seconds() / 60:.0f} minutes"
    return {
        "8 uploads of an eighth of the free disk each, nothing sent": f"{begun} of 8 begin; another's of a tenth: "
        f"{other}; {kept}"
    }


def readers(at: Service) -> dict[str, str]:
    """An archive of 10 MB that unpacks to 3 GB, and another owner's file of 10 MB after it."""
    packed = at.home / "packed.zst"
    line = b"1.0,2.0,0," + b"0" * 2000 + b"\n"
    import pyarrow as pa

    with pa.CompressedOutputStream(str(packed), "zstd") as out:
        out.write(b"a,b,y,c\n")
        for _ in range(1500):
            out.write(line * 1000)
    noise = os.urandom(9 * MIB).hex().encode()  # so that it is above what is read at once
    spec = {
        "format": "csv",
        "task": {"kind": "classification", "label": "y", "classes": [0, 1]},
        "features": {"kind": "columns", "columns": ["a", "b"]},
        "privacy": {"sensitivity": "public"},
    }

    def register(who: str, name: str, content: bytes) -> str:
        upload = at.json(who, "POST", "/v1/uploads", json={"size": len(content)})["id"]
        for start in range(0, len(content), 16 * MIB):
            headers = {"Upload-Offset": str(start)}
            at.json(who, "PATCH", f"/v1/uploads/{upload}", content=content[start : start + 16 * MIB], headers=headers)
        return str(at.json(who, "POST", "/v1/datasets", json={**spec, "name": name, "upload": upload})["id"])

    blob = packed.read_bytes() + b""
    padding = b"\x50\x2a\x4d\x18" + (9 * MIB).to_bytes(4, "little") + os.urandom(9 * MIB)  # a skippable frame
    hostile = register("owner", "hostile", blob + padding)
    time.sleep(2)
    rows = b"".join(b"1,2,%d,%s\n" % (n % 2, noise[n * 90 : n * 90 + 90]) for n in range(110_000))
    began = time.perf_counter()
    mine = register("other", "honest", b"a,b,y,c\n" + rows)

    def state(who: str, dataset: str) -> str:
        return str(at.json(who, "GET", f"/v1/datasets/{dataset}").get("state", "ready"))

    while state("other", mine) == "reading" and time.perf_counter() - began < 600:
        time.sleep(0.2)
    waited, then = time.perf_counter() - began, state("owner", hostile)
    size = (len(blob) + len(padding)) / MIB
    return {
        f"an archive of {size:.0f} MiB that unpacks to 3 GB": f"another owner's 10 MB are {state('other', mine)} after "
        f"{waited:.0f} s; the archive is then {then}"
    }


def verification(at: Service) -> dict[str, str]:
    """12 viewers' verifications at once of a ledger of 20,000 entries."""
    dataset = at.dataset("long")
    line = [sys.executable, "-c", FILL, dataset, str(ENTRIES)]
    subprocess.run(line, env=at.environment, cwd=at.environment["PYTHONPATH"], check=True)
    path, times, stop = f"/v1/datasets/{dataset}/ledger/verify", [], threading.Event()

    def verify() -> None:
        while not stop.is_set():
            began = time.perf_counter()
            at.ask("viewer", "GET", path).raise_for_status()
            stop.wait(0.1)
            times.append(time.perf_counter() - began)

    with ThreadPoolExecutor(12) as pool, Seen(at) as seen:
        asking = [pool.submit(verify) for _ in range(12)]
        time.sleep(12)
        stop.set()
        for each in asking:
            each.result()
    return {
        f"12 viewers ask for the verification of {ENTRIES:,} entries": f"{seen.said}; theirs p95 {p95(times):.2f} s"
    }


PARTS: dict[str, Callable[[Service], dict[str, str]]] = {
    "bodies": bodies,
    "quotes": quotes,
    "uploads": uploads,
    "readers": readers,
    "verification": verification,
}


def report(before: dict[str, str], after: dict[str, str]) -> str:
    """The report: both figures of every attack."""
    rows = [f"| {name} | {before.get(name, '-')} | {after[name]} |" for name in after]
    command = "python benchmarks/bench_tenants.py --tree DIR --to FILE"
    machine = f"{os.cpu_count()} cores, {psutil.virtual_memory().total / 2**30:.0f} GiB, {platform.machine()}"
    return "\n".join(
        [
            "# What one tenant can do to the others",
            "",
            f"`{command}`, with the tree of before and with this one, then `--report`. {machine}, Python "
            f"{platform.python_version()}, SQLite; the attackers run on the same cores. {datetime.now(UTC):%Y-%m-%d}.",
            "",
            "| attack | before | after |",
            "|---|---|---|",
            *rows,
            "",
        ]
    )


def main() -> None:
    """Measures, or writes the report."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--tree", type=Path, default=ROOT)
    options.add_argument("--only", default=",".join(PARTS))
    options.add_argument("--to", type=Path)
    options.add_argument("--report", nargs=2, type=Path)
    asked = options.parse_args()
    if asked.report:
        before, after = (json.loads(path.read_text()) for path in asked.report)
        REPORT.write_text(report(before, after), encoding="utf-8")
        return
    found: dict[str, str] = {}
    for name in asked.only.split(","):
        with service(asked.tree.resolve()) as at:
            found |= PARTS[name](at)
        print(json.dumps(found, indent=1), flush=True)
        if asked.to:
            asked.to.write_text(json.dumps(found))


if __name__ == "__main__":
    main()
