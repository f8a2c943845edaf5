"""Processor time of every view, on an empty service and on services with a long history.

    python -m benchmarks.bench_history --sizes 10000,100000,1000000 --to before.json [--only sqlite]
    python -m benchmarks.bench_history --report before.json after.json

One API in this process over SQLite, or over a PostgreSQL of its own; `benchmarks.history_seed` makes the history, of as
many jobs as entries. A time is the processor time of this process (the client's share included) and of all processes of
the database server, over several requests, after two that are not counted. A full verification runs once. Statements
are those that this process sent, for one request.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple, cast

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT)]

import psutil  # type: ignore[import-untyped]  # noqa: E402
from fastapi.testclient import TestClient  # noqa: E402
from sqlalchemy import Engine, event  # noqa: E402

from app.db.database import Database  # noqa: E402
from app.db.migrate import upgrade  # noqa: E402
from app.ledger.verification import verify  # noqa: E402
from app.main import create_app  # noqa: E402
from app.secrets import ensure_secrets  # noqa: E402
from app.settings import Settings  # noqa: E402
from benchmarks.history_seed import History, Seeder  # noqa: E402
from tests import servers  # noqa: E402
from tests.dashboard.conftest import Browser  # noqa: E402
from tests.factories import job_spec  # noqa: E402

REPORT = ROOT / "benchmarks" / "reports" / "history.md"
MOST, ENOUGH_S = 15, 1.5
AIM_MS = 50.0
EMPTY = 20  # entries and jobs of a service that counts as empty


class Figure(NamedTuple):
    """Milliseconds of processor time, and statements, of one request."""

    ms: float
    statements: float | None = None


Figures = dict[str, Figure]


class Statements:
    """Counts the statements that this process sends to any database."""

    def __init__(self) -> None:
        self.count = 0
        event.listen(Engine, "before_cursor_execute", self._add)

    def _add(self, *_: object) -> None:
        self.count += 1


SENT = Statements()


@dataclass
class Service:
    """A service with a history.

    Attributes:
        server: the database server's first process; None with SQLite.
    """

    db: Database
    settings: Settings
    history: History
    server: psutil.Process | None
    seeded_s: float

    def used_s(self) -> float:
        """Processor seconds so far, of this process and of the database's."""
        own = time.process_time()
        return own if self.server is None else own + _of_family(self.server)


def _of_family(parent: psutil.Process) -> float:
    """Of a process and its children; those that have ended are counted by their parent."""
    total = 0.0
    for each in (parent, *parent.children(recursive=True)):
        try:
            times = each.cpu_times()
        except psutil.NoSuchProcess:  # it ended since the list was made
            continue
        total += times.user + times.system + (times.children_user + times.children_system if each == parent else 0.0)
    return total


@contextmanager
def service(kind: str, entries: int) -> Iterator[Service]:
    """A fresh service with a history."""
    with ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="history"))) / "home"
        home.mkdir(mode=0o700)
        url, server = "", None
        if kind == "postgres":
            address = stack.enter_context(servers.postgres())
            url = servers.new_database(address)
            pid = Path(address.split("host=")[1], "postmaster.pid").read_text().split()[0]
            server = psutil.Process(int(pid))
        hosts = ["testserver", "127.0.0.1"]
        settings = Settings(home=home, allowed_hosts=hosts, database_url=url, requests_per_minute=1_000_000)
        ensure_secrets(settings)
        upgrade(settings.effective_database_url)
        db, began = Database.of(settings), time.monotonic()
        stack.callback(db.close)
        history = Seeder(db, settings).fill(entries, entries)
        yield Service(db, settings, history, server, time.monotonic() - began)


def measured_ms(of: Service, act: Callable[[], object]) -> Figure:
    """The processor time and the statements of an act, the mean of several after two."""
    for _ in range(2):
        began = of.used_s()
        act()
    times = max(1, min(MOST, int(ENOUGH_S / max(1e-3, of.used_s() - began))))
    began, sent = of.used_s(), SENT.count
    for _ in range(times):
        act()
    return Figure(1000.0 * (of.used_s() - began) / times, (SENT.count - sent) / times)


