"""Migrates a database to the newest revision, and reports its revision. alembic is loaded only on demand."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache
from pathlib import Path

from sqlalchemy import Engine, inspect, make_url, text
from sqlalchemy.engine import Connection

from app.db.database import WRITES, make_engine
from app.db.writers import WriterQueue

# In the repository migrations are at the top; a wheel carries them beside this file (setup.py).
_INSTALLED = Path(__file__).resolve().parent / "migrations"
SCRIPTS = _INSTALLED if (_INSTALLED / "env.py").exists() else Path(__file__).resolve().parents[2] / "alembic"
ADVISORY_LOCK = 0x5C819B  # an arbitrary number of ours


def upgrade(url: str, revision: str = "head") -> None:
    """Migrates the database at `url` to `revision`, in one transaction: completely or not at all.

    Safe to start in several processes at once, from any folder: one works, the others wait and find it done. A database
    that a later release has migrated stays as it is.
    """
    with migration_connection(url) as connection:
        if revision != "head" or not is_later(current_revision(connection)):
            migrate(connection, revision)


def migrate(connection: Connection, revision: str = "head") -> None:
    """Migrates within the transaction of a `migration_connection`."""
    from alembic import command  # noqa: PLC0415
    from alembic.config import Config  # noqa: PLC0415

    config = Config()
    config.set_main_option("script_location", str(SCRIPTS).replace("%", "%%"))
    config.attributes["connection"] = connection
    command.upgrade(config, revision)


def serves(engine: Engine) -> bool:
    """Returns True if this code works on the database: at its newest migration, or at a later release's, which only
    adds to it (tests/migrations/test_last_release.py)."""
    with engine.connect() as connection:
        current = current_revision(connection)
    return current == head_revision() or is_later(current)


def is_later(revision: str | None) -> bool:
    """Returns True for a migration that is later than all that this code knows."""
    newest = head_revision()
    return revision is not None and newest is not None and revision > newest


def current_revision(connection: Connection) -> str | None:
    """The database's migration; None if it has none."""
    if not inspect(connection).has_table("alembic_version"):
        return None
    return connection.execute(text("SELECT version_num FROM alembic_version")).scalar_one_or_none()


@cache
def head_revision() -> str | None:
    """The newest migration that this code knows."""
    from alembic.script import ScriptDirectory  # noqa: PLC0415

    return ScriptDirectory(str(SCRIPTS)).get_current_head()


@contextmanager
def migration_connection(url: str) -> Iterator[Connection]:
    """One transaction that excludes other migrations; commits if nothing was raised."""
    with _writers_place(url):
        engine = make_engine(url)
        try:
            # On SQLite BEGIN IMMEDIATE: a running service does not write in between.
            with engine.connect().execution_options(**{WRITES: True}) as connection, connection.begin():
                if connection.dialect.name == "postgresql":
                    connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": ADVISORY_LOCK})
                yield connection
        finally:
            engine.dispose()


def _writers_place(url: str) -> AbstractContextManager[None]:
    """SQLite's queue of writers: others wait for a long migration; its busy handler alone would give up."""
    parsed = make_url(url)
    if parsed.get_backend_name() != "sqlite" or not parsed.database:
        return nullcontext()
    path = Path(parsed.database)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    return WriterQueue(path).place()
