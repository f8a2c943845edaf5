"""Alerts: half, four fifths, and the whole of a cap or of a budget within it are spent or held.

Who may see the balances is told once for each threshold and each size of the cap, in one transaction with the note that
it happened: webhooks deliver it (app.webhooks.delivery). A crash before the commit leaves both undone.

What is spent or held grows by admissions and by changes of caps alone, never by what a job reads: neither a message nor
its time tells more than the ledger's entries.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from sqlalchemy import ColumnElement, and_, or_, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from app.db.database import Database
from app.db.models import Account, BudgetAlert, Dataset, SubAccount, SubAccountKey
from app.webhooks.service import announce_threshold
from core.ids import now

THRESHOLDS = (50, 80, 100)
NEARLY_WHOLE = 200  # of a budget: a job that fills a cap leaves a little, as prices are rounded up
CAP = ""  # in the place of a budget's id


@dataclass(frozen=True)
class Level:
    """How full one account of a cap, or of a budget within it, is."""

    dataset: Dataset
    account: Account
    budget: SubAccount | None
    part: Literal["train", "holdout"]
    used: int
    size: int

    @property
    def reached(self) -> list[int]:
        """The thresholds that are reached. Integers: a share near one may not round."""
        left = self.size - self.used
        nearly = 100 if left * NEARLY_WHOLE < self.size else 0
        return [each for each in THRESHOLDS if self.used * 100 >= self.size * each or nearly >= each]

    def row(self, threshold: int) -> BudgetAlert:
        """The note that this threshold was announced."""
        return BudgetAlert(
            dataset_id=self.account.dataset_id,
            budget_id=CAP if self.budget is None else self.budget.id,
            account=self.part,
            threshold=threshold,
            size=self.size,
            created_at=now(),
        )


def announce_due(db: Database) -> int:
    """Announces thresholds that were reached since the last time; returns how many messages' causes there were."""
    with db.read() as session:
        if not any(_due(session)):
            return 0
    try:
        with db.write() as session:
            due = list(_due(session))
            for level, new in due:
                session.add_all(level.row(each) for each in new)
                session.flush()  # another relay's note of the same threshold fails here
                _announce(session, level, max(new))
    except IntegrityError:
        return 0  # another relay announces them
    return len(due)


def _due(session: Session) -> Iterator[tuple[Level, list[int]]]:
    """Levels with thresholds that are not noted yet."""
    noted: set[tuple[str, str, str, int, int]] | None = None
    for level in _levels(session):
        if noted is None:
            rows = select(
                BudgetAlert.dataset_id,
                BudgetAlert.budget_id,
                BudgetAlert.account,
                BudgetAlert.threshold,
                BudgetAlert.size,
            )
            noted = {
                (dataset_id, budget, part, percent, size)
                for dataset_id, budget, part, percent, size in session.execute(rows)
            }
        row = level.row(0)
        key = (row.dataset_id, row.budget_id, row.account)
        if new := [each for each in level.reached if (*key, each, level.size) not in noted]:
            yield level, new


def _half_full(model: type[Account] | type[SubAccount]) -> ColumnElement[bool]:
    """Without a product: a budget may be as large as an integer of the database."""
    return or_(
        *(
            and_(size > 0, spent + held_units >= size - spent - held_units)
            for spent, held_units, size in (
                (model.train_spent, model.train_held, model.train_budget),
                (model.holdout_spent, model.holdout_held, model.holdout_budget),
            )
        )
    )


CAPS = (
    select(Dataset, Account)
    .join(Account, Account.dataset_id == Dataset.id)
    .where(Account.joined_into.is_(None), _half_full(Account))
)
BUDGETS = (
    select(Dataset, Account, SubAccount)
    .join(Account, Account.dataset_id == Dataset.id)
    .join(SubAccount, SubAccount.dataset_id == Account.dataset_id)
    .where(Account.joined_into.is_(None), SubAccount.closed_at.is_(None), _half_full(SubAccount))
)


def _levels(session: Session) -> Iterator[Level]:
    """What is half full or more: caps of open ledgers, and budgets within them that keys still use."""
    for dataset, account in session.execute(CAPS):
        yield from _parts(dataset, account, None, account)
    for dataset, account, budget in session.execute(BUDGETS):
        yield from _parts(dataset, account, budget, budget)


def _parts(
    dataset: Dataset, account: Account, budget: SubAccount | None, balances: Account | SubAccount
) -> Iterator[Level]:
    train = balances.train_spent + balances.train_held
    holdout = balances.holdout_spent + balances.holdout_held
    if balances.train_budget:
        yield Level(dataset, account, budget, "train", train, balances.train_budget)
    if balances.holdout_budget:
        yield Level(dataset, account, budget, "holdout", holdout, balances.holdout_budget)


def _announce(session: Session, level: Level, threshold: int) -> None:
    """Queues one message for the highest threshold."""
    dataset, budget = level.dataset, level.budget
    first = dataset if dataset.parent_id is None else session.get_one(Dataset, dataset.parent_id)
    data: dict[str, object] = {
        "dataset": first.id,
        "name": first.name,
        "block": dataset.label,
        "budget": None if budget is None else budget.name,
        "account": level.part,
        "threshold": threshold,
        "share": level.used / level.size,
        "epsilon": level.account.cap_epsilon if budget is None else budget.epsilon,
        "delta": level.account.cap_delta,
    }
    keys = None
    if budget is not None:
        within = select(SubAccountKey.key_id).where(
            SubAccountKey.dataset_id == budget.dataset_id, SubAccountKey.name == budget.name
        )
        keys = frozenset(session.scalars(within))
    announce_threshold(session, first.id, data, keys)
