"""Checks checkpoints, and proofs about them, on the reader's side. Signatures need `cryptography`.

Deliberately independent of the service's own code (app.ledger.transparency.ledger_tree and notes): those build proofs,
this checks them.

Sources: RFC 9162, sections 2.1.3.2 and 2.1.4.2 (the hashing is RFC 6962's); C2SP signed-note, tlog-checkpoint and
tlog-cosignature.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

LOG = "scrimp.example.org/ledger"
ED25519, COSIGNATURE = 1, 4  # the types of keys: a log's, a witness's
MARK = "\u2014 "


class NotProven(ValueError):
    """A note that is malformed or that no known key signed, or a proof that does not hold."""


@dataclass(frozen=True)
class Key:
    """A public key of signed notes.

    Attributes:
        name: who signs.
        kind: ED25519 or COSIGNATURE.
        raw: 32 bytes.
    """

    name: str
    kind: int
    raw: bytes

    @classmethod
    def parse(cls, text: str) -> Key:
        """Reads NAME+hash+base64. Raises NotProven if it is malformed."""
        try:
            name, digest, encoded = text.strip().split("+", 2)
            decoded = base64.b64decode(encoded, validate=True)
            key = cls(name, decoded[0], decoded[1:])
        except (ValueError, IndexError):
            raise NotProven(f"this is not a verifier key (NAME+hash+key): {text!r}") from None
        if key.kind not in (ED25519, COSIGNATURE) or len(key.raw) != 32 or key.id.hex() != digest:
            raise NotProven(f"the parts of this verifier key do not fit together: {text!r}")
        return key

    @property
    def id(self) -> bytes:
        """The first four bytes of SHA-256(name ‖ newline ‖ type ‖ key)."""
        return hashlib.sha256(self.name.encode() + b"\n" + bytes([self.kind]) + self.raw).digest()[:4]

    def __str__(self) -> str:
        encoded = base64.b64encode(bytes([self.kind]) + self.raw).decode()
        return f"{self.name}+{self.id.hex()}+{encoded}"


@dataclass(frozen=True)
class Note:
    """A checkpoint and the lines that sign it; nothing is verified yet."""

    body: str
    origin: str
    size: int
    root: bytes
    signatures: tuple[tuple[str, bytes], ...]

    @classmethod
    def parse(cls, text: str) -> Note:
        """Reads a note. Raises NotProven if it is not a checkpoint."""
        try:
            head, tail = text.split("\n\n", 1)
            origin, size, root = head.split("\n")
            *signature_lines, last_line = tail.split("\n")
            lines = [line.removeprefix(MARK).split(" ") for line in signature_lines if line.startswith(MARK)]
            signatures = tuple((name, exact(blob)) for name, blob in lines)
            note = cls(head + "\n", origin, int(size), exact(root), signatures)
        except ValueError:
            raise NotProven("this is not a signed checkpoint") from None
        if note.size < 0 or str(note.size) != size or len(note.root) != 32 or not origin or last_line:
            raise NotProven("this is not a signed checkpoint")
        return note

    def signed_by(self, key: Key) -> int | None:
        """When a key signed this, in seconds since 1970; 0 for a log's key, which states no time; None: it did not."""
        from cryptography.exceptions import InvalidSignature
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

        for name, blob in self.signatures:
            if name != key.name or blob[:4] != key.id:
                continue
            at = int.from_bytes(blob[4:12]) if key.kind == COSIGNATURE else 0
            signature = blob[12:] if key.kind == COSIGNATURE else blob[4:]
            try:
                Ed25519PublicKey.from_public_bytes(key.raw).verify(signature, signed_bytes(self.body, key.kind, at))
            except InvalidSignature:
                continue
            return at
        return None


def signed_bytes(body: str, kind: int, at: int) -> bytes:
    """What a signature of this kind covers; `at`: a witness's time."""
    return (f"cosignature/v1\ntime {at}\n{body}" if kind == COSIGNATURE else body).encode()


