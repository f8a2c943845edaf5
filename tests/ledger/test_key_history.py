"""An offline root signs which keys certificates may have, and both verifiers ask its history."""

from __future__ import annotations

import base64
import copy
import errno
import json
import os
import stat
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from typer.testing import CliRunner

from scrimp.cli import app
from scrimp.key_history import EMPTY, History, opened, sealed, text_of, time_of
from scrimp.transparency import Note, NotProven
from scrimp.witness import Witness
from tests.ledger.dates import date_of
from tests.ledger.support import signed_document
from tests.ledger.test_attestations import OTHER, STRANGER, TRUSTED
from tests.ledger.test_certificates import KEY
from tests.ledger.test_checkpoints import READER, db, heads
from tests.ledger.test_required import Evidence, Verify, evidence, verify, written

__all__ = ["db", "evidence", "heads", "verify"]  # fixtures
ROOT, HOUR = Ed25519PrivateKey.from_private_bytes(b"r" * 32), timedelta(hours=1)
ROOT_KEY = base64.b64encode(ROOT.public_key().public_bytes_raw()).decode()


def issued_at(evidence: Evidence) -> datetime:
    return time_of(evidence.document["certificate"]["issued_at"])


def kept(folder: Path, history: History, root: Ed25519PrivateKey = ROOT) -> tuple[str, ...]:
    path = written(folder, "history.json", dict(sealed(history, root)))
    return "--root", ROOT_KEY, "--history", str(path)


def of_times(evidence: Evidence, start: timedelta, until: timedelta | None = None) -> History:
    """The certificate's key signed from then until then, as seen from the time of issue."""
    at = issued_at(evidence)
    history = EMPTY.rotated(TRUSTED, at + start, at + start)
    return history if until is None else history.rotated(OTHER, at + until, at + until)


CASES: dict[str, tuple[timedelta, timedelta | None, str | None]] = {
    "it signs": (-HOUR, None, None),
    "it signed then": (-HOUR, HOUR, None),
    "from that second on": (timedelta(0), None, None),
    "not yet": (timedelta(seconds=1), None, "before its key signed"),
    "no more": (-HOUR, timedelta(0), "after its key signed"),
}


@pytest.mark.parametrize("name", CASES)
def test_a_key_is_trusted_in_its_time(evidence: Evidence, verify: Verify, name: str) -> None:
    start, until, problem = CASES[name]
    status, said = verify(evidence.signed, *kept(evidence.folder, of_times(evidence, start, until)))
    assert status == (0 if problem is None else 1), said
    assert problem is None or problem in said
    envelope = evidence.write("envelope.json", evidence.document["envelope"])
    assert verify(envelope, *kept(evidence.folder, of_times(evidence, start, until)))[0] == status


def test_a_key_that_the_root_never_named_is_not_trusted(evidence: Evidence, verify: Verify) -> None:
    at = issued_at(evidence) - HOUR
    status, said = verify(evidence.signed, *kept(evidence.folder, EMPTY.rotated(OTHER, at, at)))
    assert status == 1 and "never named the key" in said
    forged = evidence.write("forged.json", signed_document(evidence.document["certificate"], STRANGER, {}))
    assert verify(forged, *kept(evidence.folder, of_times(evidence, -HOUR)))[0] == 1
    posing = copy.deepcopy(evidence.document) | {"signature": base64.b64encode(bytes(64)).decode()}
    posing["envelope"]["signatures"][0]["sig"] = posing["signature"]
    path = evidence.write("posing.json", posing)
    assert verify(path, *kept(evidence.folder, of_times(evidence, -HOUR)))[0] == 1


def late_witness(evidence: Evidence, at: datetime) -> tuple[str, ...]:
    """The options that name a witness which cosigned the certificate's checkpoint at a time."""
    witness = Witness(evidence.folder / "late", "witness.example.org/late", Ed25519PrivateKey.generate(), [[READER]])
    note = evidence.document["certificate"]["ledger"]["checkpoint"]
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("scrimp.witness.time.time", at.timestamp)
        line = witness.add(f"old 0\n\n{note}")
    return "--witness", str(witness.key), "--checkpoint", str(evidence.write("late.checkpoint", note + line))


