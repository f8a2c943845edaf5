"""What signs for the service: the key of its secret, or a program that the operator names (SCRIMP_SIGN_COMMAND).

A program gets the bytes to sign on its standard input and writes the raw signature, 64 bytes of Ed25519, to its
standard output. So the private key may stay in a token (PKCS #11) or on another machine. Each signature is verified
before it is used: while a program signs with another key, or signs something else, nothing is signed.

    read in one transaction ──▶ `Draft` ──▶ signed, no transaction open ──▶ stored in a short one, if still as read

A program may take half a minute. So `signature` refuses inside a transaction, and it alone calls a signer.
"""

from __future__ import annotations

import base64
import shlex
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeVar

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from sqlalchemy.orm import Session

from app.db.engine import Database, require_no_transaction
from app.secrets import SecretError
from app.settings import Settings
from core.errors import TransientError, Unavailable

TIMEOUT_S = 30.0
TRIES = 10  # each loss means that somebody changed what was read
S = TypeVar("S")


class Signer(Protocol):
    """Signs with Ed25519, as `cryptography`'s private keys do."""

    def sign(self, data: bytes) -> bytes:
        """The raw signature of these bytes."""
        ...

    def public_key(self) -> Ed25519PublicKey:
        """The key that verifies it."""
        ...


@dataclass(frozen=True)
class CommandSigner:
    """Signs by a program."""

    command: tuple[str, ...]
    public: Ed25519PublicKey

    @classmethod
    def of(cls, settings: Settings) -> CommandSigner:
        """The signer of the settings.

        Raises:
            SecretError: the public key is missing or malformed.
        """
        try:
            public = Ed25519PublicKey.from_public_bytes(base64.b64decode(settings.sign_public_key, validate=True))
        except ValueError:
            raise SecretError("SCRIMP_SIGN_COMMAND needs SCRIMP_SIGN_PUBLIC_KEY: base64 of the raw 32 bytes") from None
        return cls(tuple(shlex.split(settings.sign_command)), public)

    def public_key(self) -> Ed25519PublicKey:
        """The key that the program must sign with."""
        return self.public

    def sign(self, data: bytes) -> bytes:
        """Has the program sign.

        Raises:
            Unavailable: it cannot be started, fails, takes too long, or did not sign these bytes with the key.
        """
        try:
            done = subprocess.run(self.command, input=data, capture_output=True, timeout=TIMEOUT_S, check=True)
            self.public.verify(done.stdout, data)
        except (OSError, subprocess.SubprocessError) as error:  # its output may name a PIN: it is not repeated
            raise Unavailable(f"SCRIMP_SIGN_COMMAND failed: {type(error).__name__}") from None
        except InvalidSignature:
            raise Unavailable("SCRIMP_SIGN_COMMAND did not sign with SCRIMP_SIGN_PUBLIC_KEY") from None
        return done.stdout


class Draft(Protocol[S]):
    """What is to be signed, as it was read."""

    def signed(self, key: Signer) -> S:
        """Signs it; no transaction is open."""
        ...

    def store(self, session: Session, signed: S) -> bool:
        """Stores what was signed. False, and nothing is stored, if what was read is not so any more."""
        ...


def public_key(key: Signer) -> str:
    """Base64 of the raw public key, as certificates name it."""
    return base64.b64encode(key.public_key().public_bytes_raw()).decode()


def signature(key: Signer, data: bytes) -> bytes:
    """The raw signature of these bytes.

    Raises:
        TransactionOpen: this thread has a transaction open, in which others would wait for a program that signs.
        Unavailable: the program did not sign.
    """
    require_no_transaction()
    return key.sign(data)


def sign_and_store(db: Database, draft: Callable[[], Draft[S] | None], key: Signer) -> S | None:
    """Reads what is to be signed, signs it with no transaction open, and stores it in a short one; begins again if it
    was changed meanwhile.

    Args:
        draft: reads in transactions of its own; None: there is nothing to sign.

    Returns:
        What was signed and stored; None if there was nothing to sign.

    Raises:
        Unavailable: the program did not sign.
        TransientError: others changed it each time.
    """
    for _ in range(TRIES):
        read = draft()
        if read is None:
            return None
        signed = read.signed(key)
        with db.write() as session:
            if read.store(session, signed):
                return signed
    raise TransientError("what is to be signed changed each time while it was signed")
