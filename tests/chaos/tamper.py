"""What somebody with the database's password can do to a ledger, on both databases: no trigger is in the way."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import delete, insert, select, text, update
from sqlalchemy.orm import Session

from app.chain import digest
from app.db.database import Database
from app.db.models import Account, LedgerEntry, table_of
from app.ledger import running_sums
from app.ledger.entries import COLUMNS, content, genesis

ENTRIES, ACCOUNTS = table_of(LedgerEntry), table_of(Account)
Rows = tuple[list[dict[str, Any]], dict[str, Any]]


@contextmanager
def unprotected(db: Database) -> Iterator[Session]:
    """One transaction without triggers, which are there again after it: nobody sees that they were away."""
    with db.write() as session:
        if db.engine.dialect.name == "postgresql":
            session.execute(text("SET LOCAL session_replication_role = replica"))
            yield session
            return
        triggers = session.execute(text("SELECT name, sql FROM sqlite_master WHERE type = 'trigger'")).all()
        for name, _sql in triggers:
            session.execute(text(f"DROP TRIGGER {name}"))
        yield session
        session.flush()
        for _name, sql in triggers:
            session.connection().exec_driver_sql(sql)


def rows_of(session: Session, dataset: str) -> Rows:
    """A ledger as it is: its entries and its account's row."""
    entries = session.execute(select(ENTRIES).where(ENTRIES.c.dataset_id == dataset).order_by(ENTRIES.c.seq))
    account = session.execute(select(ACCOUNTS).where(ACCOUNTS.c.dataset_id == dataset))
    return [dict(row) for row in entries.mappings()], dict(account.mappings().one())


def put_back(session: Session, dataset: str, rows: Rows) -> None:
    """Makes a ledger what it was."""
    entries, account = rows
    session.execute(delete(ENTRIES).where(ENTRIES.c.dataset_id == dataset))
    session.execute(insert(ENTRIES), entries)
    session.execute(update(ACCOUNTS).where(ACCOUNTS.c.dataset_id == dataset).values(account))
    running_sums.write(session, [dataset])


def set_account(session: Session, dataset: str, **values: Any) -> None:
    session.execute(update(ACCOUNTS).where(ACCOUNTS.c.dataset_id == dataset).values(values))


def set_entry(session: Session, dataset: str, seq: int, **values: Any) -> None:
    session.execute(update(ENTRIES).where(ENTRIES.c.dataset_id == dataset, ENTRIES.c.seq == seq).values(values))


def roll_back(session: Session, dataset: str, keep: int) -> None:
    """Forgets all entries but the first `keep`, and sets the account's row and the running sums to what they say."""
    session.execute(delete(ENTRIES).where(ENTRIES.c.dataset_id == dataset, ENTRIES.c.seq > keep))
    last = rows_of(session, dataset)[0][-1]
    balance = {
        f"{name}_{part}": last["memo"]["balance"][name][part]
        for name in ("train", "holdout")
        for part in ("spent", "held")
    }
    set_account(session, dataset, entries=keep, head=last["hash"], **balance)
    running_sums.write(session, [dataset])


def rewrite(session: Session, dataset: str, keep: int) -> None:
    """Writes the first `keep` entries anew as a chain that follows from itself, with the account's row."""
    roll_back(session, dataset, keep)
    previous, forged = genesis(dataset), []
    for row in rows_of(session, dataset)[0]:
        said = {name: row[name] for name in COLUMNS} | {"prev_hash": previous, "actor": "key_forger"}
        previous = digest(content(LedgerEntry(**said)))
        forged.append(said | {"hash": previous})
    session.execute(delete(ENTRIES).where(ENTRIES.c.dataset_id == dataset))
    session.execute(insert(ENTRIES), forged)
    set_account(session, dataset, head=previous)
    running_sums.write(session, [dataset])
