"""Whom the reader of signed files believes: the options of all commands that verify, and what they mean together."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Annotated

import typer

from scrimp.cli.command_session import read_json
from scrimp.dated import Inclusion
from scrimp.key_history import Trust, opened
from scrimp.transparency import COSIGNATURE, Key, Note, NotProven

BYTES = 32  # of a raw key
PublicKey = Annotated[
    str | None, typer.Option(help="The key that you trust, from the service's owner: base64, or a file with it.")
]
PublicKeys = Annotated[
    list[str] | None,
    typer.Option(help="A key that you trust, from the service's owner: base64, or a file with it; repeat it."),
]
Root = Annotated[str | None, typer.Option(help="In place of --public-key: the root's key, which signed --history.")]
HistoryFile = Annotated[
    Path | None, typer.Option(help="The service's signing keys, as its root signed them (scrimp keys root).")
]
HistoryNumber = Annotated[
    int | None, typer.Option(help="The number of the newest history that you know: an older --history is refused.")
]
Witnesses = Annotated[
    list[str] | None,
    typer.Option(help="A witness's key (NAME+hash+key) that must have cosigned the checkpoint; repeat it."),
]

Dated = Annotated[
    list[Path] | None,
    typer.Option(
        help="Of a revoked key: the proof that --witness saw this signature before (scrimp certificates date); "
        "repeat it for each signed document, or give an egress's file of all."
    ),
]


def trust_of(
    public_keys: list[str] | None,
    root: str | None,
    history: Path | None,
    number: int | None,
    witnesses: list[str] | None,
    dated: list[Path] | None = None,
) -> Trust:
    """What the options say together."""
    dates = tuple(date for each in dated or () for date in _dates_in(each))
    seen = tuple(_witness(each) for each in witnesses or ())
    if (root is None) != (history is None):
        raise typer.BadParameter("--root and --history go together")
    if root is None or history is None:
        if number is not None:
            raise typer.BadParameter("--history-number goes with --history")
        return Trust(tuple(trusted_keys(public_keys)), None, seen, dates)
    if public_keys:
        raise typer.BadParameter("give --public-key, or --root with --history")
    try:
        history_read = opened(read_json(history), str(trusted_key(root)), number or 0)
    except (NotProven, ValueError) as error:
        raise typer.BadParameter(f"--history {history}: {error}") from None
    if not history_read.keys:
        raise typer.BadParameter(f"--history {history}: the root names no key")
    return Trust(tuple(each.public_key for each in history_read.keys), history_read, seen, dates)


def trusted_key(public_key: str | None) -> str | None:
    """The key that an option names: base64 of 32 bytes, or a file with it."""
    if public_key is None:
        return None
    text = Path(public_key).read_text().strip() if Path(public_key).is_file() else public_key
    try:
        if len(base64.b64decode(text, validate=True)) == BYTES:
            return text
    except ValueError:
        pass
    raise typer.BadParameter(f"--public-key must be base64 of {BYTES} bytes, or a file with it; not {public_key!r}")


def trusted_keys(public_keys: list[str] | None) -> list[str]:
    """The keys that a repeated option names."""
    return [trusted_key(each) or "" for each in public_keys or ()]


def _witness(text: str) -> Key:
    try:
        key = Key.parse(text)
    except NotProven as error:
        raise typer.BadParameter(f"--witness: {error}") from None
    if key.kind != COSIGNATURE:
        raise typer.BadParameter(f"--witness: this is the key of a log, not of a witness: {text!r}")
    return key


def _dates_in(path: Path) -> list[Inclusion]:
    document = read_json(path)
    try:
        return [Inclusion.of(each) for each in document.get("dates", [document])]
    except (NotProven, TypeError) as error:
        raise typer.BadParameter(f"--dated {path}: {error}") from None


def checkpoint_in(path: Path) -> Note:
    """The checkpoint that an option's file holds."""
    try:
        return Note.parse(path.read_text())
    except (OSError, ValueError) as error:
        raise typer.BadParameter(f"--checkpoint {path}: {error}") from None
