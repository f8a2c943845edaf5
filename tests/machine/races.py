"""Histories that eight processes make at once on one database: what came of each is compared with a serial model.

The ledgers' entries say in which order everything happened. Replayed in that order by integers, nothing may ever exceed
a cap or a budget, every balance must be the one that its entry states, and all that a process was told must be there.
What was refused must not have fitted at some moment of the call.

The fault that this must find is kept here: a hold that reads what is left and then writes (`Racer.reads_then_writes`).
"""

from __future__ import annotations

import random
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from sqlalchemy import event, inspect, select, text, update
from sqlalchemy.engine import Engine

from app.approvals import cap_routes
from app.budgets import service as budgets
from app.budgets.schemas import BudgetSetting
from app.charges import service as charges
from app.charges.schemas import ChargeRequest
from app.db.models import Account, SubAccount
from app.ledger import accounts, block_accounts
from app.ledger.entries import ACCOUNTS
from app.ledger.schemas import CapChange
from app.settings import Settings
from core.errors import BudgetError, ServiceError
from tests import processes as own
from tests.machine.histories import Home
from tests.machine.machine import caller
from tests.machine.replayed import Act, faults
from tests.machine.world import KEYS, OWNER, World, units

PROCESSES = 8
OPERATIONS = 12  # of each process in a history
CAP, CAPS = 3.0, (2.0, 2.5, 3.0, 4.0)
WAIT_S = 300
WHY = "a test"
DRAWN = ("hold", "hold", "hold", "post", "post", "void", "charge", "settle", "cap", "budget", "append", "foreign")
# What a hold without its condition would do.
UNCONDITIONAL = (
    update(ACCOUNTS)
    .where(accounts.HOLD._where_criteria[0])
    .values(
        train_held=accounts.ROW.train_held + accounts.TRAIN,
        holdout_held=accounts.ROW.holdout_held + accounts.HOLDOUT,
        entries=accounts.ROW.entries + 1,
    )
)


@dataclass(frozen=True)
class Asked:
    """Which histories.

    Attributes:
        operations: of each process in a history, after the hold with which all begin.
        faulty: with the planted fault.
    """

    seed: int
    numbers: range
    operations: int = OPERATIONS
    faulty: bool = False


@dataclass
class Raced:
    """What came of some histories on one database."""

    backing: str
    histories: int = 0
    did: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    faults: dict[int, str] = field(default_factory=dict)  # by history


