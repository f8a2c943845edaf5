"""Ledgers to test on: a migrated database, data sets with accounts, job rows."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from sqlalchemy import event, insert, text
from sqlalchemy.orm import Session

from app.db.database import Database
from app.db.models import Account, ApiKey, Dataset, Job, table_of
from app.ledger import accounts, certificates
from app.ledger.entries import balance_of
from app.ledger.transparency import attestations
from app.ledger.transparency.attestations import Statement
from app.ledger.verification import Verification, verify
from core.contracts.job_spec import JobSpec
from core.ids import new_id, now
from core.privacy.mechanism import MechanismConfig
from tests.factories import job_spec, share

OWNER = "key_owner"
EPSILON, DELTA = 4.0, 1e-5


def add_owner(db: Database) -> None:
    with db.write() as session:
        if session.get(ApiKey, OWNER) is None:
            fields: dict[str, Any] = {"created_at": now(), "created_by": None, "revoked_at": None}
            session.add(ApiKey(id=OWNER, name="owner", role="owner", secret_hmac="00", **fields))


@contextmanager
def unprotected(template: Path, folder: Path) -> Iterator[Database]:
    """A database of its own whose protection is gone: what somebody with the database's password can do. Its trigger
    that adds up what keys spend protects nothing, and stays."""
    db = Database(f"sqlite:///{shutil.copy(template, folder / 'open.db')}")
    event.listen(db.engine, "connect", _take_protection_off)
    add_owner(db)
    with db.write() as session:
        guards = "SELECT name FROM sqlite_master WHERE type = 'trigger' AND name <> 'ledger_entries_spent'"
        for name in session.scalars(text(guards)).all():
            session.execute(text(f"DROP TRIGGER {name}"))
    yield db
    db.close()


def _take_protection_off(connection: sqlite3.Connection, _record: Any) -> None:
    connection.execute("PRAGMA foreign_keys = OFF").close()
    connection.execute("PRAGMA ignore_check_constraints = ON").close()


def add_dataset(session: Session, *, sensitivity: str = "private") -> str:
    """A data set's row; `open_ledger` opens its account. Only columns of the first revision, so that it can be made
    at every one."""
    dataset_id = new_id("ds")
    row = {
        "id": dataset_id,
        "name": dataset_id,
        "owner_key": OWNER,
        "sensitivity": sensitivity,
        "spec": {"privacy": {"sensitivity": sensitivity, "unit": "example"}},
        "shape": {"records_train": 20_000, "records_holdout": 5_000, "features": 8, "outputs": 2, "sparse": False},
        "parts": {},
        "content_sha256": "00",
        "content_hmac": f"hmac-of-{dataset_id}",
        "created_at": now(),
    }
    session.execute(insert(table_of(Dataset)).values(row))
    share(session, dataset_id)
    return dataset_id


def open_ledger(db: Database, *, holdout: bool = True, **terms: Any) -> str:
    """A new data set with an account: `gdp`, ε = 4, δ = 1e-5 unless told otherwise."""
    privacy_filter = accounts.filter_for(terms.pop("filter_kind", "gdp"), terms.pop("order", None))
    asked = {"privacy_filter": privacy_filter, "cap_epsilon": EPSILON, "cap_delta": DELTA} | terms
    with db.write() as session:
        dataset_id = add_dataset(session)
        accounts.open_account(session, dataset_id=dataset_id, has_holdout=holdout, actor=OWNER, **asked)
        return dataset_id


def hold(db: Database, dataset_id: str, job_id: str, train: int, holdout: int = 0) -> int:
    with db.write() as session:
        entry = accounts.hold(session, dataset_id=dataset_id, job_id=job_id, train=train, holdout=holdout, actor=OWNER)
        return entry.seq


def post(db: Database, dataset_id: str, job_id: str, train: int, holdout: int = 0) -> int:
    with db.write() as session:
        entry = accounts.post(session, dataset_id=dataset_id, job_id=job_id, train=train, holdout=holdout, actor=OWNER)
        return entry.seq


def void(db: Database, dataset_id: str, job_id: str) -> int:
    with db.write() as session:
        return accounts.void(session, dataset_id=dataset_id, job_id=job_id, actor=OWNER).seq


def check(db: Database, dataset_id: str) -> Verification:
    with db.read() as session:
        return verify(session, dataset_id)


def add_job(session: Session, dataset_id: str, **fields: Any) -> str:
    job_id = new_id("job")
    values: dict[str, Any] = {
        "id": job_id,
        "dataset_id": dataset_id,
        "key_id": OWNER,
        "idempotency_key": job_id,
        "request_sha256": "00",
        "name": "",
        "status": "queued",
        "spec": JobSpec.model_validate(job_spec(dataset_id)).model_dump(mode="json"),
        "mechanism": None,
        "quote": {"epsilon": None, "charge": {"train": 0, "holdout": 0, "unit": None}},
        "segments": [],
        "steps": 1,
        "warnings": [],
        "created_at": now(),
    }
    session.add(Job(**(values | fields)))
    session.flush()
    return job_id


def balances(db: Database, dataset_id: str) -> dict[str, dict[str, int]]:
    with db.read() as session:
        return balance_of(session.get_one(Account, dataset_id)).model_dump()


def a_history(db: Database) -> str:
    """Every kind of entry: open, hold ×3, post, void, cap."""
    dataset_id = open_ledger(db)
    for number in (1, 2, 3):
        hold(db, dataset_id, f"job_{number}", 10 * number, number)
    post(db, dataset_id, "job_1", 7, 1)
    void(db, dataset_id, "job_2")
    with db.write() as session:
        accounts.change_cap(session, dataset_id=dataset_id, cap_epsilon=5.0, actor=OWNER, reason="more data came in")
    return dataset_id


ENTRIES = 7


def mechanism(
    *, sampling: str = "full_batch", sigma: float = 26.38, steps: int = 50, noise_mu: float | None = 0.05
) -> MechanismConfig:
    """A linear model's job on 20,000 training records, scored once on 5,000; batch 512 under Poisson."""
    batch = 20_000 if sampling == "full_batch" else 512
    releases = [{"what": "accuracy", "account": "holdout", "noise_mu": noise_mu, "records": 5_000}] if noise_mu else []
    return MechanismConfig.model_validate(
        {
            "target_delta": DELTA,
            "training": {
                "sampling": sampling,
                "sample_rate": batch / 20_000,
                "steps": steps,
                "noise_multiplier": sigma,
                "max_grad_norm": 1.0,
                "clipping": "flat",
                "expected_batch_size": batch,
            },
            "releases": releases,
        }
    )


