"""Claims of many workers from a long queue, on PostgreSQL.

    python -m benchmarks.bench_claims [--queued 100000] [--workers 1000] [--seconds 20] [--threads 8]

A fresh service with so many queued jobs of 50 keys, as `benchmarks.history_seed` makes them, and so many living
workers. A few threads claim under the workers' names, one after the other, as fast as the database answers. Waiting
workers claim when they are woken, so the database sees the same. At the end it says how many claims each key had: keys
of equal weight have the same number, up to one for each thread.
"""

from __future__ import annotations

import argparse
import itertools
import os
import sys
import tempfile
import threading
import time
from collections import Counter
from contextlib import ExitStack
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


def claim_for(db: Database, heads: Heads, seconds: float, workers: int, threads: int) -> int:
    """Claims for so long; returns how many jobs were claimed."""
    names, lock, end, claimed = itertools.cycle(range(workers)), threading.Lock(), time.monotonic() + seconds, [0]

    def run() -> None:
        while time.monotonic() < end:
            with lock:
                name = f"worker-{next(names)}"
            held = claim_next(db, heads, name, LEASE_S)
            with lock:
                claimed[0] += held is not None

    running = [threading.Thread(target=run) for _ in range(threads)]
    for each in running:
        each.start()
    for each in running:
        each.join()
    return claimed[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--queued", type=int, default=100_000)
    parser.add_argument("--workers", type=int, default=1_000)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--threads", type=int, default=8)
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
        pid = Path(address.split("host=")[1], "postmaster.pid").read_text().split()[0]
        of = Service(db, settings, history, psutil.Process(int(pid)), 0.0)
        heads = Heads.of(settings)
        claim_for(db, heads, 1.0, asked.workers, asked.threads)
        began, used = time.monotonic(), of.used_s()
        count = claim_for(db, heads, asked.seconds, asked.workers, asked.threads)
        took, used = time.monotonic() - began, of.used_s() - used
        with db.read() as session:
            of_keys = Counter(session.scalars(select(Job.key_id).where(Job.status == "running")))
        print(
            f"{asked.queued:,} queued, {asked.workers:,} workers: {count / took:.1f} claims a second, "
            f"{1000 * used / max(1, count):.1f} ms of processor time each (load {os.getloadavg()[0]:.1f}); "
            f"claims by key {min(of_keys.values())} to {max(of_keys.values())}, {len(of_keys)} keys"
        )


if __name__ == "__main__":
    main()
