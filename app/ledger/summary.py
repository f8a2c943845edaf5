"""A data set's ledger for display: the enforced figures, with other accountants' figures beside them."""

from __future__ import annotations

from bisect import bisect_left
from typing import Any, Protocol, cast

from app.contracts.base import AccountantName, AccountName, Epsilon, Unit
from app.db.engine import Database
from app.db.models import Account, Dataset
from app.errors import LimitError
from app.ledger.accounts import filter_for
from app.ledger.repository import Posted, dataset_with_account, posted
from app.ledger.schemas import AccountsView, AccountView, Comparison, LedgerView
from app.privacy.mechanism import MechanismConfig, TrainingMechanism


class Comparer(Protocol):
    """Composes event trees in a limited process, and caches the result."""

    def compare(self, trees: list[dict[str, Any]], delta: float) -> dict[str, Any]: ...


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
    worst = {"basic": 0.0, "rdp_best_order": 0.0, "pld_if_fixed_in_advance": 0.0}
    accounts: tuple[AccountName, AccountName] = ("train", "holdout")
    for name in accounts:
        trees = settled_trees(jobs, name)
        if not trees:
            continue
        try:
            figures = pricing.compare(trees, account.cap_delta)
        except LimitError:
            return None
        worst = {figure: max(value, float(figures[figure])) for figure, value in worst.items()}
    within_a_job = "gdp" if account.filter == "gdp" else "pld"
    return Comparison(
        basic=_epsilon(dataset, account, worst["basic"], within_a_job),
        rdp_best_order=_epsilon(dataset, account, worst["rdp_best_order"], "rdp"),
        pld_if_fixed_in_advance=_epsilon(dataset, account, worst["pld_if_fixed_in_advance"], "pld"),
    )


def settled_trees(jobs: list[Posted], name: AccountName) -> list[dict[str, Any]]:
    """The event tree of each job that posted something on an account. A study with its runs is one job: all of its plan
    where all of its hold was posted, else the runs that there were.
    """
    together: dict[str | int, list[Posted]] = {}
    for number, job in enumerate(jobs):
        together.setdefault(number if job.study is None else job.study, []).append(job)
    trees = []
    for parts in together.values():
        whole = next((part for part in parts if part.planned is not None), None)
        if whole is not None and whole.planned is not None and sum(p.spent[name] for p in parts) == whole.held[name]:
            found = [whole.planned[name]] if whole.held[name] else []
        else:
            found = [tree for part in parts if (tree := settled_tree(part, name)) is not None]
        if found:
            trees.append(found[0] if len(found) == 1 else {"kind": "composed", "events": found})
    return trees


def settled_tree(job: Posted, name: AccountName) -> dict[str, Any] | None:
    """The event tree of what a job posted on an account; None where that is nothing.

    Charges grow in proportion to steps and releases, so that the part of the hold that was posted tells how many.
    """
    from app.privacy.events import event_tree  # noqa: PLC0415

    spent, held = job.spent, job.held
    if spent[name] == 0 or job.mechanism is None:
        return None
    mechanism = MechanismConfig.model_validate(job.mechanism)

    def part(planned: int) -> int:
        # The charge was rounded up by less than one unit: without it the quotient is not past the true number.
        return planned if spent[name] == held[name] else max(1, -(-planned * (spent[name] - 1) // held[name]))

    training = _part_of(mechanism.training, spent[name], held[name]) if name == "train" else mechanism.training
    # Releases on the training account are spread evenly over its steps, and share its part. A histogram is whole.
    releases = tuple(each.model_copy(update={"times": part(each.times)}) for each in mechanism.releases)
    return event_tree(mechanism.model_copy(update={"training": training, "releases": releases}), name)


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
