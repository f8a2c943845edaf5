"""Sub-accounts bound what keys use, in the transaction of the data set's own hold."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from sqlalchemy import update

from app.budgets import service
from app.budgets.schemas import BudgetSetting
from app.db.database import Database
from app.db.models import ApiKey, Job, LedgerEntry, SubAccount
from app.keys.service import Caller
from app.ledger import accounts, sub_accounts
from app.ledger.accounts import HoldTerms
from app.ledger.memos import HeldFor
from app.ledger.verification import verify
from core.errors import BudgetError, Conflict, PrivacyError
from core.ids import new_id, now
from tests.ledger.support import OWNER, add_job, add_owner, balances, open_ledger

WORKERS = 4


@pytest.fixture
def dataset(db: Database) -> str:
    add_owner(db)
    return open_ledger(db)


def add_key(db: Database) -> str:
    key_id = new_id("key")
    with db.write() as session:
        fields: dict[str, Any] = {"created_at": now(), "created_by": None, "revoked_at": None}
        session.add(ApiKey(id=key_id, name=key_id, role="analyst", secret_hmac="00", **fields))
    return key_id


def give(db: Database, dataset: str, name: str, epsilon: float, *keys: str) -> int:
    """Sets a budget; returns its units."""
    caller = Caller(OWNER, "owner", "admin")
    with db.write() as session:
        known = session.get(SubAccount, (dataset, name))
        asked = BudgetSetting(epsilon=epsilon, keys=list(keys) or None)
        view = service.put(session, caller, dataset, name, asked, None if known is None else "*")
    return view.accounts.train.budget


def hold(
    db: Database, dataset: str, job: str, key: str, train: int, holdout: int = 0, study: int | None = None
) -> LedgerEntry:
    with db.write() as session:
        return accounts.hold(
            session,
            dataset_id=dataset,
            job_id=job,
            train=train,
            holdout=holdout,
            actor=key,
            memo=HeldFor(epsilon=None, study=study),
        )


def post(db: Database, dataset: str, job: str, train: int, holdout: int = 0) -> None:
    with db.write() as session:
        accounts.post(session, dataset_id=dataset, job_id=job, train=train, holdout=holdout, actor="worker")


def test_a_key_spends_within_its_own_sub_account(db: Database, dataset: str) -> None:
    ann, bob, eve = add_key(db), add_key(db), add_key(db)
    other = open_ledger(db)
    for each, key in ((dataset, ann), (dataset, eve), (other, ann)):
        give(db, each, key, 1.0)
    with db.read() as session:
        own = sub_accounts.of_key(session, dataset, ann)
        assert own is not None and own.name == ann
        assert sub_accounts.of_key(session, dataset, bob) is None
        for key, on in ((ann, [dataset, other]), (eve, [dataset]), (bob, [])):
            found = sub_accounts.of_key_on(session, [dataset, other], key)
            assert {each: (share.dataset_id, share.name) for each, share in found.items()} == {
                each: (each, key) for each in on
            }


def of(db: Database, dataset: str, name: str) -> tuple[int, int, int, int]:
    """(train spent, train held, hold-out spent, hold-out held)."""
    with db.read() as session:
        found = session.get_one(SubAccount, (dataset, name))
        return found.train_spent, found.train_held, found.holdout_spent, found.holdout_held


def is_valid(db: Database, dataset: str) -> bool:
    with db.read() as session:
        return verify(session, dataset).valid


@pytest.mark.parametrize("account", ["train", "holdout"])
def test_what_is_spent_and_what_is_held_both_count_in_a_budget(db: Database, dataset: str, account: str) -> None:
    """The hold on the budget alone, without the account's: to the last unit, and not one more."""
    ann = add_key(db)
    units = give(db, dataset, ann, 1.0)
    hold(db, dataset, "job_1", ann, 7, 7)
    post(db, dataset, "job_1", 7, 7)
    hold(db, dataset, "job_2", ann, 11, 11)
    left = units - 7 - 11
    with db.write() as session:
        share = sub_accounts.of_key(session, dataset, ann)
        assert share is not None and sub_accounts.remaining_of(share) == {"train": left, "holdout": left}
        for more, fits in ((1, False), (0, True)):
            amounts = (left + more, 0) if account == "train" else (0, left + more)
            assert sub_accounts.hold(session, share, amounts) is fits
    held = (11 + left, 11) if account == "train" else (11, 11 + left)
    assert of(db, dataset, ann) == (7, held[0], 7, held[1])