def views(history: History) -> dict[str, str]:
    """What is measured, and its address; those of /dashboard are pages."""
    ledger, job = f"/v1/datasets/{history.dataset}/ledger", f"/v1/jobs/{history.some}"
    page = f"/dashboard/datasets/{history.dataset}"
    return {
        "GET ledger": ledger,
        "GET entries": f"{ledger}/entries",
        "GET entries, a job's": f"{ledger}/entries?job={history.some}",
        "GET verify": f"{ledger}/verify",
        "GET data sets": "/v1/datasets",
        "GET data set": f"/v1/datasets/{history.dataset}",
        "GET spending": f"/v1/datasets/{history.dataset}/spending",
        "GET budgets": f"/v1/datasets/{history.dataset}/budgets",
        "GET jobs": "/v1/jobs",
        "GET jobs, of a status": "/v1/jobs?status=failed",
        "GET jobs, of a data set": f"/v1/jobs?dataset={history.dataset}",
        "GET jobs, by name": "/v1/jobs?sort=name",
        "GET jobs, a common tag": "/v1/jobs?tag=paper",
        "GET jobs, a rare tag": "/v1/jobs?tag=week-0",
        "GET jobs, no such tag": "/v1/jobs?tag=nowhere",
        "GET jobs, searched": "/v1/jobs?q=ablation",
        "GET jobs, searched in vain": "/v1/jobs?q=xyzzy",
        "GET job": job,
        "GET events": f"{job}/events",
        "GET metrics of a job": f"{job}/metrics",
        "GET audit": "/v1/audit",
        "GET keys": "/v1/keys",
        "GET workers": "/v1/workers",
        "GET /metrics": "/metrics",
        "page: jobs": "/dashboard",
        "page: jobs, searched": "/dashboard?q=ablation",
        "page: jobs, of a tag": "/dashboard?tag=paper",
        "page: data sets": "/dashboard/datasets",
        "page: data set": page,
        "page: burn-down": f"/dashboard/live/datasets/{history.dataset}/burndown",
        "page: comparison": f"/dashboard/live/datasets/{history.dataset}/comparison",
        "page: statement": f"{page}/statement",
        "page: budgets": f"{page}/budgets",
        "page: job": f"/dashboard/jobs/{history.some}",
    }


def measured(kind: str, entries: int) -> Figures:
    """Makes a service, and measures each view."""
    with service(kind, entries) as of:
        print(f"{kind} {entries}: seeded in {of.seeded_s:.0f} s", file=sys.stderr, flush=True)
        history, found = of.history, {"(seeding, s)": Figure(of.seeded_s)}
        app = create_app(of.settings)
        with TestClient(app) as client:
            browser = Browser(TestClient(app, follow_redirects=False))
            browser.sign_in(history.scene.admin)
            admin = {"Authorization": f"Bearer {history.scene.admin.token}"}

            def show(path: str) -> None:
                answer = browser.get(path) if path.startswith("/dashboard") else client.get(path, headers=admin)
                if answer.status_code != 200:
                    raise RuntimeError(f"{path}: {answer.status_code} {answer.text[:300]}")

            for name, path in views(history).items():
                try:
                    found[name] = measured_ms(of, lambda path=path: show(path))  # type: ignore[misc]
                except RuntimeError as error:
                    print(error, file=sys.stderr, flush=True)
            found |= posts(of, client)
        with of.db.read() as session:
            began = of.used_s()
            result = verify(session, history.dataset)
            found["verify, in full"] = Figure(1000.0 * (of.used_s() - began))
            if not result.valid:
                raise RuntimeError(f"the history is not valid: {result}")
            if result.replayed is not None:
                began = of.used_s()
                verify(session, history.dataset, since=result.replayed)
                found["verify, going on"] = Figure(1000.0 * (of.used_s() - began))
        return found


