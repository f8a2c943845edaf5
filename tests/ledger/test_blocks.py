"""Jobs on several blocks: the same cost on each or on none, whatever races, and what is read is what is held on."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import update

from app.db.database import Database
from app.db.models import Account, Dataset, Job
from app.ledger import accounts, block_accounts, joining
from app.ledger.memos import HeldFor
from core.errors import BudgetError, Conflict, PrivacyError
from core.ids import new_id
from tests.chaos.tamper import unprotected
from tests.ledger.support import OWNER, add_job, balances, check, hold, open_ledger

WORKERS = 4
EACH = 6  # tries of each worker


@pytest.fixture
def named() -> dict[str, str]:
    """Ids of jobs, which no other test's ledgers know: what a job holds on is asked of all of them."""
    return defaultdict(lambda: new_id("job"))


def hold_all(db: Database, ids: list[str], job_id: str, train: int, holdout: int = 0) -> None:
    with db.write() as session:
        block_accounts.hold_all(session, ids, job_id=job_id, train=train, holdout=holdout, actor=OWNER)


def taken(db: Database, dataset_id: str) -> int:
    of = balances(db, dataset_id)["train"]
    return of["spent"] + of["held"]


def test_two_orders_of_the_same_blocks_race_without_deadlock_or_overspending(db: Database) -> None:
    a, b = open_ledger(db), open_ledger(db)
    amount = balances(db, a)["train"]["budget"] // 10
    hold(db, b, "before", 3 * amount)  # the last block of both orders is the narrow one
    start, batch = threading.Barrier(WORKERS), new_id("job")

    def run(worker: int) -> int:
        start.wait(300)
        fit = 0
        for number in range(EACH):
            try:
                hold_all(db, [a, b] if worker % 2 else [b, a], f"{batch}_{worker}_{number}", amount)
            except BudgetError as refusal:
                assert refusal.members["dataset"] == b
                continue
            fit += 1
        return fit

    with ThreadPoolExecutor(WORKERS) as pool:
        assert sum(pool.map(run, range(WORKERS))) == 7
    assert (taken(db, a), taken(db, b)) == (7 * amount, 10 * amount)
    assert check(db, a).valid and check(db, b).valid


def test_jobs_and_settlements_on_overlapping_blocks_race(db: Database) -> None:
    a, b, c = (open_ledger(db) for _ in range(3))
    start, batch = threading.Barrier(WORKERS), new_id("job")
    ways = [[a, b], [b, c], [c, a], [a, b, c]]

    def run(worker: int) -> None:
        start.wait(300)
        for number in range(EACH):
            job_id = f"{batch}_{worker}_{number}"
            hold_all(db, ways[worker], job_id, 100, 10)
            with db.write() as session:
                block_accounts.post_all(session, job_id, train=60, holdout=10, actor="worker")

    with ThreadPoolExecutor(WORKERS) as pool:
        list(pool.map(run, range(WORKERS)))
    for each in (a, b, c):
        found = balances(db, each)
        assert (found["train"]["spent"], found["train"]["held"]) == (3 * EACH * 60, 0)
        assert check(db, each).valid


def test_a_refusal_on_the_last_block_leaves_the_first_untouched(db: Database, named: dict[str, str]) -> None:
    a, b = sorted((open_ledger(db), open_ledger(db)))
    budget = balances(db, b)["train"]["budget"]
    hold(db, b, "before", budget - 9)
    before = balances(db, a), check(db, a).entries
    with db.write() as session:  # the caller catches it and commits
        with pytest.raises(BudgetError) as refusal:
            block_accounts.hold_all(session, [a, b], job_id=named["job_1"], train=10, holdout=0, actor=OWNER)
        assert refusal.value.members["remaining"]["train"] == 9
    assert (balances(db, a), check(db, a).entries) == before
    hold_all(db, [a, b], named["job_1"], 9)


def test_a_rewound_or_edited_block_refuses_the_whole_hold(db: Database, named: dict[str, str]) -> None:
    a, b = sorted((open_ledger(db), open_ledger(db)))
    hold(db, b, "before", 100)
    with unprotected(db) as session:
        session.execute(update(Account).where(Account.dataset_id == b).values(train_held=0))
    with db.write() as session, pytest.raises(Conflict) as refusal:
        block_accounts.hold_all(session, [a, b], job_id=named["job_1"], train=10, holdout=0, actor=OWNER)
    assert refusal.value.code == "ledger-behind"
    assert taken(db, a) == 0


