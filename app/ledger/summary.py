"""A data set's ledger for display: the enforced figures, with other accountants' figures beside them."""

from __future__ import annotations

import math
import threading
import time
from bisect import bisect_left
from collections import Counter, OrderedDict, defaultdict
from dataclasses import dataclass, field
from typing import Protocol, cast
from weakref import WeakKeyDictionary

from sqlalchemy.orm import Session

from app.db.database import Database
from app.db.models import Account, Dataset
from app.ledger.accounts import filter_for
from app.ledger.entries import cap_version
from app.ledger.grown import appended, with_blocks
from app.ledger.repository import (
    Charged,
    Posted,
    charged,
    dataset_with_account,
    epsilon_of_only_job,
    is_charged_by_others,
    posted,
    unit_of,
)
from app.ledger.schemas import AccountsView, AccountView, Comparison, LedgerView
from core.contracts.base import AccountantName, AccountName, Epsilon
from core.errors import LimitError
from core.privacy import events
from core.privacy.events import Event, Leaf
from core.privacy.mechanism import TrainingMechanism
from core.privacy.price_requests import CompareRequest
from core.privacy.prices import BasicSum, Compared

ACCOUNTS: tuple[AccountName, AccountName] = ("train", "holdout")
# Of a ledger with more no jobs are composed: each costs a request 0.3 ms of processor time.
MOST_COMPOSED = 10_000
MOST_KEPT = 256
AGAIN_S = 10.0
Counted = tuple[Event, int]  # a job's event, and how many jobs have it


class Comparer(Protocol):
    """Composes events in a limited process, and caches the result."""

    def compare(self, request: CompareRequest) -> Compared: ...

    def basic(self, request: CompareRequest) -> BasicSum: ...


@dataclass(frozen=True)
class Sums:
    """Basic composition of an account's jobs, by account: Σ εᵢ(δ/k) over their planned ε's.

    Attributes:
        spent: of the jobs that spent something.
        taken: of these and of those that hold something.
        accountant: of the jobs' own ε's; `rdp` as soon as one of them is a selection, else `pld` if one samples.
    """

    spent: dict[AccountName, float]
    taken: dict[AccountName, float]
    accountant: AccountantName


@dataclass(frozen=True)
class Composed:
    """What a ledger's jobs compose to; None where that is not known, or takes too long.

    Attributes:
        compares: True if other accountants were asked.
    """

    compares: bool
    sums: Sums | None = None
    comparison: Comparison | None = None
    at: float = field(default_factory=time.monotonic)

    @property
    def holds(self) -> bool:
        """False once what is not there is worth another try."""
        is_whole = self.sums is not None and (self.comparison is not None or not self.compares)
        return is_whole or time.monotonic() < self.at + AGAIN_S


@dataclass(eq=False)
class _Kept:
    """What was composed, by data set, head (each entry makes another) and whether other accountants were asked. For a
    data set one request composes at a time: viewers of a long ledger held all threads of the API."""

    turns: defaultdict[str, threading.Lock] = field(default_factory=lambda: defaultdict(threading.Lock))
    found: OrderedDict[tuple[str, str, bool], Composed] = field(default_factory=OrderedDict)


_KEPT: WeakKeyDictionary[Database, _Kept] = WeakKeyDictionary()


def overview(db: Database, pricing: Comparer, dataset_id: str) -> LedgerView:
    """The ledger of a private data set, with other accountants' figures. No transaction is open while they are
    computed.

    Raises:
        NotFound: no such data set, or it has no ledger.
    """
    with db.read() as session:
        dataset, account = dataset_with_account(session, dataset_id)
        if grown := appended(session, dataset_id):
            return _with_blocks(session, dataset, account, grown)
    return _of_jobs(db, pricing, dataset, account, compares=True)


