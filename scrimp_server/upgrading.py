"""Moves a service's database to this release: backup, migration, and verification of every ledger.

Migration and verification are one transaction. If either fails, the database's own rollback undoes the migration: no
backup is put back, which would forget what was spent since (docs/production.md, "Upgrades").
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from alembic.util import CommandError
from sqlalchemy import inspect, select, text
from sqlalchemy.engine import Connection
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.orm import Session

from app.db.migrate import current_revision, head_revision, is_later, migrate, migration_connection
from app.db.models import Account
from app.ledger.transparency.heads import Heads, UnreadableHeadError
from app.ledger.verification import verify
from app.settings import Settings
from core.errors import Unavailable
from core.ids import now
from scrimp_server.backup import BackupError, copy_database

Ledgers = dict[str, tuple[int, str]]  # entries and head, by data set


class UpgradeError(Exception):
    """The database stays as it was; the message says why, and what to do."""


@dataclass(frozen=True)
class Upgrade:
    """A finished upgrade.

    Attributes:
        before, after: revisions of the schema; equal if there was nothing to do.
        backup: the copy of the database of before; None if it is a server's, or nothing was done.
        ledgers: how many were verified.
        entries: how many they have together.
    """

    before: str
    after: str
    backup: Path | None = None
    ledgers: int = 0
    entries: int = 0


def upgrade(settings: Settings, *, has_backup: bool = False) -> Upgrade:
    """Backs the database up, migrates it, and verifies each ledger against the heads recorded outside.

    Args:
        has_backup: the operator has made one; required for PostgreSQL.

    Raises:
        UpgradeError: nothing was changed.
    """
    if settings.database_url and not has_backup:
        raise UpgradeError("back the database up first (docs/production.md), then say so with --backed-up")
    if not settings.database_url and not (settings.home / "scrimp.db").exists():
        raise UpgradeError(f"{settings.home / 'scrimp.db'} is not there: check --home and SCRIMP_HOME")
    heads, old_revision, backup = Heads.of(settings), "none", None
    try:
        with migration_connection(settings.effective_database_url) as connection:
            old_revision, new_revision = _revisions(connection)
            if old_revision == new_revision:
                return Upgrade(old_revision, new_revision)
            backup = None if settings.database_url else _backup(settings, old_revision)
            ledgers = _ledgers(connection)
            migrate(connection)
            verified = _verify(connection, heads, ledgers)
    except (SQLAlchemyError, CommandError, Unavailable, UnreadableHeadError, BackupError) as error:
        _discard(backup)
        reason = error.orig if isinstance(error, DBAPIError) else error
        raise UpgradeError(
            f"{reason}. The database stays at {old_revision}: start the release that ran before"
        ) from error
    except UpgradeError:
        _discard(backup)
        raise
    return Upgrade(old_revision, new_revision, backup, len(verified), sum(verified))


def _revisions(connection: Connection) -> tuple[str, str]:
    """The schema's revision, and this release's."""
    old, new = current_revision(connection), head_revision()
    if old is None or new is None:
        raise UpgradeError("the database has no tables: a new service is made by `scrimp serve` or `scrimp prepare`")
    if is_later(old):
        raise UpgradeError(f"the database is at {old}, later than this release ({new}): install the newer release")
    return old, new


def _backup(settings: Settings, revision: str) -> Path:
    folder = settings.home / "backups"
    folder.mkdir(mode=0o700, exist_ok=True)
    return copy_database(settings, folder / f"before-upgrade-{revision}-{now():%Y%m%dT%H%M%SZ}.db")


def _discard(backup: Path | None) -> None:
    """Removes the copy of a database that stays as it was."""
    if backup is not None:
        backup.unlink()


def _ledgers(connection: Connection) -> Ledgers:
    """The ledgers as they are now, in columns that every release's schema has."""
    if not inspect(connection).has_table("accounts"):
        return {}
    rows = connection.execute(text("SELECT dataset_id, entries, head FROM accounts"))
    return {row.dataset_id: (row.entries, row.head) for row in rows}


def _verify(connection: Connection, heads: Heads, old: Ledgers) -> list[int]:
    """Verifies each ledger: its chain, its balances, the recorded heads, and the same entries as before.

    Beside a running service a ledger may have grown or begun since `old`; it never has fewer entries.

    Returns:
        The entries of each ledger.

    Raises:
        UpgradeError: one does not hold.
        UnreadableHeadError, Unavailable: a record outside cannot be read.
    """
    advice = "the migration is undone. Start the release that ran before, and look with `scrimp restore`"
    recorded = set(heads.recorded())  # before the query: what is recorded has been committed
    counts = []
    with Session(connection) as session:
        dataset_ids = session.scalars(select(Account.dataset_id)).all()
        unknown = sorted(recorded - set(dataset_ids))
        if unknown:
            raise UpgradeError(
                f"heads are recorded of ledgers that the database lacks ({', '.join(unknown)}): {advice}"
            )
        for dataset_id in dataset_ids:
            result = verify(session, dataset_id, heads.read(dataset_id), heads.checkpoint(dataset_id))
            entries, head = old.get(dataset_id, (0, result.head))
            problem = result.problem
            if problem is None and (result.entries < entries or (result.entries == entries and result.head != head)):
                problem = "the migration has changed its entries"
            if problem is not None:
                raise UpgradeError(f"the ledger of {dataset_id} does not hold ({problem}): {advice}")
            counts.append(result.entries)
    return counts
