"""Holds, posts, voids and cap changes, one by one."""

from __future__ import annotations

import math
from typing import Any

import pytest
from sqlalchemy import event, select
from sqlalchemy.orm import ORMExecuteState

from app.db.database import Database
from app.db.models import Account, Block, LedgerEntry
from app.ledger import accounts
from app.ledger.memos import HeldFor, Memo
from core.errors import BudgetError, Conflict, InvalidRequest, NotFound, PrivacyError
from core.privacy.mechanism import MechanismConfig
from tests.ledger import support
from tests.ledger.support import DELTA, OWNER, balances, check, hold, open_ledger, post, void


def budget_of(db: Database, dataset_id: str) -> int:
    return balances(db, dataset_id)["train"]["budget"]


def test_open_takes_the_budget_from_the_filter_and_writes_the_first_entry(db: Database) -> None:
    dataset_id = open_ledger(db)
    with db.read() as session:
        account = session.get_one(Account, dataset_id)
        entry = session.scalars(select(LedgerEntry).where(LedgerEntry.dataset_id == dataset_id)).one()
    assert account.train_budget == account.holdout_budget == accounts.filter_for("gdp", None).budget(4.0, DELTA) > 0
    assert (entry.seq, entry.kind, entry.train, entry.holdout) == (
        1,
        "open",
        account.train_budget,
        account.holdout_budget,
    )
    assert entry.memo["unit"] == "mu^2 * 1e-12"
    assert account.head == entry.hash
    assert account.largest_cap_epsilon == 4.0


def test_without_a_private_holdout_its_budget_is_nothing(db: Database) -> None:
    dataset_id = open_ledger(db, holdout=False)
    assert balances(db, dataset_id)["holdout"] == {"budget": 0, "spent": 0, "held": 0}
    with pytest.raises(BudgetError) as refused:
        hold(db, dataset_id, "job_1", 1, 1)
    assert refused.value.members["account"] == "holdout"


@pytest.mark.parametrize(
    "terms", [{"cap_epsilon": math.nan}, {"cap_epsilon": math.inf}, {"cap_epsilon": 0.0}, {"cap_delta": 1.0}]
)
def test_a_cap_that_is_none_is_refused(db: Database, terms: dict[str, float]) -> None:
    with pytest.raises(InvalidRequest):
        open_ledger(db, **terms)


def test_hold_moves_both_accounts_or_neither(db: Database) -> None:
    dataset_id = open_ledger(db)
    budget = budget_of(db, dataset_id)
    hold(db, dataset_id, "job_1", 10, 20)
    before = balances(db, dataset_id)
    assert (before["train"]["held"], before["holdout"]["held"]) == (10, 20)
    with pytest.raises(BudgetError) as refused:
        hold(db, dataset_id, "job_2", 5, budget - 19)
    assert refused.value.members == {
        "requested": {"train": 5, "holdout": budget - 19},
        "remaining": {"train": budget - 10, "holdout": budget - 20},
        "account": "holdout",
        "unit": "mu^2 * 1e-12",
        "budget": None,
    }
    assert balances(db, dataset_id) == before
    hold(db, dataset_id, "job_3", budget - 10, budget - 20)  # to the last unit
    with pytest.raises(BudgetError):
        hold(db, dataset_id, "job_4", 1, 0)
    assert check(db, dataset_id).valid


def test_a_refusal_that_is_caught_inside_the_transaction_leaves_nothing(db: Database) -> None:
    dataset_id = open_ledger(db)
    hold(db, dataset_id, "job_1", 5)
    before = balances(db, dataset_id)
    with db.write() as session:
        for job_id, train, error in (("job_2", 2**62, BudgetError), ("job_1", 5, PrivacyError)):
            with pytest.raises(error):
                accounts.hold(session, dataset_id=dataset_id, job_id=job_id, train=train, holdout=0, actor=OWNER)
    assert balances(db, dataset_id) == before
    assert check(db, dataset_id).valid
    assert check(db, dataset_id).entries == 2