def held_job(db: Database, dataset_id: str, of: MechanismConfig, **fields: Any) -> tuple[str, int, int]:
    """A job with its hold; returns its id and what is held on each account."""
    with db.write() as session:
        account = session.get_one(Account, dataset_id)
        filters = accounts.filter_for(account.filter, account.order)
        amounts = {"train": filters.charge(of, "train"), "holdout": filters.charge(of, "holdout")}
        epsilon = {
            "value": 1.0,
            "delta": DELTA,
            "accountant": "gdp" if of.training.sampling == "full_batch" else "pld",
            "unit": "example",
            "relation": "add_or_remove_one",
        }
        values: dict[str, Any] = {
            "mechanism": of.model_dump(mode="json"),
            "quote": {"epsilon": epsilon, "charge": amounts | {"unit": filters.unit}},
            "steps": of.training.steps,
        }
        job_id = add_job(session, dataset_id, **(values | fields))
        accounts.hold(session, dataset_id=dataset_id, job_id=job_id, actor=OWNER, **amounts)
    return job_id, amounts["train"], amounts["holdout"]


def signed_document(
    body: dict[str, Any], key: Ed25519PrivateKey, files: dict[str, str] | None = None
) -> dict[str, Any]:
    """A certificate with this body, as it is stored."""
    return certificates.sign(body, key, files or {}).model_dump(mode="json")


def sealed(statement: Statement, key: Ed25519PrivateKey) -> dict[str, Any]:
    """An envelope, as it is stored."""
    return attestations.seal(statement, key).model_dump(mode="json", by_alias=True)
