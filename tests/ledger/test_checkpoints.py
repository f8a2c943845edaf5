"""Checkpoints from the relay to the reader: made once, kept in two places, proven to a reader who knows a key alone."""

from __future__ import annotations

import copy
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from sqlalchemy import delete, event, insert, select, update

from app.db.database import Database
from app.db.models import Account, Certificate, LedgerCheckpoint, LedgerEntry, LedgerTile, table_of
from app.ledger import certificates, signing_keys
from app.ledger.entries import COLUMNS, content, digest
from app.ledger.signer import public_key
from app.ledger.transparency import checkpoints, notes
from app.ledger.transparency.heads import Head, Heads, UnreadableHeadError
from app.ledger.transparency.ledger_tree import TILE
from app.ledger.transparency.outside_records import Records
from app.ledger.verification import verify
from core.errors import Conflict, InvalidRequest, TransientError
from scrimp.signatures import is_authentic
from scrimp.transparency import ED25519, LOG, Key, Note, begins_with, decoded, faults_of, follows, includes, leaf_of
from tests.chaos.tamper import rewrite, unprotected
from tests.ledger.support import add_owner, hold, open_ledger, signed_document
from tests.ledger.test_anchors import unheard
from tests.ledger.test_attestations import TRUSTED
from tests.ledger.test_certificates import KEY, document, issue, succeeded
from tests.ledger.test_heads import Overtaken
from tests.node import by_node, needs_node

READER = Key(LOG, ED25519, KEY.public_key().public_bytes_raw())
NEW = Ed25519PrivateKey.from_private_bytes(b"n" * 32)
LONG = 10_000


@pytest.fixture
def db(tmp_path: Path, migrated_database: Path) -> Iterator[Database]:
    """One on SQLite: what reads and writes trees is the same everywhere, and other files run it on both."""
    database = Database(f"sqlite:///{shutil.copy(migrated_database, tmp_path / 'checkpoints.db')}")
    add_owner(database)
    signing_keys.publish(database, KEY)
    yield database
    database.close()


@pytest.fixture
def heads(tmp_path: Path) -> Heads:
    return Heads(tmp_path / "heads")


def signed(db: Database, heads: Heads, dataset: str) -> Note:
    """The newest checkpoint, which the reader's key has signed."""
    checkpoints.sign_due(db, heads, KEY, unheard)
    note = heads.checkpoint(dataset)
    assert note is not None
    with db.read() as session:
        assert session.get_one(LedgerCheckpoint, dataset).note == note
    found = Note.parse(note)
    assert found.signed_by(READER) == 0
    return found


def lengthen(db: Database, dataset: str, to: int) -> None:
    """Appends changes of the cap that change nothing, as the ledger would, in one statement."""
    with unprotected(db) as session:
        account = session.get_one(Account, dataset)
        last = session.get_one(LedgerEntry, (dataset, account.entries))
        said, rows = {name: getattr(last, name) for name in COLUMNS}, []
        memo = said["memo"] | {"cap_epsilon": account.cap_epsilon, "cap_delta": account.cap_delta, "reason": "a test"}
        amounts = {"train": account.train_budget, "holdout": account.holdout_budget}
        head = last.hash
        for seq in range(account.entries + 1, to + 1):
            row = said | amounts | {"seq": seq, "kind": "cap", "job_id": None, "once": None, "memo": memo}
            row |= {"train_released": 0, "holdout_released": 0, "prev_hash": head}
            head = digest(content(LedgerEntry(**row)))
            rows.append(row | {"hash": head})
        session.execute(insert(table_of(LedgerEntry)), rows)
        session.execute(update(Account).where(Account.dataset_id == dataset).values(entries=to, head=head))


def test_each_checkpoint_follows_the_one_before(db: Database, heads: Heads) -> None:
    dataset = open_ledger(db)
    before = signed(db, heads, dataset)
    assert (before.origin, before.size) == (f"{LOG}/{dataset}", 1)
    for number in range(12):
        hold(db, dataset, f"job_{number}", 10)
        after = signed(db, heads, dataset)
        with db.read() as session:
            path = decoded(checkpoints.consistency(session, dataset, before.size, after.size))
            hashes = list(session.scalars(select(LedgerEntry.hash).order_by(LedgerEntry.seq)))
        assert follows(before.size, before.root, after.size, after.root, path)
        assert begins_with(before, dataset, hashes) and begins_with(after, dataset, hashes)
        assert not begins_with(after, dataset, hashes[:-1]) and not begins_with(after, "ds_other", hashes)
        before = after
    assert checkpoints.sign_due(db, heads, KEY, unheard) == (0, [])