def test_a_revoked_key_needs_a_witness_of_before(evidence: Evidence, verify: Verify) -> None:
    """Whoever has the key can sign any date: a witness alone tells when a checkpoint was there."""
    trusted = ("--witness", str(evidence.witness.key), "--checkpoint", evidence.cosigned)
    now = datetime.now(UTC)
    dated = ("--dated", evidence.write("date.json", date_of(evidence.witness, KEY, [evidence.document["envelope"]], 1)))
    for since, words, code, problem in (
        (now + HOUR, (*trusted, *dated), 0, None),
        (now + HOUR, (), 2, "no witness that you trust"),  # one may have seen it: nothing here says so
        (now + HOUR, late_witness(evidence, now + 2 * HOUR), 2, "no witness saw its checkpoint before"),
        (issued_at(evidence), (), 1, "no witness that you trust"),  # by its own word it is not to be trusted
        (issued_at(evidence) - HOUR, trusted, 1, "no witness saw its checkpoint before"),
    ):
        history = of_times(evidence, -2 * HOUR).revoked(TRUSTED, since, now, "a disk was stolen")
        status, said = verify(evidence.signed, *kept(evidence.folder, history), *words)
        assert status == code, said
        assert problem is None or (problem in said and "a disk was stolen" in said)


def forged_beside(evidence: Evidence) -> dict[str, Any]:
    """Another certificate about the old job, by who has the key: under the checkpoint that the witness saw."""
    body = copy.deepcopy(evidence.document["certificate"])
    body["epsilon"]["value"] = 0.01
    return signed_document(body, KEY, {"model.safetensors": "ab" * 32})


def test_a_revoked_key_needs_a_witness_of_its_signature(evidence: Evidence, verify: Verify) -> None:
    """The witness saw the ledger's entries before the theft: a thief signs another claim about them."""
    issued, forged = evidence.document, forged_beside(evidence)
    now, other = datetime.now(UTC), signed_document({"other": 1} | evidence.document["certificate"], KEY, {})
    envelopes = [other["envelope"], issued["envelope"], other["envelope"]]
    date = date_of(evidence.witness, KEY, envelopes, 2, "other")
    late = date_of(evidence.witness, KEY, [forged["envelope"]], 1, at=int((now + 2 * HOUR).timestamp()))
    files = {name: evidence.write(f"{name}.json", each) for name, each in (("date", date), ("late", late))}
    wrong = [date | {"entry": 3}, date | {"path": date["path"][1:]}, {**date, "entry": 1}]
    known = of_times(evidence, -2 * HOUR).revoked(TRUSTED, now + HOUR, now, "a disk was stolen")
    words = (*kept(evidence.folder, known), "--witness", str(evidence.witness.key), "--checkpoint", evidence.cosigned)
    for document in (issued, issued["envelope"]):
        path = evidence.write("issued.json", document)
        assert verify(path, *words, "--dated", files["date"])[0] == 0
        assert verify(path, *words, "--dated", files["late"], "--dated", files["date"])[0] == 0
        for given in ((), ("--dated", files["late"])):
            status, said = verify(path, *words, *given)
            assert status == 2 and "signed by a revoked key" in said and "nothing dates it" in said
        for each in wrong:
            assert verify(path, *words, "--dated", evidence.write("wrong.json", each))[0] == 2, each
    for document in (forged, forged["envelope"]):
        path = evidence.write("forged.json", document)
        status, said = verify(path, *words, "--dated", files["date"])
        assert status == 2 and "nothing dates it" in said, said
    bare = Note.parse(date["checkpoint"]).body + "\n"
    unseen = evidence.write("unseen.json", date | {"checkpoint": bare})
    assert verify(evidence.signed, *words, "--dated", unseen)[0] == 2, "a checkpoint that no witness cosigned"
    assert verify(evidence.signed, *words, "--dated", evidence.write("none.json", {}))[0] == 2


def test_a_log_that_a_witness_saw_after_the_theft_dates_nothing(evidence: Evidence, verify: Verify) -> None:
    """The ledger was seen before, the signature after: the log may have the thief's."""
    checkpoint = Note.parse(evidence.cosigned.read_text())
    seen = checkpoint.signed_by(evidence.witness.key)
    assert seen is not None
    forged = forged_beside(evidence)
    path = evidence.write("forged.json", forged)
    date = date_of(evidence.witness, KEY, [forged["envelope"]], 1, at=seen + 7200)
    since = datetime.fromtimestamp(seen + 3600, UTC)
    known = of_times(evidence, -2 * HOUR).revoked(TRUSTED, since, since, "a disk was stolen")
    words = (*kept(evidence.folder, known), "--witness", str(evidence.witness.key), "--checkpoint", evidence.cosigned)
    status, said = verify(path, *words, "--dated", evidence.write("date.json", date))
    assert status == 2 and "nothing dates it" in said


