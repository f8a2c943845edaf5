"""Ed25519 signatures over documents: {NAME: body, "signature", "public_key", "algorithm"}.

The signature is over the canonical JSON of the body: sorted keys, no spaces, UTF-8.
"""

from __future__ import annotations

import base64
import binascii
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from app.chain import canonical_json
from app.ledger import signing_keys


def sign(body: dict[str, Any], name: str, signing_key: Ed25519PrivateKey) -> dict[str, Any]:
    """Signs a body; the document holds it under `name`."""
    return {
        name: body,
        "signature": base64.b64encode(signing_key.sign(canonical_json(body))).decode(),
        "public_key": signing_keys.public_key(signing_key),
        "algorithm": "Ed25519",
    }


def holds(document: dict[str, Any], name: str, public_key: str | None = None) -> bool:
    """Returns True if the signature over the body under `name` is valid.

    Args:
        public_key: base64 of the trusted key. Without it the document's own key is used: this proves that the document
            is intact, not who signed it.
    """
    try:
        if document["algorithm"] != "Ed25519" or public_key not in (None, document["public_key"]):
            return False
        key = Ed25519PublicKey.from_public_bytes(base64.b64decode(document["public_key"], validate=True))
        key.verify(base64.b64decode(document["signature"], validate=True), canonical_json(document[name]))
    except (InvalidSignature, KeyError, TypeError, ValueError, binascii.Error):
        return False
    return True
