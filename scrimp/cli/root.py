"""`scrimp keys root`: the offline root of the service's signing keys. Nothing here needs the service or a network."""

from __future__ import annotations

import base64
import hashlib
import json
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from scrimp import local
from scrimp.cli.command_session import Session, command, read_json
from scrimp.cli.key_commands import app as keys
from scrimp.cli.key_commands import moment
from scrimp.cli.token_commands import in_words, key_of
from scrimp.cli.trust import trusted_key
from scrimp.cli.witness_commands import require_cryptography
from scrimp.errors import ScrimpError
from scrimp.key_history import EMPTY, History, PrivateKey, opened, sealed, text_of
from scrimp.token_key import SCHEME
from scrimp.transparency import NotProven

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

app = typer.Typer(no_args_is_help=True)
VARIABLE = "SCRIMP_ROOT_PASSPHRASE"
KeyFile = Annotated[Path, typer.Option("--key-file", help="Where to write the root's private key.")]
RootKey = Annotated[
    str,
    typer.Option("--key-file", help="The root's private key: a file made by `new`, or pkcs11:… of `keys token new`."),
]
HistoryFile = Annotated[Path, typer.Option("--history", help="The signed history: written anew; kept by readers.")]
PublicKey = Annotated[str, typer.Option(help="A signing key of the service: base64, or a file with it.")]
At = Annotated[str | None, typer.Option("--at", help="From when on it signs; default: now.")]


@app.command("new")
def new(
    key_file: KeyFile,
    raw: Annotated[
        bool,
        typer.Option("--raw", help="Without a passphrase: the file alone is the key. For a disk that is encrypted."),
    ] = False,
) -> None:
    """Make a root key, in a file of mode 0600 that a passphrase encrypts, and print its public key for readers."""
    require_cryptography()
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import (
        BestAvailableEncryption,
        Encoding,
        NoEncryption,
        PrivateFormat,
    )

    key = Ed25519PrivateKey.generate()
    words = None if raw else _passphrase(confirm=True)
    encryption = NoEncryption() if words is None else BestAvailableEncryption(words)
    try:
        descriptor = os.open(key_file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except OSError as error:
        raise typer.BadParameter(f"--key-file {key_file}: {error.strerror}") from None
    with open(descriptor, "wb") as file:  # noqa: PTH123 - of a descriptor
        file.write(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, encryption))
        file.flush()
        os.fsync(file.fileno())
    typer.echo(_public(key))


@app.command("sign-rotation")
def sign_rotation(
    key_file: RootKey,
    history: HistoryFile,
    public_key: PublicKey,
    at: At = None,
    overlap_hours: Annotated[
        int, typer.Option(min=0, help="How long the key before may still sign, until the relay is restarted.")
    ] = 24,
) -> None:
    """Sign that the service's next signing key is this one. The first one begins the history."""
    root, start = Root.of(key_file), _time(at)
    ends = start + timedelta(hours=overlap_hours)
    _write(history, root, lambda history_read: history_read.rotated(str(trusted_key(public_key)), start, ends))


@app.command("revoke")
def revoke(
    key_file: RootKey,
    history: HistoryFile,
    public_key: PublicKey,
    since: Annotated[str, typer.Option(help="From when on others may have had it: a time (ISO 8601).")],
    reason: Annotated[str, typer.Option(help="Why, for auditors.")],
) -> None:
    """Revoke a signing key: nothing that it signed from a time on is trusted."""
    root = Root.of(key_file)
    _write(
        history,
        root,
        lambda history_read: history_read.revoked(str(trusted_key(public_key)), moment(since), _time(None), reason),
    )


@command(keys, "history")
def show_history(
    session: Session,
    root: Annotated[str, typer.Option(help="The root's public key, from the service's owner: base64, or a file.")],
    to: Annotated[Path | None, typer.Option(help="Write the signed history to this file, for verifiers.")] = None,
) -> None:
    """Show which keys sign and signed for the service, and which is revoked, as its offline root signed it."""
    envelope = session.client.signing_history().history
    if envelope is None:
        raise ScrimpError("this service has no root: `scrimp signing-key` prints the key that it signs with")
    try:
        history = opened(envelope, str(trusted_key(root)))
    except NotProven as error:
        raise ScrimpError(str(error)) from None
    if to is not None:
        to.write_text(json.dumps(envelope, indent=1) + "\n")
    session.result(
        {"number": history.number, "keys": [each.document for each in history.keys]},
        lambda: session.console.print("\n".join(lines(history)), soft_wrap=True, highlight=False, markup=False),
    )


