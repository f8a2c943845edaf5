"""A witness elsewhere: it signs what follows, and nothing admits or runs where a database was rewound."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from fastapi.testclient import TestClient
from pydantic import ValidationError
from sqlalchemy import select
from typer.testing import CliRunner

from app.db.database import Database
from app.db.models import Account, LedgerCheckpoint, LedgerEntry
from app.keys import service as keys
from app.ledger import accounts, behind, signing_keys
from app.ledger.entries import COLUMNS, content, digest, genesis
from app.ledger.signer import public_key
from app.ledger.transparency import checkpoints, notes, witnesses
from app.ledger.transparency.heads import Heads
from app.ledger.transparency.ledger_tree import Tree
from app.lifecycle import witnessed
from app.lifecycle.queue.fair import claim_next
from app.main import create_app
from app.secrets import load_secret
from app.settings import Settings
from core.errors import Conflict, TransientError
from core.merkle import Frontier, leaf
from scrimp.cli import app
from scrimp.cli import app as cli
from scrimp.transparency import COSIGNATURE, ED25519, LOG, Key, Note
from scrimp.witness import Refused, Witness, accept_gap, serve
from tests import servers
from tests.factories import add_dataset, job_spec
from tests.ledger.support import OWNER, add_owner, hold, open_ledger
from tests.ledger.test_anchors import unheard
from tests.ledger.test_certificates import KEY

NAME = "witness.example.org/w1"
READER = Key(LOG, ED25519, KEY.public_key().public_bytes_raw())
ROTATED, STRANGER = Ed25519PrivateKey.from_private_bytes(b"r" * 32), Ed25519PrivateKey.from_private_bytes(b"s" * 32)
LOGS = [
    [READER, Key(LOG, ED25519, ROTATED.public_key().public_bytes_raw())],
    [Key(LOG, ED25519, STRANGER.public_key().public_bytes_raw())],
]
LENGTH = 200


@pytest.fixture
def witness(tmp_path: Path) -> Witness:
    return Witness(tmp_path / "witness", NAME, Ed25519PrivateKey.from_private_bytes(b"w" * 32), LOGS)


@contextmanager
def listening(witness: Witness) -> Iterator[str]:
    with servers.answering(serve(witness, "127.0.0.1", 0)) as server:
        yield f"http://127.0.0.1:{server.server_address[1]} {witness.key}"


@pytest.fixture
def address(witness: Witness) -> Iterator[str]:
    """Where it listens, and its key: as the setting takes them."""
    with listening(witness) as found:
        yield found


@pytest.fixture
def second(tmp_path: Path) -> Iterator[str]:
    """Another witness, likewise."""
    key = Ed25519PrivateKey.from_private_bytes(b"x" * 32)
    with listening(Witness(tmp_path / "second", "witness.example.org/w2", key, LOGS)) as found:
        yield found


@pytest.fixture
def db(tmp_path: Path, migrated_database: Path) -> Iterator[Database]:
    database = Database(f"sqlite:///{shutil.copy(migrated_database, tmp_path / 'witnessed.db')}")
    add_owner(database)
    signing_keys.publish(database, KEY)
    yield database
    database.close()


def tree_of(leaves: Sequence[bytes]) -> Tree:
    return Tree(lambda low, high: leaves[low:high], {})


def request(leaves: Sequence[bytes], old: int, *, key: Ed25519PrivateKey = KEY, dataset: str = "ds_1") -> str:
    """What a service sends that has these leaves."""
    tree = tree_of(leaves)
    path = checkpoints.encoded(tree.consistency(old, len(leaves))) if 0 < old <= len(leaves) else []
    note = notes.sign(notes.Checkpoint(dataset, len(leaves), tree.root(len(leaves))), key)
    return "\n".join([f"old {old}", *path, "", note])


def refused(witness: Witness, text: str) -> int:
    with pytest.raises(Refused) as refusal:
        witness.add(text)
    return refusal.value.status


def test_it_signs_what_follows_and_its_key_is_that_of_a_cosigner(witness: Witness) -> None:
    leaves = [leaf(bytes([k])) for k in range(40)]
    old = 0
    for size in (1, 2, 3, 8, 8, 21, 40):
        text = request(leaves[:size], old)
        line = witness.add(text)
        note = Note.parse(text.partition("\n\n")[2] + line)
        assert (note.signed_by(witness.key) or 0) > 0 and note.signed_by(READER) == 0
        assert witness.newest(f"{LOG}/ds_1") == text.partition("\n\n")[2] + line
        key = notes.WitnessKey.parse(str(witness.key))
        assert notes.cosigned(text.partition("\n\n")[2] + line, key).size == size
        old = size
    assert witness.newest(f"{LOG}/ds_2") is None


def test_it_signs_nothing_else(witness: Witness, tmp_path: Path) -> None:
    leaves = [leaf(bytes([k])) for k in range(10)]
    witness.add(request(leaves[:7], 0))
    before = (tmp_path / "witness").read_text()
    assert refused(witness, request(leaves, 0)) == 409  # it says what it has: 7
    assert refused(witness, request(leaves[:5], 5)) == 409  # rewound
    assert refused(witness, request(leaves[:5], 7)) == 400
    forked = [*leaves[:6], leaf(b"another"), *leaves[7:]]
    assert refused(witness, request(forked, 7)) == 422
    assert refused(witness, request(forked[:7], 7)) == 422  # as long, and another
    assert refused(witness, request(leaves, 7, key=Ed25519PrivateKey.generate())) == 403
    foreign = request(leaves, 7).replace(LOG, "another.example.org/log")
    assert refused(witness, foreign) == 404
    for broken in ("", "old x\n\n", "old 7\n%\n\n" + request(leaves, 7).partition("\n\n")[2]):
        assert refused(witness, broken) == 400
    assert (tmp_path / "witness").read_text() == before
    assert witness.add(request(leaves, 7))


def test_what_a_sender_adds_is_neither_kept_nor_served(witness: Witness, tmp_path: Path) -> None:
    """Whoever may read a checkpoint can send it, padded; and again, as often as they like."""
    leaves = [leaf(bytes([k])) for k in range(10)]
    text = request(leaves[:3], 0)
    foreign = "\u2014 another.example.org/log AAAA\n"
    line = witness.add(text + foreign + "x" * 60_000 + "\n")
    kept = text.partition("\n\n")[2] + line
    assert witness.newest(f"{LOG}/ds_1") == kept
    assert {witness.add(request(leaves[:3], 3) + foreign * k) for k in range(5)} == {line}
    assert witness.newest(f"{LOG}/ds_1") == kept and len((tmp_path / "witness").read_text().splitlines()) == 1
    assert witness.add(request(leaves[:3], 3, key=ROTATED)) == line, "the same text, under a newer key"
    assert witness.add(request(leaves[:4], 3))


def test_a_ledger_stays_with_its_service_whose_key_may_change(witness: Witness) -> None:
    leaves = [leaf(bytes([k])) for k in range(10)]
    witness.add(request(leaves[:3], 0))
    assert refused(witness, request(leaves[:5], 3, key=STRANGER)) == 403
    assert witness.add(request(leaves[:5], 3, key=ROTATED)) and witness.add(
        request(leaves[:5], 0, key=STRANGER, dataset="ds_2")
    )
    assert refused(witness, request(leaves[:7], 5, dataset="ds_2")) == 403


def test_another_process_on_the_same_file_knows_what_was_signed(witness: Witness, tmp_path: Path) -> None:
    leaves = [leaf(bytes([k])) for k in range(10)]
    witness.add(request(leaves[:7], 0))
    second = Witness(tmp_path / "witness", NAME, Ed25519PrivateKey.generate(), LOGS)
    assert refused(second, request(leaves[:3], 0)) == 409
    accept_gap(tmp_path / "witness", f"{LOG}/ds_1", "a backup was restored, and the gap posted")
    assert witness.newest(f"{LOG}/ds_1") is None and witness.add(request(leaves[:3], 0))
    assert len((tmp_path / "witness").read_text().splitlines()) == 3, "nothing is forgotten"


def test_a_line_that_a_crash_cut_short_is_no_signature(witness: Witness, tmp_path: Path) -> None:
    leaves = [leaf(bytes([k])) for k in range(10)]
    witness.add(request(leaves[:7], 0))
    with (tmp_path / "witness").open("a") as file:
        file.write('{"origin": "' + LOG)
    for each in (witness, Witness(tmp_path / "witness", NAME, Ed25519PrivateKey.generate(), LOGS)):
        assert refused(each, request(leaves, 5)) == 409
    assert witness.add(request(leaves[:8], 7))
    again = Witness(tmp_path / "witness", NAME, Ed25519PrivateKey.generate(), LOGS)
    assert refused(again, request(leaves[:7], 7)) == 409 and again.add(request(leaves, 8))


def chain(rows: Sequence[dict[str, Any]], dataset: str) -> list[bytes]:
    """The leaves of these entries, written as a chain that follows from itself: what somebody with all keys can do."""
    head, leaves = genesis(dataset), []
    for seq, row in enumerate(rows, start=1):
        head = digest(content(SimpleNamespace(**(row | {"seq": seq, "prev_hash": head}))))
        leaves.append(leaf(bytes.fromhex(head)))
    return leaves


def test_every_consistent_rewrite_of_200_entries_is_refused(db: Database, witness: Witness) -> None:
    """Every single edit, deletion, swap and truncation, hashed and signed anew by the service's own key; then with one
    more entry, as if nothing had happened."""
    dataset = open_ledger(db)
    with db.write() as session:
        for number in range(LENGTH - 1):
            job, train = f"job_{number}", number + 1
            accounts.hold(session, dataset_id=dataset, job_id=job, train=train, holdout=0, actor=OWNER)
    with db.read() as session:
        rows = [
            {name: getattr(entry, name) for name in COLUMNS}
            for entry in session.scalars(select(LedgerEntry).order_by(LedgerEntry.seq))
        ]
    honest = chain(rows, dataset)
    assert len(rows) == LENGTH
    witness.add(request(honest, 0, dataset=dataset))
    more = [*rows, rows[-1] | {"train": 7_777}]
    kinds = {
        "edit": [[*more[:k], more[k] | {"train": more[k]["train"] + 1}, *more[k + 1 :]] for k in range(LENGTH)],
        "deletion": [more[:k] + more[k + 1 :] for k in range(LENGTH)],
        "swap": [[*more[:k], more[k + 1], more[k], *more[k + 2 :]] for k in range(LENGTH - 1)],
        "truncation": [rows[:k] for k in range(1, LENGTH)],
    }
    for kind, forgeries in kinds.items():
        for place, forged in enumerate(forgeries):
            leaves = chain(forged, dataset)
            status = refused(witness, request(leaves, min(LENGTH, len(leaves)), dataset=dataset))
            assert status == (422 if len(leaves) >= LENGTH else 409), (kind, place)
    assert witness.add(request(chain(more, dataset), LENGTH, dataset=dataset))


def sent(db: Database, heads: Heads, to: Sequence[witnesses.Witness]) -> int:
    """What the relay does each second."""
    checkpoints.sign_due(db, heads, KEY, unheard)
    return checkpoints.witness_due(db, heads, to, set())


def test_a_restored_old_database_is_refused(db: Database, address: str, tmp_path: Path) -> None:
    """All of it was restored: the database and the folder of records. Only the witness knows."""
    of = witnesses.Witness.parse(address)
    heads = Heads(tmp_path / "heads", (of,))
    dataset = open_ledger(db)
    with pytest.raises(Conflict, match="has not seen") as early:
        behind.require_witnessed(db, heads, dataset)
    assert early.value.code == "head-pending"
    assert sent(db, heads, [of]) == 1 and sent(db, heads, [of]) == 0
    behind.require_witnessed(db, heads, dataset)
    kept = heads.checkpoint(dataset)
    assert kept is not None and notes.is_cosigned(kept, of.key)
    with db.read() as session:
        assert session.get_one(LedgerCheckpoint, dataset).note == kept
    backup, records = tmp_path / "backup.db", tmp_path / "backup"
    db.engine.dispose()
    shutil.copy(str(db.engine.url.database), backup)
    shutil.copytree(heads.folder, records)

    hold(db, dataset, "job_1", 10)
    assert behind.reach(db, heads, dataset) == 1, "a job whose hold no witness has seen does not run"
    assert sent(db, heads, [of]) == 1
    behind.require_witnessed(db, heads, dataset)
    assert behind.reach(db, heads, dataset) == 2

    restored, old = Database(f"sqlite:///{backup}"), Heads(records, (of,))
    name = of.key.name
    assert witnessed.ahead(db, [of]) == ([], [])
    (found,), unasked = witnessed.ahead(restored, [of])
    assert (found.dataset_id, found.witness, found.entries, found.seen, found.differs) == (dataset, name, 1, 2, False)
    dead = witnesses.Witness.parse(address.replace(address.split(" ", maxsplit=1)[0], "http://127.0.0.1:9"))
    assert unasked == [] and "does not answer" in witnessed.ahead(restored, [dead])[1][0]
    assert behind.problems(restored, old, [dataset]) == {}, "nothing on this machine can tell"
    with pytest.raises(Conflict, match="2 entries that are not here") as late:
        behind.require_witnessed(restored, old, dataset)
    assert late.value.code == "ledger-behind"
    assert behind.reach(restored, old, dataset) == 0
    hold(restored, dataset, "job_other", 20)
    assert witnessed.ahead(restored, [of])[0][0].differs
    assert sent(restored, old, [of]) == 0, "it is as long, and another"
    with pytest.raises(Conflict):
        behind.require_witnessed(restored, old, dataset)
    hold(restored, dataset, "job_third", 20)
    told: set[str] = set()
    checkpoints.sign_due(restored, old, KEY, unheard)
    for _ in range(2):
        assert checkpoints.witness_due(restored, old, [of], told) == 0
    assert len(told) == 1 and "rewound or rewritten" in told.pop()
    for cap in (3.9, 3.8, 3.7):  # it grows past what the witness saw
        with restored.write() as session:
            accounts.change_cap(session, dataset_id=dataset, cap_epsilon=cap, actor=OWNER, reason="a test")
        assert sent(restored, old, [of]) == 0
        assert behind.reach(restored, old, dataset) == 0, "its jobs may have run"
        with pytest.raises(Conflict) as grown:
            behind.require_witnessed(restored, old, dataset)
        assert grown.value.code == "ledger-behind", "waiting does not help"
    accept_gap(tmp_path / "witness", f"{LOG}/{dataset}", "the gap was posted as spent")
    assert sent(restored, old, [of]) == 1
    behind.require_witnessed(restored, old, dataset)
    restored.close()


def test_each_of_two_witnesses_counts(db: Database, address: str, second: str, tmp_path: Path) -> None:
    """One that is late does not cancel what the other one has seen."""
    late, other = of = witnesses.Witness.parse(address), witnesses.Witness.parse(second)
    heads = Heads(tmp_path / "heads", of)
    dataset = open_ledger(db)
    hold(db, dataset, "job_A", 10)
    assert sent(db, heads, of) == 2
    behind.require_witnessed(db, heads, dataset)
    db.engine.dispose()
    shutil.copy(str(db.engine.url.database), tmp_path / "backup.db")
    shutil.copytree(heads.folder, tmp_path / "records")
    hold(db, dataset, "job_B", 10)
    hold(db, dataset, "job_C", 10)
    assert sent(db, heads, [other]) == 1
    with pytest.raises(Conflict) as pending:
        behind.require_witnessed(db, heads, dataset)
    assert pending.value.code == "head-pending" and behind.reach(db, heads, dataset) == 2

    restored, old = Database(f"sqlite:///{tmp_path / 'backup.db'}"), Heads(tmp_path / "records", of)
    for job in ("job_X", "job_Y", "job_Z"):
        with pytest.raises(Conflict) as refusal:
            behind.require_witnessed(restored, old, dataset)
        assert refusal.value.code == "ledger-behind" and behind.reach(restored, old, dataset) == 0
        hold(restored, dataset, job, 1)
        sent(restored, old, of)
    seen, known = late.newest(dataset), other.newest(dataset)
    assert seen is not None and known is not None and seen.size == 5 and known.size == 4
    restored.close()


def test_one_damaged_ledger_or_dead_witness_does_not_delay_the_others(
    db: Database, address: str, second: str, tmp_path: Path
) -> None:
    of, dead = witnesses.Witness.parse(address), witnesses.Witness.parse(f"http://127.0.0.1:9 {second.split()[1]}")
    heads = Heads(tmp_path / "heads", (of,))
    first, other = sorted([open_ledger(db), open_ledger(db)])
    checkpoints.sign_due(db, heads, KEY, unheard)
    (heads.folder / f"{first}.checkpoint").write_text("damaged")
    told, complete = set[str](), dict[str, str]()
    assert checkpoints.witness_due(db, heads, [dead, of], told, complete) == 1
    assert of.newest(other) is not None
    assert sum("does not answer" in each for each in told) == 1 and len(told) == 2, "it was asked for one ledger only"
    assert checkpoints.witness_due(db, heads, [of], told, complete) == 0
    assert list(complete) == [other], "what has all signatures is not verified again"
    assert len((tmp_path / "witness").read_text().splitlines()) == 2, "nor does the witness's file grow"


def test_jobs_are_admitted_and_run_only_behind_the_witness(settings: Settings, address: str, tmp_path: Path) -> None:
    """Over HTTP: too early, admitted, claimed once its hold was seen; refused after all was set back."""
    changed = settings.model_copy(update={"witnesses": [address], "witness_required": True})
    db, heads, of = Database.of(changed), Heads.of(changed), witnesses.configured(changed)
    signing_keys.publish(db, KEY)
    dataset = add_dataset(db, holdout=None)
    with db.write() as session:
        pepper = load_secret(settings, "api_key_pepper")
        _, token = keys.create(session, pepper, name="a", role="admin", created_by=None)
    once = iter(range(10))

    def submitted() -> Any:
        spec = job_spec(dataset, privacy={"target_epsilon": 0.1}, evaluation=None)
        with TestClient(create_app(changed)) as client:
            headers = {"Authorization": f"Bearer {token}", "Idempotency-Key": f"job-{next(once)}"}
            return client.post("/v1/jobs", json=spec, headers=headers).json()

    def claimed() -> Any:
        return claim_next(db, heads, "w", 30.0)

    assert submitted()["type"] == "/problems/head-pending"
    assert sent(db, heads, of) == 1
    first = submitted()
    assert first["status"] == "queued" and claimed() is None, "the witness has not seen its hold"
    assert sent(db, heads, of) == 1
    backup = tmp_path / "all"
    db.close()
    shutil.copytree(settings.home, backup)
    held = claimed()
    assert held is not None and held.job_id == first["id"]
    second = submitted()
    assert sent(db, heads, of) == 1 and second["status"] == "queued"
    db.close()
    shutil.rmtree(settings.home)
    shutil.copytree(backup, settings.home)
    refused_now = submitted()
    assert refused_now["type"] == "/problems/ledger-behind" and "not here" in refused_now["detail"]
    assert claimed() is None, "whatever was queued then may have run"
    db.close()
    line, knows = ["restore", "--home", str(settings.home)], {"SCRIMP_WITNESSES": json.dumps([address])}
    told = CliRunner().invoke(cli, line, env=knows)
    assert told.exit_code == 1 and "has seen 3 entries; here are 2" in told.output, told.output


def test_a_witness_that_is_away_or_lies_admits_nothing(db: Database, tmp_path: Path, address: str) -> None:
    away = witnesses.Witness.parse(f"http://127.0.0.1:9 {address.split()[1]}")
    heads = Heads(tmp_path / "heads", (away,))
    dataset = open_ledger(db)
    assert sent(db, heads, [away]) == 0
    with pytest.raises(Conflict, match="does not answer") as refusal:
        behind.require_witnessed(db, heads, dataset)
    assert refusal.value.code == "head-pending" and behind.reach(db, heads, dataset) == 0
    true = witnesses.Witness.parse(address)
    assert sent(db, heads, [true]) == 1
    impostor = Key(NAME, COSIGNATURE, Ed25519PrivateKey.generate().public_key().public_bytes_raw())
    with pytest.raises(TransientError, match="did not sign"):
        witnesses.Witness.parse(f"{address.split(maxsplit=1)[0]} {impostor}").newest(dataset)
    with db.read() as session:
        assert session.get_one(Account, dataset).entries == 1


def test_settings_that_make_no_sense_are_refused(settings: Settings, address: str) -> None:
    required = settings.model_copy(update={"witness_required": True})
    with pytest.raises(ValueError, match="names none"):
        Heads.of(required)
    assert len(Heads.of(required.model_copy(update={"witnesses": [address]})).witnesses) == 1
    assert Heads.of(settings.model_copy(update={"witnesses": [address]})).witnesses == ()
    for wrong in ("", "ftp://a b", address.replace("+", "-"), f"{address.split(maxsplit=1)[0]} {READER}"):
        with pytest.raises((ValueError, ValidationError)):
            witnesses.configured(settings.model_copy(update={"witnesses": [wrong]}))


def test_without_cryptography_the_command_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cryptography", None)
    said = CliRunner().invoke(app, ["witness", "key", "--name", NAME, "--key-file", str(tmp_path / "key")])
    assert said.exit_code == 1 and "scrimp-client[verify]" in said.output


def test_the_command_runs_one_that_a_kill_does_not_make_forget(tmp_path: Path) -> None:
    run, file, state = CliRunner().invoke, tmp_path / "key", tmp_path / "state"
    named = ["--name", NAME, "--key-file", str(file)]
    made = run(app, ["witness", "key", *named])
    assert made.exit_code == 0 and run(app, ["witness", "key", *named]).stdout == made.stdout
    assert file.stat().st_mode & 0o777 == 0o600
    public = public_key(KEY)
    line = [sys.executable, "-m", "scrimp.cli", "witness", "serve", *named, "--state", str(state), "--log", public]
    for size, old in ((3, 0), (5, 3)):
        environment = {**os.environ, "PYTHONUNBUFFERED": "1", "COLUMNS": "200"}
        with subprocess.Popen([*line, "--port", "0"], stdout=subprocess.PIPE, text=True, env=environment) as process:
            assert process.stdout is not None
            url = process.stdout.readline().split()[-1]
            of = witnesses.Witness.parse(f"{url} {made.stdout.strip()}")
            leaves = [leaf(bytes([k])) for k in range(size)]
            grown = Frontier()
            for each in leaves:
                grown.add(each)
            note = notes.sign(notes.Checkpoint("ds_1", size, grown.root()), KEY)
            asked: list[int] = []

            def proof(since: int, leaves: list[bytes] = leaves, asked: list[int] = asked) -> list[str]:
                asked.append(since)
                return checkpoints.encoded(tree_of(leaves).consistency(since, len(leaves)))

            assert notes.is_cosigned(note + of.send(note, proof), of.key) and asked == ([old] if old else [])
            process.send_signal(signal.SIGKILL)
    assert run(app, ["witness", "accept", f"{LOG}/ds_1", "--state", str(state), "--reason", "a test"]).exit_code == 0
    assert run(app, ["witness", "accept", "x", "--state", str(tmp_path / "none"), "--reason", "y"]).exit_code == 1
    before = state.read_text()
    mistaken = run(app, ["witness", "accept", "ds_1", "--state", str(state), "--reason", "y"])
    assert mistaken.exit_code == 1 and "no checkpoint of ds_1" in mistaken.output and state.read_text() == before
    assert run(app, ["witness", "serve", *named, "--state", str(state), "--log", "no key"]).exit_code == 2
