"""Threads and processes that hold and settle at once: what is held is exactly what fits, and the chain has no fork."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.synchronize import Barrier

from app.db.database import Database
from core.errors import BudgetError, PrivacyError
from tests import processes as own
from tests.ledger.support import balances, check, hold, open_ledger, post, void

FIT = 12  # so many holds fit; twice as many are tried
WORKERS = 4


def try_holds(db: Database, dataset_id: str, amount: int, worker: int) -> int:
    """Holds until it has tried its share; settles every second one at once. Returns how much stays taken."""
    taken = 0
    for number in range(2 * FIT // WORKERS):
        job_id = f"job_{worker}_{number}"
        try:
            hold(db, dataset_id, job_id, amount, amount)
        except BudgetError:
            continue
        taken += amount
        if number % 2:
            post(db, dataset_id, job_id, amount, amount)
    return taken


def in_a_process(url: str, dataset_id: str, amount: int, worker: int, start: Barrier) -> None:
    db = Database(url)
    start.wait(300)
    try_holds(db, dataset_id, amount, worker)
    db.close()


def assert_exactly_what_fits(db: Database, dataset_id: str, amount: int) -> None:
    found = balances(db, dataset_id)
    for account in found.values():
        assert account["spent"] + account["held"] == FIT * amount <= account["budget"]
    verified = check(db, dataset_id)
    assert verified.valid, verified


def a_twelfth(db: Database, dataset_id: str) -> int:
    return balances(db, dataset_id)["train"]["budget"] // FIT


def test_racing_threads_never_overspend(db: Database) -> None:
    dataset_id = open_ledger(db)
    amount = a_twelfth(db, dataset_id)
    with ThreadPoolExecutor(WORKERS) as pool:
        jobs = [pool.submit(try_holds, db, dataset_id, amount, worker) for worker in range(WORKERS)]
        assert sum(job.result() for job in jobs) == FIT * amount
    assert_exactly_what_fits(db, dataset_id, amount)


def test_racing_processes_never_overspend(db: Database, database_url: str) -> None:
    dataset_id = open_ledger(db)
    amount = a_twelfth(db, dataset_id)
    context = own.quick()
    start = context.Barrier(WORKERS)
    processes = [
        context.Process(target=in_a_process, args=(database_url, dataset_id, amount, worker, start))
        for worker in range(WORKERS)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(300)
        assert process.exitcode == 0
    assert_exactly_what_fits(db, dataset_id, amount)


def test_racing_settlements_of_one_job_settle_it_once(db: Database) -> None:
    dataset_id = open_ledger(db)
    hold(db, dataset_id, "job_1", 100, 50)
    hold(db, dataset_id, "job_2", 1000, 1000)  # room that a second settlement could take by mistake
    start = threading.Barrier(WORKERS)

    def settle(how: Callable[[], int]) -> int | None:
        start.wait(300)
        try:
            return how()
        except PrivacyError:
            return None

    ways: list[Callable[[], int]] = [
        lambda: post(db, dataset_id, "job_1", 60, 50),
        lambda: post(db, dataset_id, "job_1", 60, 50),
        lambda: void(db, dataset_id, "job_1"),
        lambda: post(db, dataset_id, "job_1", 61, 50),
    ]
    with ThreadPoolExecutor(WORKERS) as pool:
        seqs = {seq for seq in pool.map(settle, ways) if seq is not None}
    assert seqs == {4}
    found = balances(db, dataset_id)
    assert (found["train"]["held"], found["holdout"]["held"]) == (1000, 1000)
    assert found["train"]["spent"] in (0, 60, 61)
    assert check(db, dataset_id).valid
