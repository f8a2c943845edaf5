"""What a data set's page shows: plain data for its templates."""

from __future__ import annotations

from dataclasses import dataclass

from markupsafe import Markup
from sqlalchemy import select
from sqlalchemy.orm import Session

from app.budgets.schemas import BudgetView
from app.budgets.service import visible_to
from app.dashboard.balances import Budget, budgets, room_for
from app.dashboard.declared_words import features_in_words, task_in_words
from app.dashboard.entry_pages import CapChange, EntriesQuery, cap_changes, entry_page
from app.dashboard.names import key_names
from app.dashboard.viewer import Viewer
from app.datasets.schemas import DatasetView
from app.db.models import Account, Job, LedgerEntry
from app.grants.service import find
from app.ledger import summary
from app.ledger.schemas import LedgerView
from core.contracts.dataset_spec import DatasetSpec
from core.privacy.quoted import Quoted


@dataclass(frozen=True)
class DatasetPage:
    """A data set, its budgets, and a page of its entries, newest first.

    Attributes:
        task, features: as its owner declared them, in words.
        asked: which entries these are.
        room: how many more jobs like the newest one the budget admits for this viewer; None without one.
        caps: the last caps with their reasons, newest first.
        within: the budgets within the cap that this viewer may see.
        names: the name behind a key's id, as far as the viewer may know it.
        older: where the next page of entries ends; None on the last one.
    """

    dataset: DatasetView
    task: Markup
    features: Markup
    budgets: list[Budget]
    room: int | None
    caps: list[CapChange]
    within: list[BudgetView]
    asked: EntriesQuery
    entries: list[LedgerEntry]
    names: dict[str, str]
    older: int | None

    @property
    def ledger(self) -> LedgerView | None:
        return self.dataset.ledger


def dataset_page(session: Session, dataset_id: str, viewer: Viewer, query: EntriesQuery) -> DatasetPage:
    """Gathers a data set's page.

    Raises:
        NotFound: no such data set, or the viewer may not see it.
    """
    row, access = find(session, viewer.caller, dataset_id)
    account = session.get(Account, row.id)
    dataset = DatasetView.of(row, None if account is None else summary.brief(session, row, account), access)
    entries, older = entry_page(session, row.id, query)
    caps = cap_changes(session, row.id)
    newest = select(Job.quote).where(Job.dataset_id == row.id, Job.parent_id.is_(None))
    like = session.scalar(newest.order_by(Job.created_at.desc(), Job.id.desc()).limit(1))
    within = [] if account is None else visible_to(session, viewer.caller, row.id)
    actors = {entry.actor for entry in entries} | {each.by for each in caps}
    users = {key for each in within for key in each.keys or ()}
    declared = DatasetSpec.model_validate(row.spec)
    return DatasetPage(
        dataset=dataset,
        task=task_in_words(declared.task),
        features=features_in_words(declared.features, dataset.shape.features),
        budgets=budgets(dataset.ledger),
        room=room_for(session, viewer.caller, row, None if like is None else Quoted.of(like).charge),
        caps=caps,
        within=within,
        asked=query,
        entries=entries,
        names=key_names(session, viewer.caller, access, {dataset.owner} | actors | users),
        older=older,
    )
