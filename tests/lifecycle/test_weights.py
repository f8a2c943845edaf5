"""Weights decide how often owners and keys have a turn; priorities order the jobs of one key alone."""

from __future__ import annotations

from collections import Counter, deque
from datetime import UTC, datetime

import pytest
from sqlalchemy import event, insert, select, update
from sqlalchemy.exc import IntegrityError

from app.db.database import Database
from app.db.models import ApiKey, ClaimTurn, Job, table_of
from app.lifecycle.queue.fair import claim_next, fairest
from app.lifecycle.queue.fronts import Candidate
from app.lifecycle.queue.turns import Pair, Turn, Turns
from tests.factories import add_dataset, add_key
from tests.lifecycle.conftest import Submit
from tests.lifecycle.test_fair import BOTH, CHEAP, NO_RECORDS

BEGAN = datetime(2026, 1, 1, tzinfo=UTC)


class Queue:
    """Pairs that always have jobs to claim, at a number of workers that are all busy: the oldest job ends first."""

    def __init__(self, weights: dict[str, int], workers: int = 1) -> None:
        self.weights, self.running = weights, deque[Pair](maxlen=workers - 1)
        self.turns: dict[Pair, Turn] = {}

    def claim(self, *waiting: Pair) -> Pair:
        latest = [max((part for part in parts), default=0) for parts in self._parts()]
        jobs = [Candidate(*pair, "ds", "job", BEGAN) for pair in waiting]
        weights = {name: self.weights.get(name, 1) for pair in waiting for name in pair}
        chosen = fairest(jobs, Counter(self.running), Turns(self.turns, (latest[0], latest[1])), weights)
        assert chosen is not None
        self.turns[chosen.job.pair] = chosen.turn
        self.running.append(chosen.job.pair)
        return chosen.job.pair

    def _parts(self) -> tuple[list[int], list[int]]:
        turns = self.turns.values()
        return [turn.number for turn in turns], [turn.owner_start for turn in turns]


A, B, C = ("owner", "a"), ("owner", "b"), ("owner", "c")


@pytest.mark.parametrize("workers", [1, 2, 4, 5])
@pytest.mark.parametrize(("heavy", "light"), [(("owner", "heavy"), A), (("heavy", "a"), ("light", "a"))])
def test_shares_are_as_the_weights(heavy: Pair, light: Pair, workers: int) -> None:
    """Among the keys on one owner's data, and among the owners: whatever stretch one looks at."""
    queue = Queue({"heavy": 3}, workers)
    claims = [queue.claim(heavy, light) for _ in range(80)]
    for first in range(0, 41):
        assert abs(claims[first : first + 40].count(heavy) - 30) <= 1


def test_weights_of_three_keys() -> None:
    queue = Queue({"a": 5, "b": 2})
    assert Counter(queue.claim(A, B, C) for _ in range(80)) == {A: 50, B: 20, C: 10}


def test_equal_weights_are_no_weights() -> None:
    queue, plain = Queue({"a": 100, "b": 100}, workers=3), Queue({}, workers=3)
    assert [queue.claim(A, B) for _ in range(20)] == [plain.claim(A, B) for _ in range(20)]


@pytest.mark.parametrize("weight", [1, 3, 100])
def test_who_was_idle_has_saved_nothing_up(weight: int) -> None:
    queue = Queue({"b": weight})
    queue.claim(A, B)
    for _ in range(500):
        queue.claim(A)
    claims = [queue.claim(A, B) for _ in range(2 * (weight + 1))]
    assert abs(claims.count(B) - 2 * weight) <= 1 and claims.index(A) <= weight


@pytest.mark.parametrize("rich", [1, 100])
def test_who_is_new_comes_next(rich: int) -> None:
    """However much weight those have who were there before, and however often they were served."""
    queue = Queue({"a": rich, "rich": rich})
    for _ in range(50):
        queue.claim(A, ("rich", "a"))
    assert queue.claim(A, C, ("rich", "a"), ("new", "a")) == ("new", "a")
    claims = [queue.claim(A, C) for _ in range(2)]
    assert C in claims