def _of_jobs(db: Database, pricing: Comparer, dataset: Dataset, account: Account, *, compares: bool) -> LedgerView:
    """The figures of one block and of what its jobs compose to.

    Who waits for a turn takes what the one before composed: the ledger may have grown meanwhile.
    """
    if account.entries > MOST_COMPOSED:
        return view(dataset, account)
    cache = _KEPT.setdefault(db, _Kept())
    with cache.turns[dataset.id]:
        with db.read() as session:
            dataset, account = dataset_with_account(session, dataset.id)
        composed = cache.found.get((dataset.id, account.head, compares))
        if composed is None or not composed.holds:
            account, composed = _composed(db, pricing, dataset.id, compares=compares)
            cache.found[dataset.id, account.head, compares] = composed
            if len(cache.found) > MOST_KEPT:
                cache.found.popitem(last=False)
    return view(dataset, account, composed.comparison, composed.sums)


def _composed(db: Database, pricing: Comparer, dataset_id: str, *, compares: bool) -> tuple[Account, Composed]:
    """With the account as it was at the same moment."""
    with db.read() as session:
        dataset, account = dataset_with_account(session, dataset_id)
        jobs, all_of_them = posted(session, dataset_id) if compares else [], charged(session, dataset_id)
        has_others = is_charged_by_others(session, dataset_id)
    if has_others or not _is_known(account, all_of_them):
        return account, Composed(compares)
    totals = sums(pricing, account, all_of_them)
    if totals is None or not compares:
        return account, Composed(compares, totals)
    return account, Composed(compares, totals, comparison(pricing, dataset, account, jobs, totals))


def figures(db: Database, pricing: Comparer, dataset_id: str) -> LedgerView | None:
    """The ledger without other accountants' figures; None on public data."""
    with db.read() as session:
        dataset, account = session.get_one(Dataset, dataset_id), session.get(Account, dataset_id)
        if account is None:
            return None
        if grown := appended(session, dataset_id):
            return _with_blocks(session, dataset, account, grown)
    # Under `gdp` the filter's own figure is exact: no sum is smaller.
    if account.filter == "gdp":
        return view(dataset, account)
    return _of_jobs(db, pricing, dataset, account, compares=False)


def brief(session: Session, dataset: Dataset, account: Account) -> LedgerView:
    """The ledger as lists show it, which compose nothing: after more than one job the ε's are the filter's own."""
    grown = appended(session, dataset.id)
    return _with_blocks(session, dataset, account, grown) if grown else brief_of_one(session, dataset, account)


def _with_blocks(
    session: Session, dataset: Dataset, account: Account, grown: list[tuple[Dataset, Account]]
) -> LedgerView:
    blocks = [(each, brief_of_one(session, each, block)) for each, block in grown]
    return with_blocks(dataset, brief_of_one(session, dataset, account), blocks)


def brief_of_one(session: Session, dataset: Dataset, account: Account) -> LedgerView:
    """The same of one block alone."""
    nothing_spent = account.train_spent == account.holdout_spent == 0
    only_epsilon = None if account.filter == "gdp" or nothing_spent else epsilon_of_only_job(session, account)
    if only_epsilon is None:
        return view(dataset, account)
    is_held = account.train_held > 0 or account.holdout_held > 0
    spent, taken = (
        dict.fromkeys(ACCOUNTS, only_epsilon.value),
        dict.fromkeys(ACCOUNTS, math.inf if is_held else only_epsilon.value),
    )
    return view(dataset, account, None, Sums(spent, taken, only_epsilon.accountant))