def leaf_of(entry_hash: str) -> bytes:
    """The leaf of a ledger's entry, from the entry's hash in hexadecimal."""
    return hashlib.sha256(b"\0" + bytes.fromhex(entry_hash)).digest()


def root_of(leaves: Sequence[bytes]) -> bytes:
    """The root over these leaves, by the definition."""
    if len(leaves) < 2:
        return leaves[0] if leaves else hashlib.sha256(b"").digest()
    split = 1 << ((len(leaves) - 1).bit_length() - 1)
    return _node(root_of(leaves[:split]), root_of(leaves[split:]))


def includes(index: int, size: int, leaf: bytes, path: Sequence[bytes], root: bytes) -> bool:
    """Says if a path proves that this leaf, counted from 0, is in the tree of this size and root."""
    if not 0 <= index < size:
        return False
    position, last, result = index, size - 1, leaf
    for sibling in path:
        if last == 0:
            return False
        if position & 1 or position == last:
            result = _node(sibling, result)
            while position and not position & 1:
                position, last = position >> 1, last >> 1
        else:
            result = _node(result, sibling)
        position, last = position >> 1, last >> 1
    return last == 0 and result == root


def follows(old: int, old_root: bytes, size: int, root: bytes, path: Sequence[bytes]) -> bool:
    """Says if a path proves that the tree of this size begins with the leaves of the old one."""
    if old == size:
        return not path and old_root == root
    if old == 0:  # everything follows nothing
        return not path
    if not 0 < old < size:
        return False
    parts = [old_root, *path] if old & (old - 1) == 0 else list(path)
    position, last = old - 1, size - 1
    while position & 1:
        position, last = position >> 1, last >> 1
    if not parts:
        return False
    old_hash = new_hash = parts[0]
    for sibling in parts[1:]:
        if last == 0:
            return False
        if position & 1 or position == last:
            old_hash, new_hash = _node(sibling, old_hash), _node(sibling, new_hash)
            while position and not position & 1:
                position, last = position >> 1, last >> 1
        else:
            new_hash = _node(new_hash, sibling)
        position, last = position >> 1, last >> 1
    return last == 0 and old_hash == old_root and new_hash == root


def begins_with(note: Note, dataset_id: str, hashes: Sequence[str]) -> bool:
    """Says if a ledger begins with the entries of a kept checkpoint.

    Args:
        hashes: of all its entries, oldest first, in hexadecimal, recomputed by the reader.
    """
    if note.origin != f"{LOG}/{dataset_id}" or note.size > len(hashes):
        return False
    return root_of([leaf_of(each) for each in hashes[: note.size]]) == note.root


@dataclass(frozen=True)
class Required:
    """What a reader requires of a certificate's checkpoints, beside proofs that hold.

    Attributes:
        checkpoint: there is one of each ledger that was charged. Witnesses require this, too.
        witnesses: each of them cosigned each checkpoint.
        notes: checkpoints from elsewhere, such as a witness's newest; they replace the certificate's of their ledgers.
        proofs: answers of `GET /v1/ledger/proof`, which lead to `notes`.
    """

    checkpoint: bool = False
    witnesses: tuple[Key, ...] = ()
    notes: tuple[Note, ...] = ()
    proofs: tuple[Mapping[str, Any], ...] = ()


NOTHING = Required()


def faults_of(certificate: Mapping[str, Any], key: bytes, required: Required = NOTHING) -> list[str]:
    """What is wrong with a certificate's checkpoints and with the proofs that its entries are in them.

    Args:
        certificate: the body. One without a checkpoint was issued by an earlier version, or while the ledger was behind
            its record: nothing is wrong with it, unless one is required.
        key: the raw key that signed the certificate.
        required: what else must hold.
    """
    ledger, dataset_id = certificate["ledger"], certificate["dataset"]["id"]
    if isinstance(ledger, list):
        origins = {f"{LOG}/{each['dataset']}" for each in ledger}
        faults = [
            f"block {each['block']}: {fault}"
            for each in ledger
            for fault in _faults(each, each["dataset"], key, required)
        ]
    else:
        origins, faults = {f"{LOG}/{dataset_id}"}, _faults(ledger, dataset_id, key, required)
    foreign = [note.origin for note in required.notes if note.origin not in origins]
    return faults + [f"a checkpoint of {each} was given, but the certificate names no such ledger" for each in foreign]


