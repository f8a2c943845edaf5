"""Creates webhooks' signing secrets and encrypts them with a key that the API and the relay hold."""

from __future__ import annotations

import base64
import os
import secrets
from collections.abc import Sequence

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

PREFIX = "whsec_"
SECRET_BYTES = 32
NONCE_BYTES = 12


class Unreadable(Exception):
    """A stored secret does not belong to this key and this webhook."""


def new_secret() -> str:
    """Returns a new secret in the form for receivers: `whsec_` and 256 random bits in base64."""
    return PREFIX + base64.b64encode(secrets.token_bytes(SECRET_BYTES)).decode()


def encrypt(key: bytes, webhook_id: str, secret: str) -> str:
    """Encrypts a secret by AES-256-GCM with a random nonce; bound to the webhook, so it is useless in another row."""
    nonce = os.urandom(NONCE_BYTES)
    return base64.b64encode(nonce + AESGCM(key).encrypt(nonce, secret.encode(), webhook_id.encode())).decode()


def decrypt(keys: bytes | Sequence[bytes], webhook_id: str, stored: str) -> str:
    """Decrypts a stored secret.

    Args:
        keys: one key, or the current key and those that it replaced.

    Raises:
        Unreadable: the secret was encrypted with another key or for another webhook, or it is damaged.
    """
    for key in (keys,) if isinstance(keys, bytes) else keys:
        try:
            sealed = base64.b64decode(stored, validate=True)
            return AESGCM(key).decrypt(sealed[:NONCE_BYTES], sealed[NONCE_BYTES:], webhook_id.encode()).decode()
        except (InvalidTag, ValueError):
            continue
    raise Unreadable("a stored secret cannot be read")