@pytest.mark.parametrize("ids", [[], ["a", "a"]])
def test_no_block_and_one_block_twice_are_refused(db: Database, named: dict[str, str], ids: list[str]) -> None:
    a = open_ledger(db)
    with db.write() as session, pytest.raises(PrivacyError):
        block_accounts.hold_all(session, [a for _ in ids], job_id=named["job_1"], train=10, holdout=0, actor=OWNER)
    assert taken(db, a) == 0


def test_a_settlement_covers_every_block_and_no_other(db: Database, named: dict[str, str]) -> None:
    a, b, c = (open_ledger(db) for _ in range(3))
    hold_all(db, [a, b], named["job_1"], 100, 50)
    hold_all(db, [b, c], named["job_2"], 10)
    with db.write() as session:
        assert block_accounts.left_of_holds(session, named["job_1"]) == (100, 50)
        for _again in range(2):  # at least once, as of a relay
            block_accounts.post_all(session, named["job_1"], train=70, holdout=0, actor="worker")
        block_accounts.void_all(session, named["job_2"], actor="worker")
        with pytest.raises(PrivacyError, match="no hold"):
            block_accounts.post_all(session, named["job_3"], train=1, holdout=0, actor="worker")
        with pytest.raises(PrivacyError, match="differently"):
            block_accounts.post_all(session, named["job_1"], train=71, holdout=0, actor="worker")
    for each, spent in ((a, 70), (b, 70), (c, 0)):
        found = balances(db, each)["train"]
        assert (found["spent"], found["held"]) == (spent, 0)
        assert check(db, each).valid


def test_the_trials_of_a_study_draw_on_every_block(db: Database) -> None:
    a, b = open_ledger(db), open_ledger(db)
    with db.write() as session:
        study = add_job(session, a)
        trial = add_job(session, a, parent_id=study, trial_number=0)
        memo = HeldFor(epsilon=None, study=1)
        block_accounts.hold_all(session, [a, b], job_id=study, train=100, holdout=0, actor=OWNER, memo=memo)
        block_accounts.draw_all(session, trial, study_id=study, train=30, holdout=0, actor="worker")
        assert block_accounts.left_of_holds(session, study) == (70, 0)
        block_accounts.post_all(session, study, train=0, holdout=0, actor="worker")
    for each in (a, b):
        found = balances(db, each)["train"]
        assert (found["spent"], found["held"]) == (30, 0)
        assert check(db, each).valid


@pytest.fixture
def family(db: Database) -> Iterator[tuple[str, str, str]]:
    """A data set, a block of it, and another data set."""
    parent, block, other = (open_ledger(db) for _ in range(3))
    with db.write() as session:
        session.execute(update(Dataset).where(Dataset.id == block).values(parent_id=parent, label="two"))
    yield parent, block, other


def test_a_job_reads_exactly_what_it_holds_on(db: Database, family: tuple[str, str, str]) -> None:
    parent, block, _other = family
    with db.write() as session:
        alone, both, trial_of = (add_job(session, parent) for _ in range(3))
        trial = add_job(session, parent, parent_id=trial_of, trial_number=0)
        for job_id, ids in ((alone, [block]), (both, [parent, block]), (trial_of, [block])):
            block_accounts.hold_all(session, ids, job_id=job_id, train=10, holdout=0, actor=OWNER)

        def read(job_id: str) -> list[str]:
            return [each.id for each in block_accounts.read_by(session, session.get_one(Job, job_id))]

        assert read(alone) == read(trial) == [block]
        assert read(both) == sorted((parent, block))


def test_a_job_without_a_hold_or_with_a_hold_elsewhere_reads_nothing(
    db: Database, family: tuple[str, str, str]
) -> None:
    parent, block, other = family
    with db.write() as session:
        unheld, stray = add_job(session, parent), add_job(session, parent)
        block_accounts.hold_all(session, [block, other], job_id=stray, train=10, holdout=0, actor=OWNER)
        for job_id, because in ((unheld, "no hold"), (stray, "its own data set")):
            with pytest.raises(PrivacyError, match=because):
                block_accounts.read_by(session, session.get_one(Job, job_id))


