"""A program signs for the service: OpenSSL, which stands for a token's tool; and programs that do it wrongly."""

from __future__ import annotations

import base64
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from app.db.database import Database
from app.ledger.certificate_documents import Signed
from app.ledger.signer import CommandSigner, Signer, public_key
from app.ledger.signing_keys import signing_key
from app.ledger.transparency import certificate_signatures, notes
from app.renewal import rotation
from app.secrets import SecretError
from app.settings import Settings
from core.errors import Unavailable
from core.merkle import leaf
from scrimp.signatures import is_signed_by
from scrimp.transparency import Key, Note

KEY, OTHER = Ed25519PrivateKey.from_private_bytes(b"k" * 32), Ed25519PrivateKey.from_private_bytes(b"o" * 32)


def by_openssl(folder: Path, key: Ed25519PrivateKey) -> str:
    """A command that signs with this key. OpenSSL wants a file: it must know how long the message is."""
    pem, script = folder / "key.pem", folder / "sign"
    pem.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    script.write_text(
        '#!/bin/sh\nset -e\nmessage=$(mktemp)\ntrap \'rm -f "$message"\' EXIT\ncat > "$message"\n'
        'openssl pkeyutl -sign -rawin -inkey "$1" -in "$message"\n'
    )
    script.chmod(0o700)
    return f"{script} {pem}"


def signer(settings: Settings, command: str, key: Ed25519PrivateKey = KEY) -> Signer:
    return signing_key(settings.model_copy(update={"sign_command": command, "sign_public_key": public_key(key)}))


def test_openssl_signs_what_readers_verify(settings: Settings, tmp_path: Path) -> None:
    by_program = signer(settings, by_openssl(tmp_path, KEY))
    assert public_key(by_program) == public_key(KEY)
    body = {"version": 1, "name": "ε"}
    assert certificate_signatures.sign(body, by_program) == certificate_signatures.sign(
        body, KEY
    )  # Ed25519 has one signature of a message
    signed: Signed = certificate_signatures.sign(body, by_program)
    document = {"certificate": body, "signature": signed.signature}
    assert is_signed_by(document, base64.b64decode(public_key(KEY)))
    note = Note.parse(notes.sign(notes.Checkpoint("ds_1", 7, leaf(b"root")), by_program))
    assert note.signed_by(Key.parse(notes.verifier_key(KEY.public_key()))) == 0


def python(code: str) -> str:
    return f"{sys.executable} -c {code!r}"


WRONG = {
    "another key": None,
    "fails": python("raise SystemExit(1)"),
    "says nothing": python("pass"),
    "says too little": python("import sys; sys.stdout.buffer.write(bytes(63))"),
    "says too much": python("import sys; sys.stdout.buffer.write(bytes(65))"),
    "never ends to say something": python("import os\nwhile True: os.write(1, bytes(4096))"),
    "says something": python("import sys; sys.stdout.buffer.write(bytes(64))"),
    "is not there": "/nonexistent/program",
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_signed_wrongly_is_not_used(settings: Settings, tmp_path: Path, name: str) -> None:
    command = WRONG[name] or by_openssl(tmp_path, OTHER)
    with pytest.raises(Unavailable, match="SCRIMP_SIGN_COMMAND"):
        signer(settings, command).sign(b"bytes")


def test_how_a_program_failed_is_said(settings: Settings) -> None:
    for code, words in (("raise SystemExit(3)", "exit status 3"), ("import os; os.kill(os.getpid(), 9)", "signal 9")):
        with pytest.raises(Unavailable, match=f"SCRIMP_SIGN_COMMAND failed.*{words}"):
            signer(settings, python(code)).sign(b"bytes")


def test_a_program_that_hangs_is_ended(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.ledger.signer.TIMEOUT_S", 0.2)
    with pytest.raises(Unavailable, match="TimeoutExpired"):
        signer(settings, python("import time; time.sleep(600)")).sign(b"bytes")


CHILD = """
import os, subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
open(sys.argv[1], "w").write(str(child.pid))
"""


def ended(pid: int) -> bool:
    """True once a process is gone, or dead and not waited for yet."""
    for _ in range(6000):
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except OSError:
            return True
        time.sleep(0.01)
    return False


@pytest.mark.parametrize("then", ["signs", "hangs"])
def test_a_child_that_holds_the_output_open_holds_nobody(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, then: str
) -> None:
    """It is ended with the program: at its end, not at the limit; or at the limit."""
    program, pid = tmp_path / "program.py", tmp_path / "pid"
    monkeypatch.setattr("app.ledger.signer.TIMEOUT_S", 600.0)
    if then == "hangs":  # the limit has come once the child runs

        def monotonic() -> float:
            return time.monotonic() + (1000.0 if pid.exists() and pid.read_text() else 0.0)

        monkeypatch.setattr("app.ledger.signer.time", SimpleNamespace(monotonic=monotonic, sleep=time.sleep))
    sign = (
        "from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey\n"
        "key = Ed25519PrivateKey.from_private_bytes(b'k' * 32)\n"
        "sys.stdout.buffer.write(key.sign(sys.stdin.buffer.read()))\n"
    )
    program.write_text(CHILD + (sign if then == "signs" else "child.wait()\n"))
    by_program = signer(settings, f"{sys.executable} {program} {pid}")
    if then == "signs":
        assert by_program.sign(b"bytes") == KEY.sign(b"bytes")
    else:
        with pytest.raises(Unavailable, match="TimeoutExpired"):
            by_program.sign(b"bytes")
    assert ended(int(pid.read_text()))


def test_a_program_is_told_no_secret_of_ours(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("SCRIMP_DATABASE_URL", "SCRIMP_SECRET_NOISE_SECRET", "AWS_SECRET_ACCESS_KEY", "PGPASSWORD"):
        monkeypatch.setenv(name, "a secret")
    told = tmp_path / "told"
    with pytest.raises(Unavailable):
        signer(settings, python(f"import os; open({str(told)!r}, 'w').write(repr(dict(os.environ)))")).sign(b"bytes")
    assert "a secret" not in told.read_text() and "'PATH'" in told.read_text()


def test_a_program_that_does_not_read_is_not_waited_for(settings: Settings) -> None:
    with pytest.raises(Unavailable, match="did not sign"):
        signer(settings, python("pass")).sign(bytes(1_000_000))


@pytest.mark.parametrize(("command", "problem"), [("sign 'open", "No closing quotation"), ("  ", "names no program")])
def test_a_command_that_cannot_be_read_is_said(settings: Settings, command: str, problem: str) -> None:
    with pytest.raises(SecretError, match=f"SCRIMP_SIGN_COMMAND.*{problem}"):
        signer(settings, command)


@pytest.mark.parametrize("key", ["", "x", base64.b64encode(b"k" * 31).decode()])
def test_without_its_public_key_it_does_not_start(settings: Settings, key: str) -> None:
    with pytest.raises(SecretError, match="SCRIMP_SIGN_PUBLIC_KEY"):
        CommandSigner.of(settings.model_copy(update={"sign_command": "sign", "sign_public_key": key}))


def test_the_secret_is_not_rotated_in_its_place(db: Database, settings: Settings) -> None:
    before = (settings.effective_secrets_dir / "signing_key").read_text()
    with pytest.raises(SecretError, match="SCRIMP_SIGN_COMMAND"):
        rotation.rotate(db, settings.model_copy(update={"sign_command": "sign"}), "signing_key")
    assert (settings.effective_secrets_dir / "signing_key").read_text() == before