def test_a_key_cannot_hold_more_than_its_budget(db: Database, dataset: str) -> None:
    ann, ben = add_key(db), add_key(db)
    units = give(db, dataset, ann, 1.0)
    entry = hold(db, dataset, "job_1", ann, units - 5, 3)
    with db.read() as session:
        assert entry.memo["budget"] == session.get_one(SubAccount, (dataset, ann)).id  # its name is not for all
    assert of(db, dataset, ann) == (0, units - 5, 0, 3)
    before = balances(db, dataset)
    with pytest.raises(BudgetError) as refused:
        hold(db, dataset, "job_2", ann, 6)
    said = refused.value.members
    assert said["budget"] == ann and said["remaining"] == {"train": 5, "holdout": units - 3}
    assert said["account"] == "train" and f"the budget {ann!r}" in refused.value.message
    assert balances(db, dataset) == before and of(db, dataset, ann) == (0, units - 5, 0, 3)
    assert "budget" not in hold(db, dataset, "job_3", ben, 6).memo  # ben has none: the cap alone bounds it
    hold(db, dataset, "job_4", ann, 5)
    assert is_valid(db, dataset)


def test_a_budget_is_used_to_its_last_unit_on_each_account(db: Database, dataset: str) -> None:
    ann = add_key(db)
    units = give(db, dataset, ann, 1.0)
    for amounts, binds in (((units + 1, 0), "train"), ((0, units + 1), "holdout")):
        with pytest.raises(BudgetError) as refused:
            hold(db, dataset, "job_1", ann, *amounts)
        assert refused.value.members["account"] == binds
    hold(db, dataset, "job_1", ann, units, units)
    assert of(db, dataset, ann) == (0, units, 0, units)


def test_where_the_cap_and_a_budget_refuse_the_smaller_is_named(db: Database, dataset: str) -> None:
    ann = add_key(db)
    units = give(db, dataset, ann, 1.0)
    with pytest.raises(BudgetError) as refused:
        hold(db, dataset, "job_1", ann, balances(db, dataset)["train"]["budget"] + 1)
    said = refused.value.members
    assert said["budget"] == ann and said["remaining"] == {"train": units, "holdout": units}


def test_the_cap_binds_before_a_budget(db: Database, dataset: str) -> None:
    ann = add_key(db)
    units = give(db, dataset, ann, 4.0)
    assert units == balances(db, dataset)["train"]["budget"]
    hold(db, dataset, "job_1", OWNER, units - 10)
    with pytest.raises(BudgetError) as refused:
        hold(db, dataset, "job_2", ann, 11)
    assert refused.value.members["budget"] is None and refused.value.members["remaining"]["train"] == 10
    assert of(db, dataset, ann) == (0, 0, 0, 0)


def test_what_was_not_used_goes_back_to_the_budget_that_paid(db: Database, dataset: str) -> None:
    """Also after the key was moved to another budget."""
    ann, ben = add_key(db), add_key(db)
    give(db, dataset, "team", 1.0, ann, ben)
    hold(db, dataset, "job_1", ann, 100, 10)
    hold(db, dataset, "job_2", ben, 50)
    give(db, dataset, "team", 1.0, ben)
    give(db, dataset, ann, 2.0)
    post(db, dataset, "job_1", 30, 10)
    assert of(db, dataset, "team") == (30, 50, 10, 0) and of(db, dataset, ann) == (0, 0, 0, 0)
    with db.write() as session:
        accounts.void(session, dataset_id=dataset, job_id="job_2", actor="worker")
    assert of(db, dataset, "team") == (30, 0, 10, 0)
    post(db, dataset, "job_1", 30, 10)  # once
    assert of(db, dataset, "team") == (30, 0, 10, 0)
    assert is_valid(db, dataset)


def test_a_closed_budget_takes_refunds_and_forgets_nothing(db: Database, dataset: str) -> None:
    ann = add_key(db)
    give(db, dataset, ann, 1.0)
    hold(db, dataset, "job_1", ann, 100)
    with db.write() as session:
        service.close(session, Caller(OWNER, "owner", "admin"), dataset, ann, "*")
    assert "budget" not in hold(db, dataset, "job_2", ann, 1).memo
    post(db, dataset, "job_1", 60)
    assert of(db, dataset, ann) == (60, 0, 0, 0)
    give(db, dataset, ann, 1.0, ann)
    assert of(db, dataset, ann) == (60, 0, 0, 0)  # closing and making it again is no refresh
    assert is_valid(db, dataset)


def test_a_study_draws_on_the_budget_of_its_hold(db: Database, dataset: str) -> None:
    ann = add_key(db)
    units = give(db, dataset, ann, 1.0)
    with db.write() as session:
        study = add_job(session, dataset)
        trial = add_job(session, dataset)
        session.execute(update(Job).where(Job.id == trial).values(parent_id=study, trial_number=0))
    hold(db, dataset, study, ann, units, 8, study=1)
    with db.write() as session:
        named = {"dataset_id": dataset, "job_id": trial, "study_id": study}
        accounts.draw(session, **named, train=40, holdout=8, actor="worker")
    assert of(db, dataset, ann) == (40, units - 40, 8, 0)
    post(db, dataset, study, 2)
    assert of(db, dataset, ann) == (42, 0, 8, 0)
    assert is_valid(db, dataset)


