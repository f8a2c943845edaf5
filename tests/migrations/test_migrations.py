"""Migrations make what the models say, on both databases, wholly or not at all, also when several start at once."""

from __future__ import annotations

import argparse
import io
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory
from sqlalchemy import Engine, MetaData, Table, inspect, make_url, select, text
from sqlalchemy.exc import DatabaseError

from app.db.database import Database, make_engine
from app.db.migrate import SCRIPTS, current_revision, head_revision, migration_connection, upgrade
from app.db.models import Base
from app.ledger.transparency.anchors import Anchors
from tests import servers
from tests.by_night import ON_SQLITE_BY_DAY
from tests.conftest import BACKINGS, GUARD
from tests.ledger.support import ENTRIES, OWNER, a_history, add_owner, check, open_ledger
from tests.ledger.test_protection import ON_BOTH, OWN

ROOT = SCRIPTS.parent


@pytest.fixture(params=BACKINGS)
def backing(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def url(request: pytest.FixtureRequest, backing: str, tmp_path: Path) -> Iterator[str]:
    """An empty database on each back end."""
    with empty_database(request, backing, tmp_path / "scrimp.db") as made:
        yield made


@pytest.fixture
def other_url(request: pytest.FixtureRequest, backing: str, tmp_path: Path) -> Iterator[str]:
    """A second one, on the same back end."""
    with empty_database(request, backing, tmp_path / "other.db") as made:
        yield made


@contextmanager
def empty_database(request: pytest.FixtureRequest, backing: str, path: Path) -> Iterator[str]:
    if backing == "sqlite":
        yield f"sqlite:///{path}"
        return
    server = request.getfixturevalue("postgres_server")
    made = servers.new_database(server)
    yield made
    servers.drop_database(server, made)


def revisions() -> list[str]:
    """All of them, oldest first."""
    return [each.revision for each in ScriptDirectory(str(SCRIPTS)).walk_revisions()][::-1]


def downgrade(url: str, revision: str = "base") -> None:
    config = Config()
    config.set_main_option("script_location", str(SCRIPTS))
    with migration_connection(url) as connection:
        config.attributes["connection"] = connection
        command.downgrade(config, revision)


def protection(engine: Engine) -> dict[str, set[str]]:
    """What guards the ledger's two tables: the names of their triggers and CHECKs."""
    triggers = {
        "sqlite": "SELECT name FROM sqlite_master WHERE type = 'trigger'",
        "postgresql": "SELECT tgname FROM pg_trigger WHERE NOT tgisinternal",
    }
    there = tables(engine)
    with engine.connect() as connection:
        return {
            "triggers": set(connection.scalars(text(triggers[engine.dialect.name]))),
            "checks": {
                str(found["name"])
                for table in {"accounts", "ledger_entries"} & there
                for found in inspect(engine).get_check_constraints(table)
            },
        }


def offline_sql(url: str) -> str:
    output = io.StringIO()
    config = Config(cmd_opts=argparse.Namespace(x=[f"url={url}"]), output_buffer=output)
    config.set_main_option("script_location", str(SCRIPTS))
    command.upgrade(config, "head", sql=True)
    return output.getvalue()


def tables(engine: Engine) -> set[str]:
    return set(inspect(engine).get_table_names()) - {"alembic_version"}


def shape(engine: Engine, table: str) -> dict[str, list[str]]:
    """All that the database knows of a table. The order of constraints does not matter."""
    found = inspect(engine)
    columns = found.get_columns(table)
    return {
        "columns": [f"{each['name']} {each['type']} {each['nullable']} {each['default']}" for each in columns],
        "primary": [str(found.get_pk_constraint(table))],
        "foreign": sorted(map(str, found.get_foreign_keys(table))),
        "unique": sorted(map(str, found.get_unique_constraints(table))),
        "checks": sorted(map(str, found.get_check_constraints(table))),
        "indexes": sorted(str(_in_words(each)) for each in found.get_indexes(table)),
    }


def _in_words(index: Any) -> dict[str, Any]:
    """An index with its conditions as texts: SQLite's are objects, which equal themselves alone."""
    options = {name: str(each) for name, each in index.get("dialect_options", {}).items()}
    return {**index, "dialect_options": options}


def partial_indexes(engine: Engine) -> dict[str, str]:
    with engine.connect() as connection:
        found = connection.execute(
            text("SELECT name, sql FROM sqlite_master WHERE type = 'index' AND sql LIKE '%WHERE%'")
        )
        return {row.name: row.sql for row in found}


# SQLAlchemy leaves out indices of expressions on SQLite: their texts are compared.
@pytest.mark.filterwarnings("ignore:Skipped unsupported reflection of expression-based index:sqlalchemy.exc.SAWarning")
def test_the_migrations_make_what_the_models_say(url: str, other_url: str) -> None:
    upgrade(url)
    made, wanted = make_engine(url), make_engine(other_url)
    Base.metadata.create_all(wanted)
    if made.dialect.name == "sqlite":
        assert partial_indexes(made) == partial_indexes(wanted)
    assert tables(made) == tables(wanted) == set(Base.metadata.tables)
    for table in Base.metadata.tables:
        assert shape(made, table) == shape(wanted, table), table
    made.dispose()
    wanted.dispose()


@pytest.mark.parametrize("target", ["sqlite://", "postgresql+psycopg://u@h/d"])
def test_the_statements_can_be_printed(target: str) -> None:
    sql = offline_sql(target)
    assert all(f"CREATE TABLE {table}" in sql for table in Base.metadata.tables)


def test_postgresql_gets_its_triggers() -> None:
    sql = offline_sql("postgresql+psycopg://u@h/d")
    for table in ("ledger_entries", "accounts"):
        assert re.search(rf"BEFORE [A-Z ]*DELETE ON {table} FOR EACH ROW", sql)
        assert f"BEFORE TRUNCATE ON {table} FOR EACH STATEMENT" in sql
    assert "BEFORE UPDATE OR DELETE ON ledger_entries" in sql
    assert "BEFORE UPDATE ON accounts" in sql


def is_current(engine: Engine) -> bool:
    """True at the newest migration."""
    with engine.connect() as connection:
        return current_revision(connection) == head_revision()


def test_upgrade_is_complete_and_repeatable(url: str) -> None:
    engine = make_engine(url)
    assert not is_current(engine)
    upgrade(url)
    assert is_current(engine)
    assert tables(engine) == set(Base.metadata.tables)
    upgrade(url)
    with engine.connect() as connection:
        assert current_revision(connection) == head_revision() is not None
    engine.dispose()


@ON_SQLITE_BY_DAY  # another test compares the databases on both
def test_alembic_finds_no_difference_from_the_command_line(url: str) -> None:
    environment = os.environ | {"SCRIMP_DATABASE_URL": url}
    for arguments in (["upgrade", "head"], ["check"]):
        done = subprocess.run(
            [sys.executable, "-m", "alembic", *arguments],
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == 0, done.stderr


def test_an_empty_database_goes_down_and_up_again(url: str) -> None:
    upgrade(url)
    downgrade(url)
    engine = make_engine(url)
    assert tables(engine) == set()
    assert protection(engine)["triggers"] == set()
    assert not is_current(engine)
    upgrade(url)
    assert is_current(engine)
    engine.dispose()


@ON_SQLITE_BY_DAY  # tests/ledger/test_protection.py tries the newest revision on both
def test_after_every_revision_the_ledger_is_protected(
    url: str, other_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Up one by one with entries in the ledger, and down again to the first: a batch migration may drop triggers."""
    # The heads that are kept beside the chain are in tables of later revisions.
    monkeypatch.setattr("app.ledger.verification.anchors", lambda *_: Anchors())
    engine = make_engine(url)
    upgrade(url, "0001")
    first = protection(engine)
    with engine.begin() as connection:  # as it was then: the model of today has more columns
        connection.execute(text(OWNER_OF_0001), {"id": OWNER})
    assert len(first["triggers"]) == {"sqlite": 6, "postgresql": 5}[engine.dialect.name]
    assert len(first["checks"]) == 7
    upgrade(other_url)
    newest = Database(other_url)
    add_owner(newest)
    steps = [(upgrade, revision) for revision in revisions()]
    steps += [(downgrade, revision) for revision in revisions()[-2::-1]]
    for move, revision in steps:
        move(url, revision)
        found = protection(engine)
        assert found["triggers"] >= first["triggers"], revision
        assert found["checks"] >= first["checks"], revision
        refuses_as_it_was(engine, newest, *ON_BOTH[:3], *ON_BOTH[8:], *OWN[engine.dialect.name])
        assert list(broken_references(engine)) == []
    newest.close()
    engine.dispose()


def refuses_as_it_was(engine: Engine, newest: Database, *statements: str) -> None:
    """As `refuses`, at any revision: the model of today has more columns, so that rows are copied from a database at
    the newest one."""
    dataset_id = a_history(newest)
    copy_rows(newest.engine, engine, dataset_id)
    there = text("SELECT * FROM accounts WHERE dataset_id = :d")

    def account() -> dict[str, object]:
        with engine.connect() as connection:
            return dict(connection.execute(there, {"d": dataset_id}).mappings().one())

    before = account()
    assert before["entries"] == ENTRIES
    for statement in statements:
        with pytest.raises(DatabaseError), engine.begin() as connection:
            connection.execute(text(statement), {"d": dataset_id})
        assert account() == before, statement


def copy_rows(source: Engine, target: Engine, dataset_id: str) -> None:
    """A data set with its account and ledger, in the columns that both databases have."""
    for name, column in (("datasets", "id"), ("accounts", "dataset_id"), ("ledger_entries", "dataset_id")):
        old, new = (Table(name, MetaData(), autoload_with=engine, resolve_fks=False) for engine in (source, target))
        with source.connect() as connection:
            rows = connection.execute(select(old).where(old.c[column] == dataset_id)).mappings().all()
        kept = [{each: row[each] for each in new.c.keys()} for row in rows]  # noqa: SIM118 - a table's columns
        with target.begin() as connection:
            connection.execute(new.insert(), kept)


OWNER_OF_0001 = (
    "INSERT INTO api_keys (id, name, role, secret_hmac, created_at) "
    "VALUES (:id, 'owner', 'owner', '00', '2026-01-01 00:00:00')"
)


def broken_references(engine: Engine) -> Iterator[str]:
    """Rows of data sets whose owner's key is not there. (SQLite does not look when a table is made anew.)"""
    with engine.connect() as connection:
        lost = "SELECT id FROM datasets WHERE owner_key NOT IN (SELECT id FROM api_keys)"
        yield from connection.scalars(text(lost))
        if engine.dialect.name == "sqlite":
            yield from map(str, connection.execute(text("PRAGMA foreign_key_check")))


KEYS_OF_0003 = [
    "INSERT INTO api_keys (id, name, role, secret_hmac, created_at, expires_at) VALUES "
    "('key_v', 'v', 'viewer', '01', '2026-01-01 00:00:00', NULL), "
    "('key_e', 'e', 'analyst', '02', '2026-01-01 00:00:00', '2030-01-01 00:00:00'), "
    "('key_a', 'a', 'analyst', '03', '2026-01-01 00:00:00', NULL)"
]


def test_below_0003_viewers_and_keys_that_expire_are_revoked(url: str) -> None:
    """Code of that time knows neither: they must not come alive there."""
    upgrade(url, "0003")
    engine = make_engine(url)
    with engine.begin() as connection:
        for statement in KEYS_OF_0003:
            connection.execute(text(statement))
    downgrade(url, "0002")
    with engine.connect() as connection:
        left = connection.execute(text("SELECT id, role, revoked_at IS NULL FROM api_keys ORDER BY id")).all()
        assert [tuple(row) for row in left] == [
            ("key_a", "analyst", 1),
            ("key_e", "analyst", 0),
            ("key_v", "analyst", 0),
        ]
    with pytest.raises(DatabaseError), engine.begin() as connection:
        connection.execute(text("UPDATE api_keys SET role = 'viewer'"))
    upgrade(url, "0003")
    with engine.begin() as connection:
        connection.execute(text("UPDATE api_keys SET role = 'viewer' WHERE id = 'key_v'"))
    with pytest.raises(DatabaseError), engine.begin() as connection:
        connection.execute(text("UPDATE api_keys SET role = 'emperor'"))
    engine.dispose()


def test_a_ledger_with_entries_can_not_be_migrated_away(url: str) -> None:
    upgrade(url)
    db = Database(url)
    add_owner(db)
    dataset_id = open_ledger(db)
    with pytest.raises(RuntimeError, match="forget"):
        downgrade(url)
    assert is_current(db.engine)
    assert check(db, dataset_id).valid
    db.close()


def test_a_migration_that_fails_leaves_nothing(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    compilers = {"sqlite": "sqlite.base.SQLiteTypeCompiler", "postgresql": "postgresql.base.PGTypeCompiler"}
    compiler = compilers[make_url(url).get_backend_name()]
    monkeypatch.setattr(f"sqlalchemy.dialects.{compiler}.visit_TEXT", _broken)
    with pytest.raises(RuntimeError, match="broken"):
        upgrade(url)
    monkeypatch.undo()
    engine = make_engine(url)
    assert tables(engine) == set()
    engine.dispose()
    upgrade(url)


def _broken(*_arguments: object, **_options: object) -> str:
    raise RuntimeError("broken on purpose, after some tables")


MIGRATE = """
import sys
import alembic.command, alembic.config
from app.db.migrate import upgrade
print("ready", flush=True)
sys.stdin.readline()
upgrade(sys.argv[1])
"""


def test_processes_that_start_at_once_from_any_folder_migrate_once(url: str) -> None:
    environment, pipe = os.environ | {"PYTHONPATH": f"{ROOT}{os.pathsep}{GUARD}"}, subprocess.PIPE
    start = [sys.executable, "-c", MIGRATE, url]
    processes = [
        subprocess.Popen(start, cwd="/", env=environment, stdin=pipe, stdout=pipe, stderr=pipe, text=True)
        for _ in range(3)
    ]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    for process in processes:
        _, errors = process.communicate(timeout=300)
        assert process.returncode == 0, errors
    engine = make_engine(url)
    assert is_current(engine)
    engine.dispose()
