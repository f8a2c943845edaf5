"""The last release works beside the newest schema: its processes go on while a deployment is upgraded, or rolled back.

The last release's statements name the columns of its own schema, which a migration to its revision makes. A later
migration may therefore only add: what is no longer used is dropped one release later, when LAST_RELEASE has moved on.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import JSON, Column, Engine, Integer, MetaData, String, Table, inspect, select, text, update

from app.db import migrate
from app.db.database import Database, make_engine
from app.db.migrate import upgrade
from app.db.models import Base, Job
from app.ledger.verification import verify
from app.lifecycle.attempts import AttemptLog
from app.lifecycle.settle import settle, settlement_of
from app.lifecycle.states import get_job
from tests.conftest import BACKINGS
from tests.factories import AT_ONCE, add_dataset, numerics
from tests.lifecycle import conftest as lifecycle
from tests.lifecycle.conftest import Submit, claimed
from tests.migrations.test_migrations import empty_database, protection

# The revision of the last release: until there is one, of the schema that the first release will be upgraded from.
LAST_RELEASE = "0024"


submit = lifecycle.submit


@pytest.fixture(params=BACKINGS)
def backing(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def empty(request: pytest.FixtureRequest, backing: str, tmp_path: Path) -> Iterator[str]:
    with empty_database(request, backing, tmp_path / "other.db") as made:
        yield made


def schema_of(engine: Engine) -> MetaData:
    found = MetaData()
    found.reflect(engine)
    found.remove(found.tables["alembic_version"])
    for table in found.tables.values():
        for column in table.c:
            if isinstance(column.type, JSON):
                column.type.none_as_null = True  # as the models have it
    return found


# SQLAlchemy leaves out indices of expressions on SQLite: an index is nothing that the last release names.
@pytest.mark.filterwarnings("ignore:Skipped unsupported reflection of expression-based index:sqlalchemy.exc.SAWarning")
def test_migrations_since_the_last_release_only_add(empty: str) -> None:
    engine = make_engine(empty)
    upgrade(empty, LAST_RELEASE)
    before, checks = schema_of(engine), protection(engine)
    old_checks = {name: checks_of(engine, name) for name in before.tables}
    upgrade(empty)
    after = schema_of(engine)
    problems = [each for name, table in before.tables.items() for each in differences(table, after.tables.get(name))]
    assert problems == []
    for name, there in old_checks.items():  # a new one could refuse what the last release writes
        new = new_columns(before, after, name)
        added = checks_of(engine, name) - there
        assert not {check for check in added if not any(column in check for column in new)}, name
    assert protection(engine)["triggers"] >= checks["triggers"]
    engine.dispose()


def differences(before: Table, after: Table | None) -> Iterator[str]:
    """What the last release would miss in a table, or could not write there."""
    if after is None:
        yield f"{before.name} is gone"
        return
    for column in before.c:
        now = after.c.get(column.name)
        if now is None:
            yield f"{before.name}.{column.name} is gone"
        elif now.type.compile() != column.type.compile():
            yield f"{before.name}.{column.name} has another type"
        elif column.nullable and not now.nullable:
            yield f"{before.name}.{column.name} may no longer be null"
    for column in after.c:
        if column.name not in before.c and not writable_without(column):
            yield f"{after.name}.{column.name} is new: it needs a server's default, or may be null"


def writable_without(column: Column[object]) -> bool:
    return column.nullable or column.server_default is not None or column.identity is not None


def checks_of(engine: Engine, table: str) -> set[str]:
    return {f"{each['name']} {each['sqltext']}" for each in inspect(engine).get_check_constraints(table)}


def new_columns(before: MetaData, after: MetaData, table: str) -> set[str]:
    return set(after.tables[table].c.keys()) - set(before.tables[table].c.keys())


def test_the_rules_find_what_would_break_the_last_release() -> None:
    old = Table("jobs", MetaData(), Column("id", String(10)), Column("step", Integer), Column("name", String(10)))
    new = Table(
        "jobs",
        MetaData(),
        Column("id", String(10), nullable=False),
        Column("step", String(10)),
        Column("more", Integer, nullable=False),
        Column("fine", Integer, nullable=False, server_default="0"),
    )
    assert list(differences(old, new)) == [
        "jobs.id may no longer be null",
        "jobs.step has another type",
        "jobs.name is gone",
        "jobs.more is new: it needs a server's default, or may be null",
    ]
    assert list(differences(old, None)) == ["jobs is gone"]


def copied(source: Engine, target: Engine, tables: MetaData) -> None:
    """Writes all rows as the last release writes them: in its columns, by its statements."""
    with source.connect() as reading, target.begin() as writing:
        for table in tables.sorted_tables:
            numbered = {each.name for each in table.primary_key if each.name == "id" and isinstance(each.type, Integer)}
            rows = reading.execute(select(table).order_by(*table.primary_key)).mappings().all()
            if rows and table.name != "audit_head":  # every database has its row
                writing.execute(table.insert(), [{k: v for k, v in row.items() if k not in numbered} for row in rows])


def test_a_running_job_of_the_last_release_ends_after_the_upgrade(db: Database, empty: str, submit: Submit) -> None:
    """A database of the last release with a running and a queued job is migrated; both go on there."""
    dataset = add_dataset(db)
    running, queued = submit(dataset), submit(dataset)
    log = claimed(db, running)
    log.ready("cpu", numerics())
    upgrade(empty, LAST_RELEASE)
    old = make_engine(empty)
    copied(db.engine, old, schema_of(old))
    old.dispose()
    upgrade(empty)
    new = Database(empty)
    moved = AttemptLog(new, log.held, lease_s=30.0, max_attempts=3, cadence=AT_ONCE)
    moved.start_block(1, 50)
    with new.write() as session:
        settle(session, settlement_of(session, get_job(session, running, lock=True), "succeeded"))
    assert claimed(new, queued)
    with new.read() as session:
        for model in Base.metadata.tables.values():
            session.execute(select(model)).all()
        assert {each.status for each in session.scalars(select(Job))} == {"succeeded", "running"}
        assert verify(session, dataset).valid
    new.close()


def test_the_last_release_reads_and_writes_the_newest_schema(db: Database, empty: str, submit: Submit) -> None:
    """Rows that its statements write are whole to this release, and what this release writes it reads."""
    dataset = add_dataset(db)
    job = submit(dataset)
    claimed(db, job)
    upgrade(empty, LAST_RELEASE)
    newest = Database(empty)
    old = schema_of(newest.engine)
    upgrade(empty)
    copied(db.engine, newest.engine, old)
    jobs = old.tables["jobs"]
    with newest.engine.begin() as connection:
        connection.execute(update(jobs).where(jobs.c.id == job).values(step=3, status="cancelling"))
    with newest.write() as session:
        assert get_job(session, job).step == 3
        settle(session, settlement_of(session, get_job(session, job, lock=True), "cancelled"))
        assert verify(session, dataset).valid
    with newest.engine.connect() as connection:
        for table in old.tables.values():
            connection.execute(select(table)).all()
        assert connection.scalar(select(jobs.c.status).where(jobs.c.id == job)) == "cancelled"
    newest.close()


def test_code_that_is_older_than_the_schema_is_ready_and_does_not_migrate(
    empty: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rollback starts the last release on the newest schema: its `scrimp prepare` leaves that alone."""
    engine = make_engine(empty)
    assert not migrate.serves(engine)
    upgrade(empty)
    assert migrate.serves(engine)
    with engine.begin() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    assert migrate.serves(engine)
    upgrade(empty)
    with engine.begin() as connection:
        assert migrate.current_revision(connection) == "9999"
        connection.execute(text("UPDATE alembic_version SET version_num = '0001'"))
    assert not migrate.serves(engine)
    engine.dispose()
