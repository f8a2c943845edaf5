"""Sub-accounts against a serial model, under random histories of holds, settlements, changes and closings."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from app.budgets import service
from app.db.database import Database
from app.db.models import SubAccount
from app.keys.service import Caller
from app.ledger import accounts
from core.errors import BudgetError, Conflict
from tests.budgets.test_holds import add_key, give, hold, is_valid, of, post
from tests.ledger.support import DELTA, OWNER, add_owner, balances, open_ledger

ADMIN = Caller(OWNER, "owner", "admin")
NAMES = ("one", "two")
EPSILONS = (0.5, 1.0, 2.0, 4.0)
KEYS = 3


class BudgetMachine(RuleBasedStateMachine):
    db: Database

    @initialize()
    def open(self) -> None:
        self.dataset = open_ledger(self.db)
        self.keys = [add_key(self.db) for _ in range(KEYS)]
        self.cap = balances(self.db, self.dataset)["train"]["budget"]
        self.budgets: dict[str, int] = {}
        self.within: dict[str, str] = {}  # by key
        self.holds: dict[str, tuple[str | None, int]] = {}  # job: the budget that paid, and how much
        self.spent: dict[str | None, int] = {None: 0}
        self.numbers = itertools.count(1)

    def taken(self, name: str | None) -> int:
        """Spent and held of a budget; None: of the cap, by all."""
        held = sum(amount for payer, amount in self.holds.values() if name is None or payer == name)
        return held + (sum(self.spent.values()) if name is None else self.spent.get(name, 0))

    @rule(name=st.sampled_from(NAMES), epsilon=st.sampled_from(EPSILONS), who=st.sets(st.integers(0, KEYS - 1)))
    def give(self, name: str, epsilon: float, who: set[int]) -> None:
        wanted = [self.keys[each] for each in sorted(who)]
        units = accounts.filter_for("gdp", None).budget(epsilon, DELTA)
        elsewhere = any(self.within.get(key, name) != name for key in wanted)
        if not wanted:
            return
        if self.taken(name) > units or elsewhere:
            with pytest.raises(Conflict):
                give(self.db, self.dataset, name, epsilon, *wanted)
            return
        assert give(self.db, self.dataset, name, epsilon, *wanted) == units
        self.budgets[name] = units
        self.within = {key: of for key, of in self.within.items() if of != name} | dict.fromkeys(wanted, name)

    @rule(name=st.sampled_from(NAMES))
    def close(self, name: str) -> None:
        if name in self.within.values():
            with self.db.write() as session:
                service.close(session, ADMIN, self.dataset, name, "*")
            self.within = {key: of for key, of in self.within.items() if of != name}

    @rule(who=st.integers(0, KEYS - 1), percent=st.integers(1, 60))
    def hold(self, who: int, percent: int) -> None:
        key, amount = self.keys[who], self.cap * percent // 100
        payer = self.within.get(key)
        left = self.cap - self.taken(None)
        inside = left if payer is None else min(left, self.budgets[payer] - self.taken(payer))
        job = f"job_{next(self.numbers)}"
        if amount > inside:
            with pytest.raises(BudgetError) as refused:
                hold(self.db, self.dataset, job, key, amount)
            assert refused.value.members["remaining"]["train"] == inside
            assert refused.value.members["budget"] == (payer if inside < left else None)
            return
        hold(self.db, self.dataset, job, key, amount)
        self.holds[job] = (payer, amount)

    @rule(data=st.data(), percent=st.integers(0, 100))
    def settle(self, data: st.DataObject, percent: int) -> None:
        if self.holds:
            job = data.draw(st.sampled_from(sorted(self.holds)))
            payer, amount = self.holds.pop(job)
            post(self.db, self.dataset, job, amount * percent // 100)
            self.spent[payer] = self.spent.get(payer, 0) + amount * percent // 100

    @invariant()
    def balances_are_those_of_the_model(self) -> None:
        found = balances(self.db, self.dataset)["train"]
        assert found["spent"] + found["held"] == self.taken(None) <= self.cap
        for name in self.budgets:
            spent, held, _, _ = of(self.db, self.dataset, name)
            assert (spent, spent + held) == (self.spent.get(name, 0), self.taken(name))
            with self.db.read() as session:
                assert self.taken(name) <= session.get_one(SubAccount, (self.dataset, name)).train_budget

    def teardown(self) -> None:
        if hasattr(self, "dataset"):
            assert is_valid(self.db, self.dataset)


@pytest.mark.parametrize("histories", [6, pytest.param(200, marks=pytest.mark.nightly)])
def test_histories(db: Database, histories: int) -> None:
    add_owner(db)
    machine = type("Machine", (BudgetMachine,), {"db": db})
    run_state_machine_as_test(
        machine,
        settings=settings(max_examples=histories, stateful_step_count=25, suppress_health_check=list(HealthCheck)),
    )