@pytest.mark.parametrize("train", [2**62, 2**63 - 1, 2**63, 10**30])
def test_amounts_past_a_database_integer_are_refused_as_too_dear(db: Database, train: int) -> None:
    dataset_id = open_ledger(db)
    hold(db, dataset_id, "job_1", 1)
    with pytest.raises(BudgetError) as refused:
        hold(db, dataset_id, "job_2", train)
    assert refused.value.members["requested"] == {"train": train, "holdout": 0}


@pytest.mark.parametrize("amount", [-1, 1.0, math.nan, math.inf, True, "1", None])
def test_amounts_that_are_no_counts_are_refused(db: Database, amount: Any) -> None:
    dataset_id = open_ledger(db)
    hold(db, dataset_id, "job_1", 5, 5)
    for train, holdout in ((amount, 1), (1, amount)):
        with pytest.raises(PrivacyError):
            hold(db, dataset_id, "job_2", train, holdout)
        with pytest.raises(PrivacyError):
            post(db, dataset_id, "job_1", train, holdout)
    assert check(db, dataset_id).entries == 2


def test_a_hold_of_nothing_is_refused(db: Database) -> None:
    with pytest.raises(PrivacyError):
        hold(db, open_ledger(db), "job_1", 0, 0)


def test_public_data_have_no_ledger(db: Database) -> None:
    with db.write() as session:
        dataset_id = support.add_dataset(session, sensitivity="public")
    with pytest.raises(NotFound):
        hold(db, dataset_id, "job_1", 1)
    with pytest.raises(NotFound):
        check(db, dataset_id)


def test_a_cap_may_be_exactly_what_is_spent_and_held(db: Database) -> None:
    dataset_id = open_ledger(db)
    least = accounts.filter_for("gdp", None).budget(2.0, DELTA)
    terms: dict[str, Any] = {"dataset_id": dataset_id, "cap_epsilon": 2.0, "actor": OWNER, "reason": "a smaller cap"}
    hold(db, dataset_id, "job_1", least + 1, least)
    with pytest.raises(Conflict), db.write() as session:
        accounts.change_cap(session, **terms)
    post(db, dataset_id, "job_1", least, least)
    with db.write() as session:
        accounts.change_cap(session, **terms)
    found = balances(db, dataset_id)
    assert found["train"] == found["holdout"] == {"budget": least, "spent": least, "held": 0}


def test_an_account_that_was_just_opened_knows_its_head(db: Database) -> None:
    terms: dict[str, Any] = {"privacy_filter": accounts.filter_for("gdp", None), "cap_epsilon": 1.0, "cap_delta": DELTA}
    with db.write() as session:
        dataset_id = support.add_dataset(session)
        account = accounts.open_account(session, dataset_id=dataset_id, has_holdout=True, actor=OWNER, **terms)
        assert account.head == session.get_one(LedgerEntry, (dataset_id, 1)).hash


def test_a_refusal_names_the_account_that_binds(db: Database) -> None:
    dataset_id = open_ledger(db)
    budget = budget_of(db, dataset_id)
    hold(db, dataset_id, "job_1", budget - 5, budget - 5)
    for amounts, binds in (((5, 6), "holdout"), ((6, 5), "train"), ((6, 6), "train")):
        with pytest.raises(BudgetError) as refused:
            hold(db, dataset_id, "job_2", *amounts)
        assert refused.value.members["account"] == binds


def test_a_trial_may_draw_all_that_is_left_and_no_more(db: Database) -> None:
    dataset_id = open_ledger(db)
    with db.write() as session:
        study = support.add_job(session, dataset_id)
        runs = [support.add_job(session, dataset_id, parent_id=study) for _ in range(2)]
        terms: dict[str, Any] = {"dataset_id": dataset_id, "actor": OWNER}
        accounts.hold(session, job_id=study, train=10, holdout=20, memo=HeldFor(epsilon=None, study=1), **terms)
        for amounts in ((11, 0), (0, 21), (-1, 0), (0, 1.0)):
            with pytest.raises(PrivacyError):
                accounts.draw(session, job_id=runs[0], study_id=study, train=amounts[0], holdout=amounts[1], **terms)
        accounts.draw(session, job_id=runs[0], study_id=study, train=10, holdout=20, **terms)
        assert accounts.left_of_hold(session, dataset_id, study) == (0, 0)
        with pytest.raises(PrivacyError):
            accounts.draw(session, job_id=runs[1], study_id=study, train=1, holdout=0, **terms)
    assert check(db, dataset_id).valid


