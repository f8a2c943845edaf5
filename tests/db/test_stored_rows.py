"""Rows of old releases are read for ever: each column of documents, with the JSON that its first release wrote."""

from __future__ import annotations

import json
from typing import Any

import pytest
from sqlalchemy import text

from app.db.database import Database
from app.db.models import Dataset, Job
from app.db.table_base import Documents
from app.ledger.certificate_documents import Certified, ReadyNumerics, Signed
from app.ledger.memos import Memo
from app.lifecycle.job_events import Settled
from core.contracts.stored_documents import (
    Failure,
    PartFiles,
    ReadingOutcome,
    SaltedSteps,
    Shape,
    StoredFile,
    TrialPoint,
)
from core.privacy.quoted import Quoted, StudyQuote
from tests.factories import add_dataset
from tests.jobs.stored_cases import CASES
from tests.jobs.test_stored import stored_then
from tests.ledger.support import add_job

SALT = "ab" * 32
SHAPE = '{"records_train": 8, "records_holdout": 2, "features": 3, "outputs": 2, "sparse": false}'
POINT = {
    "role": "pilot",
    "level": 0,
    "learning_rate": 0.5,
    "steps": 30,
    "max_grad_norm": None,
    "r": 15.0,
    "keeps_weights": False,
}
NO_BYTES = '{"train": {"path": "datasets/d/train.npz", "sha256": "ab"}}'
ROWS: list[tuple[Any, str, object]] = [
    (
        tuple[SaltedSteps, ...],
        f'[{{"from_step": 0, "salt": "{SALT}", "key_id": null}}]',
        (SaltedSteps(from_step=0, salt=SALT, key_id=None),),
    ),
    (Failure, '{"code": "internal", "message": "x"}', Failure(code="internal", message="x")),
    (TrialPoint, json.dumps(POINT), TrialPoint.model_validate(POINT)),
    (Shape, SHAPE, Shape(records_train=8, records_holdout=2, features=3, outputs=2, sparse=False)),
    (PartFiles, NO_BYTES, PartFiles(train=StoredFile(path="datasets/d/train.npz", sha256="ab"))),
    (PartFiles, "{}", PartFiles()),
    (ReadingOutcome, '{"problem": {"status": 422}}', ReadingOutcome(problem={"status": 422})),
    (ReadingOutcome, '{"warnings": ["w"]}', ReadingOutcome(warnings=("w",))),
]


@pytest.mark.parametrize(("kind", "row", "document"), ROWS)
def test_a_column_is_read_and_written_again_to_the_byte(kind: Any, row: str, document: object) -> None:
    column: Any = Documents(kind)
    dialect: Any = None
    assert column.process_result_value(json.loads(row), dialect) == document
    assert json.dumps(column.process_bind_param(document, dialect)) == row


def test_null_stays_null(db: Database) -> None:
    """A job without a failure, and no trial: NULL in the database, not the JSON `null`."""
    dataset_id = add_dataset(db)
    with db.write() as session:
        job_id = add_job(session, dataset_id, key_id=session.get_one(Dataset, dataset_id).owner_key)
    with db.read() as session:
        job = session.get_one(Job, job_id)
        assert (job.failure, job.trial) == (None, None)
        query = text("SELECT failure IS NULL, trial IS NULL FROM jobs WHERE id = :id")
        assert tuple(session.execute(query, {"id": job_id}).one()) == (1, 1)


def test_a_row_of_another_shape_is_refused(db: Database) -> None:
    dataset_id = add_dataset(db)
    with db.write() as session:
        session.execute(text("UPDATE datasets SET shape = '{}' WHERE id = :id"), {"id": dataset_id})
    with db.read() as session, pytest.raises(ValueError, match="records_train"):
        session.get_one(Dataset, dataset_id)


@pytest.mark.parametrize("name", CASES)
def test_a_quote_of_version_1_states_its_price(name: str) -> None:
    quote = json.loads(stored_then(name)["quote"])
    found = StudyQuote.of(quote)
    assert found.charge.model_dump() == quote["charge"]
    assert (found.epsilon and found.epsilon.model_dump()) == quote["epsilon"]
    assert (found.hpo is None) == (quote["hpo"] is None)
    del quote["numerics"]  # of jobs from before there were any
    assert Quoted.of(quote).numerics is None


def test_memos_of_old_entries_are_read() -> None:
    balance = {"train": {"budget": 3, "spent": 1, "held": 0}, "holdout": {"budget": 0, "spent": 0, "held": 0}}
    opened = {"filter": "gdp", "order": None, "unit": "u", "cap_epsilon": 4.0, "cap_delta": 1e-5, "balance": balance}
    assert (Memo.of(opened).cap, Memo.of(opened).balances.model_dump()) == (4.0, balance)
    held = Memo.of({"epsilon": {"value": 1.0}, "study": 7, "balance": balance})
    assert (held.study, held.budget, Memo.of({"hold": "job_s"}).hold) == (7, None, "job_s")
    for wrong in ({"balance": {**balance, "more": 1}}, {"balance": {"train": balance["train"]}}, {"study": "x"}):
        with pytest.raises(ValueError):
            Memo.of(wrong)


def test_a_certificate_and_events_of_old_releases_are_read() -> None:
    body = {"job": "j", "dataset": {"id": "d"}, "ledger": {"entry_seq": 3, "head": "h"}, "version": 1}
    body |= {"charge": {"train": 1, "holdout": 0, "unit": "u"}}
    old = {"certificate": body, "signature": "s", "public_key": "k", "algorithm": "Ed25519"}
    assert Signed.model_validate(old).envelope is None
    assert [(each, of.entry_seq) for each, of in Certified.of(body).ledgers.items()] == [("d", 3)]
    assert ReadyNumerics.model_validate({"device": "cpu", "fallbacks": []}).numerics is None
    assert Settled.model_validate({"steps": 3, "code": "internal"}).charge is None
