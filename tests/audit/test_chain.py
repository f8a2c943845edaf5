"""The audit log's chain: sealed once, by one relay at a time; what was tampered with is found; triggers refuse it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager

import pytest
from sqlalchemy import select, text
from sqlalchemy.exc import DatabaseError
from sqlalchemy.orm import Session

from app.audit import audit_chain
from app.audit.audit_chain import AuditVerification, seal, verify
from app.audit.record import CURRENT, Origin, record
from app.db.database import Database
from app.db.models import AuditEntry, AuditHead
from scrimp.models import AuditEntry as ShownEntry
from scrimp.verify import recompute_audit
from tests.conftest import BACKINGS
from tests.locks import until_waiting


@pytest.fixture(params=BACKINGS)
def backing(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def origin() -> Iterator[Origin]:
    made = Origin("192.0.2.7", "curl/8", "key_a")
    token = CURRENT.set(made)
    yield made
    CURRENT.reset(token)


def act(db: Database, times: int = 1) -> None:
    for _ in range(times):
        with db.write() as session:
            record(session, "job.submitted", "job_é", dataset="ds_1")


def check(db: Database) -> AuditVerification:
    with db.read() as session:
        return verify(session)


def test_an_entry_says_who_did_what_from_where(db: Database, origin: Origin) -> None:
    act(db)
    with db.read() as session:
        entry = session.scalars(select(AuditEntry)).one()
    assert (entry.actor, entry.action, entry.target) == ("key_a", "job.submitted", "job_é")
    assert (entry.address, entry.user_agent, entry.outcome) == ("192.0.2.7", "curl/8", "done")
    assert (entry.details, entry.seq, entry.hash) == ({"dataset": "ds_1"}, None, None)


def test_an_act_that_fails_leaves_no_entry(db: Database) -> None:
    with pytest.raises(ZeroDivisionError), db.write() as session:
        record(session, "job.submitted", "job_1")
        _ = 1 / 0
    with db.read() as session:
        assert session.scalars(select(AuditEntry)).all() == []


def test_entries_are_sealed_in_order_and_recomputed_by_their_reader(
    db: Database, origin: Origin, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit_chain, "BATCH", 3)
    act(db, 7)
    before = check(db)
    assert before.valid and (before.entries, before.head, before.unsealed) == (0, audit_chain.GENESIS, 7)
    assert [seal(db) for _ in range(4)] == [3, 3, 1, 0]
    found = check(db)
    assert (found.valid, found.entries, found.unsealed) == (True, 7, 0)
    with db.read() as session:
        shown = [
            ShownEntry.model_validate(audit_chain.content(entry) | {"hash": entry.hash})
            for entry in session.scalars(select(AuditEntry).order_by(AuditEntry.seq))
        ]
    assert recompute_audit(shown).head == found.head
    shown[4] = shown[4].model_copy(update={"actor": "key_b"})
    assert recompute_audit(shown).first_bad_entry == 5


def test_relays_that_seal_at_once_make_one_chain(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """All have seen that there is something to seal, and wait for their turn, before the first one has it."""
    act(db, 30)
    write, came = Database.write, threading.Semaphore(0)

    def announced(self: Database) -> AbstractContextManager[Session]:
        came.release()
        return write(self)

    with ThreadPoolExecutor(3) as pool:
        with db.write() as session:
            session.scalars(select(AuditHead).with_for_update()).one()
            monkeypatch.setattr(Database, "write", announced)
            relays = [pool.submit(seal, db) for _ in range(3)]
            assert all(came.acquire(timeout=300) for _ in relays)
            if db.engine.dialect.name == "postgresql":
                until_waiting(db, len(relays))
        assert sorted(each.result(300) for each in relays) == [0, 0, 30]
    assert (check(db).valid, check(db).entries, check(db).unsealed) == (True, 30, 0)


CHANGES = "actor = 'x'", "target = NULL", "details = '{}'", "outcome = 'failed'", "at = '2026-01-01'", "hash = 'x'"


@pytest.mark.parametrize("sealed", [True, False])
def test_the_database_refuses_changes(db: Database, sealed: bool) -> None:
    act(db, 2)
    if sealed:
        seal(db)
    statements = [f"UPDATE audit_entries SET {change}" for change in CHANGES]  # noqa: S608 - fixed texts
    statements += [
        "DELETE FROM audit_entries",
        "DELETE FROM audit_head",
        "INSERT INTO audit_entries (id, at, action, outcome, details, seq, prev_hash, hash) "
        "VALUES (99, '2026-01-01', 'x', 'done', '{}', 3, '', '')",
        "INSERT INTO audit_entries (id, at, action, outcome, details) VALUES (1, '2026-01-01', 'x', 'done', '{}')",
        "INSERT INTO audit_head (id, seq, hash) VALUES (2, 0, '')",
        "UPDATE audit_head SET seq = 0",
        "UPDATE audit_head SET hash = ''",
    ]
    if db.engine.dialect.name == "sqlite":
        statements += [
            "INSERT OR REPLACE INTO audit_entries SELECT * FROM audit_entries",
            "REPLACE INTO audit_head (id, seq, hash) VALUES (1, 0, '')",
        ]
    else:
        statements += ["TRUNCATE audit_entries", "TRUNCATE audit_head"]
    if sealed:
        statements += [
            "UPDATE audit_entries SET seq = 7",
            "UPDATE audit_entries SET seq = NULL, hash = NULL, prev_hash = NULL",
        ]
    before = check(db)
    for statement in statements:
        with pytest.raises(DatabaseError), db.write() as session:
            session.execute(text(statement))
    assert check(db) == before


TAMPERED = {
    "UPDATE audit_entries SET actor = 'key_b' WHERE seq = 3": 3,
    'UPDATE audit_entries SET details = \'{"role": "x"}\' WHERE seq = 2': 2,
    "UPDATE audit_entries SET details = 'no JSON' WHERE seq = 4": 4,
    "UPDATE audit_entries SET prev_hash = 'x' WHERE seq = 1": 1,
    "DELETE FROM audit_entries WHERE seq = 2": 2,
    "DELETE FROM audit_entries WHERE seq = 5": 5,
    "UPDATE audit_entries SET seq = 9 WHERE seq = 5": 5,
    "UPDATE audit_head SET seq = 4": 4,
    "UPDATE audit_head SET hash = 'x'": 5,
}


@pytest.mark.parametrize("statement", TAMPERED)
def test_what_was_tampered_with_is_found(db: Database, statement: str) -> None:
    """By somebody who owns the database and has taken its triggers away."""
    act(db, 5)
    seal(db)
    if db.engine.dialect.name == "postgresql":
        if "no JSON" in statement:
            return  # PostgreSQL's type takes no such text
        disable = [f"ALTER TABLE {table} DISABLE TRIGGER USER" for table in ("audit_entries", "audit_head")]
    else:
        with db.read() as session:
            names = session.scalars(
                text("SELECT name FROM sqlite_master WHERE type = 'trigger' AND name LIKE 'audit%'")
            )
            disable = [f"DROP TRIGGER {name}" for name in names]
    with db.write() as session:
        for each in (*disable, statement):
            session.execute(text(each))
    found = check(db)
    assert (found.valid, found.first_bad_entry) == (False, TAMPERED[statement])