def test_post_spends_and_releases_the_rest(db: Database) -> None:
    dataset_id = open_ledger(db)
    hold(db, dataset_id, "job_1", 10, 20)
    post(db, dataset_id, "job_1", 4, 20)
    after = balances(db, dataset_id)
    assert (after["train"]["spent"], after["train"]["held"]) == (4, 0)
    assert (after["holdout"]["spent"], after["holdout"]["held"]) == (20, 0)
    with db.read() as session:
        entry = accounts.find(session, dataset_id, "settle:job_1")
    assert entry is not None
    assert (entry.train_released, entry.holdout_released) == (6, 0)
    assert check(db, dataset_id).valid


@pytest.mark.parametrize(("train", "holdout"), [(11, 0), (0, 21), (11, 21)])
def test_post_is_at_most_the_hold(db: Database, train: int, holdout: int) -> None:
    dataset_id = open_ledger(db)
    hold(db, dataset_id, "job_1", 10, 20)
    hold(db, dataset_id, "job_2", 100, 100)  # room that is not this job's
    with pytest.raises(PrivacyError):
        post(db, dataset_id, "job_1", train, holdout)
    assert balances(db, dataset_id)["train"] == {"budget": budget_of(db, dataset_id), "spent": 0, "held": 110}


def test_a_job_is_settled_once(db: Database) -> None:
    dataset_id = open_ledger(db)
    hold(db, dataset_id, "job_1", 10, 20)
    seq = post(db, dataset_id, "job_1", 4, 5)
    after = balances(db, dataset_id)
    assert post(db, dataset_id, "job_1", 4, 5) == seq
    for again in (lambda: post(db, dataset_id, "job_1", 4, 6), lambda: void(db, dataset_id, "job_1")):
        with pytest.raises(PrivacyError):
            again()
    with pytest.raises(PrivacyError):
        hold(db, dataset_id, "job_1", 1, 1)
    assert balances(db, dataset_id) == after


def test_void_gives_everything_back_once(db: Database) -> None:
    dataset_id = open_ledger(db)
    hold(db, dataset_id, "job_1", 10, 20)
    seq = void(db, dataset_id, "job_1")
    assert void(db, dataset_id, "job_1") == seq
    assert balances(db, dataset_id)["train"] | {"budget": 0} == {"budget": 0, "spent": 0, "held": 0}
    with pytest.raises(PrivacyError):
        post(db, dataset_id, "job_1", 1)
    assert check(db, dataset_id).valid


def test_settling_needs_a_hold(db: Database) -> None:
    dataset_id, other = open_ledger(db), open_ledger(db)
    hold(db, other, "job_1", 10)
    for settle in (lambda: post(db, dataset_id, "job_1", 1), lambda: void(db, dataset_id, "job_1")):
        with pytest.raises(PrivacyError):
            settle()


@pytest.mark.parametrize(("last_step", "may"), [(0, True), (1, False)])
def test_void_is_refused_once_a_private_step_was_started(db: Database, last_step: int, may: bool) -> None:
    dataset_id = open_ledger(db)
    with db.write() as session:
        job_id = support.add_job(session, dataset_id)
        session.add(Block(job_id=job_id, attempt=1, salt="00", first_step=last_step, last_step=last_step, digest=None))
    hold(db, dataset_id, job_id, 10)
    if may:
        void(db, dataset_id, job_id)
        return
    with pytest.raises(PrivacyError):
        void(db, dataset_id, job_id)
    assert balances(db, dataset_id)["train"]["held"] == 10


def change_cap(db: Database, dataset_id: str, epsilon: float) -> None:
    with db.write() as session:
        accounts.change_cap(session, dataset_id=dataset_id, cap_epsilon=epsilon, actor=OWNER, reason="a test")


