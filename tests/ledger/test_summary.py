"""What a ledger's jobs compose to is computed once for a head, however many look at it."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
from sqlalchemy import select

from app.db.database import Database
from app.db.models import Account, Job
from app.ledger import summary
from app.ledger.repository import charged
from core.privacy import accounting
from core.privacy.mechanism import MechanismConfig
from core.privacy.price_requests import CompareRequest
from core.privacy.prices import BasicSum, Compared
from tests.ledger.support import DELTA, held_job, mechanism, open_ledger, post


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


def test_jobs_alike_are_asked_for_once_and_counted(db: Database) -> None:
    """A ledger of many jobs asks for as many events as there are kinds of jobs, and its figures are those of all."""
    dataset_id, asked = open_ledger(db, filter_kind="rdp", order=16.0), list[CompareRequest]()
    kinds = [mechanism(steps=2), mechanism(steps=3)]
    for number in range(9):
        job_id, train, holdout = held_job(db, dataset_id, kinds[number % 2])
        if number < 7:
            post(db, dataset_id, job_id, train if number < 6 else train // 2, holdout)

    class Listening(Counting):
        def basic(self, request: CompareRequest) -> BasicSum:
            asked.append(request)
            return super().basic(request)

        def compare(self, request: CompareRequest) -> Compared:
            asked.append(request)
            return super().compare(request)

    shown = summary.overview(db, Listening(), dataset_id)
    assert all(len(set(each.events)) == len(each.events) <= 3 for each in asked)
    with db.read() as session:
        rows = session.execute(
            select(Job.mechanism, Job.id).where(Job.dataset_id == dataset_id).order_by(Job.created_at)
        )
        made = [MechanismConfig.model_validate(row.mechanism) for row in rows]
        account = session.get_one(Account, dataset_id)
        summed = summary.sums(Listening(), account, charged(session, dataset_id))
    assert summed is not None and shown.comparison is not None
    assert shown.comparison.basic.value == summed.spent["train"]
    for count, figure in ((7, summed.spent["train"]), (9, summed.taken["train"])):
        events = tuple(each.event("train") for each in made[:count])
        one_by_one = accounting.basic(CompareRequest(events=events, delta=DELTA)).epsilon
        assert figure == pytest.approx(one_by_one, rel=1e-12)
    started = [each.event("train") for each in made[:6]]
    half = made[6].started(made[6].training.model_copy(update={"steps": 1}), made[6].scores)
    whole = accounting.compare(CompareRequest(events=(*started, half.event("train")), delta=DELTA))
    assert shown.comparison.rdp_best_order.value == pytest.approx(whole.rdp_best_order, rel=1e-9)