def test_a_ledger_of_10000_entries_costs_an_entry_what_a_new_one_does(db: Database, heads: Heads) -> None:
    """The tree is no part of an entry's transaction. Signing and proving read two tiles of entries, not all."""
    short, dataset = open_ledger(db), open_ledger(db)
    lengthen(db, dataset, LONG)
    signed(db, heads, dataset)
    with db.read() as session:
        assert len(list(session.scalars(select(LedgerTile.number).where(LedgerTile.dataset_id == dataset)))) == 39
    statements: list[str] = []
    event.listen(db.engine, "before_cursor_execute", lambda _c, _k, text, *_: statements.append(text))
    counts = []
    for each in (short, dataset):
        statements.clear()
        hold(db, each, "job_1", 10)
        counts.append(len(statements))
        assert not any("ledger_tiles" in text or "ledger_checkpoints" in text for text in statements)
    assert counts[0] == counts[1]
    statements.clear()
    note = signed(db, heads, dataset)
    read = [text for text in statements if "FROM ledger_entries" in text and "seq <=" in text]
    assert len(read) <= 4, "one statement a tile"
    with db.read() as session:
        found = verify(session, dataset, heads.read(dataset), heads.checkpoint(dataset))
        assert (found.valid, found.problem, found.entries) == (True, None, LONG + 1)
        for seq in (1, TILE, TILE + 1, 5_000, LONG, LONG + 1):
            entry = session.get_one(LedgerEntry, (dataset, seq))
            path = decoded(checkpoints.inclusion(session, dataset, seq, note.size))
            assert includes(seq - 1, note.size, leaf_of(entry.hash), path, note.root) and len(path) <= 14
        with pytest.raises(InvalidRequest):
            checkpoints.consistency(session, dataset, note.size + 1, note.size)


def test_a_tile_that_was_changed_is_found(db: Database, heads: Heads) -> None:
    dataset = open_ledger(db)
    lengthen(db, dataset, 2 * TILE + 3)
    signed(db, heads, dataset)
    with db.write() as session:
        session.execute(update(LedgerTile).where(LedgerTile.number == 0).values(root="00" * 32))
    with db.read() as session:
        found = verify(session, dataset)
    assert (found.valid, found.first_bad_entry) == (False, TILE) and "tile" in str(found.problem)
    hold(db, dataset, "job_1", 10)
    assert checkpoints.sign_due(db, heads, KEY, unheard) == (0, [dataset]), "the kept checkpoint has another root"


@pytest.mark.parametrize("size", [2, TILE, TILE + 1, 2 * TILE])
def test_no_checkpoint_of_another_history_is_signed(db: Database, heads: Heads, size: int) -> None:
    """The whole ledger was rewritten as a chain that follows from itself, and its record outside is gone; stored tiles
    stay as they were."""
    dataset = open_ledger(db)
    lengthen(db, dataset, size)
    signed(db, heads, dataset)
    (heads.folder / f"{dataset}.json").unlink()
    with unprotected(db) as session:
        rewrite(session, dataset, size)
    hold(db, dataset, "job_1", 10)
    assert checkpoints.sign_due(db, heads, KEY, unheard) == (0, [dataset])
    with db.write() as session:  # nor if the database forgets what was signed: it lies outside too
        session.execute(delete(LedgerCheckpoint))
    assert checkpoints.sign_due(db, heads, KEY, unheard)[0] == 0


def test_of_two_primaries_that_sign_at_once_the_later_one_signs_nothing(db: Database, heads: Heads) -> None:
    """Another primary keeps a checkpoint of a history of its own while this one's is made: it has fewer entries."""
    dataset = open_ledger(db)
    signed(db, heads, dataset)
    others = notes.sign(notes.Checkpoint(dataset, 2, b"o" * 32), KEY)
    for job in ("job_1", "job_2"):
        hold(db, dataset, job, 1)
    records = Overtaken(heads.records, f"{dataset}.checkpoint", others)
    overtaken = Heads(heads.folder, records=cast(Records, records))
    with pytest.raises(TransientError, match="lacks the kept checkpoint of 2 entries"):
        checkpoints.advance(db, overtaken, dataset, KEY, unheard)
    assert heads.checkpoint(dataset) == others
    with db.read() as session:
        assert session.get_one(LedgerCheckpoint, dataset).size == 1


def test_after_a_restore_the_ledger_goes_on_and_its_lost_checkpoint_is_kept(
    db: Database, heads: Heads, tmp_path: Path
) -> None:
    dataset = open_ledger(db)
    signed(db, heads, dataset)
    db.engine.dispose()
    backup = shutil.copy(str(db.engine.url.database), tmp_path / "backup.db")
    hold(db, dataset, "job_lost", 10)
    lost = signed(db, heads, dataset)
    restored = Database(f"sqlite:///{backup}")
    hold(restored, dataset, "job_other", 20)
    hold(restored, dataset, "job_third", 20)
    assert checkpoints.sign_due(restored, heads, KEY, unheard) == (0, [dataset])
    with restored.read() as session:  # what `scrimp restore --post` does, once it has posted the gap
        heads.replace(Head.of(session.get_one(Account, dataset), None, ()))
    assert signed(restored, heads, dataset).size == 3
    (aside,) = heads.folder.glob(f"{dataset}.forgotten-*-checkpoint")
    assert Note.parse(aside.read_text()) == lost
    restored.close()


