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

from sqlalchemy import Connection, Row, bindparam, select

from app.chain import digest
from app.db.models import Account, Base, Charge, Job, LedgerEntry, SubAccount
from app.keys.service import Caller
from app.ledger.entries import COLUMNS, content, genesis
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
        self.hashes: dict[str, list[str]] = {}  # of each ledger's entries that were checked; the genesis hash first
        self.verified: dict[str, str] = {}  # the head of each ledger as the service last verified it
        self.compared = 0
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
        """Raises Divergence unless the database is as the model says.

        New entries are checked at once. The service's own verification reads a ledger from its first entry: it runs
        every VERIFY_EVERY comparisons, before a rewind and at the end, on all ledgers that changed since.
        """
        state = self.state
        with self.db.quick_read() as connection:
            found = {name: connection.exec_driver_sql(query).all() for name, query in ROWS.items()}
            accounts = {row.dataset_id: row for row in found["accounts"]}
            parts = {(row.dataset_id, row.name): row for row in found["parts"]}
            for each, of in state.ledgers.items():
                row = accounts.pop(each)
                same("its entries", each, row.entries, len(of.chain))
                same("closed", each, row.joined_into is not None, of.closed)
                same("its cap", each, row.cap_epsilon, of.cap)
                same_part(each, row, of.own)
                for name, part in of.budgets.items():
                    same_part(f"{each} {name}", parts.pop((each, name)), part)
                self.check_new_entries(connection, row)
        same("other ledgers", "", (list(accounts), list(parts)), ([], []))
        jobs = {row[0]: tuple(row[1:]) for row in found["jobs"]}
        same("jobs", "", jobs, {key: (of.status, of.attempt, of.started) for key, of in state.jobs.items()})
        charges = {row[0]: row[1] for row in found["charges"]}
        same("charges", "", charges, {key: of.status for key, of in state.charges.items()})
        self.compared += 1
        if whole or self.compared % VERIFY_EVERY == 0:
            self.verify_changed(whole=whole)

    def check_new_entries(self, connection: Connection, account: Row[Any]) -> None:
        """The new entries continue the chain up to the account's head, and the record outside fits it."""
        ledger = account.dataset_id
        hashes = self.hashes.setdefault(ledger, [genesis(ledger)])
        if len(hashes) <= account.entries:
            for entry in connection.execute(NEW_ENTRIES, {"ledger": ledger, "after": len(hashes) - 1}):
                same("its number", ledger, entry.seq, len(hashes))
                same("its prev_hash", f"{ledger} {entry.seq}", entry.prev_hash, hashes[-1])
                same("its hash", f"{ledger} {entry.seq}", entry.hash, digest(content(entry)))
                hashes.append(entry.hash)
        same("its head", ledger, (account.entries, account.head), (len(hashes) - 1, hashes[-1]))
        recorded = self.world.heads.read(ledger)
        fits = recorded is None or hashes[recorded.seq : recorded.seq + 1] == [recorded.head]
        same("its record outside fits", ledger, fits, not self.is_behind(ledger))

    def verify_changed(self, *, whole: bool = False) -> None:
        """The service verifies each ledger that changed since it last did, or all."""
        with self.db.read() as session:
            for each, hashes in self.hashes.items():
                if whole or self.verified.get(each) != hashes[-1]:
                    self.check_chain(session, each)
                    self.verified[each] = hashes[-1]

    def check_chain(self, session: Any, ledger: str) -> None:
        """One verification finds a ledger that is whole; one that is behind is looked at without its record, too."""
        against = verify(session, ledger, self.world.heads.read(ledger))
        alone = against if against.valid else verify(session, ledger)
        if not alone.valid:
            raise Divergence(f"{ledger}: entry {alone.first_bad_entry}: {alone.problem}")
        same("its record outside fits", ledger, against.valid, not self.is_behind(ledger))


VERIFY_EVERY = 50  # comparisons
BALANCES = [f"{account}_{name}" for account in ("train", "holdout") for name in ("budget", "spent", "held")]


def written(table: type[Base], *columns: str) -> str:
    """A query's text, written once: what is built anew at each comparison costs more than its answer."""
    return str(select(*(getattr(table, name).label(name) for name in columns)))


ROWS = {
    "accounts": written(Account, "dataset_id", "entries", "head", "joined_into", "cap_epsilon", *BALANCES),
    "parts": written(SubAccount, "dataset_id", "name", *BALANCES),
    "jobs": written(Job, "id", "status", "attempt", "steps_started"),
    "charges": written(Charge, "id", "status"),
}
NEW_ENTRIES = (
    select(*(getattr(LedgerEntry, name) for name in (*COLUMNS, "hash")))
    .where(LedgerEntry.dataset_id == bindparam("ledger"), LedgerEntry.seq > bindparam("after"))
    .order_by(LedgerEntry.seq)
)


def same(what: str, where: str, found: object, wanted: object) -> None:
    if found != wanted:
        raise Divergence(f"{where}: {what}: {found}, and the model says {wanted}")


def same_part(where: str, row: Row[Any], part: model.Part) -> None:
    for name in ("budget", "spent", "held"):
        same(name, where, (getattr(row, f"train_{name}"), getattr(row, f"holdout_{name}")), getattr(part, name))
    if not model.covers(part.budget, part.taken):
        raise Divergence(f"{where}: {part.taken} are spent and held of {part.budget}")