def test_a_new_weight_counts_from_the_next_claim() -> None:
    queue = Queue({"a": 1})
    before = [queue.claim(A, B) for _ in range(10)]
    queue.weights["a"] = 4
    after = [queue.claim(A, B) for _ in range(50)]
    assert (before.count(A), after.count(A)) == (5, 40)


def copies(db: Database, job_id: str, number: int) -> list[str]:
    """More queued jobs like one that was submitted."""
    made = [f"{job_id}_{each:03d}" for each in range(number)]
    jobs = table_of(Job)
    with db.write() as session:
        row = dict(session.execute(select(jobs).where(jobs.c.id == job_id)).one()._mapping)
        session.execute(insert(jobs), [row | {"id": each, "idempotency_key": each} for each in made])
    return made


def claimed(db: Database, count: int) -> list[str]:
    """The next jobs; each has ended before the next one is claimed."""
    found = []
    for _ in range(count):
        held = claim_next(db, NO_RECORDS, "w", 30.0, BOTH)
        assert held is not None
        found.append(held.job_id)
        with db.write() as session:
            session.execute(update(Job).where(Job.id == held.job_id).values(status="cancelled"))
    return found


def keys_of(db: Database, weights: list[int]) -> list[str]:
    with db.write() as session:
        keys = [add_key(session, "analyst") for _ in weights]
        for key, weight in zip(keys, weights, strict=True):
            session.execute(update(ApiKey).where(ApiKey.id == key).values(weight=weight))
    return keys


def test_forty_claims_of_weights_three_and_one(db: Database, submit: Submit) -> None:
    dataset, keys = add_dataset(db), keys_of(db, [3, 1])
    for key in keys:
        copies(db, submit(dataset, key, **CHEAP), 39)
    taken = claimed(db, 40)
    with db.read() as session:
        of = {row[0]: row[1] for row in session.execute(select(Job.id, Job.key_id))}
        latest = max(row.turn for row in session.scalars(select(ClaimTurn)))
    assert [Counter(of[job] for job in taken)[key] for key in keys] == [30, 10]
    assert latest == 40


def test_a_flood_delays_nobody_and_costs_no_more(db: Database, submit: Submit) -> None:
    """200 jobs of a key of the largest weight, and then one of another: it is the next, and so is one of another owner.
    The two claims send as many statements as the same two without the flood."""
    dataset, keys = add_dataset(db), keys_of(db, [100, 1, 1])
    first = submit(dataset, keys[0], **CHEAP)
    sent: list[str] = []
    event.listen(db.engine, "before_cursor_execute", lambda _c, _k, text, *_: sent.append(text))

    def claim_others(key: str) -> set[str]:
        """Submits and claims a job of another key, and one elsewhere; `sent` has the claims' statements."""
        others = {submit(dataset, key, "other", **CHEAP), submit(add_dataset(db), "", "elsewhere", **CHEAP)}
        sent.clear()
        assert set(claimed(db, 2)) == others
        return others

    claimed(db, 1)
    claim_others(keys[1])
    alone = len(sent)
    flood = copies(db, submit(dataset, keys[0], "flood", **CHEAP), 200)
    claimed(db, 10)
    others = claim_others(keys[2])
    assert len(sent) <= alone
    assert claimed(db, 1)[0] in flood and first not in others


def test_priorities_order_the_jobs_of_one_key_alone(db: Database, submit: Submit) -> None:
    dataset, (mine, yours) = add_dataset(db), keys_of(db, [1, 1])
    asked = {"low": -3, "first": 0, "second": 0, "high": 10}
    jobs = {name: submit(dataset, mine, name, priority=level, **CHEAP) for name, level in asked.items()}
    others = [submit(dataset, yours, once, priority=-10, **CHEAP) for once in ("one", "two")]
    wanted = [jobs["high"], others[0], jobs["first"], others[1], jobs["second"], jobs["low"]]
    assert claimed(db, 6) == wanted


@pytest.mark.parametrize("bad", [{"weight": 0}, {"weight": -1}, {"weight": 101}, {"max_priority": 11}])
def test_the_database_refuses_what_the_api_does(db: Database, bad: dict[str, int]) -> None:
    with db.write() as session:
        key = add_key(session, "analyst")
    with pytest.raises(IntegrityError), db.write() as session:
        session.execute(update(ApiKey).where(ApiKey.id == key).values(bad))
