"""When something signed existed, as a witness tells: its signature is in a log whose checkpoint the witness cosigned.

    digest of an envelope     SHA-256(signature, 64 bytes ‖ payload)
    leaf of the log           as that of a ledger's entry, over the digest
    proof (a file)            {"checkpoint": note, "entry": place from 1, "path": [base64, …]}

Nobody without the key could write such a digest down: so at the witness's time somebody with the key had signed this.
Whose log it is does not matter, nor who signs its checkpoint, nor who writes the service's database.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from scrimp.recompute import is_signed_by
from scrimp.transparency import Key, Note, NotProven, decoded, includes, leaf_of

Json = Mapping[str, Any]


@dataclass(frozen=True)
class Inclusion:
    """A proof that a digest is in the tree of a checkpoint. `entry`: its place, from 1."""

    note: Note
    entry: int
    path: tuple[bytes, ...]

    @classmethod
    def of(cls, document: Json) -> Inclusion:
        """Reads one. Raises NotProven if it is none."""
        try:
            path = tuple(decoded(document["path"]))
            return cls(Note.parse(document["checkpoint"]), int(document["entry"]), path)
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise NotProven(f"this is no proof of when something was signed: {error!r}") from None

    def has(self, digest: str) -> bool:
        """True if it proves this digest."""
        return includes(self.entry - 1, self.note.size, leaf_of(digest), self.path, self.note.root)


def digest_of(envelope: Json) -> str:
    """The digest of an envelope's first signature, whoever made it. Raises NotProven if it is no envelope."""
    try:
        signature = base64.b64decode(envelope["signatures"][0]["sig"], validate=True)
        return hashlib.sha256(signature + base64.b64decode(envelope["payload"], validate=True)).hexdigest()
    except (KeyError, IndexError, TypeError, ValueError):
        raise NotProven("this holds no signed envelope") from None


def digests_of(envelope: Json, public_key: str) -> list[str]:
    """The digests of an envelope: of each signature of this key, base64, that is over it."""
    raw, payload = base64.b64decode(public_key, validate=True), base64.b64decode(envelope["payload"], validate=True)
    signatures = [each for each in envelope["signatures"] if is_signed_by({**envelope, "signatures": [each]}, raw)]
    return [hashlib.sha256(base64.b64decode(each["sig"], validate=True) + payload).hexdigest() for each in signatures]


def cosigned_at(envelope: Json, public_key: str, proofs: Sequence[Inclusion], witnesses: Sequence[Key]) -> int | None:
    """When one of these witnesses first cosigned a checkpoint with an envelope, in seconds since 1970; None: no proof
    says."""
    digests = digests_of(envelope, public_key)
    notes = [each.note for each in proofs if any(each.has(digest) for digest in digests)]
    times = [note.signed_by(witness) for note in notes for witness in witnesses]
    return min((each for each in times if each is not None), default=None)
