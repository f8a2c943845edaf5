"""A statement's terms: governance and grants, signed with the ledgers that they are about."""

from __future__ import annotations

import base64
import copy
import json
import shutil
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from sqlalchemy import event, select, update
from typer.testing import CliRunner

from app.db.database import Database
from app.db.models import ApiKey, Dataset, DatasetTerms, Grant, table_of
from app.grants import service
from app.keys.service import Caller
from app.ledger import evidence, signed_terms
from app.ledger.signer import public_key
from app.ledger.transparency import attestations, checkpoints
from app.ledger.transparency.heads import Heads
from core.errors import Conflict
from core.ids import now
from scrimp.cli import app
from scrimp.statement import checked
from scrimp.statement_words import told
from scrimp.transparency import NotProven
from tests.ledger.support import OWNER, add_owner, hold, open_ledger, post
from tests.ledger.test_anchors import unheard
from tests.ledger.test_certificates import KEY
from tests.node import by_node, needs_node

RAW, TRUSTED = KEY.public_key().public_bytes_raw(), public_key(KEY)
OWNING = Caller(OWNER, "owner", "owner")
NEW = Ed25519PrivateKey.from_private_bytes(b"n" * 32)
RULES = {
    "controller": "Example General Hospital",
    "purposes": ["care research", "quality reports"],
    "legal_basis": "Art. 9(2)(j)",
    "region": "EU",
    "retention": "ten years",
    "contact": "dpo@hospital.example.org",
    "requires": ["purpose"],
}


@pytest.fixture
def db(tmp_path: Path, migrated_database: Path) -> Iterator[Database]:
    database = Database(f"sqlite:///{shutil.copy(migrated_database, tmp_path / 'terms.db')}")
    add_owner(database)
    yield database
    database.close()


@pytest.fixture
def dataset(db: Database) -> str:
    return governed(db)


def governed(db: Database) -> str:
    """A data set of two blocks, with governance, a grant, and a job that both paid."""
    first, second = open_ledger(db), open_ledger(db)
    with db.write() as session:
        row, block = session.get_one(Dataset, first), session.get_one(Dataset, second)
        row.name, row.spec = "stays", row.spec | {"governance": RULES}
        block.name, block.label, block.parent_id = "stays/2026-10", "2026-10", first
    for each in (first, second):
        hold(db, each, "job_1", 1_000)
        post(db, each, "job_1", 1_000)
    give(db, first, "key_ann", purpose="care research", permit="17/2026")
    return first


def give(db: Database, dataset_id: str, key_id: str, **said: Any) -> None:
    with db.write() as session:
        if session.get(ApiKey, key_id) is None:
            fields: dict[str, Any] = {"created_at": now(), "created_by": None, "revoked_at": None}
            session.add(ApiKey(id=key_id, name="Dr. Ann Secret", role="analyst", secret_hmac="00", **fields))
            session.flush()
        grant = session.get(Grant, (dataset_id, key_id)) or Grant(dataset_id=dataset_id, key_id=key_id)
        grant.access, grant.created_at, grant.created_by = "train", now(), OWNER
        grant.persons = ("Ann Secret",)
        for name, value in said.items():
            setattr(grant, name, value)
        session.add(grant)
        session.get_one(Dataset, dataset_id).grants_version += 1


def signed(db: Database, dataset_id: str, tmp_path: Path) -> dict[str, Any]:
    """The statement, after the relay's sweep."""
    checkpoints.sign_due(db, Heads(tmp_path / "heads"), KEY, unheard)
    signed_terms.sign_due(db, KEY)
    with db.read() as session:
        found = evidence.of(session, session.get_one(Dataset, dataset_id))
    document: dict[str, Any] = json.loads("".join(evidence.pieces(db, found)))
    return document


def test_governance_and_grants_are_stated(db: Database, dataset: str, tmp_path: Path) -> None:
    document = signed(db, dataset, tmp_path)
    found = checked(document, RAW)
    assert document["version"] == 3 and found.terms is not None
    assert found.terms.governance == RULES | {"purposes": RULES["purposes"]}
    (grant,) = found.terms.grants
    said = {"key": "key_ann", "access": "train", "purpose": "care research", "permit": "17/2026", "ends_at": None}
    assert grant == said
    words = {title: " | ".join(lines) for title, lines in told(found)}
    assert (
        "controller: Example General Hospital" in words["Governance"]
        and "care research; quality" in words["Governance"]
    )
    assert "key_ann may train, for care research, permit 17/2026, without an end" in words["Grants"]
    payload = base64.b64decode(document["terms"]["payload"]).decode()
    assert "Secret" not in payload, "names of keys and persons stay here"
    block = document["ledgers"][1]["id"]
    alone = checked(signed(db, block, tmp_path), RAW)
    assert (alone.dataset, alone.name, len(alone.ledgers)) == (block, "stays/2026-10", 1)
    assert alone.terms == found.terms