def test_a_revoked_key_names_no_certificate_without_ledgers(evidence: Evidence, verify: Verify) -> None:
    """No ledger is none that a witness saw late, either."""
    body = evidence.document["certificate"] | {"ledger": []}
    forged = evidence.write("forged.json", signed_document(body, KEY, {}))
    revoked = of_times(evidence, -2 * HOUR).revoked(TRUSTED, issued_at(evidence) - HOUR, datetime.now(UTC), "stolen")
    status, said = verify(forged, *kept(evidence.folder, revoked), "--witness", str(evidence.witness.key))
    assert status == 1 and "no witness that you trust" in said


def test_a_history_that_another_signed_tells_nothing(evidence: Evidence, verify: Verify) -> None:
    history = of_times(evidence, -HOUR)
    assert verify(evidence.signed, *kept(evidence.folder, history, STRANGER))[0] == 2
    envelope = json.loads(json.dumps(sealed(history, ROOT)))
    document = json.loads(base64.b64decode(envelope["payload"]))
    document["keys"][0]["from"] = "2020-01-01T00:00:00Z"
    envelope["payload"] = base64.b64encode(json.dumps(document).encode()).decode()
    path = written(evidence.folder, "changed.json", envelope)
    assert verify(evidence.signed, "--root", ROOT_KEY, "--history", path)[0] == 2
    with pytest.raises(NotProven, match="did not sign"):
        opened(envelope, ROOT_KEY)


def test_root_and_history_go_together(evidence: Evidence, verify: Verify) -> None:
    _, root, _, path = kept(evidence.folder, of_times(evidence, -HOUR))
    for words in (("--root", root), ("--history", path), ("--root", root, "--history", path, "--public-key", TRUSTED)):
        assert verify(evidence.signed, *words)[0] == 2


def root_command(*words: object, told: str = "correct horse") -> Any:
    return CliRunner(env={"SCRIMP_ROOT_PASSPHRASE": told}).invoke(app, ["keys", "root", *map(str, words)])


@pytest.mark.parametrize("raw", [False, True])
def test_a_root_is_made_rotates_and_revokes_without_the_service(tmp_path: Path, raw: bool) -> None:
    key, history = tmp_path / "root.key", tmp_path / "history.json"
    made = root_command("new", "--key-file", key, *(["--raw"] if raw else []))
    assert made.exit_code == 0 and stat.S_IMODE(key.stat().st_mode) == 0o600
    assert (b"ENCRYPTED" in key.read_bytes()) != raw
    root, files = made.output.strip(), ("--key-file", key, "--history", history)
    first = root_command("sign-rotation", *files, "--public-key", TRUSTED, "--at", "2026-01-01")
    assert first.exit_code == 0 and f"{TRUSTED}  2026-01-01T00:00:00Z to now" in first.output
    second = root_command("sign-rotation", *files, "--public-key", OTHER, "--at", "2026-02-01", "--overlap-hours", 12)
    assert second.exit_code == 0 and f"{TRUSTED}  2026-01-01T00:00:00Z to 2026-02-01T12:00:00Z" in second.output
    told = ("--since", "2026-01-15", "--reason", "a laptop was lost")
    third = root_command("revoke", *files, "--public-key", TRUSTED, *told)
    assert third.exit_code == 0 and "REVOKED from 2026-01-15T00:00:00Z: a laptop was lost" in third.output
    known = opened(json.loads(history.read_text()), root)
    assert (known.number, [each.public_key for each in known.keys]) == (3, [TRUSTED, OTHER])
    before = history.read_bytes()
    for words in (
        ("sign-rotation", *files, "--public-key", TRUSTED),  # again
        ("sign-rotation", *files, "--public-key", ROOT_KEY, "--at", "2025-01-01"),  # before the one before
        ("revoke", *files, "--public-key", TRUSTED, "--since", "2026-01-16", "--reason", "later"),
        ("revoke", *files, "--public-key", ROOT_KEY, "--since", "2026-01-16", "--reason", "unknown"),
        ("new", "--key-file", key),
    ):
        assert root_command(*words).exit_code == 2
    assert history.read_bytes() == before


