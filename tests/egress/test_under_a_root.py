"""Whatever the service signs is read under its root by the same rule: certificates, statements, egresses, pages."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from typer.testing import CliRunner

from app.db.models import LedgerCheckpoint
from app.ledger.signer import public_key
from app.ledger.transparency import checkpoints, dates
from app.ledger.transparency.notes import WitnessKey
from scrimp.cli import app
from scrimp.dated import digest_of
from scrimp.key_history import EMPTY, History
from scrimp.transparency import Key
from scrimp.witness import Witness
from tests.egress.conftest import World
from tests.ledger.test_anchors import unheard
from tests.ledger.test_attestations import OTHER
from tests.ledger.test_key_history import HOUR, ROOT, ROOT_KEY, kept
from tests.ledger.test_required import written
from tests.node import by_node, needs_node

Read = Callable[..., tuple[int, str]]


class WitnessOf:
    """A witness as the relay asks it, without its server."""

    def __init__(self, witness: Witness) -> None:
        self.witness, self.notes = witness, list[str]()
        self.key = WitnessKey.parse(str(witness.key))

    def send(self, note: str, _proof: object) -> str:
        self.notes.append(note)
        return self.witness.add(f"old 0\n\n{note}")


class Files:
    """What left the service: an egress, its statement and certificate; the key that signed them; a witness of all."""

    def __init__(self, world: World, folder: Path) -> None:
        scene, heads = world.scene, world.relay.heads
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(scene, "certify", lambda _job: None)  # the relay does, once a witness has seen its charge
            job = world.finished("under a root")
        checkpoints.sign_due(world.db, heads, scene.signing_key, unheard)
        self.folder, self.key, self.at = folder, world.key, datetime.now(UTC)
        self.witness = Witness(
            folder / "state",
            "witness.example.org/w1",
            Ed25519PrivateKey.generate(),
            [[Key("scrimp.example.org/ledger", 1, world.scene.signing_key.public_key().public_bytes_raw())]],
        )
        with world.db.write() as session:
            for row in session.query(LedgerCheckpoint):
                row.note += self.witness.add(f"old 0\n\n{row.note}")
                heads.keep_cosignatures(row.dataset_id, row.note)
        world.relay.run_once()
        self.egress = world.made(job, folder / "egress")
        self.statement, self.certificate = self.egress / "statement.json", self.egress / "certificate.json"
        world.relay.next_sweep = 0.0
        world.relay.run_once()
        sent = WitnessOf(self.witness)
        assert dates.witness_due(world.db, [sent], set(), iter) == len(sent.notes) > 0  # type: ignore[list-item]
        self.dates = list[str]()
        for envelope in (
            json.loads((self.egress / "manifest.json").read_text()),
            json.loads(self.statement.read_text())["terms"],
            json.loads(self.certificate.read_text())["envelope"],
        ):
            with world.db.read() as session:
                date = dates.date_of(session, digest_of(envelope))
            path = written(folder, f"date{len(self.dates)}.json", date.model_dump(mode="json"))
            self.dates += ["--dated", str(path)]

    def history(self, start: timedelta = -HOUR, until: timedelta | None = None) -> History:
        known = EMPTY.rotated(self.key, self.at + start, self.at + start)
        return known if until is None else known.rotated(OTHER, self.at + until, self.at + until)


@pytest.fixture(scope="module")
def files(shared: World, tmp_path_factory: pytest.TempPathFactory) -> Files:
    return Files(shared, tmp_path_factory.mktemp("files"))


def command(*words: object) -> tuple[int, str]:
    done = CliRunner().invoke(app, [str(each) for each in words])
    return done.exit_code, " ".join(done.output.split())


def node(*words: object) -> tuple[int, str]:
    done = by_node(*(each if isinstance(each, Path) else str(each) for each in words))
    return done.returncode, " ".join((done.stdout + done.stderr).split())


READERS: dict[str, Callable[[Files], tuple[Callable[..., tuple[int, str]], tuple[Any, ...]]]] = {
    "certificate": lambda files: (command, ("certificates", "verify", files.certificate)),
    "recompute": lambda files: (command, ("certificates", "recompute", files.certificate)),
    "statement": lambda files: (command, ("ledger", "statement", files.statement)),
    "egress": lambda files: (command, ("verify-egress", files.egress)),
    "dpia": lambda files: (command, ("dpia", files.egress)),
    "bundle": lambda files: (command, ("audit-bundle", files.certificate, "--brief")),
    "page": lambda files: (command, ("certificates", "page", files.certificate, "--html", files.folder / "page.html")),
    "node: certificate": lambda files: (node, (files.certificate,)),
    "node: statement": lambda files: (node, (files.statement,)),
    "node: egress": lambda files: (node, (files.egress,)),
}


@pytest.fixture(params=[pytest.param(each, marks=needs_node) if ":" in each else each for each in READERS])
def read(request: pytest.FixtureRequest, files: Files) -> Read:
    """Reads one of them, by one of the verifiers."""
    how, words = READERS[request.param](files)
    return lambda *more: how(*words, *more)


@pytest.mark.every_case
@pytest.mark.parametrize(
    ("start", "until", "problem"),
    [
        (-HOUR, None, None),
        (-HOUR, HOUR, None),
        (HOUR, None, "before its key signed"),
        (-2 * HOUR, -HOUR, "after its key signed"),
    ],
)
def test_a_key_is_believed_in_its_time(
    files: Files, read: Read, tmp_path: Path, start: timedelta, until: timedelta | None, problem: str | None
) -> None:
    status, said = read(*kept(tmp_path, files.history(start, until)))
    assert (status == 0) == (problem is None), said
    assert problem is None or problem in said


def test_a_key_that_the_root_never_named_is_not_believed(files: Files, read: Read, tmp_path: Path) -> None:
    status, said = read(*kept(tmp_path, EMPTY.rotated(OTHER, files.at - HOUR, files.at - HOUR)))
    assert status == 1 and any(each in said for each in ("never named", "did not sign", "no trusted key")), said


def test_a_revoked_key_needs_a_witness_of_before(files: Files, read: Read, tmp_path: Path) -> None:
    witness, now = ("--witness", str(files.witness.key)), datetime.now(UTC)
    for since, words, code, problem in (
        (now + HOUR, (*witness, *files.dates), 0, None),
        (now + HOUR, witness, 2, "nothing dates it"),
        (now + HOUR, (), 2, "no witness that you trust"),
        (files.at - HOUR, witness, 1, "no witness saw its checkpoint before"),
    ):
        known = files.history(-2 * HOUR).revoked(files.key, since, now, "a disk was stolen")
        status, said = read(*kept(tmp_path, known), *words)
        assert status == code, said
        assert problem is None or (problem in said and "a disk was stolen" in said)


def test_one_file_has_the_dates_of_all_that_an_egress_has(files: Files, read: Read, tmp_path: Path) -> None:
    """What `scrimp certificates date FOLDER` writes."""
    since = datetime.now(UTC) + HOUR
    known = files.history(-2 * HOUR).revoked(files.key, since, since - HOUR, "a disk was stolen")
    documents = [json.loads(Path(each).read_text()) for each in files.dates[1::2]]
    for proofs, code in ((documents, 0), ([], 2)):
        path = written(tmp_path, "dates.json", {"dates": proofs})
        words = ("--witness", str(files.witness.key), "--dated", str(path))
        status, said = read(*kept(tmp_path, known), *words)
        assert status == code, said


@pytest.mark.parametrize("document", [{"dates": 7}, {"dates": [7]}, {"dates": [{}]}, {}])
def test_a_file_that_is_no_date_is_a_usage_error(files: Files, tmp_path: Path, document: Any) -> None:
    path = written(tmp_path, "dates.json", document)
    status, said = command("verify-egress", files.egress, *kept(tmp_path, files.history()), "--dated", path)
    assert status == 2 and "--dated" in said, said


def test_a_witness_that_is_named_must_have_cosigned(files: Files, read: Read, tmp_path: Path) -> None:
    stranger = Witness(tmp_path / "state", "witness.example.org/w2", Ed25519PrivateKey.generate(), [])
    status, said = read(*kept(tmp_path, files.history()), "--witness", str(stranger.key))
    assert status == 1 and "witness.example.org/w2 did not cosign" in said, said


def test_an_older_history_than_the_reader_knows_is_refused(files: Files, read: Read, tmp_path: Path) -> None:
    """It does not know of a later revocation."""
    words = kept(tmp_path, files.history(-HOUR, HOUR))  # the second
    assert read(*words, "--history-number", "2")[0] == 0
    status, said = read(*words, "--history-number", "3")
    assert status == 2 and "older than 3" in said
    assert read("--history-number", "1")[0] == 2


def test_the_options_go_together(files: Files, read: Read, tmp_path: Path) -> None:
    _, root, _, path = kept(tmp_path, files.history())
    for words in (
        ("--root", root),
        ("--history", path),
        ("--root", root, "--history", path, "--public-key", files.key),
        kept(tmp_path, EMPTY),
    ):
        assert read(*words)[0] == 2, words


def test_a_page_prints_the_root_s_command(files: Files, tmp_path: Path) -> None:
    """Whoever reads it has the root's key, and is to need no other."""
    words = ("certificates", "page", files.certificate, "--html", tmp_path / "page.html")
    assert command(*words, *kept(tmp_path, files.history()))[0] == 0
    shown = (tmp_path / "page.html").read_text()
    assert f"scrimp audit-bundle certificate.json --root {ROOT_KEY} --history history.json" in shown
    assert "--public-key" not in shown and "root key" in shown
    assert command(*words, "--public-key", files.key)[0] == 0
    shown = (tmp_path / "page.html").read_text()
    assert f"--public-key {files.key}" in shown and "--root" not in shown