@dataclass(frozen=True)
class Root:
    """The root's key, and the file that says how often it has signed."""

    key: PrivateKey
    numbered: Path

    @classmethod
    def of(cls, text: str) -> Root:
        """The key of a file, or of a token. A token has no file beside it: its number is in SCRIMP_HOME."""
        if not text.startswith(SCHEME):
            return cls(_root(Path(text)), Path(f"{text}.number"))
        with in_words():
            key = key_of(text)
            return cls(key, local.home() / "roots" / f"{hashlib.sha256(key.public_raw()).hexdigest()[:16]}.number")


def _write(path: Path, root: Root, change: Callable[[History], History]) -> None:
    """Writes the changed history, whole or not at all, and prints it. Its number is kept beside the key: to go on with
    an older one would take a revocation back."""
    public = _public(root.key)
    try:
        history_read = opened(read_json(path), public) if path.exists() else EMPTY
        last = int(root.numbered.read_text()) if root.numbered.exists() else 0
        if history_read.number < last:
            raise ValueError(f"this root has signed history {last}: go on with that one")
        changed = replace(change(history_read), signed_at=_time(None))
    except (NotProven, ValueError) as error:
        raise typer.BadParameter(f"--history {path}: {error}") from None
    with in_words():
        envelope = sealed(changed, root.key)
        opened(envelope, public)  # what a token signed wrongly is not written
    try:
        root.numbered.parent.mkdir(parents=True, exist_ok=True)
        # In this order: a number whose history is lost would wait for it for ever.
        _replace(path, json.dumps(envelope, indent=1) + "\n")
        _replace(root.numbered, f"{changed.number}\n")
    except OSError as error:
        raise typer.BadParameter(f"--history {path} may be written, and its number is not: {error.strerror}") from None
    for line in lines(changed):
        typer.echo(line)


def _replace(path: Path, text: str) -> None:
    """Replaces a file at once; the new one is on disk when this returns."""
    temporary = path.with_name(f".{path.name}.new")
    with temporary.open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def lines(history: History) -> list[str]:
    """A history for people who read, the newest key first."""
    lines_of = [f"history {history.number}, signed {text_of(history.signed_at)}"]
    for key in reversed(history.keys):
        until = "now" if key.until is None else text_of(key.until)
        revoked = "" if key.revoked_from is None else f", REVOKED from {text_of(key.revoked_from)}: {key.reason}"
        lines_of.append(f"{key.public_key}  {text_of(key.start)} to {until}{revoked}")
    return lines_of


def _root(path: Path) -> Ed25519PrivateKey:
    require_cryptography()
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        text = path.read_bytes()
        if path.stat().st_mode & 0o077:
            raise typer.BadParameter(f"--key-file {path} is readable by others: run chmod 600 on it")
        words = _passphrase(confirm=False) if b"ENCRYPTED" in text else None
        key = load_pem_private_key(text, words)
    except OSError as error:
        raise typer.BadParameter(f"--key-file {path}: {error.strerror}") from None
    except (ValueError, TypeError):
        raise typer.BadParameter(f"--key-file {path} is no root key, or the passphrase is another") from None
    if not isinstance(key, Ed25519PrivateKey):
        raise typer.BadParameter(f"--key-file {path} is no root key")
    return key


def _passphrase(*, confirm: bool) -> bytes:
    words = os.environ.get(VARIABLE) or typer.prompt(
        "Passphrase of the root key", hide_input=True, confirmation_prompt=confirm, err=True
    )
    return str(words).encode()


def _public(root: PrivateKey) -> str:
    return base64.b64encode(root.public_key().public_bytes_raw()).decode()


def _time(text: str | None) -> datetime:
    return (datetime.now(UTC) if text is None else moment(text)).replace(microsecond=0)