def test_a_checkpoint_outside_that_cannot_be_read_stops_the_relay(db: Database, heads: Heads) -> None:
    dataset = open_ledger(db)
    signed(db, heads, dataset)
    hold(db, dataset, "job_1", 10)
    path = heads.folder / f"{dataset}.checkpoint"
    other = notes.sign(notes.Checkpoint("ds_other", 1, b"0" * 32), KEY)
    for text in ("", other):
        path.write_text(text)
        with pytest.raises(UnreadableHeadError):
            heads.checkpoint(dataset)
        with pytest.raises(TransientError):
            checkpoints.advance(db, heads, dataset, KEY, unheard)


def certificate_with_proofs(db: Database, heads: Heads) -> dict[str, Any]:
    dataset = open_ledger(db)
    lengthen(db, dataset, 300)
    job_id = succeeded(db, dataset)
    checkpoints.sign_due(db, heads, KEY, unheard)
    assert issue(db, job_id)
    found: dict[str, Any] = json.loads(json.dumps(document(db, job_id)))
    return found


def test_a_certificate_proves_that_its_entries_are_in_the_checkpoint(db: Database, heads: Heads) -> None:
    found = certificate_with_proofs(db, heads)
    body = found["certificate"]
    assert [each["entry"] for each in body["ledger"]["proofs"]] == [301, 302]
    assert Note.parse(body["ledger"]["checkpoint"]).size == 302
    assert certificates.verify(found, TRUSTED) and is_authentic(found, TRUSTED)
    assert is_authentic(found["envelope"], TRUSTED) and faults_of(body, READER.raw) == []


