"""What a ledger's jobs compose to is computed once for a head, however many look at it."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from app.db.engine import Database
from app.ledger import summary
from core.privacy import accounting
from core.privacy.plans import CompareRequest
from core.privacy.prices import BasicSum, Compared
from tests.ledger.support import held_job, mechanism, open_ledger, post


class Counting:
    """The pricing process's own functions in this process, counted. `gate` holds the first composition."""

    def __init__(self, gate: Callable[[], object] = lambda: None) -> None:
        self.basics, self._gate = 0, gate

    def compare(self, request: CompareRequest) -> Compared:
        return accounting.compare(request)

    def basic(self, request: CompareRequest) -> BasicSum:
        self.basics += 1
        if self.basics == 1:
            self._gate()
        return accounting.basic(request)


def spent(db: Database, dataset_id: str) -> None:
    job_id, train, holdout = held_job(db, dataset_id, mechanism(steps=2))
    post(db, dataset_id, job_id, train, holdout)


def rdp_ledger(db: Database) -> str:
    dataset_id = open_ledger(db, filter_kind="rdp", order=16.0)
    spent(db, dataset_id)
    return dataset_id


def test_waiters_take_what_was_composed_though_the_ledger_grew(db: Database) -> None:
    dataset_id = rdp_ledger(db)
    began, goes_on = threading.Event(), threading.Event()

    def gate() -> None:
        began.set()
        assert goes_on.wait(300)

    pricing = Counting(gate)
    threads = [threading.Thread(target=summary.figures, args=(db, pricing, dataset_id)) for _ in range(4)]
    threads[0].start()
    assert began.wait(300)
    for each in threads[1:]:
        each.start()
    spent(db, dataset_id)  # whether a waiter began before or after this, it composes for this head at most
    goes_on.set()
    for each in threads:
        each.join(300)
    of_two_heads = Counting()
    summary.figures(db, of_two_heads, dataset_id)
    assert of_two_heads.basics == 0, "the newest head is composed"
    assert pricing.basics == 2 * 2, "each head once, on its two accounts"


@pytest.mark.parametrize("compares", [False, True])
def test_known_sums_are_not_composed_again(db: Database, monkeypatch: pytest.MonkeyPatch, compares: bool) -> None:
    monkeypatch.setattr(summary, "AGAIN_S", -1.0)
    dataset_id, pricing = rdp_ledger(db), Counting()
    look = summary.overview if compares else summary.figures
    first, again = look(db, pricing, dataset_id), look(db, pricing, dataset_id)
    assert first == again and pricing.basics == 2
