"""A program that signs takes its time: nobody waits for it in the database, and nothing stale is stored."""

from __future__ import annotations

import ast
import shutil
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from sqlalchemy import update

from app.db.database import Database, TransactionOpen
from app.db.models import Certificate, Dataset, DatasetTerms, Job, LedgerCheckpoint
from app.ledger import certificates, signed_terms, signing_keys
from app.ledger.signer import CommandSigner, signature
from app.ledger.signing_keys import public_key
from app.ledger.transparency import checkpoints, notes
from app.ledger.transparency.heads import Heads
from tests.ledger.support import add_owner, hold, open_ledger
from tests.ledger.test_anchors import unheard
from tests.ledger.test_certificates import KEY, document, issue, succeeded

ROOT, LIMIT_S = Path(__file__).resolve().parents[2], 60.0
# Says that it was started, and signs once it may.
PROGRAM = """
import pathlib, sys, time
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
started, go = map(pathlib.Path, sys.argv[1:])
started.touch()
while not go.exists():
    time.sleep(0.01)
sys.stdout.buffer.write(Ed25519PrivateKey.from_private_bytes(bytes(range(32))).sign(sys.stdin.buffer.read()))
"""


@pytest.fixture(params=["sqlite", "postgresql"])
def db(request: pytest.FixtureRequest, tmp_path: Path, migrated_database: Path) -> Iterator[Database]:
    if request.param == "sqlite":
        database = Database(f"sqlite:///{shutil.copy(migrated_database, tmp_path / 'signing.db')}")
    else:
        database = Database(request.getfixturevalue("postgres_url"))
    add_owner(database)
    signing_keys.publish(database, KEY)
    yield database
    database.close()


@dataclass
class Slow:
    """A program that signs when it may, and what runs meanwhile."""

    folder: Path

    @property
    def key(self) -> CommandSigner:
        program = self.folder / "sign.py"
        program.write_text(PROGRAM)
        command = (sys.executable, str(program), str(self.folder / "started"), str(self.folder / "go"))
        return CommandSigner(command, KEY.public_key())

    def during(self, sign: Callable[[CommandSigner], object], meanwhile: Callable[[], object]) -> None:
        """Signs, and does this while the program has the bytes."""
        raised: list[BaseException] = []

        def run() -> None:
            try:
                sign(self.key)
            except BaseException as error:
                raised.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        pause = threading.Event()
        for _ in range(round(LIMIT_S / 0.01)):
            if (self.folder / "started").exists() or not thread.is_alive():
                break
            pause.wait(0.01)
        try:
            assert raised == [] and (self.folder / "started").exists()
            meanwhile()
            assert thread.is_alive(), "the program has not signed yet"
        finally:
            (self.folder / "go").touch()
            thread.join(LIMIT_S)
        assert not thread.is_alive() and raised == []


@pytest.fixture
def slow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Slow:
    monkeypatch.setattr("app.ledger.signer.TIMEOUT_S", LIMIT_S)
    return Slow(tmp_path)


@pytest.fixture
def heads(tmp_path: Path) -> Heads:
    return Heads(tmp_path / "heads")


@pytest.fixture
def dataset(db: Database) -> str:
    return open_ledger(db)


def redeclare(db: Database, dataset: str, name: str) -> None:
    with db.write() as session:
        changed = update(Dataset).where(Dataset.id == dataset)
        session.execute(changed.values(name=name, declaration=Dataset.declaration + 1))


@pytest.mark.parametrize("what", ["checkpoint", "terms", "certificate"])
def test_others_write_while_a_program_signs(db: Database, heads: Heads, dataset: str, slow: Slow, what: str) -> None:
    """The program gets on only once the other writer has committed: in one transaction, both would wait for ever."""
    job_id = succeeded(db, dataset)
    sign: dict[str, Callable[[CommandSigner], object]] = {
        "checkpoint": lambda key: checkpoints.sign_due(db, heads, key, unheard),
        "terms": lambda key: signed_terms.sign_due(db, key),
        "certificate": lambda key: certificates.issue(db, job_id, key, "0.1.0"),
    }
    slow.during(sign[what], lambda: hold(db, dataset, "job_meanwhile", 10))
    with db.read() as session:
        stored = {
            "checkpoint": session.get(LedgerCheckpoint, dataset),
            "terms": session.get(DatasetTerms, dataset),
            "certificate": session.get(Certificate, job_id),
        }
    assert stored[what] is not None
    if isinstance(row := stored["checkpoint"], LedgerCheckpoint):
        assert row.size == 3, "what was read is true, though the ledger has grown"


def test_terms_that_changed_meanwhile_are_signed_as_they_are(db: Database, dataset: str, slow: Slow) -> None:
    slow.during(lambda key: signed_terms.sign_due(db, key), lambda: redeclare(db, dataset, "renamed"))
    with db.read() as session:
        row = session.get_one(DatasetTerms, dataset)
        found = signed_terms.terms_in(row.envelope)
    assert (found.name, row.declaration) == ("renamed", 2) and signed_terms.sign_due(db, KEY) == 0


def test_older_terms_never_replace_newer_ones(db: Database, dataset: str, slow: Slow) -> None:
    def overtake() -> None:
        redeclare(db, dataset, "renamed")
        assert signed_terms.sign_due(db, KEY) == 1

    slow.during(lambda key: signed_terms.sign(db, dataset, key), overtake)
    with db.read() as session:
        assert signed_terms.terms_in(session.get_one(DatasetTerms, dataset).envelope).name == "renamed"


