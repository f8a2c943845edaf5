"""The serial model of the service's bookkeeping: dictionaries of integers, and no line of the service's code.

It says what each account, budget, job and charge must be after an operation, and which refusal an operation must get.
Prices are given to it: what a job costs is the accountants' business.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

Pair = tuple[int, int]  # of (train, holdout)
ZERO: Pair = (0, 0)
ACTIVE = ("running", "pausing", "cancelling")
FINISHED = ("succeeded", "cancelled", "failed")
MAX_CRASHES, LAPSES = 3, 10
BEHIND, CLOSED, BUDGET, STALE = "ledger-behind", "wrong-state", "budget-exceeded", "stale-attempt"


def plus(one: Pair, other: Pair) -> Pair:
    return one[0] + other[0], one[1] + other[1]


def minus(one: Pair, other: Pair) -> Pair:
    return one[0] - other[0], one[1] - other[1]


def covers(one: Pair, other: Pair) -> bool:
    return one[0] >= other[0] and one[1] >= other[1]


@dataclass
class Part:
    """An account, or a budget within it."""

    budget: Pair
    spent: Pair = ZERO
    held: Pair = ZERO

    @property
    def taken(self) -> Pair:
        return plus(self.spent, self.held)

    @property
    def free(self) -> Pair:
        return minus(self.budget, self.taken)


@dataclass
class Ledger:
    """One block's ledger. Each entry is a number that no other entry has, those that were forgotten included."""

    label: str
    cap: float
    own: Part
    of: str  # the block whose records it is of: its own id, or that of the ledger that moved to it
    order: int | None = None  # of an `rdp` filter
    moved_to: str | None = None
    chain: list[int] = field(default_factory=list)
    closed: bool = False
    budgets: dict[str, Part] = field(default_factory=dict)


@dataclass
class Hold:
    """What is taken from each ledger, and from which budget there."""

    amounts: Pair
    payers: dict[str, str | None]


@dataclass
class Job:
    hold: Hold
    key: str
    parts: tuple[int, ...]  # what 0, 1, … all of its steps cost
    scored: bool
    once: str
    status: str = "queued"
    attempt: int = 0
    started: int = 0
    released: int = 0
    crashed: int = 0
    lost: int = 0
    lapses: int = 0
    waits: bool = False  # before it may be claimed again
    lapsed: bool = False  # its lease is over


@dataclass
class Charge:
    hold: Hold
    key: str
    once: str
    claim: dict[str, Any]
    account: str
    status: str = "held"


@dataclass
class Budget:
    """What the owner set: its keys, and the ε from which each block's units were made."""

    epsilon: float
    keys: frozenset[str]


@dataclass(frozen=True)
class Head:
    """What is recorded of a ledger outside the database."""

    seq: int
    entry: int
    taken: Pair
    cap: float
    closed: bool
    moved_to: str | None


