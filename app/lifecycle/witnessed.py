"""Finds entries that witnesses signed and that this database lacks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import select

from app.db.database import Database
from app.db.models import Account, Dataset
from app.ledger.transparency.trees import contains
from app.ledger.transparency.witnesses import Away, Witness
from core.errors import TransientError


@dataclass(frozen=True)
class Ahead:
    """A ledger that a witness has seen otherwise.

    Attributes:
        witness: its key's name.
        entries: what the database has.
        seen: how many entries the witness signed.
    """

    dataset_id: str
    name: str
    witness: str
    entries: int
    seen: int

    @property
    def differs(self) -> bool:
        """The database has as many entries, and they are others."""
        return self.entries >= self.seen


def ahead(db: Database, witnesses: Sequence[Witness]) -> tuple[list[Ahead], list[str]]:
    """Asks each witness for its newest checkpoint of each ledger here, and looks if the ledger begins with it.

    A data set that the database does not know at all is not found here: its recorded head tells.

    Returns:
        What is missing or differs, and why what could not be asked.
    """
    with db.read() as session:
        query = select(Dataset.id, Dataset.name).join(Account, Account.dataset_id == Dataset.id).order_by(Dataset.id)
        ledgers = [(row.id, row.name) for row in session.execute(query)]
    witnesses_ahead, unknown = list[Ahead](), list[str]()
    for witness in witnesses:
        for dataset_id, name in ledgers:
            try:
                seen = witness.newest(dataset_id)
            except Away as error:
                unknown.append(str(error))
                break  # it would delay every ledger
            except TransientError as error:
                unknown.append(f"{dataset_id}: {error}")
                continue
            if seen is None:
                continue
            with db.read() as session:
                if not contains(session, seen):
                    entries = session.get_one(Account, dataset_id).entries
                    witnesses_ahead.append(Ahead(dataset_id, name, witness.key.name, entries, seen.size))
    return witnesses_ahead, unknown
