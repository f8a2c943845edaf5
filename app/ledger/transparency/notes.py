"""Checkpoints as signed notes of C2SP: what the relay signs, witnesses cosign, and other logs' tools read.

    scrimp.example.org/ledger/ds_…            the origin: which ledger
    42                                        its entries
    4Pn…=                                     the tree's root, base64
                                              (an empty line)
    — scrimp.example.org/ledger base64(key id ‖ signature)
    — witness.example.org/w1 base64(key id ‖ time ‖ signature)

The signature is Ed25519 over the text before the empty line, its last newline included, by the service's signing key.
No other signed bytes begin like an origin: a certificate's begin with "{", an envelope's with "DSSEv1".

Sources: C2SP signed-note, tlog-checkpoint, tlog-cosignature.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from app.ledger.signer import Signer, signature
from app.ledger.transparency.attestations import NotAuthentic

NAME = "scrimp.example.org/ledger"
ED25519, COSIGNATURE = 1, 4  # the types of keys, in key ids and verifier keys: a log's, a witness's
MARK = "\u2014 "  # begins a signature's line


@dataclass(frozen=True)
class WitnessKey:
    """The name and the raw public key of a witness."""

    name: str
    raw: bytes

    @classmethod
    def parse(cls, text: str) -> WitnessKey:
        """Reads a verifier key, NAME+hash+key. Raises ValueError if it is malformed."""
        name, _, key_text = text.strip().partition("+")
        digest, _, encoded = key_text.partition("+")
        decoded = base64.b64decode(encoded, validate=True)
        key = cls(name, decoded[1:])
        if decoded[:1] != bytes([COSIGNATURE]) or len(key.raw) != 32 or key.id.hex() != digest:
            raise ValueError(f"this is not a witness's verifier key (NAME+hash+key): {text!r}")
        return key

    @property
    def id(self) -> bytes:
        """The first four bytes of SHA-256(name ‖ newline ‖ type ‖ key)."""
        return _id(self.name, COSIGNATURE, self.raw)


@dataclass(frozen=True)
class Checkpoint:
    """The state of one data set's ledger: the first `size` entries have this root."""

    dataset: str
    size: int
    root: bytes

    @property
    def body(self) -> str:
        """The signed text."""
        return f"{NAME}/{self.dataset}\n{self.size}\n{base64.b64encode(self.root).decode()}\n"


def sign(checkpoint: Checkpoint, key: Signer) -> str:
    """The signed note of a checkpoint."""
    blob = key_id(key.public_key()) + signature(key, checkpoint.body.encode())
    return f"{checkpoint.body}\n{MARK}{NAME} {base64.b64encode(blob).decode()}\n"


def read(note: str) -> Checkpoint:
    """The checkpoint in a note, whoever signed it.

    Raises:
        NotAuthentic: it is not a checkpoint of a ledger.
    """
    try:
        origin, size, root = note.partition("\n\n")[0].split("\n")
        name, _, dataset = origin.rpartition("/")
        checkpoint = Checkpoint(dataset, int(size), _exact(root))
    except ValueError:
        raise NotAuthentic("this is not a checkpoint") from None
    if name != NAME or len(checkpoint.root) != 32 or not note.startswith(checkpoint.body + "\n"):
        raise NotAuthentic("this is not a checkpoint of a ledger")
    return checkpoint


def opened(note: str, public_key: str) -> Checkpoint:
    """The checkpoint in a note that this key signed.

    Args:
        public_key: base64 of the raw key that the reader trusts.

    Raises:
        NotAuthentic: the key did not sign it, or it is not a checkpoint of a ledger.
    """
    checkpoint = read(note)
    key = Ed25519PublicKey.from_public_bytes(base64.b64decode(public_key, validate=True))
    for blob in _signatures(note, checkpoint.body, NAME, key_id(key)):
        if _signed(key, blob[4:], checkpoint.body.encode()):
            return checkpoint
    raise NotAuthentic("this key did not sign the checkpoint")


def is_signed(note: str, public_key: str) -> bool:
    """True if this key, base64 of the raw one, signed the checkpoint in a note."""
    try:
        opened(note, public_key)
    except NotAuthentic:
        return False
    return True


def lines(note: str) -> list[str]:
    """The lines that sign a note, each with its newline."""
    return note.partition("\n\n")[2].splitlines(keepends=True)


def cosignatures(note: str) -> str:
    """The lines of a note that are not a service's signature."""
    return "".join(line for line in lines(note) if not line.startswith(f"{MARK}{NAME} "))


def beginning(key: Ed25519PublicKey) -> str:
    """How a signature's line by this key begins: enough of it to tell keys apart."""
    return f"{MARK}{NAME} {base64.b64encode(key_id(key)).decode()[:5]}"


def cosigned(note: str, witness: WitnessKey) -> Checkpoint:
    """The checkpoint in a note that a witness cosigned.

    Raises:
        NotAuthentic: it did not, or it is not a checkpoint of a ledger.
    """
    checkpoint = read(note)
    key = Ed25519PublicKey.from_public_bytes(witness.raw)
    for blob in _signatures(note, checkpoint.body, witness.name, witness.id):
        message = f"cosignature/v1\ntime {int.from_bytes(blob[4:12])}\n{checkpoint.body}"
        if _signed(key, blob[12:], message.encode()):
            return checkpoint
    raise NotAuthentic("the witness did not sign the checkpoint")


def is_cosigned(note: str, witness: WitnessKey) -> bool:
    """True if the witness cosigned the checkpoint in a note."""
    try:
        cosigned(note, witness)
    except NotAuthentic:
        return False
    return True


def _signatures(note: str, body: str, name: str, digest: bytes) -> Iterator[bytes]:
    """What this name's key may have signed with: each begins with the key's id."""
    for line in note[len(body) + 1 :].split("\n")[:-1]:  # each ends with a newline
        signer, _, text = line.removeprefix(MARK).partition(" ")
        try:
            blob = _exact(text)
        except ValueError:
            continue
        if signer == name and blob[:4] == digest:
            yield blob


def _exact(text: str) -> bytes:
    """The bytes of base64 that has one spelling alone: spare bits are zero. Raises ValueError."""
    decoded = base64.b64decode(text, validate=True)
    if base64.b64encode(decoded).decode() != text:
        raise ValueError("this is not the base64 of its bytes")
    return decoded


def verifier_key(key: Ed25519PublicKey) -> str:
    """The public key as tools for signed notes take it: NAME+hash+key."""
    encoded = base64.b64encode(bytes([ED25519]) + key.public_bytes_raw()).decode()
    return f"{NAME}+{key_id(key).hex()}+{encoded}"


def key_id(key: Ed25519PublicKey) -> bytes:
    """The first four bytes of SHA-256(name ‖ newline ‖ type ‖ key)."""
    return _id(NAME, ED25519, key.public_bytes_raw())


def _id(name: str, kind: int, raw: bytes) -> bytes:
    return hashlib.sha256(name.encode() + b"\n" + bytes([kind]) + raw).digest()[:4]


def _signed(key: Ed25519PublicKey, signature: bytes, message: bytes) -> bool:
    try:
        key.verify(signature, message)
    except InvalidSignature:
        return False
    return True
