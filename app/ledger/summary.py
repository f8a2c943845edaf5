"""A data set's ledger for display: the enforced figures, with other accountants' figures beside them."""

from __future__ import annotations

from bisect import bisect_left
from typing import Protocol, cast

from app.contracts.base import AccountantName, AccountName, Epsilon, Unit
from app.db.engine import Database
from app.db.models import Account, Dataset
from app.errors import LimitError
from app.ledger.accounts import filter_for
from app.ledger.repository import Posted, dataset_with_account, posted
from app.ledger.schemas import AccountsView, AccountView, Comparison, LedgerView
from app.privacy import events
from app.privacy.events import Event
from app.privacy.mechanism import MechanismConfig, TrainingMechanism
from app.privacy.plans import CompareRequest
from app.privacy.prices import Compared


class Comparer(Protocol):
    """Composes events in a limited process, and caches the result."""

    def compare(self, request: CompareRequest) -> Compared: ...


def overview(db: Database, pricing: Comparer, dataset_id: str) -> LedgerView:
    """The ledger of a private data set. No transaction is open while the comparison is computed.

    Raises:
        NotFound: no such data set, or it has no ledger.
    """
    with db.read() as session:
        dataset, account = dataset_with_account(session, dataset_id)
        jobs = posted(session, dataset_id)
        known = sum(each.spent["train"] for each in jobs), sum(each.spent["holdout"] for each in jobs)
    # After a restored backup a part may be known as an amount alone, which no other accountant can compose.
    whole = known == (account.train_spent, account.holdout_spent)
    return view(dataset, account, comparison(pricing, dataset, account, jobs) if whole else None)


def view(dataset: Dataset, account: Account, compared: Comparison | None) -> LedgerView:
    """The figures from an account's row."""
    of = filter_for(account.filter, account.order)
    names: list[AccountName] = ["train"] if account.holdout_budget == 0 else ["train", "holdout"]
    accounts = {name: AccountView.of(account, name, of.unit) for name in names}
    spent = max(each.spent for each in accounts.values())
    taken = max(each.spent + each.held for each in accounts.values())
    remaining = min(each.remaining for each in accounts.values())

    def epsilon(value: float) -> Epsilon:
        return _epsilon(dataset, account, value, account.filter)

    def of_amount(amount: int) -> Epsilon:
        return epsilon(of.epsilon(amount, account.cap_delta) if amount else 0.0)

    return LedgerView(
        cap=epsilon(account.cap_epsilon),
        largest_cap=epsilon(account.largest_cap_epsilon),
        accounts=AccountsView(train=accounts["train"], holdout=accounts.get("holdout")),
        epsilon_spent=of_amount(spent),
        epsilon_spent_and_held=of_amount(taken),
        epsilon_remaining=of_amount(remaining),
        comparison=compared,
        entries=account.entries,
        head=account.head,
        closed=account.joined_into is not None,
    )


def comparison(pricing: Comparer, dataset: Dataset, account: Account, jobs: list[Posted]) -> Comparison | None:
    """Each figure for the account with the larger loss; None if the computation exceeds its limits."""
    figures = [Compared(basic=0.0, rdp_best_order=0.0, pld_if_fixed_in_advance=0.0)]
    accounts: tuple[AccountName, AccountName] = ("train", "holdout")
    for name in accounts:
        done = settled_events(jobs, name)
        if not done:
            continue
        try:
            figures.append(pricing.compare(CompareRequest(events=tuple(done), delta=account.cap_delta)))
        except LimitError:
            return None
    within_a_job = filter_for(account.filter, account.order).rule.within_a_job
    return Comparison(
        basic=_epsilon(dataset, account, max(each.basic for each in figures), within_a_job),
        rdp_best_order=_epsilon(dataset, account, max(each.rdp_best_order for each in figures), "rdp"),
        pld_if_fixed_in_advance=_epsilon(
            dataset, account, max(each.pld_if_fixed_in_advance for each in figures), "pld"
        ),
    )


def settled_events(jobs: list[Posted], name: AccountName) -> list[Event]:
    """What each job that posted something did to an account. A study with its runs is one job: all of its plan where
    all of its hold was posted, else the runs that there were.
    """
    together: dict[str | int, list[Posted]] = {}
    for number, job in enumerate(jobs):
        together.setdefault(number if job.study is None else job.study, []).append(job)
    done: list[Event] = []
    for parts in together.values():
        whole = next((part for part in parts if part.planned is not None), None)
        found: list[Event]
        if whole is not None and whole.planned is not None and sum(p.spent[name] for p in parts) == whole.held[name]:
            found = [events.read(whole.planned[name])] if whole.held[name] else []
        else:
            found = [event for part in parts if (event := settled_event(part, name)) is not None]
        if found:
            done.append(found[0] if len(found) == 1 else events.composed(found))
    return done


def settled_event(job: Posted, name: AccountName) -> Event | None:
    """What a job that posted something did to an account; None where that is nothing.

    Charges grow in proportion to steps and releases, so that the part of the hold that was posted tells how many.
    """
    spent, held = job.spent, job.held
    if spent[name] == 0 or job.mechanism is None:
        return None
    mechanism = MechanismConfig.model_validate(job.mechanism)

    def part(planned: int) -> int:
        # The charge was rounded up by less than one unit: without it the quotient is not past the true number.
        return planned if spent[name] == held[name] else max(1, -(-planned * (spent[name] - 1) // held[name]))

    training = _part_of(mechanism.training, spent[name], held[name]) if name == "train" else mechanism.training
    # Releases on the training account are spread evenly over its steps, and share its part. A histogram is whole.
    scores = (each.model_copy(update={"times": part(each.times)}) for each in mechanism.scores)
    return mechanism.started(training, scores).event(name)


def _part_of(training: TrainingMechanism, spent: int, held: int) -> TrainingMechanism:
    """The steps that so much of the hold pays for, a step of two queries counted twice."""

    def upto(steps: int) -> TrainingMechanism:
        return training.model_copy(update={"steps": steps})

    def queries(steps: int) -> int:
        return steps + upto(steps).double_steps

    # The charge was rounded up by less than one unit: without it the quotient is not past the true number.
    enough = -(-queries(training.steps) * (spent - 1) // held) if spent < held else queries(training.steps)
    return upto(bisect_left(range(1, training.steps + 1), enough, hi=training.steps - 1, key=queries) + 1)


def _epsilon(dataset: Dataset, account: Account, value: float, accountant: str) -> Epsilon:
    return Epsilon(
        value=value,
        delta=account.cap_delta,
        accountant=cast(AccountantName, accountant),
        unit=cast(Unit, dataset.spec["privacy"]["unit"]),
    )
