"""The service's signed documents, and the keys that signed them."""

from __future__ import annotations

from typing import Any

from scrimp.administered import Resource


class SigningKey(Resource):
    """A public key for certificates: base64 of the raw key."""

    id: str
    algorithm: str
    public_key: str
    first_used_at: str


class SignedCertificate(Resource):
    """A certificate with its Ed25519 signature over the canonical JSON, and the public key (base64).

    `envelope`: the same as an in-toto statement in a DSSE envelope, for other tools; None for certificates of earlier
    versions.
    """

    certificate: dict[str, Any]
    signature: str
    public_key: str
    algorithm: str
    envelope: dict[str, Any] | None = None


class Checkpoint(Resource):
    """A ledger's newest checkpoint, a signed note: keep it outside the service, and `ledger verify --checkpoint` later.

    Attributes:
        size: how many entries it covers.
        root: base64 of their tree's root.
        checkpoint: the note, with the cosignatures of witnesses.
    """

    dataset: str
    size: int
    root: str
    checkpoint: str


class Proof(Resource):
    """A proof about the tree of the first `size` entries; `scrimp.transparency` checks it.

    Attributes:
        entry, hash: the entry that is in the tree; None: the proof is about `since`.
        since: the size of the tree that this one begins with.
        path: hashes in base64.
    """

    dataset: str
    size: int
    entry: int | None = None
    hash: str | None = None
    since: int | None = None
    path: list[str]
