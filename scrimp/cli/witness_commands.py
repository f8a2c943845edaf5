"""`scrimp witness`: an append-only witness of ledgers' checkpoints, for a machine that the service cannot write to."""

from __future__ import annotations

import base64
import os
from pathlib import Path
from typing import Annotated

import typer

from scrimp.errors import MissingPackage
from scrimp.transparency import COSIGNATURE, ED25519, LOG, Key, NotProven

app = typer.Typer(no_args_is_help=True)
BYTES = 32  # of a raw key
KeyFile = Annotated[Path, typer.Option("--key-file", help="The witness's private key: 32 bytes, made by `key`.")]
Name = Annotated[str, typer.Option(help="The witness's name, such as witness.example.org/w1.")]
State = Annotated[Path, typer.Option(help="What it has signed: a file that only grows.")]


@app.command("key")
def key_(name: Name, key_file: KeyFile) -> None:
    """Make a key, unless the file is there, and print its verifier key, for the service's SCRIMP_WITNESSES."""
    require_cryptography()
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    if not key_file.exists():
        with open(os.open(key_file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:  # noqa: PTH123
            file.write(Ed25519PrivateKey.generate().private_bytes_raw())
    raw = Ed25519PrivateKey.from_private_bytes(key_file.read_bytes()).public_key().public_bytes_raw()
    typer.echo(str(Key(name, COSIGNATURE, raw)))


@app.command("serve")
def serve_(
    name: Name,
    key_file: KeyFile,
    state: State,
    log: Annotated[
        list[str],
        typer.Option(
            help="A service's public key (scrimp signing-key); after a rotation all of them, with commas between."
        ),
    ],
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on.")] = 8200,
) -> None:
    """Cosign checkpoints that follow from what was signed before; refuse every other one. Runs until it is stopped."""
    require_cryptography()
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    from scrimp.witness import Witness, serve

    key = Ed25519PrivateKey.from_private_bytes(key_file.read_bytes())
    with serve(
        Witness(state, name, key, [[log_key(each) for each in keys.split(",")] for keys in log]), host, port
    ) as server:
        typer.echo(f"witness {name} listens on http://{host}:{server.server_address[1]}")
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            return


@app.command("accept")
def accept(
    origin: Annotated[str, typer.Argument(help="The ledger: the first line of its checkpoints.")],
    state: State,
    reason: Annotated[str, typer.Option(help="Why; kept in the file.")],
) -> None:
    """Accept that a ledger begins another history, after a backup was restored and the gap was posted as spent."""
    from scrimp.witness import accept_gap, origins

    if not state.exists():
        typer.echo(f"scrimp: {state} is not there: give the file of the witness that runs", err=True)
        raise typer.Exit(1)
    if origin not in origins(state):
        typer.echo(f"scrimp: {state} has no checkpoint of {origin}: give the first line of one", err=True)
        raise typer.Exit(1)
    accept_gap(state, origin, reason)


def require_cryptography() -> None:
    """Ends the program in words where `cryptography` is not installed."""
    try:
        import cryptography  # noqa: F401 - said here what is missing
    except ImportError:
        error = MissingPackage("a witness", "cryptography", "scrimp-client[verify]")
        typer.echo(f"scrimp: {error}", err=True)
        raise typer.Exit(1) from None


def log_key(text: str) -> Key:
    """A service's key: base64 as `scrimp signing-key` prints it, or NAME+hash+key."""
    try:
        raw = base64.b64decode(text, validate=True)
        if len(raw) == BYTES:
            return Key(LOG, ED25519, raw)
    except ValueError:
        pass
    try:
        return Key.parse(text)
    except NotProven:
        raise typer.BadParameter(f"this is not a service's public key: {text!r}") from None
