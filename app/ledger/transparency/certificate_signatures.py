"""Ed25519 signatures over certificates: {"certificate": body, "signature", "public_key", "algorithm"}.

The signature is over the canonical JSON of the body: sorted keys, no spaces, UTF-8.
"""

from __future__ import annotations

import base64
import binascii

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from app.chain import canonical_json
from app.ledger.certificate_documents import Signed
from app.ledger.signer import Signer, public_key, signature


def sign(body: object, signing_key: Signer) -> Signed:
    """Signs a certificate's body, given as JSON."""
    return Signed(
        certificate=body,
        signature=base64.b64encode(signature(signing_key, canonical_json(body))).decode(),
        public_key=public_key(signing_key),
        algorithm="Ed25519",
    )


def holds(document: Signed, public_key: str | None = None) -> bool:
    """Returns True if the signature over the body is valid.

    Args:
        public_key: base64 of the trusted key. Without it the document's own key is used: this proves that the document
            is intact, not who signed it.
    """
    if document.algorithm != "Ed25519" or public_key not in (None, document.public_key):
        return False
    try:
        key = Ed25519PublicKey.from_public_bytes(base64.b64decode(document.public_key, validate=True))
        key.verify(base64.b64decode(document.signature, validate=True), canonical_json(document.certificate))
    except (InvalidSignature, TypeError, ValueError, binascii.Error):
        return False
    return True