def test_retiring_frees_nothing(db: Database, named: dict[str, str]) -> None:
    a, b = open_ledger(db), open_ledger(db)
    hold_all(db, [a, b], named["job_1"], 100)
    with db.write() as session:
        joining.close(session, accounts.account_of(session, a), accounts.RETIRED, OWNER, "old")
    with db.write() as session, pytest.raises(BudgetError, match="retired"):
        block_accounts.hold_all(session, [a, b], job_id=named["job_2"], train=1, holdout=0, actor=OWNER)
    assert (taken(db, a), taken(db, b)) == (100, 100)
    with db.write() as session:
        block_accounts.post_all(session, named["job_1"], train=40, holdout=0, actor="worker")
    assert (taken(db, a), taken(db, b)) == (40, 40)
    assert check(db, a).valid and check(db, b).valid


Move = tuple[str, frozenset[int], int]  # what, on which of three blocks, and an amount in percent of a budget
MOVES = st.tuples(
    st.sampled_from(["hold", "post", "void", "retire"]),
    st.frozensets(st.integers(0, 2), min_size=1),
    st.integers(1, 60),
)


@settings(max_examples=10, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(st.lists(MOVES, max_size=12))
def test_random_histories_are_those_of_a_serial_model(db: Database, moves: list[Move]) -> None:
    ids = sorted(open_ledger(db, holdout=False) for _ in range(3))
    budget = balances(db, ids[0])["train"]["budget"]
    spent, retired = [0, 0, 0], set[int]()
    held: dict[str, tuple[frozenset[int], int]] = {}
    for what, on, percent in moves:
        amount, some = percent * budget // 100, next(iter(held), None)
        with db.write() as session:
            if what == "hold":
                job_id, chosen = new_id("job"), [ids[each] for each in on]
                taken_now = [spent[i] + sum(x for where, x in held.values() if i in where) for i in range(3)]
                fits = not on & retired and all(taken_now[each] + amount <= budget for each in on)
                try:
                    block_accounts.hold_all(session, chosen, job_id=job_id, train=amount, holdout=0, actor=OWNER)
                    assert fits
                    held[job_id] = (on, amount)
                except BudgetError:
                    assert not fits
            elif what == "retire":
                for each in on - retired:
                    joining.close(session, accounts.account_of(session, ids[each]), accounts.RETIRED, OWNER, "old")
                retired |= on
            elif some is not None:
                where, was = held.pop(some)
                kept = min(amount, was) if what == "post" else 0
                if what == "post":
                    block_accounts.post_all(session, some, train=kept, holdout=0, actor="worker")
                else:
                    block_accounts.void_all(session, some, actor="worker")
                for each in where:
                    spent[each] += kept
    for place, each in enumerate(ids):
        found = balances(db, each)["train"]
        assert found["spent"] == spent[place]
        assert found["held"] == sum(x for where, x in held.values() if place in where)
        assert check(db, each).valid


def test_a_family_is_a_data_set_and_its_own_blocks(db: Database) -> None:
    first, block, other = (open_ledger(db) for _ in range(3))
    with db.write() as session:
        session.execute(update(Dataset).where(Dataset.id == block).values(parent_id=first, label="two"))
    with db.read() as session:
        assert block_accounts.family_of(session, first) == sorted([first, block])
        assert block_accounts.family_of(session, other) == [other]
        assert block_accounts.lead(session, first).dataset_id == first


def test_a_hold_on_blocks_returns_its_entries_and_names_the_block_that_refuses(db: Database) -> None:
    a, b = sorted(open_ledger(db) for _ in range(2))
    job = new_id("job")
    with db.write() as session:
        entries = block_accounts.hold_all(session, [b, a], job_id=job, train=7, holdout=0, actor=OWNER)
        assert [(each.dataset_id, each.job_id, each.train) for each in entries] == [(a, job, 7), (b, job, 7)]
    hold(db, b, new_id("job"), balances(db, b)["train"]["budget"] - 7)
    with pytest.raises(BudgetError) as refused:
        hold_all(db, [a, b], new_id("job"), 1)
    assert refused.value.members["dataset"] == b and taken(db, a) == 7