@dataclass
class Overtaken:
    """A key that signs a data set's terms a moment too late each time: they have changed meanwhile."""

    db: Database
    dataset: str

    def public_key(self) -> Ed25519PublicKey:
        return KEY.public_key()

    def sign(self, data: bytes) -> bytes:
        if self.dataset.encode() in data:
            with self.db.write() as session:
                changed = update(Dataset).where(Dataset.id == self.dataset)
                session.execute(changed.values(grants_version=Dataset.grants_version + 1))
        return KEY.sign(data)


def test_terms_that_always_change_keep_no_others_waiting(db: Database, dataset: str) -> None:
    """Whoever may change grants could stop what the relay does after it, too."""
    pair = [dataset, open_ledger(db)]
    for restless, other in (pair, reversed(pair)):  # in whichever order they are signed
        redeclare(db, other, f"renamed {other}")
        signed_terms.sign_due(db, Overtaken(db, restless))
        with db.read() as session:
            row = session.get_one(DatasetTerms, other)
            assert signed_terms.terms_in(row.envelope).name == f"renamed {other}"


def test_a_cosignature_that_came_meanwhile_stays(db: Database, heads: Heads, dataset: str, slow: Slow) -> None:
    """The key was rotated: the checkpoint is signed again, while a witness signs it."""
    old = Ed25519PrivateKey.from_private_bytes(b"o" * 32)
    checkpoints.sign_due(db, heads, old, unheard)
    line = "\u2014 witness.example.org/w1 AAAA\n"

    def cosign() -> None:
        with db.write() as session:
            row = session.get_one(LedgerCheckpoint, dataset)
            row.note += line
            heads.keep_cosignatures(dataset, row.note)

    slow.during(lambda key: checkpoints.sign_due(db, heads, key, unheard), cosign)
    with db.read() as session:
        note = session.get_one(LedgerCheckpoint, dataset).note
    assert note.endswith(line) and notes.is_signed(note, public_key(KEY)) and heads.checkpoint(dataset) == note


def test_a_checkpoint_of_fewer_entries_never_replaces_one_of_more(
    db: Database, heads: Heads, dataset: str, slow: Slow
) -> None:
    def overtake() -> None:
        hold(db, dataset, "job_2", 5)
        assert checkpoints.sign_due(db, heads, KEY, unheard) == (1, [])

    slow.during(lambda key: checkpoints.advance(db, heads, dataset, key, unheard), overtake)
    with db.read() as session:
        assert session.get_one(LedgerCheckpoint, dataset).size == 2
    note = heads.checkpoint(dataset)
    assert note is not None and notes.read(note).size == 2


def test_a_job_that_changed_meanwhile_is_certified_as_it_is(db: Database, dataset: str, slow: Slow) -> None:
    job_id = succeeded(db, dataset)

    def warn() -> None:
        with db.write() as session:
            session.execute(update(Job).where(Job.id == job_id).values(warnings=["said meanwhile"]))

    slow.during(lambda key: certificates.issue(db, job_id, key, "0.1.0"), warn)
    found = document(db, job_id)
    assert found["certificate"]["warnings"] == ["said meanwhile"] and certificates.verify(found, public_key(KEY))


def test_of_two_relays_one_issues_a_certificate(db: Database, dataset: str, slow: Slow) -> None:
    job_id, issued = succeeded(db, dataset), list[bool]()
    slow.during(
        lambda key: issued.append(certificates.issue(db, job_id, key, "0.1.0")),
        lambda: issued.append(issue(db, job_id)),
    )
    assert issued == [True, False]


def test_nothing_is_signed_in_a_transaction(db: Database) -> None:
    """Whatever signs, and whichever database the transaction is on."""
    for begin in (db.read, db.write, db.quick_read):
        with begin(), pytest.raises(TransactionOpen):
            signature(KEY, b"bytes")
    assert signature(KEY, b"bytes") == KEY.sign(b"bytes")


def test_a_transaction_that_ends_in_another_thread_is_over(db: Database) -> None:
    """As a stream's may, of which each piece is made in the next free thread."""
    transaction = db.read()
    transaction.__enter__()
    thread = threading.Thread(target=transaction.__exit__, args=(None, None, None))
    thread.start()
    thread.join()
    assert signature(KEY, b"bytes") == KEY.sign(b"bytes")


def test_signers_are_called_in_one_place() -> None:
    """Elsewhere `.sign` is a function of ours, a session's cookie, or a webhook's HMAC."""
    ours, calls = {"notes", "certificate_signatures", "signed_terms", "Webhook", "_signer"}, set[str]()
    for path in (ROOT / "app").rglob("*.py"):
        for each in ast.walk(ast.parse(path.read_text())):
            if isinstance(each, ast.Call) and isinstance(each.func, ast.Attribute) and each.func.attr == "sign":
                whose = each.func.value
                name = whose.func if isinstance(whose, ast.Call) else whose
                if not (isinstance(name, ast.Name) and name.id in ours):
                    calls.add(str(path.relative_to(ROOT)))
    assert calls == {"app/ledger/signer.py"}