def view(
    dataset: Dataset, account: Account, compared: Comparison | None = None, summed: Sums | None = None
) -> LedgerView:
    """The figures from an account's row. `summed` may make the ε's smaller than the filter's own."""
    privacy_filter = filter_for(account.filter, account.order)
    names: list[AccountName] = ["train"] if account.holdout_budget == 0 else ["train", "holdout"]
    accounts = {name: AccountView.of(account, name, privacy_filter.unit) for name in names}
    remaining = min(each.remaining for each in accounts.values())

    def of_filter(amount: int) -> float:
        return privacy_filter.epsilon(amount, account.cap_delta) if amount else 0.0

    def least(amounts: dict[AccountName, int], bounds: dict[AccountName, float] | None) -> Epsilon:
        by_filter = {name: of_filter(amount) for name, amount in amounts.items()}
        value = max(min(each, math.inf if bounds is None else bounds[name]) for name, each in by_filter.items())
        is_sum = summed is not None and value < max(by_filter.values())
        return _epsilon(dataset, account, value, summed.accountant if summed and is_sum else account.filter)

    spent = {name: each.spent for name, each in accounts.items()}
    taken = {name: each.spent + each.held for name, each in accounts.items()}
    return LedgerView(
        cap=_cap(dataset, account, account.cap_epsilon),
        largest_cap=_cap(dataset, account, account.largest_cap_epsilon),
        accounts=AccountsView(train=accounts["train"], holdout=accounts.get("holdout")),
        epsilon_spent=least(spent, None if summed is None else summed.spent),
        epsilon_spent_and_held=least(taken, None if summed is None else summed.taken),
        epsilon_filter=_epsilon(dataset, account, of_filter(max(spent.values())), account.filter),
        epsilon_remaining=_epsilon(dataset, account, of_filter(remaining), account.filter),
        comparison=compared,
        entries=account.entries,
        head=account.head,
        cap_version=cap_version(account),
        closed=account.joined_into is not None,
    )


def sums(pricing: Comparer, account: Account, jobs: list[Charged]) -> Sums | None:
    """Basic composition of the jobs' PLANNED events, so that no figure depends on a stopping time; None if the
    computation exceeds its limits."""
    spent: dict[AccountName, float] = {}
    taken: dict[AccountName, float] = {}
    sums_of_all = set[Leaf]()
    for name in ACCOUNTS:
        planned = [
            (each.spent.of(name) > 0, event, each.jobs)
            for each in jobs
            if (event := planned_event(each, name)) is not None
        ]
        settled = [(event, count) for is_spent, event, count in planned if is_spent]
        sums_of_all.update(leaf for _, event, _ in planned for leaf in events.leaves(event))
        try:
            spent[name] = _basic(pricing, settled, account.cap_delta)
            everything = [(event, count) for _, event, count in planned]
            taken[name] = spent[name] if settled == everything else _basic(pricing, everything, account.cap_delta)
        except LimitError:
            return None
    return Sums(spent, taken, _accountant(sums_of_all))


def _accountant(leaves: set[Leaf]) -> AccountantName:
    """The least exact of the accountants of jobs with these noisy sums."""
    kinds = {"rdp" if leaf.weights else "gdp" if leaf.is_plain else "pld" for leaf in leaves}
    return "rdp" if "rdp" in kinds else "pld" if "pld" in kinds else "gdp"


def _basic(pricing: Comparer, jobs: list[Counted], delta: float) -> float:
    return pricing.basic(_of_jobs_alike(jobs, delta)).epsilon if jobs else 0.0


def _of_jobs_alike(jobs: list[Counted], delta: float) -> CompareRequest:
    """Each event once, with the number of its jobs: a ledger has more jobs than kinds of them."""
    counts: Counter[Event] = Counter()
    for event, count in jobs:
        counts[event] += count
    return CompareRequest(events=tuple(counts), counts=tuple(counts.values()), delta=delta)


def planned_event(job: Charged, name: AccountName) -> Event | None:
    """What a job, or a whole study, was priced for on an account; None where that is nothing."""
    if job.mechanism is not None:
        event: Event | None = job.mechanism.event(name)
    else:
        event = None if job.planned is None else job.planned.of(name)
    return event if event is not None and events.leaves(event) else None


def _is_known(account: Account, jobs: list[Charged]) -> bool:
    """True if the jobs' entries explain all spending. After a restored backup, or in a ledger that another one was
    joined to, a part may be known as an amount alone, which no other accountant can compose."""
    spent = tuple(sum(each.spent.of(name) for each in jobs) for name in ACCOUNTS)
    return spent == (account.train_spent, account.holdout_spent)


