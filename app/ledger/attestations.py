"""A certificate as others' tools read it: an in-toto Statement in a DSSE envelope.

    {"payloadType": "application/vnd.in-toto+json", "payload": base64, "signatures": [{"keyid": hex, "sig": base64}]}

The payload's bytes are signed, so no reader needs to write JSON as Python does. The payload names the files that the
job delivered, by their SHA-256. Its predicate is the certificate's body.

Sources: in-toto Attestation Framework, Statement v1; Dead Simple Signing Envelope, protocol v1.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

PAYLOAD_TYPE = "application/vnd.in-toto+json"
STATEMENT_TYPE = "https://in-toto.io/Statement/v1"
PREDICATE_TYPE = "https://scrimp.example.org/privacy-certificate/v1"


class NotAuthentic(ValueError):
    """An envelope that is malformed, or that the key did not sign."""


def statement(body: dict[str, Any], files: Mapping[str, str]) -> dict[str, Any]:
    """The statement that a job's files came about as the body says.

    Args:
        body: the certificate's.
        files: name → SHA-256 (hex) of what the job delivered. A job that delivered nothing is named by the ledger entry
            that settled it: a statement has at least one subject.
    """
    ledger = body["ledger"]
    entries = (
        {f"ledger entry {each['entry_seq']} of block {each['block']}": each["head"] for each in ledger}
        if isinstance(ledger, list)
        else {f"ledger entry {ledger['entry_seq']}": ledger["head"]}
    )
    subjects = dict(files) or entries
    return {
        "_type": STATEMENT_TYPE,
        "subject": [{"name": name, "digest": {"sha256": digest}} for name, digest in sorted(subjects.items())],
        "predicateType": PREDICATE_TYPE,
        "predicate": body,
    }


def seal(statement: dict[str, Any], signing_key: Ed25519PrivateKey) -> dict[str, Any]:
    """Signs a statement."""
    payload = json.dumps(statement, ensure_ascii=False).encode()
    signature = signing_key.sign(encoded(PAYLOAD_TYPE, payload))
    return {
        "payloadType": PAYLOAD_TYPE,
        "payload": base64.b64encode(payload).decode(),
        "signatures": [{"keyid": key_id(signing_key.public_key()), "sig": base64.b64encode(signature).decode()}],
    }


def opened(envelope: Mapping[str, Any], public_key: str) -> dict[str, Any]:
    """The statement in an envelope that this key signed.

    Args:
        public_key: base64 of the raw key that the reader trusts.

    Raises:
        NotAuthentic: no signature is the key's over these bytes, or they are no in-toto statement.
    """
    try:
        payload = _bytes(envelope["payload"])
        signed = encoded(envelope["payloadType"], payload)
        key = Ed25519PublicKey.from_public_bytes(_bytes(public_key))
        if not any(_signed(key, each, signed) for each in envelope["signatures"]):
            raise NotAuthentic("this key did not sign the statement")
        found: dict[str, Any] = json.loads(payload)
        types = envelope["payloadType"], found["_type"], found["predicateType"]
    except NotAuthentic:
        raise
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise NotAuthentic(f"this is not a DSSE envelope: {error!r}") from None
    if types != (PAYLOAD_TYPE, STATEMENT_TYPE, PREDICATE_TYPE):
        raise NotAuthentic("the payload is not a statement about a certificate")
    return found


def encoded(payload_type: str, payload: bytes) -> bytes:
    """What a DSSE signature covers: the pre-authentication encoding.

    >>> encoded("http://example.com/HelloWorld", b"hello world")
    b'DSSEv1 29 http://example.com/HelloWorld 11 hello world'
    """
    kind = payload_type.encode()
    return b"DSSEv1 %d %s %d %s" % (len(kind), kind, len(payload), payload)


def key_id(public_key: Ed25519PublicKey) -> str:
    """A hint which key signed: the SHA-256 of the raw key. Readers verify with the key that they trust."""
    return hashlib.sha256(public_key.public_bytes_raw()).hexdigest()


def _signed(key: Ed25519PublicKey, signature: Mapping[str, Any], signed: bytes) -> bool:
    try:
        key.verify(_bytes(signature["sig"]), signed)
    except (InvalidSignature, KeyError, TypeError, AttributeError, ValueError):
        return False
    return True


def _bytes(text: str) -> bytes:
    return base64.b64decode(text.encode("ascii"), validate=True)