class Racer:
    """One process: makes its part of a history."""

    def __init__(self, world: World, together: Any, seed: str, faulty: bool) -> None:
        self.world, self.db, self.together = world, world.db, together
        self.draw, self.faulty = random.Random(seed), faulty
        self.acts: list[Act] = []
        self.jobs: list[tuple[str, int, int]] = []
        self.charges: list[str] = []

    def run(self, history: int, worker: int, operations: int) -> list[Act]:
        """All begin with a hold of a fifth, at the same moment: five fit."""
        self.first, self.history, self.worker = f"ds_race_{history}", history, worker
        self.together.wait(WAIT_S)
        share = units(CAP) // 5
        self.hold(f"job_{history}_{worker}_first", [self.first], KEYS[0], share, share, rush=True)
        # At once, since later draws depend on what the others have done: the same kinds of acts in every run.
        for number, what in enumerate(self.draw.choices(DRAWN, k=operations)):
            getattr(self, f"_{what}")(f"{history}_{worker}_{number}")
        return self.acts

    def act(self, what: str, name: str, on: Sequence[str], amounts: tuple[int, int], do: Callable[[], Any]) -> Any:
        """Does it, and notes what this process was told, with the ledgers' lengths before and after it."""
        before = self._lengths(on) if on else {}
        code, inside, result = None, False, None
        try:
            result = do()
        except ServiceError as error:
            code = error.code
            inside = isinstance(error, BudgetError) and error.members["budget"] is not None
        self.acts.append(Act(what, name, tuple(on), amounts, code, inside, before, self._lengths(on) if on else {}))
        return result if code is None else None

    def _lengths(self, on: Sequence[str]) -> dict[str, int]:
        with self.db.read() as session:
            found = session.execute(select(Account.dataset_id, Account.entries).where(Account.dataset_id.in_(on)))
            return dict(found.tuples().all())

    def family(self) -> list[str]:
        with self.db.read() as session:
            return block_accounts.family_of(session, self.first)

    def hold(self, job: str, on: list[str], key: str, train: int, holdout: int, *, rush: bool = False) -> None:
        def do() -> bool:
            with self.reads_then_writes(on, train, holdout, rush=rush), self.db.write() as session:
                block_accounts.hold_all(session, on, job_id=job, train=train, holdout=holdout, actor=key)
            return True

        if self.act("hold", job, on, (train, holdout), do):
            self.jobs.append((job, train, holdout))

    @contextmanager
    def reads_then_writes(self, on: list[str], train: int, holdout: int, *, rush: bool) -> Iterator[None]:
        """The planted fault: compares with what is left, lets the others do so too, and then holds unconditionally."""
        if not self.faulty:
            yield
            return
        with self.db.read() as session:
            left = {each: accounts.remaining_of(accounts.account_of(session, each)) for each in on}
        if rush:
            self.together.wait(WAIT_S)
        real = accounts.HOLD, accounts.remaining_of
        if all(each["train"] >= train and each["holdout"] >= holdout for each in left.values()):
            accounts.HOLD, accounts.remaining_of = UNCONDITIONAL, lambda account: left[account.dataset_id]
        try:
            yield
        finally:
            accounts.HOLD, accounts.remaining_of = real

    def _hold(self, name: str) -> None:
        family = self.family()
        on = self.draw.sample(family, self.draw.randint(1, len(family)))
        train, holdout = (units(CAP) * self.draw.randint(0, 30) // 100 + 1 for _ in range(2))
        self.hold(f"job_{name}", on, self.draw.choice(KEYS), train, holdout)

    def settle(self, how: str, job: str, train: int, holdout: int) -> None:
        def do() -> list[str]:
            with self.db.write() as session:
                if how == "post":
                    entries = block_accounts.post_all(session, job, train=train, holdout=holdout, actor="worker")
                else:
                    entries = block_accounts.void_all(session, job, actor="worker")
                return [each.dataset_id for each in entries]

        on = self.act(how, job, [], (train, holdout) if how == "post" else (0, 0), do)
        if on is not None:
            self.acts[-1] = replace(self.acts[-1], on=tuple(on))

    def _post(self, _name: str) -> None:
        if self.jobs:
            job, train, holdout = self.draw.choice(self.jobs)  # perhaps not for the first time
            self.settle("post", job, self.draw.randint(0, train), self.draw.randint(0, holdout))

    def _void(self, _name: str) -> None:
        if self.jobs:
            self.settle("void", self.draw.choice(self.jobs)[0], 0, 0)

    def _foreign(self, _name: str) -> None:
        """Settles the first job of any process, which that process may do too."""
        job = f"job_{self.history}_{self.draw.randrange(PROCESSES)}_first"
        share = units(CAP) // 5
        self.settle(self.draw.choice(("post", "void")), job, share, share // 2)

    def _charge(self, name: str) -> None:
        asked = {"dataset": self.first, "mechanism": {"kind": "gdp", "mu": self.draw.choice((0.1, 0.3, 0.6))}}
        request = ChargeRequest.model_validate(asked | {"unit": "example", "attested": WHY})
        key, prices = caller(self.draw.choice(KEYS)), self.world.prices

        def do() -> Any:
            reserved: Any = charges.reserve(self.db, self.world.heads, prices, key, request, name)  # type: ignore[arg-type]
            return reserved[0]

        made = self.act("charge", "", self.family(), (0, 0), do)
        if made is not None:
            self.acts[-1] = replace(self.acts[-1], name=made.id, amounts=(made.train, made.holdout))
            self.charges.append(made.id)

    def _settle(self, _name: str) -> None:
        if self.charges:
            charge, why = self.draw.choice(self.charges), self.draw.choice((None, WHY))
            heads = self.world.heads
            self.act(
                "settle", "", [], (0, 0), lambda: charges.settle(self.db, heads, OWNER, charge, voided_because=why)
            )

    def _cap(self, _name: str) -> None:
        body, prices = CapChange(epsilon=self.draw.choice(CAPS), reason=WHY), self.world.prices
        change: Any = cap_routes.change_cap
        self.act("cap", "", [], (0, 0), lambda: change(self.first, body, self.db, prices, OWNER, self.world.heads, "*"))

    def _budget(self, _name: str) -> None:
        name, epsilon = self.draw.choice(("one", "two")), self.draw.choice((0.5, 1.0, 2.0))
        asked = BudgetSetting(epsilon=epsilon, keys=[KEYS[1 if name == "one" else 2]])

        def do() -> None:
            with self.db.write() as session:
                known = session.get(SubAccount, (self.first, name))
                budgets.put(session, OWNER, self.first, name, asked, None if known is None else "*")

        self.act("budget", "", [], (0, 0), do)

    def _append(self, name: str) -> None:
        """One process appends, at most one block."""
        if self.worker == 0 and len(self.family()) < 3:
            block = f"ds_race_{self.history}_{name}"
            self.act("append", "", [], (0, 0), lambda: self.world.append(self.first, block, f"b{name}"))


def race(settings: Settings, asked: Asked, worker: int, together: Any, told: Any) -> None:
    """A process's part of all histories."""
    if asked.faulty:
        event.listen(Engine, "connect", _unchecked)
    world = World(settings)
    for number in asked.numbers:
        racer = Racer(world, together, f"{asked.seed}:{number}:{worker}", asked.faulty)
        told.put((number, racer.run(number, worker, asked.operations)))
    world.close()


def _unchecked(connection: Any, _record: object) -> None:
    if isinstance(connection, sqlite3.Connection):
        connection.execute("PRAGMA ignore_check_constraints = ON").close()


def run(home: Home, asked: Asked) -> Raced:
    """Makes these histories one after the other, each by all processes at once, and compares each with the model."""
    found = Raced("sqlite" if home.server is None else "postgres", len(asked.numbers))
    with home.world() as world:
        for number in asked.numbers:
            world.register(f"ds_race_{number}", CAP)
            world.append(f"ds_race_{number}", f"ds_race_{number}_b", "two")
        if asked.faulty and home.server is not None:
            _drop_checks(world)
        acts = _raced(world.settings, asked)
        with world.db.read() as session:
            for number, done in acts.items():
                found.did.update(each.what for each in done)
                found.refused.update(f"{each.what}: {each.code}" for each in done if each.code is not None)
                fault = next(faults(session, block_accounts.family_of(session, f"ds_race_{number}"), done), None)
                if fault is not None:
                    found.faults[number] = fault
    return found


def _raced(settings: Settings, asked: Asked) -> dict[int, list[Act]]:
    context = own.quick()
    together, told = context.Barrier(PROCESSES), context.Queue()
    started = [
        context.Process(target=race, args=(settings, asked, worker, together, told)) for worker in range(PROCESSES)
    ]
    for each in started:
        each.start()
    acts: dict[int, list[Act]] = {number: [] for number in asked.numbers}
    for _ in range(PROCESSES * len(asked.numbers)):
        number, part = told.get(timeout=WAIT_S)
        acts[number] += part
    for each in started:
        each.join(WAIT_S)
        if each.exitcode != 0:
            raise AssertionError(f"a process ended with {each.exitcode}")
    return acts


def _drop_checks(world: World) -> None:
    """The database's own constraints, the second line of defence, are gone."""
    with world.db.write() as session:
        for each in inspect(session.connection()).get_check_constraints("accounts"):
            session.execute(text(f"ALTER TABLE accounts DROP CONSTRAINT {each['name']}"))


def summary(found: Sequence[Raced], planted: Sequence[Raced]) -> list[str]:
    """Lines of a report."""
    return [
        *(
            f"* {each.backing}: {each.histories} histories, {sum(each.did.values()):,} operations, of which "
            f"{sum(each.refused.values()):,} were refused; {len(each.faults)} differ from the serial model."
            for each in found
        ),
        *(
            f"* {each.backing}, with a hold that reads and then writes: overspent in {len(each.faults)} of "
            f"{each.histories} histories, and found in each of them."
            for each in planted
        ),
    ]
