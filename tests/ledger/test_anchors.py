"""What follows from itself and is not what was: a rewritten chain, a rolled-back tail, a row that was set back."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from sqlalchemy import select, text

from app.db.database import Database
from app.db.models import Account, Certificate, LedgerCheck, LedgerCheckpoint, LedgerEntry
from app.ledger import behind, certificates, signing_keys, verifications
from app.ledger.entries import balance_of
from app.ledger.transparency import attestations
from app.ledger.transparency.checkpoints import sign_due
from app.ledger.transparency.heads import Heads
from app.ledger.verification import Verification, verify
from app.settings import Settings
from app.system import health
from core.errors import Conflict
from tests.chaos.tamper import rewrite, roll_back
from tests.chaos.tamper import unprotected as tampering
from tests.ledger.support import held_job, hold, mechanism, open_ledger, post, sealed, signed_document, unprotected

KEY = Ed25519PrivateKey.from_private_bytes(b"k" * 32)
JOBS = 3


@pytest.fixture
def open_db(tmp_path: Path, migrated_database: Path) -> Iterator[Database]:
    with unprotected(migrated_database, tmp_path) as db:
        signing_keys.publish(db, KEY)
        yield db


@pytest.fixture
def heads(tmp_path: Path) -> Heads:
    return Heads(tmp_path / "heads")


@pytest.fixture
def spent(open_db: Database) -> str:
    """A ledger with three jobs that have ended, each with its certificate: entries 1 … 7."""
    dataset = open_ledger(open_db)
    for _ in range(JOBS):
        job, train, holdout = held_job(open_db, dataset, mechanism())
        post(open_db, dataset, job, train, holdout)
        assert certificates.issue(open_db, job, KEY, "test")
    return dataset


def unheard(*_: object) -> None:
    """No webhook listens to checkpoints."""


def found(db: Database, dataset: str, heads: Heads | None = None) -> Verification:
    outside = (heads.read(dataset), heads.checkpoint(dataset)) if heads is not None else (None, None)
    with db.read() as session:
        return verify(session, dataset, *outside)


def test_what_was_signed_and_recorded_is_in_an_honest_chain(open_db: Database, spent: str, heads: Heads) -> None:
    assert sign_due(open_db, heads, KEY, unheard) == (1, [])
    assert sign_due(open_db, heads, KEY, unheard) == (0, [])
    result = found(open_db, spent, heads)
    assert (result.valid, result.heads, result.problem) == (True, JOBS + 1, None)  # heads, and a checkpoint


@pytest.mark.parametrize(("keep", "bad"), [(7, 3), (5, 3), (3, 3), (1, 2)])
def test_certificates_find_a_chain_that_was_rewritten(open_db: Database, spent: str, keep: int, bad: int) -> None:
    """Consistently, with the row: the chain alone is valid."""
    with open_db.write() as session:
        rewrite(session, spent, keep)
    result = found(open_db, spent)
    assert (result.valid, result.first_bad_entry) == (False, bad)
    assert "the certificate of job_" in str(result.problem)


def test_certificates_find_a_tail_that_was_rolled_back(open_db: Database, spent: str) -> None:
    """Attack (Reliability): A ledger's tail is rolled back
    Now: found, and admits nothing
    """
    with open_db.read() as session:
        state = balance_of(session.get_one(Account, spent)).model_dump()
        assert session.get_one(LedgerEntry, (spent, 5)).memo["balance"] != state
    with open_db.write() as session:
        roll_back(session, spent, 5)
    result = found(open_db, spent)
    assert (result.valid, result.first_bad_entry) == (False, 6)
    assert "has entry 7" in str(result.problem)


@pytest.mark.parametrize("keep", [7, 5])
def test_without_certificates_the_signed_head_and_the_record_find_it(
    open_db: Database, spent: str, heads: Heads, keep: int
) -> None:
    sign_due(open_db, heads, KEY, unheard)
    with open_db.write() as session:
        session.execute(text("DELETE FROM certificates"))
    with open_db.write() as session:
        rewrite(session, spent, keep)
    assert "the relay signed" in str(found(open_db, spent).problem)
    with open_db.write() as session:
        session.execute(text("DELETE FROM ledger_checkpoints"))
    assert found(open_db, spent).valid, "the database alone cannot tell"
    assert "outside the database" in str(found(open_db, spent, heads).problem)
    assert set(behind.problems(open_db, heads, [spent])) == {spent}
    with pytest.raises(Conflict), open_db.write() as session:
        behind.require_current(session, heads.read(spent), spent)
    assert sign_due(open_db, heads, KEY, unheard) == (0, [spent])


@pytest.mark.parametrize("forged", ["signature", "head", "key", "envelope"])
def test_a_certificate_that_was_forged_is_found(open_db: Database, spent: str, forged: str) -> None:
    with open_db.read() as session:
        certificate = session.scalars(select(Certificate).limit(1)).one()
        document: dict[str, Any] = json.loads(json.dumps(certificate.body))
    if forged == "signature":
        document["signature"] = "A" * 86 + "=="
    elif forged == "head":
        document["certificate"]["ledger"]["head"] = "00" * 32
    elif forged == "key":
        document = signed_document(document["certificate"], Ed25519PrivateKey.generate(), {})
    else:
        other = document["certificate"] | {"noise_multiplier": 1e9}
        document["envelope"] = sealed(attestations.statement(other, {}), Ed25519PrivateKey.generate())
    with open_db.write() as session:
        session.get_one(Certificate, certificate.job_id).body = document
    result = found(open_db, spent)
    assert (result.valid, result.first_bad_entry) == (False, None)
    assert f"of {certificate.job_id}" in str(result.problem) or certificate.job_id in str(result.problem)


def test_the_relay_signs_no_chain_that_lacks_what_it_signed(open_db: Database, spent: str, heads: Heads) -> None:
    sign_due(open_db, heads, KEY, unheard)
    (heads.folder / f"{spent}.json").unlink()
    with open_db.write() as session:
        rewrite(session, spent, 7)
    hold(open_db, spent, "job_more", 1)
    assert sign_due(open_db, heads, KEY, unheard) == (0, [spent])


def test_a_row_that_was_set_back_admits_nothing(db: Database) -> None:
    """`UPDATE accounts SET train_spent = 0` without the triggers passes the CHECKs, and gave the whole budget back."""
    dataset = open_ledger(db)
    hold(db, dataset, "job_1", 1000, 10)
    post(db, dataset, "job_1", 1000, 10)
    with tampering(db) as session:
        session.execute(text("UPDATE accounts SET train_spent = 0 WHERE dataset_id = :d"), {"d": dataset})
    for amounts in ((1, 0), (0, 1)):
        with pytest.raises(Conflict) as refused:
            hold(db, dataset, "job_2", *amounts)
        assert refused.value.code == "ledger-behind"
    with db.read() as session:
        assert balance_of(session.get_one(Account, dataset)).train.held == 0
        assert session.get_one(Account, dataset).entries == 3
    with tampering(db) as session:
        session.execute(text("UPDATE accounts SET train_spent = 1000 WHERE dataset_id = :d"), {"d": dataset})
    assert hold(db, dataset, "job_2", 1) == 4


@pytest.mark.parametrize(
    "change", ["head = 'ff'", "train_budget = train_budget + 1", "holdout_held = holdout_held + 1"]
)
def test_a_row_that_was_changed_otherwise_admits_nothing(db: Database, change: str) -> None:
    dataset = open_ledger(db)
    with tampering(db) as session:
        session.execute(text(f"UPDATE accounts SET {change} WHERE dataset_id = :d"), {"d": dataset})  # noqa: S608
    with pytest.raises(Conflict):
        hold(db, dataset, "job_2", 1)


def test_what_the_daily_check_finds_closes_the_data_set_until_it_is_mended(
    open_db: Database, spent: str, heads: Heads, settings: Settings
) -> None:
    """Attack (Reliability): A change that nobody asks `verify` about
    Now: a daily check, in `/readyz` and `/metrics`, closes the data set
    """
    other = open_ledger(open_db)
    day = timedelta(days=1)
    assert [verifications.check_next(open_db, heads, day) for _ in range(3)] == [True, True, False]
    assert health.checks(open_db, settings)["ledger"] == "ok"
    with open_db.write() as session:
        session.execute(text("UPDATE ledger_entries SET train = train - 1 WHERE seq = 3"))
        session.execute(text("UPDATE ledger_checks SET checked_at = '2020-01-01 00:00:00'"))
    assert health.checks(open_db, settings)["ledger"] == "LedgerUncheckedError"
    assert [verifications.check_next(open_db, heads, day) for _ in range(3)] == [True, True, False]
    assert set(behind.problems(open_db, heads, [spent, other])) == {spent}
    with open_db.write() as session, pytest.raises(Conflict):
        behind.require_current(session, None, spent)
    assert health.checks(open_db, settings)["ledger"] == "LedgerInvalidError"
    with open_db.write() as session:
        session.execute(text("UPDATE ledger_entries SET train = train + 1 WHERE seq = 3"))
    assert verifications.check(open_db, heads, spent) is None
    assert behind.problems(open_db, heads, [spent, other]) == {}
    with open_db.read() as session:
        check = session.get_one(LedgerCheck, spent)
        assert (check.entries, check.problem, check.behind) == (7, None, None)
        assert session.get(LedgerCheckpoint, spent) is None
