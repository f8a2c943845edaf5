"""Measures the dashboard's pages on a service with many jobs. Writes reports/dashboard.md.

    python benchmarks/bench_dashboard.py [--jobs 5000]

One service over SQLite, in this process, with the scene of the dashboard's tests: one of its finished jobs is copied,
with its scores, attempts and files. Times are processor times of all threads, and medians.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT)]

from fastapi.testclient import TestClient  # noqa: E402
from sqlalchemy import Connection, Table, text  # noqa: E402

from app.dashboard.list_stream import page_of  # noqa: E402
from app.db.database import Database  # noqa: E402
from app.db.migrate import upgrade  # noqa: E402
from app.db.models import ApiKey, Artifact, Attempt, Job, Metric, table_of  # noqa: E402
from app.jobs.labels import stored  # noqa: E402
from app.jobs.list_routes import JobsQuery  # noqa: E402
from app.keys.service import generation_of, still  # noqa: E402
from app.main import create_app  # noqa: E402
from app.web.open_lists import ListHub, Reader  # noqa: E402
from tests.dashboard.conftest import Browser, make_home  # noqa: E402
from tests.dashboard.scene import Everything, Scene, everything  # noqa: E402

REPORT = ROOT / "benchmarks" / "reports" / "dashboard.md"
TIMES = 15
SERIES = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < :rows)"
COPIED = "job_{:021d}"
COPY_ID = "'job_' || printf('%021d', i)"


def fill(db: Database, like: str, rows: int) -> None:
    """Copies a finished job."""
    told = {"id": COPY_ID, "idempotency_key": "'copy ' || i", "name": "'copy ' || i", "tags": f"'{stored(['copied'])}'"}
    with db.write() as session:
        connection = session.connection()
        copy(connection, table_of(Job), "id", told, like, rows)
        for each in (Attempt, Metric, Artifact):
            copy(connection, table_of(each), "job_id", {"job_id": COPY_ID}, like, rows)


def copy(connection: Connection, table: Table, key: str, told: dict[str, str], like: str, rows: int) -> None:
    """Copies the rows of one job, with other values in some columns."""
    names = [column.name for column in table.columns]
    values = ", ".join(told.get(name, name) for name in names)
    chosen = f"SELECT {values} FROM {table.name}, n WHERE {key} = :like"  # noqa: S608 - our own names
    statement = text(f"{SERIES} INSERT INTO {table.name} ({', '.join(names)}) {chosen}")
    connection.execute(statement, {"rows": rows, "like": like})


def pages(ids: Everything) -> dict[str, str]:
    """What is measured, and its address."""
    jobs = "&".join(f"job={COPIED.format(number)}" for number in range(1, 9))
    return {
        "the list of jobs": "/dashboard",
        "searched": "/dashboard?q=copy 49",
        "sorted by name": "/dashboard?sort=name",
        "by tag": "/dashboard?tag=copied",
        "by status": "/dashboard?status=succeeded",
        "a job": f"/dashboard/jobs/{ids.succeeded}",
        "eight jobs compared": f"/dashboard/compare?{jobs}",
        "the data sets": "/dashboard/datasets",
        "the data set of all these jobs, with few entries": f"/dashboard/datasets/{ids.reviews}",
    }


def readers_of(db: Database, scene: Scene) -> list[Reader]:
    """Ten open lists of one key, on three pages."""
    with db.read() as session:
        generation = generation_of(session.get_one(ApiKey, scene.owner.id).secret_hmac)
    asked = [JobsQuery()] * 8 + [JobsQuery(tag="copied"), JobsQuery(sort="name")]
    return [
        Reader(page_of(db, scene.owner.caller, each), scene.owner.id, lambda key: still(key, generation))
        for each in asked
    ]


def median_ms(act: Callable[[], object]) -> float:
    """The processor time of an act, after a first one that is not counted."""
    taken = []
    for _ in range(TIMES + 1):
        began = time.process_time()
        act()
        taken.append(1000 * (time.process_time() - began))
    return statistics.median(taken[1:])


def measured(rows: int) -> list[tuple[str, float]]:
    """Fills a service, and measures each page."""
    with tempfile.TemporaryDirectory() as folder:
        template = Path(folder) / "template.db"
        upgrade(f"sqlite:///{template}")
        settings = make_home(Path(folder) / "home", template, requests_per_minute=1_000_000)
        db = Database.of(settings)
        scene = Scene(db, settings)
        ids = everything(scene)
        fill(db, ids.succeeded, rows)
        app = create_app(settings)
        browser = Browser(TestClient(app, follow_redirects=False))
        browser.sign_in(scene.owner)
        found = []
        for what, address in pages(ids).items():
            answer = browser.get(address)
            if answer.status_code != 200 or (
                address.startswith("/dashboard?") and COPIED.format(0)[:10] not in answer.text
            ):
                raise RuntimeError(f"{address} does not answer with the copied jobs")
            found.append((what, median_ms(lambda address=address: browser.get(address))))  # type: ignore[misc]
        hub, readers = ListHub(db), readers_of(db, scene)
        if None in hub.look(readers):
            raise RuntimeError("the look refuses a reader")
        found.append(("a look for ten open lists, eight of them alike", median_ms(lambda: hub.look(readers))))
        app.state.pricing.close()
        app.state.db.close()
        db.close()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=5000)
    rows = parser.parse_args().jobs
    lines = [
        "# The dashboard with many jobs",
        "",
        f"`python benchmarks/bench_dashboard.py --jobs {rows}`: one service over SQLite with {rows:,} finished jobs on",
        f"one data set. Processor time of all threads, medians of {TIMES}; Python {platform.python_version()},",
        f"{os.cpu_count()} processors, shared with other work, which processor time leaves out but for shared caches.",
        "",
        "| page | ms |",
        "|---|---:|",
        *(f"| {what} | {taken:.2g} |" for what, taken in measured(rows)),
    ]
    REPORT.write_text("\n".join(lines) + "\n", encoding="utf-8")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