def test_without_governance_and_grants_that_is_said(db: Database, tmp_path: Path) -> None:
    found = checked(signed(db, open_ledger(db), tmp_path), RAW)
    words = {title: " ".join(lines) for title, lines in told(found)}
    assert "declared none" in words["Governance"] and "no key" in words["Grants"]


def test_a_statement_of_version_2_is_read_without_them(db: Database, dataset: str, tmp_path: Path) -> None:
    document = signed(db, dataset, tmp_path)
    old = {name: value for name, value in document.items() if name != "terms"} | {"version": 2}
    assert checked(old, RAW).ledgers == checked(document, RAW).ledgers and checked(old, RAW).terms is None
    assert ("Governance", ["not stated: a statement of an earlier version has none"]) in told(checked(old, RAW))


def _redeclared(db: Database, dataset_id: str) -> None:
    with db.write() as session:
        row = session.get_one(Dataset, dataset_id)
        row.declaration += 1
        row.spec = row.spec | {"governance": RULES | {"controller": "Another Hospital"}}


def _removed(db: Database, dataset_id: str) -> None:
    with db.write() as session:
        service.take_back(session, OWNING, dataset_id, "key_ann")


def _given_by_an_older_clock(db: Database, dataset_id: str) -> None:
    """Another machine's clock, behind the one that gave the newest grant."""
    with pytest.MonkeyPatch.context() as patch, db.write() as session:
        patch.setattr(service, "now", lambda: now() - timedelta(days=1))
        service.give(session, OWNING, dataset_id, "key_ann", "view", None)


def _grown(db: Database, dataset_id: str) -> None:
    block = open_ledger(db)
    values = {"parent_id": dataset_id, "label": block, "name": f"stays/{block}"}
    with db.write() as session:
        session.execute(update(table_of(Dataset)).where(Dataset.id == block).values(values))