def _faults(ledger: Mapping[str, Any], dataset_id: str, key: bytes, required: Required) -> list[str]:
    service, origin = Key(LOG, ED25519, key), f"{LOG}/{dataset_id}"
    note = None
    faults = []
    if ledger.get("checkpoint") is not None:
        try:
            note = Note.parse(ledger["checkpoint"])
            faults = _unproven(ledger, note)
        except (KeyError, TypeError, ValueError) as error:
            return [f"the checkpoint or its proofs cannot be read: {error}"]
        if note.origin != origin:
            faults.append("the checkpoint is of another ledger")
        if note.signed_by(service) is None:
            faults.append("the key that signed the certificate did not sign the checkpoint")
    for required_note in (each for each in required.notes if each.origin == origin):
        if required_note.signed_by(service) is None:
            faults.append("the key that signed the certificate did not sign the checkpoint that was given")
        same = note is not None and (note.size, note.root) == (required_note.size, required_note.root)
        if not same and not any(_leads(each, ledger, note, required_note) for each in required.proofs):
            faults.append(f"no proof leads to the checkpoint of {required_note.size} entries that was given")
        note = required_note
    if note is None:
        return ["it has no checkpoint"] if required.checkpoint or required.witnesses else []
    lacking = [each.name for each in required.witnesses if note.signed_by(each) is None]
    return faults + [f"{each} did not cosign the checkpoint of {note.size} entries" for each in lacking]


def _unproven(ledger: Mapping[str, Any], note: Note) -> list[str]:
    """What the proofs of a ledger's entries do not show of its checkpoint. Raises KeyError, TypeError, ValueError."""
    proofs = [(each["entry"], leaf_of(each["hash"]), decoded(each["path"])) for each in ledger["proofs"]]
    entries = {each["entry"]: each["hash"] for each in ledger["proofs"]}
    faults = []
    if entries.get(ledger["entry_seq"]) != ledger["head"]:
        faults.append("no proof is of the entry that settled the job")
    for entry, leaf, path in proofs:
        if not includes(entry - 1, note.size, leaf, path, note.root):
            faults.append(f"entry {entry} is not in the checkpoint's tree")
    return faults


def _leads(proof: Mapping[str, Any], ledger: Mapping[str, Any], note: Note | None, required_note: Note) -> bool:
    """Says if a proof leads to a kept checkpoint, from the certificate's own or from the entry that settled the job."""
    try:
        path = decoded(proof["path"])
        if proof["size"] != required_note.size:
            return False
        if proof.get("since") is not None:
            return (
                note is not None
                and proof["since"] == note.size <= required_note.size
                and follows(note.size, note.root, required_note.size, required_note.root, path)
            )
        seq, head = ledger["entry_seq"], ledger["head"]
        return (proof["entry"], proof["hash"]) == (seq, head) and includes(
            seq - 1, required_note.size, leaf_of(head), path, required_note.root
        )
    except (KeyError, TypeError, ValueError):
        return False


def exact(text: str) -> bytes:
    """The bytes of base64 that has one spelling alone: spare bits are zero. Raises ValueError."""
    data = base64.b64decode(text, validate=True)
    if base64.b64encode(data).decode() != text:
        raise ValueError("this is not the base64 of its bytes")
    return data


def decoded(path: Sequence[str]) -> list[bytes]:
    """A proof's hashes, from base64."""
    return [exact(each) for each in path]


def _node(left: bytes, right: bytes) -> bytes:
    return hashlib.sha256(b"\1" + left + right).digest()