def test_an_attack_is_on_what_the_root_believes(files: Files, tmp_path: Path) -> None:
    known, rows = files.history(-2 * HOUR), ("--train", tmp_path / "a.csv", "--holdout", tmp_path / "b.csv")
    words = ("attack-report", files.egress, *rows, "--to", tmp_path / "report", "--python", tmp_path / "none")
    revoked = known.revoked(files.key, datetime.now(UTC) + HOUR, datetime.now(UTC), "a disk was stolen")
    strange = EMPTY.rotated(OTHER, files.at - HOUR, files.at - HOUR)
    witness = ("--witness", str(files.witness.key))
    assert command(*words, *kept(tmp_path, strange))[0] == 1
    status, said = command(*words, *kept(tmp_path, revoked), *witness)
    assert status == 2 and "nothing dates it" in said
    for history, more in ((known, ()), (revoked, (*witness, *files.dates))):
        status, said = command(*words, *kept(tmp_path, history), *more)
        assert status == 1 and "does not hold" not in said, "it comes to the rows, which are not there"


@needs_node
def test_an_egress_after_a_rotation_needs_the_root_alone(world: World, tmp_path: Path) -> None:
    """Its certificate has the key before, its manifest the one after."""
    assert world.first
    world.relay.run_once()
    at, new = datetime.now(UTC), Ed25519PrivateKey.from_private_bytes(b"n" * 32)
    before, world.relay.signing_key = world.key, new
    folder = world.made(world.first, tmp_path / "folder")

    history = EMPTY.rotated(before, at - HOUR, at - HOUR).rotated(public_key(new), at - HOUR / 2, at + HOUR)
    words = kept(tmp_path, history, ROOT)
    for read in (lambda *more: command("verify-egress", folder, *more), lambda *more: node(folder, *more)):
        assert read(*words)[0] == 0, read(*words)
    gone = EMPTY.rotated(before, at - HOUR, at - HOUR).rotated(public_key(new), at - HOUR / 2, at - HOUR / 2)
    words = kept(tmp_path, gone, ROOT)
    for read in (lambda *more: command("verify-egress", folder, *more), lambda *more: node(folder, *more)):
        status, said = read(*words)
        assert status == 1 and "certificate.json: issued at" in said and "after its key signed" in said


def test_files_that_are_no_statement_are_refused_in_words(files: Files, tmp_path: Path) -> None:
    document = json.loads(files.statement.read_text())
    for changed in (document | {"ledgers": []}, document | {"version": 9}, {"ledgers": [{}]}):
        path = written(tmp_path, "changed.json", changed)
        for read in (lambda *more: command("ledger", "statement", *more), node):
            status, said = read(path, *kept(tmp_path, files.history()))
            assert status and "Traceback" not in said
