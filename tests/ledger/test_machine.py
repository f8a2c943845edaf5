"""The ledger against a serial model, under random histories of holds, settlements, repeats, cap changes."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test
from sqlalchemy import func, select

from app.db.database import Database
from app.db.models import LedgerEntry
from app.ledger import accounts
from core.errors import BudgetError, Conflict, PrivacyError
from tests.ledger.support import DELTA, OWNER, balances, check, hold, open_ledger, post, void

Amounts = tuple[int, int]
# In hundredths of the first budget: histories fill it up within a few steps.
SHARES = st.tuples(st.integers(0, 40), st.integers(0, 40))
SLACK = st.integers(-1, 1)  # one unit more or less: both sides of every bound


class LedgerMachine(RuleBasedStateMachine):
    db: Database

    @initialize(holdout=st.booleans())
    def open(self, holdout: bool) -> None:
        self.dataset_id = open_ledger(self.db, holdout=holdout)
        self.has_holdout = holdout
        self.budget = balances(self.db, self.dataset_id)["train"]["budget"]
        self.unit = self.budget // 100
        self.held: dict[str, Amounts] = {}
        self.settled: dict[str, tuple[str, Amounts]] = {}
        self.spent: Amounts = (0, 0)
        self.entries = 1
        self.numbers = itertools.count(1)

    def budgets(self) -> Amounts:
        return (self.budget, self.budget if self.has_holdout else 0)

    def taken(self) -> Amounts:
        return (
            self.spent[0] + sum(train for train, _ in self.held.values()),
            self.spent[1] + sum(holdout for _, holdout in self.held.values()),
        )

    @rule(shares=SHARES, slack=SLACK)
    def hold(self, shares: Amounts, slack: int) -> None:
        train, holdout = shares[0] * self.unit + max(0, slack), shares[1] * self.unit if self.has_holdout else 0
        self._hold(train, holdout)

    @rule(slack=SLACK)
    def hold_what_is_left(self, slack: int) -> None:
        budgets, taken = self.budgets(), self.taken()
        self._hold(max(0, budgets[0] - taken[0] + slack), max(0, budgets[1] - taken[1] + min(slack, 0)))

    def _hold(self, train: int, holdout: int) -> None:
        job_id = f"job_{next(self.numbers)}"
        budgets, taken = self.budgets(), self.taken()
        if train == holdout == 0:
            with pytest.raises(PrivacyError):
                hold(self.db, self.dataset_id, job_id, train, holdout)
        elif taken[0] + train > budgets[0] or taken[1] + holdout > budgets[1]:
            with pytest.raises(BudgetError) as refused:
                hold(self.db, self.dataset_id, job_id, train, holdout)
            left = {"train": budgets[0] - taken[0], "holdout": budgets[1] - taken[1]}
            assert refused.value.members["remaining"] == left
            assert refused.value.members["account"] == ("train" if train > left["train"] else "holdout")
        else:
            hold(self.db, self.dataset_id, job_id, train, holdout)
            self.held[job_id] = (train, holdout)
            self.entries += 1

    @rule(data=st.data(), percent=st.tuples(st.integers(0, 100), st.integers(0, 100)), over=st.booleans())
    def post(self, data: st.DataObject, percent: Amounts, over: bool) -> None:
        if not self.held:
            return
        job_id = data.draw(st.sampled_from(sorted(self.held)))
        train, holdout = self.held[job_id]
        if over:
            with pytest.raises(PrivacyError):
                post(self.db, self.dataset_id, job_id, train + 1, holdout)
            return
        amounts = (train * percent[0] // 100, holdout * percent[1] // 100)
        post(self.db, self.dataset_id, job_id, *amounts)
        self._settled(job_id, "post", amounts)

    @rule(data=st.data())
    def void(self, data: st.DataObject) -> None:
        if self.held:
            job_id = data.draw(st.sampled_from(sorted(self.held)))
            void(self.db, self.dataset_id, job_id)
            self._settled(job_id, "void", (0, 0))

    def _settled(self, job_id: str, kind: str, amounts: Amounts) -> None:
        del self.held[job_id]
        self.settled[job_id] = (kind, amounts)
        self.spent = (self.spent[0] + amounts[0], self.spent[1] + amounts[1])
        self.entries += 1

    @rule(data=st.data(), more=st.booleans())
    def settle_again(self, data: st.DataObject, more: bool) -> None:
        if not self.settled:
            return
        job_id = data.draw(st.sampled_from(sorted(self.settled)))
        kind, amounts = self.settled[job_id]
        if more:
            with pytest.raises(PrivacyError):
                post(self.db, self.dataset_id, job_id, amounts[0] + 1, amounts[1])
        elif kind == "post":
            post(self.db, self.dataset_id, job_id, *amounts)
        else:
            void(self.db, self.dataset_id, job_id)

    @rule(data=st.data())
    def hold_again(self, data: st.DataObject) -> None:
        jobs = sorted({*self.held, *self.settled})
        if jobs:
            # The budget may not allow it either: refused in both cases.
            with pytest.raises((PrivacyError, BudgetError)):
                hold(self.db, self.dataset_id, data.draw(st.sampled_from(jobs)), 1)

    @rule()
    def settle_a_stranger(self) -> None:
        with pytest.raises(PrivacyError):
            post(self.db, self.dataset_id, "job_of_nobody", 0)

    @rule(epsilon=st.sampled_from([0.5, 1.0, 2.0, 3.0, 4.0, 5.0]))
    def change_cap(self, epsilon: float) -> None:
        budget = accounts.filter_for("gdp", None).budget(epsilon, DELTA)
        terms: dict[str, Any] = {
            "dataset_id": self.dataset_id,
            "cap_epsilon": epsilon,
            "actor": OWNER,
            "reason": "a test",
        }
        if max(self.taken()) > budget:
            with pytest.raises(Conflict), self.db.write() as session:
                accounts.change_cap(session, **terms)
            return
        with self.db.write() as session:
            accounts.change_cap(session, **terms)
        self.budget = budget
        self.entries += 1

    @invariant()
    def balances_are_those_of_the_model(self) -> None:
        held = [sum(amounts[place] for amounts in self.held.values()) for place in (0, 1)]
        for place, (name, budget) in enumerate(zip(("train", "holdout"), self.budgets(), strict=True)):
            found = balances(self.db, self.dataset_id)[name]
            assert found == {"budget": budget, "spent": self.spent[place], "held": held[place]}
            assert found["spent"] + found["held"] <= found["budget"]

    @invariant()
    def entries_sum_to_the_balances(self) -> None:
        def total(*kinds: str) -> Any:
            released = LedgerEntry.train_released if kinds != ("hold",) else 0
            return select(func.coalesce(func.sum(LedgerEntry.train + released), 0)).where(
                LedgerEntry.dataset_id == self.dataset_id, LedgerEntry.kind.in_(kinds)
            )

        with self.db.read() as session:
            open_holds = session.scalar(total("hold")) - session.scalar(total("post", "void"))
        assert open_holds == sum(train for train, _ in self.held.values())

    def teardown(self) -> None:
        if hasattr(self, "dataset_id"):
            found = check(self.db, self.dataset_id)
            assert found.valid, found
            assert found.entries == self.entries


@pytest.mark.parametrize("histories", [8, pytest.param(200, marks=pytest.mark.nightly)])
def test_histories(db: Database, histories: int) -> None:
    machine = type("Machine", (LedgerMachine,), {"db": db})
    run_state_machine_as_test(
        machine,
        settings=settings(max_examples=histories, stateful_step_count=25),
    )
