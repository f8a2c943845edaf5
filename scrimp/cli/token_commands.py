"""`scrimp keys token`: keys of Ed25519 that stay in a PKCS #11 token. Nothing here needs the service or a network."""

from __future__ import annotations

import base64
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import typer

from scrimp.errors import ScrimpError
from scrimp.token_key import EXAMPLE, Address, TokenError, TokenKey

app = typer.Typer(no_args_is_help=True)
Key = Annotated[str, typer.Argument(metavar="KEY", help=f"Its address: {EXAMPLE}. Without pin-source you are asked.")]


@app.command("new")
def new(key: Key) -> None:
    """Make a key in a token, which it never leaves, and print its public key."""
    with in_words():
        token_key = key_of(key)
        token_key.generate()
        typer.echo(base64.b64encode(token_key.public_raw()).decode())


@app.command("show")
def show(key: Key) -> None:
    """Print the public key of a key in a token, and make it sign once."""
    with in_words():
        from cryptography.exceptions import InvalidSignature

        token_key = key_of(key)
        try:
            token_key.public_key().verify(token_key.sign(b""), b"")
        except InvalidSignature:
            raise TokenError(
                f"the private key {token_key.address.label!r} of the token did not sign with its public key"
            ) from None
        typer.echo(base64.b64encode(token_key.public_raw()).decode())


@app.command("sign")
def sign(key: Key) -> None:
    """Sign standard input: write the raw signature, 64 bytes, to standard output. For SCRIMP_SIGN_COMMAND.

    After a wrong PIN it does not try again until `show` has signed: a token locks itself after a few.
    """
    with in_words():
        address = Address.parse(key)
        sys.stdout.buffer.write(TokenKey(address, address.pin(), watched=False).sign(sys.stdin.buffer.read()))
        sys.stdout.buffer.flush()


def key_of(text: str) -> TokenKey:
    """The key at an address, for a person who is here. Raises TokenError."""
    address = Address.parse(text)
    return TokenKey(address, address.pin(_person))


@contextmanager
def in_words() -> Iterator[None]:
    """Ends the program with one line where a key cannot be used."""
    try:
        yield
    except ScrimpError as error:
        typer.echo(f"scrimp: {error}", err=True)
        raise typer.Exit(1) from None


def _person() -> str:
    return str(typer.prompt("PIN of the token", hide_input=True, err=True))