def carried(amounts: Pair, order: int) -> Pair:
    """What an amount of μ² (1e-12) is in units of `rdp` (1e-9): α/2 of it, rounded up."""
    train, holdout = (-(-order * amount // 2000) for amount in amounts)
    return train, holdout


class State:
    """Everything that a backup of the database has. `first` is the data set's own ledger."""

    def __init__(self, first: str, numbers: itertools.count[int]) -> None:
        self.first = first
        self.numbers = numbers
        self.retired = False  # as a whole, by a restore that knows of no other block
        self.ledgers: dict[str, Ledger] = {}
        self.budgets: dict[str, Budget] = {}
        self.jobs: dict[str, Job] = {}
        self.charges: dict[str, Charge] = {}

    def write(self, ledger: str, entries: int = 1) -> None:
        """Appends entries to a ledger's chain."""
        self.ledgers[ledger].chain += [next(self.numbers) for _ in range(entries)]

    def blocks(self) -> dict[str, Ledger]:
        """The ledgers that blocks begin with."""
        return {each: of for each, of in self.ledgers.items() if of.of == each}

    def ledgers_of(self, block: str) -> list[str]:
        return [block, *(each for each, of in self.ledgers.items() if of.of == block != each)]

    def move(self, block: str, to: str, order: int, worth: Callable[[float], int]) -> None:
        """Carries all that a ledger spent and holds to another one, with its budgets.

        Args:
            worth: the units of an ε under the other filter; 0: it has none.
        """
        first = self.ledgers[block]
        budget, amounts = worth(first.cap), carried(first.own.taken, order)
        made = Ledger(f"{first.label}, any mechanism", first.cap, Part((budget, budget), amounts), block, order)
        for name, part in first.budgets.items():
            units, spent = worth(self.budgets[name].epsilon), carried(part.taken, order)
            made.budgets[name] = Part((units, units), (min(units, spent[0]), min(units, spent[1])))
        self.ledgers[to] = made
        self.write(to, 3 if amounts != ZERO else 1)
        first.closed, first.moved_to = True, to
        self.write(block)

    def open_ones(self) -> list[str]:
        return [each for each in sorted(self.ledgers) if not self.ledgers[each].closed]

    def lead_id(self) -> str:
        """The ledger whose cap and budgets are the data set's."""
        found = [self.first, *(each for each in sorted(self.ledgers) if each != self.first)]
        lowest = min(found, key=lambda each: self.ledgers[each].cap)
        return next((each for each in found if not self.ledgers[each].closed), lowest)

    def lead(self) -> Ledger:
        return self.ledgers[self.lead_id()]

    def payer(self, key: str) -> str | None:
        return next((name for name, each in self.budgets.items() if key in each.keys), None)

    def left(self, ledger: str, key: str) -> Pair:
        """What a key may still hold on a ledger."""
        of, name = self.ledgers[ledger], self.payer(key)
        free = ZERO if of.closed else of.own.free
        inside = free if name is None or name not in of.budgets else of.budgets[name].free
        return min(free[0], inside[0]), min(free[1], inside[1])

    def refuses(self, ledgers: list[str], key: str, amounts: Pair) -> str | None:
        """The first of these ledgers that cannot pay; None if all can."""
        cannot = (each for each in sorted(ledgers) if not covers(self.left(each, key), amounts))
        return next((each for each in cannot), None)

    def hold(self, ledgers: list[str], key: str, amounts: Pair) -> Hold:
        name = self.payer(key)
        made = Hold(amounts, dict.fromkeys(sorted(ledgers), name))
        for part in self._paying(made):
            part.held = plus(part.held, amounts)
        for each in made.payers:
            self.write(each)
        return made

    def settle(self, of: Hold, spent: Pair) -> None:
        for part in self._paying(of):
            part.held, part.spent = minus(part.held, of.amounts), plus(part.spent, spent)
        for each in of.payers:
            self.write(each)

    def _paying(self, of: Hold) -> list[Part]:
        parts = [self.ledgers[each].own for each in of.payers]
        return parts + [self.ledgers[each].budgets[name] for each, name in of.payers.items() if name is not None]

    def end(self, job: Job, outcome: str, *, own_fault: bool = False, whole: bool = False) -> None:
        """Ends a job, and settles its hold."""
        job.status, job.waits, job.lapsed = outcome, False, False
        kept = outcome != "succeeded" and (own_fault or job.crashed > 0)
        self.settle(job.hold, self._charge(job, kept=kept, whole=whole))

    def _charge(self, job: Job, *, kept: bool, whole: bool) -> Pair:
        train, holdout = job.hold.amounts
        if job.started == 0 and not whole:
            return ZERO
        if kept:
            return train, holdout
        return job.parts[job.started], holdout * job.released

    def give_back(self, job: Job, how: str) -> None:
        """The attempt of a job is gone: `lost`, `lapsed` or `crashed`. One that is lost in a pause has paused."""
        if how == "lost" and job.status == "pausing":
            job.status, job.waits = "paused", False
            return
        job.crashed, job.lost = job.crashed + (how == "crashed"), job.lost + (how == "lost")
        job.lapses += how == "lapsed"
        if job.status == "cancelling":
            self.end(job, "cancelled")
        elif (how == "crashed" and job.crashed >= MAX_CRASHES) or (
            how == "lapsed" and job.lapses >= LAPSES * MAX_CRASHES
        ):
            self.end(job, "failed", own_fault=True)
        elif job.status == "pausing":
            job.status, job.waits = "paused", False
        else:
            job.status, job.waits = "queued", job.crashed + job.lost + job.lapses >= 2

    def head(self, ledger: str) -> Head:
        of = self.ledgers[ledger]
        return Head(len(of.chain), of.chain[-1], of.own.taken, of.cap, of.closed, of.moved_to)

    def is_behind(self, ledger: str, recorded: Head | None) -> bool:
        """True if a ledger lacks its recorded entry."""
        if recorded is None:
            return False
        chain = self.ledgers[ledger].chain
        return len(chain) < recorded.seq or chain[recorded.seq - 1] != recorded.entry
