"""Whatever the service signs is in a log, once, and a witness that saw the log dates it."""

from __future__ import annotations

import base64
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from sqlalchemy import func, select

from app.db.database import Database
from app.db.models import DatasetTerms, SignedBatch, SignedDigest
from app.ledger import signed_terms, signing_keys
from app.ledger.signer import TRIES
from app.ledger.transparency import dates, notes
from app.ledger.transparency.attestations import about, keep, seal
from app.ledger.transparency.witnesses import Away, Contradiction
from core.errors import Conflict, NotFound
from core.ids import now
from scrimp.dated import Inclusion, cosigned_at, digest_of
from scrimp.witness import Witness
from tests.ledger.support import add_owner, open_ledger
from tests.ledger.test_attestations import TRUSTED
from tests.ledger.test_certificates import KEY, document, issue, succeeded
from tests.ledger.test_checkpoints import READER


@pytest.fixture(params=["sqlite", "postgresql"])
def db(request: pytest.FixtureRequest, tmp_path: Path, migrated_database: Path) -> Iterator[Database]:
    if request.param == "sqlite":
        database = Database(f"sqlite:///{shutil.copy(migrated_database, tmp_path / 'dates.db')}")
    else:
        database = Database(request.getfixturevalue("postgres_url"))
    add_owner(database)
    signing_keys.publish(database, KEY)
    yield database
    database.close()


class Sent:
    """A witness as the relay asks it, without its server; it may be away, or refuse what it has seen."""

    def __init__(self, folder: Path, name: str = "w1", error: Exception | None = None) -> None:
        self.witness = Witness(folder / name, f"witness.example.org/{name}", Ed25519PrivateKey.generate(), [[READER]])
        self.key, self.error, self.asked = notes.WitnessKey.parse(str(self.witness.key)), error, 0

    def send(self, note: str, _proof: object) -> str:
        self.asked += 1
        if self.error is not None:
            raise self.error
        return self.witness.add(f"old 0\n\n{note}")


def sent(db: Database, *witnesses: Sent) -> int:
    return dates.witness_due(db, list(witnesses), set(), iter)  # type: ignore[arg-type]


def date(db: Database, envelope: Any) -> Inclusion:
    with db.read() as session:
        found = dates.date_of(session, digest_of(envelope))
    return Inclusion.of(found.model_dump(mode="json"))


def filled(db: Database, count: int) -> list[dict[str, Any]]:
    """Envelopes that were signed, and whose digests are kept."""
    made = [seal(about({"file": f"{each:064x}"}, "a type", each), KEY) for each in range(count)]
    with db.write() as session:
        for each in made:
            keep(session, each)
    return [each.model_dump(mode="json", by_alias=True) for each in made]


def test_a_certificate_and_terms_are_dated(db: Database, tmp_path: Path) -> None:
    dataset = open_ledger(db)
    job_id, witness = succeeded(db, dataset), Sent(tmp_path)
    assert issue(db, job_id) and signed_terms.sign_due(db, KEY) == 1
    with db.read() as session:
        envelopes = [document(db, job_id)["envelope"], json.loads(session.get_one(DatasetTerms, dataset).envelope)]
    for envelope in envelopes:
        with pytest.raises(Conflict, match="not signed yet"):
            date(db, envelope)
    assert dates.sign_due(db, KEY) == 1 and dates.sign_due(db, KEY) == 0
    for envelope in envelopes:
        assert cosigned_at(envelope, TRUSTED, [date(db, envelope)], [witness.witness.key]) is None, "no witness yet"
    assert sent(db, witness) == 1 and sent(db, witness) == 0 and witness.asked == 1
    for envelope in envelopes:
        assert cosigned_at(envelope, TRUSTED, [date(db, envelope)], [witness.witness.key]) is not None
        other = {**envelope, "payload": base64.b64encode(base64.b64decode(envelope["payload"]) + b" ").decode()}
        assert cosigned_at(other, TRUSTED, [date(db, envelope)], [witness.witness.key]) is None
        with pytest.raises(NotFound):
            date(db, other)