def posts(of: Service, client: TestClient) -> Figures:
    """Submissions and quotes of a job whose price is known."""
    numbers, spec = count(), job_spec(of.history.dataset, evaluation=None, length={"steps": 10})
    spec |= {"privacy": {"noise_multiplier": 12_345.0}}
    owner = {"Authorization": f"Bearer {of.history.scene.owner.token}"}

    def post(path: str, status: int) -> None:
        headers = owner | {"Idempotency-Key": f"bench-{next(numbers)}"}
        answer = client.post(path, json=spec, headers=headers)
        if answer.status_code != status:
            raise RuntimeError(f"{path}: {answer.status_code} {answer.text[:300]}")

    def submitted_and_shown() -> None:
        post("/v1/jobs", 201)
        client.get(f"/v1/datasets/{of.history.dataset}/ledger", headers=owner).raise_for_status()

    return {
        "POST quote": measured_ms(of, lambda: post("/v1/quotes", 200)),
        "POST job": measured_ms(of, lambda: post("/v1/jobs", 201)),
        "POST job, then GET ledger": measured_ms(of, submitted_and_shown),
    }


def table(before: dict[str, Any], after: dict[str, Any] | None) -> str:
    """The figures of one database, a line for each view."""
    sizes = sorted(before, key=int)
    names = list(before[sizes[-1]])
    head = (
        "| view, ms (statements) | "
        + " | ".join(f"{int(size):,}" for size in sizes)
        + " |\n|---"
        + "|---:" * len(sizes)
        + "|"
    )
    lines = []
    for name in names:
        cells = []
        for size in sizes:
            cell = _figure(before[size].get(name))
            new = None if after is None or size not in after else after[size].get(name)
            cells.append(cell if new is None else f"{cell} → {_figure(new)}")
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join([head, *lines])


def _figure(value: Sequence[float | None] | None) -> str:
    """Milliseconds, and the number of statements in parentheses."""
    if value is None:
        return ""
    ms, statements = cast(float, value[0]), value[1]
    shown = f"{ms:,.0f}" if ms >= 20 else f"{ms:.1f}"
    return shown if statements is None else f"{shown} ({statements:.0f})"


def write_report(before: Path, after: Path | None) -> None:
    """Writes the tables between the lines that mark them; what is written around them stays."""
    old = json.loads(before.read_text())
    new = None if after is None else json.loads(after.read_text())
    parts = []
    for kind in old["times"]:
        of_new = None if new is None else new["times"].get(kind)
        parts.append(f"## {kind}\n\n{table(old['times'][kind], of_new)}\n")
    runs = [f"Before: {old['run']}"] + ([] if new is None else [f"After: {new['run']}"])
    body = "\n\n".join(["\n".join(f"* {each}" for each in runs), *parts])
    begin, end = "<!-- figures -->", "<!-- end of figures -->"
    text = REPORT.read_text()
    head, _, rest = text.partition(begin)
    _, _, tail = rest.partition(end)
    REPORT.write_text(f"{head}{begin}\n\n{body}\n{end}{tail}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--sizes", default="10000,100000")
    parser.add_argument("--only", choices=("sqlite", "postgres"))
    parser.add_argument("--to", type=Path, default=Path("history.json"))
    parser.add_argument("--report", type=Path, nargs="+", metavar="JSON")
    asked = parser.parse_args()
    if asked.report:
        write_report(asked.report[0], asked.report[1] if len(asked.report) > 1 else None)
        return
    kinds = [asked.only] if asked.only else ["sqlite", "postgres"]
    cpu = f"{os.cpu_count()} cores, {psutil.virtual_memory().total / 2**30:.0f} GiB, {platform.machine()}"
    found = json.loads(asked.to.read_text()) if asked.to.exists() else {"times": {}}
    for kind in kinds:
        for size in (EMPTY, *map(int, asked.sizes.split(","))):
            found["times"].setdefault(kind, {})[str(size)] = measured(kind, size)
            load = f"load average {os.getloadavg()[0]:.1f}"
            found["run"] = f"{datetime.now(UTC):%Y-%m-%d}, {cpu}, Python {platform.python_version()}, {load}"
            asked.to.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
