"""One data set as the list shows it, and whether its ledger is complete."""

from __future__ import annotations

from app.datasets.schemas import (
    DatasetView,
    State,
)
from app.db.database import Database
from app.db.models import Account
from app.grants import service as grants
from app.keys.service import Caller
from app.ledger import summary
from app.ledger.behind import problems
from app.ledger.transparency.heads import Heads


def brief_dataset(db: Database, heads: Heads, caller: Caller, dataset: str) -> DatasetView:
    """One data set, by its id or name, as the list shows it.

    Raises:
        NotFound: there is none, or this key may not see it.
    """
    with db.read() as session:
        row, access = grants.find(session, caller, dataset)
        account = session.get(Account, row.id)
        ledger = None if account is None else summary.brief(session, row, account)
    return DatasetView.of(row, ledger, access, states_of(db, heads, [row.id])[row.id])


def states_of(db: Database, heads: Heads, dataset_ids: list[str]) -> dict[str, State]:
    """Which of these data sets' ledgers are complete in the database."""
    problems_by_id = problems(db, heads, dataset_ids)
    return {each: "behind" if each in problems_by_id else "ready" for each in dataset_ids}