def test_a_restore_or_a_join_uses_no_key_s_budget(db: Database, dataset: str) -> None:
    give(db, dataset, OWNER, 1.0)
    with db.write() as session:
        entry = accounts.hold_on(session, dataset, HoldTerms("ds_1", 5 * 10**11, 0, OWNER, within=False))
    assert "budget" not in entry.memo and of(db, dataset, OWNER) == (0, 0, 0, 0)


def test_balances_that_were_changed_from_outside_are_found(db: Database, dataset: str) -> None:
    ann = add_key(db)
    give(db, dataset, ann, 1.0)
    hold(db, dataset, "job_1", ann, 100)
    with db.write() as session:
        session.execute(update(SubAccount).where(SubAccount.dataset_id == dataset).values(train_held=99))
    with db.read() as session:
        found = verify(session, dataset)
    assert not found.valid and found.problem is not None and "sub-account" in found.problem
    with pytest.raises(PrivacyError, match="changed from outside"):
        post(db, dataset, "job_1", 1)


@pytest.mark.parametrize("has_holdout", [True, False])
def test_a_hold_out_s_budget_follows_from_whether_there_is_one(db: Database, has_holdout: bool) -> None:
    add_owner(db)
    dataset = open_ledger(db, holdout=has_holdout)
    units = give(db, dataset, add_key(db), 1.0)
    assert is_valid(db, dataset)
    with db.write() as session:
        session.execute(update(SubAccount).values(holdout_budget=0 if has_holdout else units))
    assert not is_valid(db, dataset)


def test_racing_keys_of_one_team_hold_exactly_what_fits(db: Database, dataset: str) -> None:
    """Twice what the team may use is tried, beside a key that the team does not bound, and settlements.

    Claim: the keys of a team hold exactly what its budget fits, in a race and within the cap
    Now: exact, on both databases
    """
    team, free = [add_key(db) for _ in range(WORKERS)], add_key(db)
    units = give(db, dataset, "team", 1.0, *team)
    amount = units // 12

    def try_holds(worker: int) -> int:
        taken = 0
        for number in range(6):
            job = f"job_{worker}_{number}"
            hold(db, dataset, f"free_{worker}_{number}", free, 3, 1)
            try:
                hold(db, dataset, job, team[worker], amount, amount)
            except BudgetError:
                continue
            taken += 1
            if number % 2:
                post(db, dataset, job, amount, amount)
        return taken

    with ThreadPoolExecutor(WORKERS) as pool:
        assert sum(pool.map(try_holds, range(WORKERS))) == 12
    spent, held, spent_out, held_out = of(db, dataset, "team")
    assert spent + held == spent_out + held_out == 12 * amount <= units
    assert balances(db, dataset)["train"]["held"] == held + 3 * 6 * WORKERS
    assert is_valid(db, dataset)


def test_a_budget_that_shrinks_in_a_race_is_never_overspent(db: Database, dataset: str) -> None:
    ann = add_key(db)
    units = give(db, dataset, ann, 1.0)

    def try_hold(number: int) -> None:
        try:
            hold(db, dataset, f"job_{number}", ann, units // 10)
        except BudgetError:
            return

    def shrink(_number: int) -> None:
        try:
            give(db, dataset, ann, 0.5)
        except Conflict as error:
            assert error.code == "budget-too-low"

    with ThreadPoolExecutor(WORKERS) as pool:
        list(pool.map(lambda each: (shrink if each % 5 == 4 else try_hold)(each), range(20)))
    with db.read() as session:
        found = session.get_one(SubAccount, (dataset, ann))
        assert found.train_spent + found.train_held <= found.train_budget
    assert is_valid(db, dataset)


@pytest.mark.parametrize(
    "changed", [{"train_budget": 10**15}, {"holdout_budget": 10**15}, {"epsilon": 3.0}, {"epsilon": -1.0}]
)
def test_a_limit_that_was_changed_from_outside_is_found(db: Database, dataset: str, changed: dict[str, Any]) -> None:
    ann = add_key(db)
    give(db, dataset, ann, 1.0)
    assert is_valid(db, dataset)
    with db.write() as session:
        session.execute(update(SubAccount).where(SubAccount.dataset_id == dataset).values(**changed))
    with db.read() as session:
        found = verify(session, dataset)
    assert not found.valid and found.problem is not None and "from its ε" in found.problem and ann not in found.problem
