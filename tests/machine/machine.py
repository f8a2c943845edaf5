"""Random histories of the service's own functions against the serial model; after each operation both must agree.

What an operation does is drawn from a seed and a history's number, so that a history can be repeated.
"""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from sqlalchemy import select

from app.db.models import Account, Charge, Job, SubAccount
from app.keys.service import Caller
from app.ledger.verification import verify
from core.contracts.filter_names import Plan, delta_of_each
from core.errors import ServiceError
from tests.machine import model
from tests.machine.model import State
from tests.machine.world import DELTA, World, said, units

CAP = 3.0


class Divergence(AssertionError):
    """The service and the serial model differ."""


@dataclass
class Outcome:
    """What came of a call: a result, or an error."""

    result: Any = None
    error: ServiceError | None = None

    @property
    def code(self) -> str | None:
        return None if self.error is None else self.error.code


def caller(key: str) -> Caller:
    return Caller(key, key, "admin")


class Machine:
    """One history. Subclasses have the operations; `WEIGHTS` says how often each is drawn."""

    WEIGHTS: ClassVar[dict[str, int]] = {}
    PLAN: ClassVar[Plan | None] = None

    def __init__(self, world: World, seed: int, number: int) -> None:
        self.world, self.draw, self.number = world, random.Random(f"{seed}:{number}"), number
        self.did: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()
        self.numbers = itertools.count(1)
        self.state = State(f"ds_{number}_0", self.numbers)
        self.recorded: dict[str, model.Head] = {}  # not in backups
        self.saved: tuple[str, State] | None = None
        self.seen: dict[str, int] = {}  # how many entries of each ledger were verified
        world.register(self.state.first, CAP, self.PLAN)
        self.open_ledger(self.state.first, "first", CAP)

    @property
    def db(self) -> Any:
        return self.world.db

    def run(self, operations: int) -> None:
        """Raises Divergence where the service and the model differ."""
        names, weights = list(self.WEIGHTS), list(self.WEIGHTS.values())
        for place in range(operations):
            (name,) = self.draw.choices(names, weights)
            try:
                before = self.did.total()
                getattr(self, name)()
                last = place == operations - 1
                if last or self.did.total() > before:  # not where there was nothing to do it to
                    self.compare(whole=last)
            except Exception as error:
                raise Divergence(f"history {self.number}, operation {place + 1}, {name}: {said(error)}") from error

    def call(self, what: str, act: Callable[[], Any]) -> Outcome:
        self.did[what] += 1
        try:
            return Outcome(result=act())
        except ServiceError as error:
            self.refused[f"{what}: {error.code}"] += 1
            return Outcome(error=error)

    def agree(self, found: Outcome, predicted: str | None) -> bool:
        """True if the operation was done; raises Divergence if it did not end as the model says."""
        if found.code != predicted:
            detail = "" if found.error is None else said(found.error)
            raise Divergence(f"it ended with {found.code}, and the model says {predicted}. {detail}")
        return predicted is None

    def pick(self, of: Any) -> Any:
        """One of some ids, by their order of appearance; None if there are none."""
        found = list(of)
        return self.draw.choice(found) if found else None

    def open_ledger(self, dataset_id: str, label: str, cap: float) -> None:
        budget = self.units(cap)
        self.state.ledgers[dataset_id] = model.Ledger(label, cap, model.Part((budget, budget)), dataset_id)
        self.state.write(dataset_id)

    def units(self, epsilon: float, order: int | None = None) -> int:
        """What an ε is worth under `gdp`, or `rdp` of an order; 0 if it has no units there."""
        return units(epsilon, order, delta_of_each(self.PLAN, DELTA))

    def worth(self, ledger: str, epsilon: float) -> int:
        return self.units(epsilon, self.state.ledgers[ledger].order)

    def is_behind(self, *ledgers: str) -> bool:
        return any(self.state.is_behind(each, self.recorded.get(each)) for each in ledgers)

    def note_heads(self, *ledgers: str) -> None:
        """The heads of these ledgers are recorded, those that are behind excepted; after one that another ledger moved
        to, that other's."""
        for each in ledgers:
            if not self.is_behind(each):
                self.recorded[each] = self.state.head(each)
                if (block := self.state.ledgers[each].of) != each:
                    self.note_heads(block)

    def unrecordable(self, *ledgers: str) -> bool:
        """True if one of these heads cannot be recorded, or that of a ledger that moved to it."""
        return self.is_behind(*ledgers, *(self.state.ledgers[each].of for each in ledgers))

    # What must hold after each operation.

    def compare(self, *, whole: bool = False) -> None:
        """Raises Divergence unless the database is as the model says. Ledgers that changed are verified."""
        state = self.state
        with self.db.read() as session:
            accounts = {each.dataset_id: each for each in session.scalars(select(Account))}
            parts = {(each.dataset_id, each.name): each for each in session.scalars(select(SubAccount))}
            found_jobs = {row[0]: tuple(row[1:]) for row in session.execute(JOBS)}
            found_charges = {row[0]: row[1] for row in session.execute(CHARGES)}
            for each, of in state.ledgers.items():
                row = accounts.pop(each)
                same("its entries", each, row.entries, len(of.chain))
                same("closed", each, row.joined_into is not None, of.closed)
                same("its cap", each, row.cap_epsilon, of.cap)
                same_part(each, row, of.own)
                for name, part in of.budgets.items():
                    same_part(f"{each} {name}", parts.pop((each, name)), part)
                if whole or self.seen.get(each) != row.entries:
                    self.check_chain(session, each)
                    self.seen[each] = row.entries
        same("other ledgers", "", (list(accounts), list(parts)), ([], []))
        same("jobs", "", found_jobs, {key: (of.status, of.attempt, of.started) for key, of in state.jobs.items()})
        same("charges", "", found_charges, {key: of.status for key, of in state.charges.items()})

    def check_chain(self, session: Any, ledger: str) -> None:
        """One verification finds a ledger that is whole; one that is behind is looked at without its record, too."""
        against = verify(session, ledger, self.world.heads.read(ledger))
        alone = against if against.valid else verify(session, ledger)
        if not alone.valid:
            raise Divergence(f"{ledger}: entry {alone.first_bad_entry}: {alone.problem}")
        same("its record outside fits", ledger, against.valid, not self.is_behind(ledger))


JOBS = select(Job.id, Job.status, Job.attempt, Job.steps_started)
CHARGES = select(Charge.id, Charge.status)


def same(what: str, where: str, found: object, wanted: object) -> None:
    if found != wanted:
        raise Divergence(f"{where}: {what}: {found}, and the model says {wanted}")


def same_part(where: str, row: Account | SubAccount, part: model.Part) -> None:
    for name in ("budget", "spent", "held"):
        same(name, where, (getattr(row, f"train_{name}"), getattr(row, f"holdout_{name}")), getattr(part, name))
    if not model.covers(part.budget, part.taken):
        raise Divergence(f"{where}: {part.taken} are spent and held of {part.budget}")