def test_a_root_goes_on_with_its_newest_history_alone(tmp_path: Path) -> None:
    """An older one is signed too: a rotation of it would take a revocation back, under the same number."""
    key, history = tmp_path / "root.key", tmp_path / "history.json"
    assert root_command("new", "--key-file", key).exit_code == 0
    files = ("--key-file", key, "--history", history)
    assert root_command("sign-rotation", *files, "--public-key", TRUSTED, "--at", "2026-01-01").exit_code == 0
    older = history.read_bytes()
    told = ("--since", "2026-01-15", "--reason", "a laptop was lost")
    assert root_command("revoke", *files, "--public-key", TRUSTED, *told).exit_code == 0
    newest = history.read_bytes()
    for take in (lambda: history.write_bytes(older), history.unlink):
        take()
        done = root_command("sign-rotation", *files, "--public-key", OTHER, "--at", "2026-02-01")
        assert done.exit_code == 2 and "signed history 2" in " ".join(done.output.split())
    history.write_bytes(newest)
    assert root_command("sign-rotation", *files, "--public-key", OTHER, "--at", "2026-02-01").exit_code == 0


def test_a_history_and_then_its_number_are_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A power cut that keeps the number alone would leave a root that waits for a history that nobody has; one that
    loses both takes back what was answered."""
    key, history = tmp_path / "root.key", tmp_path / "history.json"
    assert root_command("new", "--key-file", key).exit_code == 0
    acts: list[tuple[str, str]] = []
    real_sync, real_replace = os.fsync, os.replace

    def synced(descriptor: int) -> None:
        real_sync(descriptor)
        acts.append(("sync", Path(f"/proc/self/fd/{descriptor}").readlink().name))

    def replaced(source: Any, target: Any) -> None:
        real_replace(source, target)
        acts.append(("replace", Path(target).name))

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "replace", replaced)
    words = ("--key-file", key, "--history", history, "--public-key", TRUSTED, "--at", "2026-01-01")
    assert root_command("sign-rotation", *words).exit_code == 0
    folder = ("sync", tmp_path.name)
    one = [("sync", ".history.json.new"), ("replace", "history.json"), folder]
    assert acts == [*one, ("sync", ".root.key.number.new"), ("replace", "root.key.number"), folder]


def test_a_root_goes_on_after_a_cut_between_history_and_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    key, history = tmp_path / "root.key", tmp_path / "history.json"
    assert root_command("new", "--key-file", key).exit_code == 0
    real = os.replace

    def cut(source: Any, target: Any) -> None:
        if Path(target).name == "root.key.number":
            raise OSError(errno.EIO, "Input/output error")
        real(source, target)

    words = ("--key-file", key, "--history", history, "--public-key")
    with monkeypatch.context() as patched:
        patched.setattr(os, "replace", cut)
        assert root_command("sign-rotation", *words, TRUSTED, "--at", "2026-01-01").exit_code == 2
    assert root_command("sign-rotation", *words, OTHER, "--at", "2026-02-01").exit_code == 0
    assert json.loads(base64.b64decode(json.loads(history.read_text())["payload"]))["number"] == 2


def spoiled_mode(key: Path) -> None:
    key.chmod(0o644)


def spoiled_text(key: Path) -> None:
    key.write_text("no key")


@pytest.mark.parametrize("spoil", [None, spoiled_mode, spoiled_text, Path.unlink])
def test_a_root_that_cannot_be_read_signs_nothing(tmp_path: Path, spoil: Callable[[Path], None] | None) -> None:
    key, history = tmp_path / "root.key", tmp_path / "history.json"
    assert root_command("new", "--key-file", key).exit_code == 0
    if spoil is not None:
        spoil(key)
    done = root_command(
        "sign-rotation", "--key-file", key, "--history", history, "--public-key", TRUSTED, told="another"
    )
    assert done.exit_code == 2 and "--key-file" in done.output and not history.exists()


def test_another_roots_history_is_not_gone_on_with(tmp_path: Path) -> None:
    key, at = tmp_path / "root.key", datetime.now(UTC)
    assert root_command("new", "--key-file", key).exit_code == 0
    path = written(tmp_path, "history.json", dict(sealed(EMPTY.rotated(TRUSTED, at, at), ROOT)))
    done = root_command("sign-rotation", "--key-file", key, "--history", path, "--public-key", OTHER)
    assert done.exit_code == 2 and "did not sign" in done.output
    assert text_of(opened(json.loads(path.read_text()), ROOT_KEY).signed_at) == text_of(at)
    assert KEY.public_key().public_bytes_raw() == base64.b64decode(TRUSTED)