def comparison(
    pricing: Comparer, dataset: Dataset, account: Account, jobs: list[Posted], summed: Sums
) -> Comparison | None:
    """Each figure for the account with the larger loss; None if the computation exceeds its limits."""
    compared = [Compared(rdp_best_order=0.0, pld_if_fixed_in_advance=0.0)]
    for name in ACCOUNTS:
        settled = settled_events(jobs, name)
        if not settled:
            continue
        try:
            compared.append(pricing.compare(_of_jobs_alike(settled, account.cap_delta)))
        except LimitError:
            return None
    return Comparison(
        basic=_epsilon(dataset, account, max(summed.spent.values()), summed.accountant),
        rdp_best_order=_epsilon(dataset, account, max(each.rdp_best_order for each in compared), "rdp"),
        pld_if_fixed_in_advance=_epsilon(
            dataset, account, max(each.pld_if_fixed_in_advance for each in compared), "pld"
        ),
    )


def settled_events(jobs: list[Posted], name: AccountName) -> list[Counted]:
    """What each job that posted something did to an account, and how many did the same.

    A study with its runs is one job: all of its plan where all of its hold was posted, else the runs that there were.
    """
    together: dict[str | int, list[Posted]] = {}
    for number, job in enumerate(jobs):
        together.setdefault(number if job.study is None else job.study, []).append(job)
    counted: list[Counted] = []
    for parts in together.values():
        planned_part = next((part for part in parts if part.planned is not None), None)
        part_events: list[Event]
        planned = None if planned_part is None or planned_part.planned is None else planned_part.planned.of(name)
        held_units = 0 if planned_part is None else planned_part.held.of(name)
        if planned_part is not None and sum(part.spent.of(name) * part.times for part in parts) == held_units:
            part_events = [planned] if planned is not None and held_units else []
        else:
            runs = [(event, part.times) for part in parts if (event := settled_event(part, name)) is not None]
            if parts[0].study is None:
                counted += runs
                continue
            part_events = [event for event, count in runs for _ in range(count)]
        if part_events:
            counted.append((part_events[0] if len(part_events) == 1 else events.composed(part_events), 1))
    return counted


def settled_event(job: Posted, name: AccountName) -> Event | None:
    """What a job that posted something did to an account; None where that is nothing.

    Charges grow in proportion to steps and releases, so that the part of the hold that was posted tells how many.
    """
    spent, held_units, mechanism = job.spent.of(name), job.held.of(name), job.mechanism
    if spent == 0 or mechanism is None:
        return None

    def part(planned: int) -> int:
        # The charge was rounded up by less than one unit: without it the quotient is not past the true number.
        return planned if spent == held_units else max(1, -(-planned * (spent - 1) // held_units))

    training = _part_of(mechanism.training, spent, held_units) if name == "train" else mechanism.training
    # Releases on the training account are spread evenly over its steps, and share its part. A histogram is whole.
    scores = (each.model_copy(update={"times": part(each.times)}) for each in mechanism.scores)
    return mechanism.started(training, scores).event(name)


def _part_of(training: TrainingMechanism, spent: int, held_units: int) -> TrainingMechanism:
    """The steps that so much of the hold pays for, a step of two queries counted twice."""

    def upto(steps: int) -> TrainingMechanism:
        return training.model_copy(update={"steps": steps})

    def queries(steps: int) -> int:
        return upto(steps).participations + upto(steps).double_steps()

    # The charge was rounded up by less than one unit: without it the quotient is not past the true number.
    enough = -(-queries(training.steps) * (spent - 1) // held_units) if spent < held_units else queries(training.steps)
    return upto(bisect_left(range(1, training.steps + 1), enough, hi=training.steps - 1, key=queries) + 1)


def _cap(dataset: Dataset, account: Account, value: float) -> Epsilon:
    """A guarantee about all that will ever be released: at the δ of all filters of the data set's plan."""
    order = _epsilon(dataset, account, value, account.filter)
    return order.model_copy(update={"delta": account.whole_delta or account.cap_delta})


def _epsilon(dataset: Dataset, account: Account, value: float, accountant: str) -> Epsilon:
    return Epsilon(
        value=value,
        delta=account.cap_delta,
        accountant=cast(AccountantName, accountant),
        unit=unit_of(dataset),
    )
