"""Migrations make what the models say, on both databases, wholly or not at all, also when several start at once."""

from __future__ import annotations

import argparse
import io
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from alembic.config import Config
from alembic.script import ScriptDirectory
from sqlalchemy import Engine, inspect, make_url, text
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import Dialect
from sqlalchemy.schema import CreateIndex, CreateTable

from alembic import command
from app.db.engine import Database, make_engine
from app.db.migrate import SCRIPTS, current_revision, head_revision, is_current, migration_connection, upgrade
from app.db.models import Base
from tests import servers
from tests.conftest import BACKINGS
from tests.ledger.support import add_owner, check, open_ledger
from tests.ledger.test_protection import ON_BOTH, OWN, refuses

ROOT = SCRIPTS.parent


@pytest.fixture(params=BACKINGS)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """An empty database on each back end."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'scrimp.db'}"
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


def lines_of(statement: str) -> list[str]:
    """A CREATE TABLE as its sorted lines: the order of constraints does not matter."""
    return sorted(re.sub(r"\s+", " ", line).strip().rstrip(",") for line in statement.splitlines() if line.strip())


@pytest.mark.parametrize(
    ("target", "dialect"), [("sqlite://", sqlite.dialect()), ("postgresql+psycopg://u@h/d", postgresql.dialect())]
)
def test_the_migrations_say_what_the_models_say(target: str, dialect: Dialect) -> None:
    statements = [statement.strip() for statement in offline_sql(target).split(";")]
    made = {
        found.group(1): statement
        for statement in statements
        if (found := re.search(r"CREATE TABLE (\w+)", statement)) and found.group(1) != "alembic_version"
    }
    assert set(made) == set(Base.metadata.tables)
    for name, table in Base.metadata.tables.items():
        wanted = str(CreateTable(table).compile(dialect=dialect))
        start = made[name].index("CREATE TABLE")
        assert lines_of(made[name][start:]) == lines_of(wanted), name
    indexes = [index for table in Base.metadata.tables.values() for index in table.indexes]
    for index in indexes:
        assert str(CreateIndex(index).compile(dialect=dialect)) in statements


def test_postgresql_gets_its_triggers() -> None:
    sql = offline_sql("postgresql+psycopg://u@h/d")
    for table in ("ledger_entries", "accounts"):
        assert re.search(rf"BEFORE [A-Z ]*DELETE ON {table} FOR EACH ROW", sql)
        assert f"BEFORE TRUNCATE ON {table} FOR EACH STATEMENT" in sql
    assert "BEFORE UPDATE OR DELETE ON ledger_entries" in sql
    assert "BEFORE UPDATE ON accounts" in sql


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


def test_alembic_finds_no_difference_from_the_command_line(url: str) -> None:
    environment = os.environ | {"SCRIMP_DATABASE_URL": url}
    for arguments in (["upgrade", "head"], ["check"]):
        done = subprocess.run(
            [sys.executable, "-m", "alembic", *arguments],
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
            timeout=60,
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


def test_after_every_revision_the_ledger_is_protected(url: str) -> None:
    """Up one by one with entries in the ledger, and down again to the first: a batch migration may drop triggers."""
    engine = make_engine(url)
    upgrade(url, "0001")
    first = protection(engine)
    assert len(first["triggers"]) == {"sqlite": 6, "postgresql": 5}[engine.dialect.name]
    assert len(first["checks"]) == 7
    db = Database(url)
    add_owner(db)
    steps = [(upgrade, revision) for revision in revisions()]
    steps += [(downgrade, revision) for revision in revisions()[-2::-1]]
    for move, revision in steps:
        move(url, revision)
        found = protection(engine)
        assert found["triggers"] >= first["triggers"], revision
        assert found["checks"] >= first["checks"], revision
        for statement in ON_BOTH[:3] + ON_BOTH[8:]:
            refuses(db, statement)
        for statement in OWN[engine.dialect.name]:
            refuses(db, statement)
    db.close()
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
    environment, pipe = os.environ | {"PYTHONPATH": str(ROOT)}, subprocess.PIPE
    start = [sys.executable, "-c", MIGRATE, url]
    processes = [
        subprocess.Popen(start, cwd="/", env=environment, stdin=pipe, stdout=pipe, stderr=pipe, text=True)
        for _ in range(4)
    ]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    for process in processes:
        _, errors = process.communicate(timeout=60)
        assert process.returncode == 0, errors
    engine = make_engine(url)
    assert is_current(engine)
    engine.dispose()