def flipped(body: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Bodies in which one thing of the evidence differs."""
    note = body["ledger"]["checkpoint"]
    for at in range(0, len(note), 5):
        changed = copy.deepcopy(body)
        changed["ledger"]["checkpoint"] = note[:at] + chr(ord(note[at]) ^ 1) + note[at + 1 :]
        yield f"character {at} of the checkpoint", changed
    for number, proof in enumerate(body["ledger"]["proofs"]):
        for place in range(len(proof["path"])):
            changed = copy.deepcopy(body)
            path = changed["ledger"]["proofs"][number]["path"]
            path[place] = ("B" if path[place][0] == "A" else "A") + path[place][1:]
            yield f"hash {place} of proof {number}", changed
        for name, value in (("entry", proof["entry"] - 1), ("hash", "00" * 32), ("path", proof["path"][:-1])):
            changed = copy.deepcopy(body)
            changed["ledger"]["proofs"][number][name] = value
            yield f"{name} of proof {number}", changed
    changed = copy.deepcopy(body)
    changed["ledger"]["proofs"] = []
    yield "no proofs", changed


def test_whatever_differs_in_the_evidence_is_found_even_if_the_service_signs_it(db: Database, heads: Heads) -> None:
    """A signature over a wrong proof makes it no proof. One that is not signed again is found by the signature."""
    found = certificate_with_proofs(db, heads)
    for name, body in flipped(found["certificate"]):
        assert faults_of(body, READER.raw), name
        assert not is_authentic(found | {"certificate": body}, TRUSTED), name
    resigned = signed_document(next(flipped(found["certificate"]))[1], KEY, {})
    assert not is_authentic(resigned, TRUSTED) and not is_authentic(resigned["envelope"], TRUSTED)


@needs_node
def test_another_language_checks_the_proofs(db: Database, heads: Heads, tmp_path: Path) -> None:
    found, path = certificate_with_proofs(db, heads), tmp_path / "certificate.json"
    path.write_text(json.dumps(found))
    said = by_node(path, "--public-key", TRUSTED)
    assert said.returncode == 0 and "checkpoint 302 entries" in said.stdout, said.stdout + said.stderr
    for name, body in list(flipped(found["certificate"]))[::9]:
        path.write_text(json.dumps(signed_document(body, KEY, {})))
        said = by_node(path, "--public-key", TRUSTED)
        assert said.returncode in (1, 2), f"{name}: {said.stdout}"


def test_a_certificate_without_a_checkpoint_verifies_for_ever(db: Database) -> None:
    """One of an earlier version, or one that was issued while the ledger was behind its record."""
    job_id = succeeded(db, open_ledger(db))
    assert issue(db, job_id)
    found = json.loads(json.dumps(document(db, job_id)))
    assert "checkpoint" not in found["certificate"]["ledger"]
    assert certificates.verify(found, TRUSTED) and is_authentic(found, TRUSTED)


def test_after_the_key_was_rotated_all_is_signed_by_the_new_one(db: Database, heads: Heads) -> None:
    """The old relay's last sweep signed what the new one certifies. An idle ledger's checkpoint is signed anew too."""
    dataset, idle = open_ledger(db), open_ledger(db)
    job_id = succeeded(db, dataset)
    checkpoints.sign_due(db, heads, KEY, unheard)
    line = "\u2014 witness.example.org/w1 AAAA\n"
    with db.write() as session:
        session.get_one(LedgerCheckpoint, idle).note += line
    signing_keys.publish(db, NEW)
    new, announced = Key(LOG, ED25519, NEW.public_key().public_bytes_raw()), list[object]()
    assert checkpoints.advance(db, heads, dataset, NEW, lambda *told: announced.append(told))
    assert certificates.issue(db, job_id, NEW, "0.1.0")
    found = json.loads(json.dumps(document(db, job_id)))
    assert is_authentic(found, public_key(NEW)) and faults_of(found["certificate"], new.raw) == []
    assert checkpoints.sign_due(db, heads, NEW, unheard) == (1, [])
    assert checkpoints.sign_due(db, heads, NEW, unheard) == (0, []) and announced == [], "no entry is new"
    for each in (dataset, idle):
        note = heads.checkpoint(each)
        with db.read() as session:
            assert note == session.get_one(LedgerCheckpoint, each).note and verify(session, each, outside=note).valid
        assert note is not None and Note.parse(note).signed_by(new) == 0
        assert note.endswith(line) == (each == idle), "a witness signs the same text"


def test_a_checkpoint_by_another_key_is_on_no_certificate_and_closes_nothing(db: Database, heads: Heads) -> None:
    dataset = open_ledger(db)
    job_id = succeeded(db, dataset)
    checkpoints.sign_due(db, heads, KEY, unheard)
    signing_keys.publish(db, NEW)
    assert certificates.issue(db, job_id, NEW, "0.1.0")
    found = json.loads(json.dumps(document(db, job_id)))
    assert "checkpoint" not in found["certificate"]["ledger"] and is_authentic(found, public_key(NEW))
    kept = heads.checkpoint(dataset)  # as an earlier version issued it
    body = found["certificate"] | {"ledger": found["certificate"]["ledger"] | {"checkpoint": kept, "proofs": []}}
    earlier = signed_document(body, NEW, {})
    with db.write() as session:
        session.get_one(Certificate, job_id).body = earlier
    with db.read() as session:
        assert verify(session, dataset).valid


def test_a_ledger_that_lost_an_entry_keeps_nobody_waiting(db: Database, heads: Heads) -> None:
    """Its certificate is issued without a proof, so the relay goes on; a reader is told what is wrong."""
    dataset = open_ledger(db)
    job_id = succeeded(db, dataset)
    checkpoints.sign_due(db, heads, KEY, unheard)
    with unprotected(db) as session:
        session.execute(delete(LedgerEntry).where(LedgerEntry.dataset_id == dataset, LedgerEntry.seq == 1))
    assert issue(db, job_id)
    assert "checkpoint" not in document(db, job_id)["certificate"]["ledger"]
    with db.read() as session:
        for proof in (checkpoints.inclusion, checkpoints.consistency):
            with pytest.raises(Conflict) as refusal:
                proof(session, dataset, 2, 3)
            assert refusal.value.code == "ledger-behind"


def test_of_two_relays_the_later_one_keeps_the_newer_checkpoint(postgres_url: str, tmp_path: Path) -> None:
    """One signs while an entry and another relay come, which keeps a newer checkpoint: the first one's is stale."""
    db, other = Database(postgres_url), Database(postgres_url)
    add_owner(db)
    dataset, announced = open_ledger(db), list[int]()

    def tell(_session: object, _dataset: str, size: int, _note: str) -> None:
        announced.append(size)

    class Overtaken:
        """A key that signs once another relay has signed more."""

        times = 0

        def sign(self, data: bytes) -> bytes:
            self.times += 1
            if self.times == 1:
                hold(other, dataset, "job_2", 5)
                assert checkpoints.sign_due(other, Heads(tmp_path / "heads"), KEY, tell) == (1, [])
            return KEY.sign(data)

        def public_key(self) -> Ed25519PublicKey:
            return KEY.public_key()

    key = Overtaken()
    assert checkpoints.advance(db, Heads(tmp_path / "heads"), dataset, key, tell) is None, "it is signed already"
    with db.read() as session:
        assert session.get_one(LedgerCheckpoint, dataset).size == 2
    note = Heads(tmp_path / "heads").checkpoint(dataset)
    assert note is not None and notes.read(note).size == 2 and (announced, key.times) == ([2], 1)
    db.close()
    other.close()
