"""The signatures of certificates, checked on the reader's side with `cryptography` alone."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from typing import Any

from scrimp.errors import MissingPackage
from scrimp.recompute import TYPES, is_signed_by
from scrimp.transparency import NOTHING, Required, faults_of

Json = dict[str, Any]
UNSIGNED = "the signature does NOT hold"
UNPROVEN = "the proof does NOT hold"


def is_authentic(document: Mapping[str, Any], public_key: str, required: Required = NOTHING) -> bool:
    """Says if this key signed a document and all proofs hold: `problem_of` finds none. Same arguments and errors."""
    return problem_of(document, public_key, required) is None


def problem_of(document: Mapping[str, Any], public_key: str | None = None, required: Required = NOTHING) -> str | None:
    """What does not hold of a certificate or of a DSSE envelope; None if all does.

    All signatures must, an envelope inside must hold the same body, and the proofs inside must show that the job's
    entries are in the signed checkpoint.

    Args:
        document: a certificate as the service gave it, or its envelope alone.
        public_key: base64 of the key that the reader trusts. Without it a certificate's own key is used: this shows
            that the document is intact, not who signed it: a forger's key signs a forger's document.
        required: what else must hold of its checkpoints.

    Raises:
        MissingPackage: `cryptography` is not installed.
        ValueError: an envelope, which has no key of its own, needs `public_key`.
    """
    document_copy = dict(document)
    if "payloadType" in document_copy and public_key is None:
        raise ValueError("an envelope holds no public key: give the one that you trust, from the service's owner")
    try:
        import cryptography  # noqa: F401 - said here, once, what is missing
    except ImportError:
        raise MissingPackage("checking a signature", "cryptography", "scrimp-client[verify]") from None
    try:
        if "payloadType" in document_copy:
            key, statement = _raw(str(public_key)), _statement(document_copy, _raw(str(public_key)))
            body = None if statement is None else statement["predicate"]
        else:
            key, body = _raw(str(document_copy["public_key"])), _intact(document_copy, public_key)
        if body is None:
            return UNSIGNED
        faults = [] if body.get("version") == 1 and required == NOTHING else faults_of(body, key, required)
        return f"{UNPROVEN}: {'; '.join(faults[:3])}" if faults else None
    except (KeyError, TypeError, AttributeError, ValueError):
        return UNSIGNED


def _intact(document: Json, public_key: str | None) -> Json | None:
    """The body of a certificate whose signatures hold; None if one does not."""
    key, body = document["public_key"], document["certificate"]
    if document["algorithm"] != "Ed25519" or public_key not in (None, key):
        return None
    bare = {name: each for name, each in document.items() if name in ("certificate", "signature")}
    if not is_signed_by(bare, _raw(key)):
        return None
    if body.get("version") == 1:  # issued before there were envelopes
        return body if document.get("envelope") is None else None
    statement = _statement(document["envelope"], _raw(key))
    return body if statement is not None and statement["predicate"] == body else None


def _statement(envelope: Json, key: bytes) -> Json | None:
    """The statement in an envelope that this key signed; None if it did not, or it is about something else."""
    if not is_signed_by(envelope, key):
        return None
    statement: Json = json.loads(base64.b64decode(envelope["payload"], validate=True))
    types = envelope["payloadType"], statement["_type"], statement["predicateType"]
    return statement if types == TYPES else None


def _raw(key: str) -> bytes:
    return base64.b64decode(key, validate=True)