def test_every_signature_is_in_one_log_at_one_place(
    db: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dates, "TILE", 8)
    envelopes, witness = filled(db, 21), Sent(tmp_path)
    assert filled(db, 21) == envelopes, "what is kept twice stays one"
    assert dates.sign_due(db, KEY) == 3 and sent(db, witness) == 3
    places = set[tuple[str, int]]()
    for envelope in envelopes:
        found = date(db, envelope)
        assert found.has(digest_of(envelope)) and found.note.signed_by(READER) == 0
        assert found.note.signed_by(witness.witness.key)
        places.add((found.note.origin, found.entry))
    assert len(places) == 21
    with db.read() as session:
        assert sorted(session.scalars(select(SignedBatch.size))) == [5, 8, 8]


def test_of_two_relays_one_puts_a_signature_into_a_log(db: Database) -> None:
    """The slower one finds the digests taken while its program signs, and signs the rest."""
    filled(db, 3)

    class Overtaken:
        def public_key(self) -> Any:
            return KEY.public_key()

        def sign(self, data: bytes) -> bytes:
            if not raced:
                raced.append(dates.sign_due(db, KEY))
            return KEY.sign(data)

    raced = list[int]()
    assert dates.sign_due(db, Overtaken()) == 0 and raced == [1]
    with db.read() as session:
        assert session.scalar(select(func.count()).select_from(SignedBatch)) == 1
        assert sorted(session.scalars(select(SignedDigest.place))) == [1, 2, 3]


def test_logs_that_always_change_keep_no_others_waiting(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another relay takes them a moment earlier each time: an error would stop what the relay does after it, too."""
    monkeypatch.setattr(dates, "TILE", 40)
    filled(db, 41)

    class Overtaken:
        def public_key(self) -> Any:
            return KEY.public_key()

        def sign(self, data: bytes) -> bytes:
            with db.write() as session:  # one of the digests of this log, the first that is in none
                taken = session.scalars(dates.UNBATCHED.order_by(SignedDigest.digest).limit(1)).one()
                batch = SignedBatch(id=f"signed_{taken}", size=1, note="", signed_at=now(), cosigned=False)
                session.add(batch)
                session.flush()
                session.get_one(SignedDigest, taken).batch = batch.id
            return KEY.sign(data)

    assert dates.sign_due(db, Overtaken()) == 1, "the second log, of one digest"
    with db.read() as session:
        assert len(session.scalars(dates.UNBATCHED).all()) == 41 - (TRIES + 1) - 1


def test_a_call_signs_a_bounded_number_of_logs(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dates, "TILE", 2)
    monkeypatch.setattr(dates, "LOGS", 3)
    filled(db, 9)
    assert [dates.sign_due(db, KEY, lambda due: due[:2]) for _ in range(3)] == [2, 2, 1]
    filled(db, 20)  # eleven of them are new
    assert [dates.sign_due(db, KEY) for _ in range(3)] == [3, 3, 0]


def test_a_witness_that_is_away_or_refuses_holds_up_no_other(
    db: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dates, "TILE", 1)
    away, refusing = Sent(tmp_path, "w2", Away("away")), Sent(tmp_path, "w3", Contradiction("seen"))
    envelopes, witness = filled(db, 3), Sent(tmp_path)
    assert dates.sign_due(db, KEY) == 3
    assert sent(db, away, refusing, witness) == 3
    assert (away.asked, refusing.asked, witness.asked) == (1, 3, 3)
    away.error = None
    assert sent(db, away, refusing, witness) == 3
    assert witness.asked == 3, "it has signed them all"
    for envelope in envelopes:
        note = date(db, envelope).note
        assert [note.signed_by(each.witness.key) is not None for each in (away, refusing, witness)] == [
            True,
            False,
            True,
        ]
