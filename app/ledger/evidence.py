"""A data set's statement as signed evidence: every entry of each block under its signed checkpoint.

The document of `scrimp.statement`, version 3, or 4 of a data set with two filters, which any machine checks. Beside the
ledgers it has the data set's signed
terms (app.ledger.signed_terms): governance and grants.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from sqlalchemy import select
from sqlalchemy.orm import Session

from app.db.database import Database
from app.db.models import Account, Dataset, LedgerCheckpoint
from app.ledger import repository
from app.ledger.block_accounts import family_of, label_of
from app.ledger.schemas import EntryView
from app.ledger.signed_terms import envelope_of, terms_in
from core.errors import Conflict

BATCH = 500


@dataclass(frozen=True)
class Evidence:
    """What a statement is made of.

    Attributes:
        about: id, name and unit, as the service says.
        terms: the signed envelope, as JSON text; None of a public data set.
        ledgers: the label of each block, its own first, with its newest checkpoint.
        version: of the document.
    """

    about: Mapping[str, str]
    terms: str | None
    ledgers: list[tuple[str, LedgerCheckpoint]]
    version: int = 3


def members_of(session: Session, dataset_id: str) -> list[tuple[Dataset, Account]]:
    """A data set and its blocks, retired ones included, or a block and what it moved to, with their accounts; the named
    one first."""
    arrived = (Dataset.id != dataset_id, Dataset.created_at, Dataset.id)
    rows = select(Dataset, Account).join(Account).where(Dataset.id.in_(family_of(session, dataset_id)))
    return [(row, account) for row, account in session.execute(rows.order_by(*arrived))]


def of(session: Session, dataset: Dataset) -> Evidence:
    """The newest evidence about a data set.

    Raises:
        Conflict: `head-pending`: a checkpoint, or the terms, are not signed yet.
    """
    member_ids = members_of(session, dataset.id)
    members = [row for row, _ in member_ids]
    version = 3 if all(account.whole_delta is None for _, account in member_ids) else 4
    signed = select(LedgerCheckpoint).where(LedgerCheckpoint.dataset_id.in_([each.id for each in members]))
    notes = {each.dataset_id: each for each in session.scalars(signed)}
    if len(notes) < len(members):
        raise Conflict("head-pending", "no checkpoint is signed yet: ask again in a moment")
    terms = envelope_of(session, dataset.id)
    stated = set[str]() if terms is None else {each.id for each in terms_in(terms).blocks}
    if not stated.issuperset(each.id for each in members):
        raise Conflict("head-pending", "the data set's terms are not signed yet: ask again in a moment")
    about = {"id": dataset.id, "name": dataset.name, "unit": repository.unit_of(dataset)}
    return Evidence(about, terms, [(label_of(each), notes[each.id]) for each in members], version)


def pieces(db: Database, evidence: Evidence) -> Iterator[str]:
    """The document, a batch of entries at a time."""
    about, terms = _json(evidence.about), evidence.terms or "null"
    yield f'{{"version": {evidence.version}, "dataset": {about}, "terms": {terms}, "ledgers": ['
    for number, (label, checkpoint) in enumerate(evidence.ledgers):
        head = {"id": checkpoint.dataset_id, "label": label, "checkpoint": checkpoint.note}
        yield f'{", " if number else ""}{_json(head)[:-1]}, "entries": ['
        for after in range(0, checkpoint.size, BATCH):
            until = min(after + BATCH, checkpoint.size)
            with db.read() as session:
                page = repository.page_of_entries(
                    session, checkpoint.dataset_id, after=after, job=None, limit=until - after
                )
                page_entries = [EntryView.of(each).model_dump(mode="json") for each in page[: until - after]]
            yield ("," if after else "") + ",".join("\n" + _json(each) for each in page_entries)
        yield "]}"
    yield "]}\n"


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)
