"""The reader's own check of a chain finds every change to it."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import select

from app.db.database import Database
from app.db.models import LedgerEntry as Row
from app.ledger import accounts
from app.ledger.memos import Voided
from app.ledger.schemas import EntryView
from scrimp.models import LedgerEntry
from scrimp.verify import recompute_chain
from tests.factories import add_dataset


@pytest.fixture
def chain(db: Database) -> tuple[str, list[dict[str, Any]]]:
    """Four entries, as the API shows them."""
    dataset = add_dataset(db)
    memo = Voided(reason="ε")
    with db.write() as session:
        for job in ("job_a", "job_b"):
            accounts.hold(session, dataset_id=dataset, job_id=job, train=7, holdout=1, actor="me", memo=memo)
        accounts.post(session, dataset_id=dataset, job_id="job_a", train=5, holdout=1, actor="me")
    with db.read() as session:
        rows = session.scalars(select(Row).where(Row.dataset_id == dataset).order_by(Row.seq))
        return dataset, [EntryView.of(row).model_dump(mode="json") for row in rows]


def check(dataset: str, entries: list[dict[str, Any]]) -> int | None:
    return recompute_chain(dataset, map(LedgerEntry.model_validate, entries)).first_bad_entry


def test_an_untouched_chain_holds(chain: tuple[str, list[dict[str, Any]]]) -> None:
    dataset, entries = chain
    found = recompute_chain(dataset, map(LedgerEntry.model_validate, entries))
    assert (found.entries, found.head, found.first_bad_entry) == (4, entries[-1]["hash"], None)


@pytest.mark.parametrize(
    ("seq", "change"),
    [
        (2, {"train": 6}),
        (2, {"memo": {}}),
        (3, {"actor": "another"}),
        (3, {"prev_hash": "0" * 64}),
        (4, {"hash": "0" * 64}),
        (4, {"seq": 5}),
    ],
)
def test_a_change_is_found(chain: tuple[str, list[dict[str, Any]]], seq: int, change: dict[str, Any]) -> None:
    dataset, entries = chain
    entries[seq - 1] |= change
    assert check(dataset, entries) == seq


def test_a_removed_entry_and_another_data_sets_chain_are_found(chain: tuple[str, list[dict[str, Any]]]) -> None:
    dataset, entries = chain
    assert check(dataset, [entries[0], *entries[2:]]) == 2
    assert check("ds_another", entries) == 1
