"""/v1/datasets: owners and admins register data sets; keys see those that they are granted."""

from __future__ import annotations

from fastapi import APIRouter

from app.datasets import readings, repository
from app.datasets.briefs import states_of
from app.datasets.schemas import (
    DatasetList,
    DatasetView,
    Reading,
    ReadingDataset,
)
from app.db.models import Dataset, DatasetReading
from app.grants import service as grants
from app.keys.auth import CurrentKey
from app.ledger import summary
from app.web import examples
from app.web.deps import Db, Pricing, RecordedHeads
from app.web.pagination import After, Limit, cut, decode_row
from app.web.route_operation import Operation
from core import leaves
from core.errors import Conflict

router = APIRouter(prefix="/v1/datasets", tags=["datasets"])


@router.get("")
@Operation(
    "A page of data sets.",
    audience="every key",
    leaves=leaves.OWNERS_ACTIONS,
    command="datasets list",
    answer={"items": [examples.DATASET_VIEW], "next": None},
)
def list_datasets(
    db: Db, heads: RecordedHeads, caller: CurrentKey, after: After = None, limit: Limit = 50
) -> DatasetList:
    """Lists the data sets that this key may see, newest first, each with its ledger's balances; and the key's own that
    are still being read."""
    key = decode_row(after)
    with db.read() as session:
        stored = {each[0].id: each for each in repository.page(session, caller, after=key, limit=limit)}
        reading = {each.id: each for each in readings.page(session, caller, after=key, limit=limit)}
        rows: list[Dataset | DatasetReading] = [*(each[0] for each in stored.values()), *reading.values()]
        rows.sort(key=lambda row: (row.created_at, row.id), reverse=True)
        rows, last = cut(rows, limit)
        rows_shown = [stored[row.id] for row in rows if row.id in stored]
        ledgers = {
            row.id: summary.brief(session, row, account) for row, account, _ in rows_shown if account is not None
        }
    states = states_of(db, heads, [each[0].id for each in rows_shown])
    views = {row.id: DatasetView.of(row, ledgers.get(row.id), access, states[row.id]) for row, _, access in rows_shown}
    return DatasetList(
        items=[views.get(row.id) or ReadingDataset.of(reading[row.id], caller) for row in rows], next=last
    )


@router.get("/{dataset_id}")
@Operation(
    "The data set.", audience="view", leaves=leaves.FOR_OWNER, command="datasets show", answer=examples.DATASET_VIEW
)
def show_dataset(
    dataset_id: str, db: Db, heads: RecordedHeads, pricing: Pricing, caller: CurrentKey
) -> DatasetView | ReadingDataset:
    """Shows one data set, by its id or name; how far it is read, if it is not ready."""
    with db.read() as session:
        try:
            dataset, access = grants.find(session, caller, dataset_id)
        except Conflict:
            return ReadingDataset.of(readings.require(session, caller, dataset_id), caller)
        outcome = readings.outcome(session, caller, dataset.id)
    ledger = summary.figures(db, pricing, dataset.id)
    view = DatasetView.of(dataset, ledger, access, states_of(db, heads, [dataset.id])[dataset.id])
    return view if outcome is None else view.model_copy(update={"reading": Reading.of(outcome, caller)})
