"""What signs for the service: the key of its secret, or a program that the operator names (SCRIMP_SIGN_COMMAND).

A program gets the bytes to sign on its standard input and writes the raw signature, 64 bytes of Ed25519, to its
standard output. So the private key may stay in a token (PKCS #11) or on another machine. Each signature is verified
before it is used: while a program signs with another key, or signs something else, nothing is signed.

    read in one transaction ──▶ `Draft` ──▶ signed, no transaction open ──▶ stored in a short one, if still as read

A program may take half a minute. So `signature` refuses inside a transaction, and it alone calls a signer.
"""

from __future__ import annotations

import base64
import os
import select
import shlex
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Protocol, TypeVar

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from sqlalchemy.orm import Session

from app.db.database import Database, require_no_transaction
from app.secrets import SecretError
from app.settings import Settings
from core.errors import TransientError, Unavailable

TIMEOUT_S = 30.0
LOOK_S = 0.05  # for the end of a program whose output a child of it holds open
SIGNATURE_BYTES = 64
# What a program is told of our environment: no secret of ours. Its own, a PIN, it reads from a file.
ENVIRONMENT = ("PATH", "HOME", "LANG", "LC_ALL", "TZ", "TMPDIR")
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
            SecretError: the public key is missing or malformed, or the command is no command.
        """
        try:
            command = tuple(shlex.split(settings.sign_command))
        except ValueError as error:  # the text may hold a PIN: it is not repeated
            raise SecretError(f"SCRIMP_SIGN_COMMAND cannot be read as a command: {error}") from None
        if not command:
            raise SecretError("SCRIMP_SIGN_COMMAND names no program")
        try:
            public = Ed25519PublicKey.from_public_bytes(base64.b64decode(settings.sign_public_key, validate=True))
        except ValueError:
            raise SecretError("SCRIMP_SIGN_COMMAND needs SCRIMP_SIGN_PUBLIC_KEY: base64 of the raw 32 bytes") from None
        return cls(command, public)

    def public_key(self) -> Ed25519PublicKey:
        """The key that the program must sign with."""
        return self.public

    def sign(self, data: bytes) -> bytes:
        """Has the program sign.

        Raises:
            Unavailable: it cannot be started, fails, takes too long, or did not sign these bytes with the key.
        """
        try:
            signed = _output(self.command, data)
            self.public.verify(signed, data)
        except subprocess.CalledProcessError as error:  # its command and its output may name a PIN: not repeated
            raise Unavailable(
                f"SCRIMP_SIGN_COMMAND failed: {_end(error.returncode)}; run it by hand to see why"
            ) from None
        except (OSError, subprocess.SubprocessError) as error:
            raise Unavailable(f"SCRIMP_SIGN_COMMAND failed: {type(error).__name__}") from None
        except InvalidSignature:
            raise Unavailable("SCRIMP_SIGN_COMMAND did not sign with SCRIMP_SIGN_PUBLIC_KEY") from None
        return signed


@dataclass(frozen=True)
class WhileNamed:
    """Signs while a key may: asked at each signature, for a process runs longer than a key is named.

    Attributes:
        require: raises SecretError once it may not.
    """

    key: Signer
    require: Callable[[], None]

    def public_key(self) -> Ed25519PublicKey:
        """The key's."""
        return self.key.public_key()

    def sign(self, data: bytes) -> bytes:
        """Has the key sign. Raises Unavailable if it may not."""
        try:
            self.require()
        except SecretError as error:
            raise Unavailable(error.message) from None
        return self.key.sign(data)


class TooMuchError(subprocess.SubprocessError):
    """A program wrote more than a signature."""


def _output(command: Sequence[str], data: bytes) -> bytes:
    """What a program writes, given these bytes. Once it has ended, its children are ended too.

    Raises:
        OSError, subprocess.SubprocessError: it cannot be started, fails, takes too long, or writes too much.
    """
    deadline, output = time.monotonic() + TIMEOUT_S, b""
    with _started(command, data) as (process, pipe):
        while True:
            ended = _has_ended(process)  # asked first: then all that it wrote can be read
            try:
                piece = os.read(pipe, SIGNATURE_BYTES + 1)
            except BlockingIOError:
                piece = None
            output += piece or b""
            if len(output) > SIGNATURE_BYTES:
                raise TooMuchError
            if ended and not piece:
                break
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                raise subprocess.TimeoutExpired(command[0], TIMEOUT_S)
            if piece == b"":  # it has closed its output and still runs
                time.sleep(min(LOOK_S, left_s))
            elif piece is None:
                select.select([pipe], [], [], min(LOOK_S, left_s))
    if process.returncode != 0:
        raise subprocess.CalledProcessError(process.returncode, command[0])
    return output


@contextmanager
def _started(command: Sequence[str], data: bytes) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """A program in a process group of its own, which is killed at the end, and the pipe that it writes to."""
    with tempfile.TemporaryFile() as input_file:  # not a pipe: a program that does not read cannot stop us
        input_file.write(data)
        input_file.seek(0)
        variables = {name: os.environ[name] for name in ENVIRONMENT if name in os.environ}
        process = subprocess.Popen(
            command,
            stdin=input_file,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=variables,
            start_new_session=True,
        )
    if process.stdout is None:
        raise RuntimeError("a program's output was not opened")
    with process.stdout as output:
        try:
            os.set_blocking(output.fileno(), False)
            yield process, output.fileno()
        finally:
            with suppress(ProcessLookupError):  # before it is waited for: until then no other group has this number
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _end(code: int) -> str:
    return f"exit status {code}" if code >= 0 else f"ended by signal {-code}"


def _has_ended(process: subprocess.Popen[bytes]) -> bool:
    return os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


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
        draft_row = draft()
        if draft_row is None:
            return None
        signed = draft_row.signed(key)
        with db.write() as session:
            if draft_row.store(session, signed):
                return signed
    raise TransientError("what is to be signed changed each time while it was signed")