def test_the_cap_is_raised_and_lowered_and_its_largest_is_remembered(db: Database) -> None:
    dataset_id = open_ledger(db)
    of = accounts.filter_for("gdp", None)
    for epsilon in (6.0, 2.0):
        change_cap(db, dataset_id, epsilon)
        assert budget_of(db, dataset_id) == of.budget(epsilon, DELTA) == balances(db, dataset_id)["holdout"]["budget"]
    with db.read() as session:
        account = session.get_one(Account, dataset_id)
        assert (account.cap_epsilon, account.largest_cap_epsilon) == (2.0, 6.0)
    assert check(db, dataset_id).valid


def test_the_cap_can_not_go_below_what_is_spent_and_held(db: Database) -> None:
    dataset_id = open_ledger(db)
    low = accounts.filter_for("gdp", None).budget(1.0, DELTA)
    hold(db, dataset_id, "job_1", low // 2, low + 1)
    before = balances(db, dataset_id)
    with pytest.raises(Conflict) as refused:
        change_cap(db, dataset_id, 1.0)
    assert refused.value.code == "cap-too-low"
    assert refused.value.members["smallest_epsilon"] == pytest.approx(1.0, rel=1e-6)
    assert balances(db, dataset_id) == before
    post(db, dataset_id, "job_1", low // 2, low)
    change_cap(db, dataset_id, 1.0)  # exactly what is spent
    assert check(db, dataset_id).valid


def test_a_memo_that_is_not_finite_json_is_refused_and_nothing_is_moved(db: Database) -> None:
    dataset_id = open_ledger(db)
    with db.write() as session, pytest.raises(PrivacyError):
        memo = Memo.model_construct(cap_epsilon=math.nan)
        accounts.hold(session, dataset_id=dataset_id, job_id="job_1", train=1, holdout=1, actor=OWNER, memo=memo)
    assert balances(db, dataset_id)["train"]["held"] == 0


def test_a_lock_is_of_the_account_s_own_row(db: Database) -> None:
    """SQLite has no row locks: what is selected for the lock tells whose row PostgreSQL locks."""
    mine, _other, _third = (open_ledger(db) for _ in range(3))
    selected: list[list[Any]] = []

    def select_rows(state: ORMExecuteState) -> Any:
        frozen = state.invoke_statement().freeze()
        selected.append([tuple(row) for row in frozen().all()])
        return frozen()

    with db.write() as session:
        event.listen(session, "do_orm_execute", select_rows)
        accounts.lock(session, mine)
    assert selected == [[(mine,)]]


# σ = 26.380 over 50 full-batch steps: μ² = 50/26.380², and what a budget of ε = 4 leaves of it.
def test_golden_amounts_under_gdp(db: Database) -> None:
    of = accounts.filter_for("gdp", None)
    budget = of.budget(1.0, DELTA)
    assert of.epsilon(budget, DELTA) <= 1.0
    assert of.epsilon(budget + 1, DELTA) > 1.0 - 1e-9
    assert math.sqrt(budget * 1e-12) == pytest.approx(math.sqrt(50) / 26.380, rel=1e-4)


# Jobs of σ = 2.002 (n = 50,000, batch 512, T = 1954) at δ = 1e-5.
@pytest.mark.parametrize(("cap", "order", "jobs"), [(3.0, 6.0, 7), (8.0, 4.0, 42), (8.0, 6.0, 35)])
def test_golden_number_of_jobs_under_rdp(db: Database, cap: float, order: float, jobs: int) -> None:
    dataset_id = open_ledger(db, filter_kind="rdp", order=order, cap_epsilon=cap, holdout=False)
    mechanism = MechanismConfig.model_validate(
        {
            "target_delta": DELTA,
            "training": {
                "sampling": "poisson",
                "sample_rate": 512 / 50_000,
                "steps": 1954,
                "noise_multiplier": 2.002,
                "max_grad_norm": 1.0,
                "clipping": "flat",
                "expected_batch_size": 512,
            },
        }
    )
    charge = accounts.filter_for("rdp", order).charge(mechanism, "train")
    for number in range(jobs):
        hold(db, dataset_id, f"job_{number}", charge)
    with pytest.raises(BudgetError):
        hold(db, dataset_id, "job_last", charge)
