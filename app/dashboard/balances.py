"""Budgets and charges in shares, for bars."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy.orm import Session

from app.admission.lookup import blocks_of, remaining
from app.dashboard.numbers import percent
from app.db.models import Dataset
from app.keys.service import Caller
from app.ledger.accounts import filter_for
from app.ledger.block_accounts import ledgers_of
from app.ledger.schemas import AccountView, LedgerView
from core.privacy.prices import Charge, Units


@dataclass(frozen=True)
class Budget:
    """One account's balance, in shares of its budget: they add up, and ε's do not.

    Attributes:
        spent_percent, held_percent: of the budget, rounded up; `left_percent` is the rest.
        left: the filter's ε at `delta` for the rest, as one job.
    """

    name: str
    account: AccountView
    spent_percent: float
    held_percent: float
    left_percent: float
    left: float
    delta: float


def budgets(figures: LedgerView | None) -> list[Budget]:
    """The training part's account, and the hold-out's if there is a private hold-out. None on public data."""
    if figures is None:
        return []
    accounts = {"train": figures.accounts.train, "holdout": figures.accounts.holdout}
    return [_budget(name, view, figures.cap.delta) for name, view in accounts.items() if view is not None]


def _budget(name: str, view: AccountView, delta: float) -> Budget:
    privacy_filter = filter_for(view.filter, view.order)
    spent = percent(view.spent, view.budget)
    held_share = min(percent(view.held, view.budget), 100.0 - spent)
    return Budget(
        name=name,
        account=view,
        spent_percent=spent,
        held_percent=held_share,
        left_percent=abs(round(100.0 - spent - held_share, 1)),
        left=privacy_filter.epsilon(view.remaining, delta) if view.remaining else 0.0,
        delta=delta,
    )


@dataclass(frozen=True)
class Share:
    """What a charge takes of one account's budget, beside what is spent and held there already; each rounded up.

    Attributes:
        percent: the charge's share of the budget.
        before: the share that is spent or held.
    """

    name: str
    percent: float
    before: float

    @property
    def after(self) -> float:
        """The share that is left afterwards; below 0 where the charge does not fit."""
        return round(100.0 - self.before - self.percent, 1)


def shares_of(figures: LedgerView | None, charge: Charge) -> list[Share]:
    """A charge in shares of the accounts that it is on; empty on public data."""
    if figures is None or charge.unit is None:
        return []
    accounts = (
        ("train", charge.train, figures.accounts.train),
        ("holdout", charge.holdout, figures.accounts.holdout),
    )
    return [
        Share(name, percent(units, view.budget), percent(view.spent + view.held, view.budget))
        for name, units, view in accounts
        if view is not None
    ]


def room_for(session: Session, caller: Caller, dataset: Dataset, charge: Units | None) -> int | None:
    """How many jobs of this charge fit what is left to the caller, on the open block where most fit: a job leaves out
    blocks that cannot pay. None where nothing is charged."""
    blocks = blocks_of(session, dataset, caller.id)
    left = remaining(session, ledgers_of(session, dataset.id)[-1:], caller.id) if blocks is None else None
    lefts = [left] if blocks is None else [each.left for each in blocks]
    if charge is None:
        return None
    fits = [each.holds(charge) for each in lefts if each is not None]
    return max((each for each in fits if each is not None), default=None if blocks is None else 0)
