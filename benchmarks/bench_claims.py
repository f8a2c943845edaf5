"""Claims of many workers from a long queue, on PostgreSQL.

    python -m benchmarks.bench_claims [--queued 100000] [--workers 1000] [--seconds 20] [--at-once 50]

A fresh service with so many queued jobs of 50 keys, as `benchmarks.history_seed` makes them, and so many living
workers. Some processes with a connection each claim under the workers' names, as fast as the database answers. Waiting
workers claim when they are woken, so the database sees the same. At the end it says how many claims each key had: keys
of equal weight have the same number, up to one.
"""

from __future__ import annotations

import argparse
import itertools
import multiprocessing
import os
import sys
import tempfile
import time
from collections import Counter
from contextlib import ExitStack
from multiprocessing.queues import Queue
from multiprocessing.sharedctypes import Synchronized
from multiprocessing.synchronize import Barrier
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT)]

import psutil  # type: ignore[import-untyped]  # noqa: E402
from sqlalchemy import insert, select  # noqa: E402

from app.db.clock import now_there  # noqa: E402
from app.db.database import Database  # noqa: E402
from app.db.migrate import upgrade  # noqa: E402
from app.db.models import Job, Worker, table_of  # noqa: E402
from app.ledger.transparency.heads import Heads  # noqa: E402
from app.lifecycle.queue.fair import claim_next  # noqa: E402
from app.secrets import ensure_secrets  # noqa: E402
from app.settings import Settings  # noqa: E402
from benchmarks.bench_history import Service  # noqa: E402
from benchmarks.history_seed import Seeder  # noqa: E402
from tests import servers  # noqa: E402

LEASE_S = 600.0


def claim_until(
    settings: Settings, names: range, end: Synchronized[float], started: Barrier, counts: Queue[tuple[int, float]]
) -> None:
    """Claims in a process of its own; says how many jobs, and its seconds of processor time."""
    db, heads, count = Database.of(settings), Heads.of(settings), 0
    claim_next(db, heads, f"worker-{names[0]}", LEASE_S)  # so it has connected, and planned
    started.wait()
    used = time.process_time()
    for name in itertools.cycle(names):
        if time.monotonic() > end.value:
            break
        count += claim_next(db, heads, f"worker-{name}", LEASE_S) is not None
    counts.put((count, time.process_time() - used))
    db.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--queued", type=int, default=100_000)
    parser.add_argument("--workers", type=int, default=1_000)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--at-once", type=int, default=50)
    asked = parser.parse_args()
    with ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="claims"))) / "home"
        home.mkdir(mode=0o700)
        address = stack.enter_context(servers.postgres())
        settings = Settings(home=home, database_url=servers.new_database(address))
        ensure_secrets(settings)
        upgrade(settings.effective_database_url)
        db = Database.of(settings)
        stack.callback(db.close)
        history = Seeder(db, settings).fill(1_000, 1_000, asked.queued)
        with db.write() as session:
            at = now_there(session)
            row = {"seen_at": at, "started_at": at, "pid": 1, "devices": [{"kind": "cpu", "index": 0}], "host": "bench"}
            session.execute(insert(table_of(Worker)), [row | {"name": f"worker-{n}"} for n in range(asked.workers)])
        db.close()  # before the fork
        pid = Path(address.split("host=")[1], "postmaster.pid").read_text().split()[0]
        server = Service(db, settings, history, psutil.Process(int(pid)), 0.0)
        forks = multiprocessing.get_context("fork")
        counts, started = forks.Queue(), forks.Barrier(asked.at_once + 1)
        end = forks.Value("d", 0.0)
        claimers = [
            forks.Process(
                target=claim_until, args=(settings, range(n, asked.workers, asked.at_once), end, started, counts)
            )
            for n in range(asked.at_once)
        ]
        for each in claimers:
            each.start()
        while started.n_waiting < asked.at_once:
            time.sleep(0.1)
        began, served = time.monotonic(), server.used_s()
        end.value = began + asked.seconds
        started.wait()
        done = [counts.get(timeout=600) for _ in claimers]
        took, served = time.monotonic() - began, server.used_s() - served
        for each in claimers:
            each.join()
        count, used = sum(each[0] for each in done), sum(each[1] for each in done)
        with db.read() as session:
            of_keys = Counter(session.scalars(select(Job.key_id).where(Job.status == "running")))
        print(
            f"{asked.queued:,} queued, {asked.workers:,} workers: {count / took:.1f} claims a second, "
            f"{1000 * used / count:.1f} ms of processor time each and {1000 * served / count:.1f} in PostgreSQL "
            f"(load {os.getloadavg()[0]:.1f}); "
            f"claims by key {min(of_keys.values())} to {max(of_keys.values())}, {len(of_keys)} keys"
        )


if __name__ == "__main__":
    main()