CHANGES: dict[str, Callable[[Database, str], None]] = {
    "a declaration": _redeclared,
    "a grant": partial(give, key_id="key_ben"),
    "a grant anew by a clock that is behind": _given_by_an_older_clock,
    "a grant anew": partial(give, key_id="key_ann", permit="18/2026"),
    "a grant's end": _removed,
    "a block": _grown,
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_changes_is_signed_anew_and_nothing_else(db: Database, dataset: str, tmp_path: Path, change: str) -> None:
    before = signed(db, dataset, tmp_path)
    assert signed_terms.sign_due(db, KEY) == 0, "nothing changed"
    CHANGES[change](db, dataset)
    assert signed_terms.sign_due(db, KEY) == 1
    after = signed(db, dataset, tmp_path)
    assert checked(after, RAW) and after["terms"]["payload"] != before["terms"]["payload"]
    assert signed_terms.sign_due(db, NEW) == 1 and signed_terms.sign_due(db, NEW) == 0, (
        "a new key signs what the old one did"
    )


def test_changes_are_seen_on_both_databases(database_url: str) -> None:
    db = Database(database_url)
    add_owner(db)
    dataset_id = governed(db)
    signed_terms.sign_due(db, KEY)
    for change in CHANGES.values():
        assert signed_terms.sign_due(db, KEY) == 0
        change(db, dataset_id)
        assert signed_terms.sign_due(db, KEY) == 1
    db.close()


def test_an_idle_service_looks_with_one_statement(db: Database, dataset: str, tmp_path: Path) -> None:
    signed(db, dataset, tmp_path)
    statements: list[str] = []
    event.listen(db.engine, "before_cursor_execute", lambda *heard: statements.append(heard[2]))
    assert signed_terms.sign_due(db, KEY) == 0
    assert len([each for each in statements if each.startswith("SELECT")]) == 1


def test_nothing_is_stated_before_the_terms_are_signed(db: Database, dataset: str, tmp_path: Path) -> None:
    heads = Heads(tmp_path / "heads")
    checkpoints.sign_due(db, heads, KEY, unheard)
    for _ in range(2):  # before the first signature, and while a new block waits for one
        with db.read() as session, pytest.raises(Conflict, match="terms are not signed yet"):
            evidence.of(session, session.get_one(Dataset, dataset))
        signed_terms.sign_due(db, KEY)
        _grown(db, dataset)
        checkpoints.sign_due(db, heads, KEY, unheard)


def resealed(
    document: dict[str, Any], change: Callable[[dict[str, Any]], object], key: Ed25519PrivateKey | None
) -> Any:
    """The document with other terms: under the old signature, or signed by a key."""
    other = copy.deepcopy(document)
    payload = json.loads(base64.b64decode(other["terms"]["payload"]))
    change(payload)
    if key is None:
        other["terms"]["payload"] = base64.b64encode(json.dumps(payload).encode()).decode()
    else:
        envelope = attestations.seal(attestations.Statement.model_validate(payload), key)
        other["terms"] = envelope.model_dump(mode="json", by_alias=True)
    return other


def tampered(document: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Every governance field, every field of a grant, and whatever else the terms say, changed or left out."""

    def put(at: tuple[str | int, ...], value: Any) -> Callable[[dict[str, Any]], None]:
        def change(payload: dict[str, Any]) -> None:
            *folders, name = at
            for each in folders:
                payload = payload[each]  # type: ignore[index]
            payload[name] = value  # type: ignore[index]

        return change

    fields: list[tuple[str | int, ...]] = [
        *(("predicate", "governance", name) for name in RULES),
        *(("predicate", "grants", 0, name) for name in ("key", "access", "purpose", "permit", "ends_at")),
        *(("predicate", name) for name in ("name", "unit", "governance", "signed_at", "dataset")),
        *(("predicate", "blocks", 1, name) for name in ("id", "label")),
        *(("subject", 0, name) for name in ("name", "digest")),
    ]
    for at in fields:
        yield f"{at} changed", resealed(document, put(at, "x"), None)
    yield "a grant hidden", resealed(document, put(("predicate", "grants"), []), None)
    yield "another key", resealed(document, lambda _: None, NEW)
    # What the service itself signed, beside ledgers that it is not about.
    yield "another data set", resealed(document, put(("predicate", "name"), "other"), KEY)
    yield "a block hidden in the terms", resealed(document, lambda said: said["predicate"]["blocks"].pop(), KEY)
    yield "other ledgers", resealed(document, put(("subject", 0, "digest"), {"sha256": "0" * 64}), KEY)
    yield "later terms", resealed(document, put(("predicate", "version"), 2), KEY)
    yield "a certificate", resealed(document, put(("predicateType",), attestations.PREDICATE_TYPE), KEY)
    yield "a block hidden", document | {"ledgers": document["ledgers"][:1]}
    yield "another name", document | {"dataset": document["dataset"] | {"name": "other"}}
    yield "another unit", document | {"dataset": document["dataset"] | {"unit": "user"}}
    yield "no terms", {name: value for name, value in document.items() if name != "terms"}
    yield "a later version", document | {"version": 4}


def test_no_reader_takes_terms_that_were_changed(db: Database, dataset: str, tmp_path: Path) -> None:
    document = signed(db, dataset, tmp_path)
    for what, other in tampered(document):
        with pytest.raises(NotProven):
            raise AssertionError(f"{what}: {checked(other, RAW)}")


@needs_node
def test_the_other_verifier_finds_the_same(db: Database, dataset: str, tmp_path: Path) -> None:
    document, path = signed(db, dataset, tmp_path), tmp_path / "stated.json"

    def ran(other: Any) -> Any:
        path.write_text(json.dumps(other))
        return by_node(path, "--public-key", TRUSTED)

    whole = ran(document)
    assert whole.returncode == 0, whole.stdout + whole.stderr
    assert "governance controller: Example General Hospital" in whole.stdout
    assert "key_ann may train, for care research, permit 17/2026, without an end" in whole.stdout
    for what, other in tampered(document):
        assert ran(other).returncode in (1, 2), what
    entry = copy.deepcopy(document)
    entry["ledgers"][0]["entries"][1]["hash"] = "0" * 64
    assert ran(entry).returncode == 1
    path.write_text(json.dumps(document))
    assert by_node(path).returncode == 2, "without a key nothing is verified"


def test_the_command_prints_them_and_refuses_others(db: Database, dataset: str, tmp_path: Path) -> None:
    document, path = signed(db, dataset, tmp_path), tmp_path / "stated.json"
    path.write_text(json.dumps(document))
    arguments = ["ledger", "statement", str(path), "--public-key", TRUSTED]
    assert "Example General Hospital" in CliRunner().invoke(app, arguments).output
    path.write_text(json.dumps(next(other for _, other in tampered(document))))
    refused = CliRunner().invoke(app, arguments)
    assert refused.exit_code == 1 and "the key did not sign the terms" in refused.output


def test_the_page_takes_the_signed_terms(db: Database, dataset: str, tmp_path: Path) -> None:
    signed(db, dataset, tmp_path)
    with db.read() as session:
        kept = session.scalars(select(DatasetTerms)).one()
        found = signed_terms.terms_in(kept.envelope)
    assert found.governance is not None and found.governance.controller == RULES["controller"]
    assert [each.in_words for each in found.grants] == [
        "key_ann may train, for care research, permit 17/2026, without an end"
    ]
