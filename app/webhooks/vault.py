"""Webhooks' signing secrets: made, and stored encrypted under a key that the API and the relay hold."""

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
    """A stored secret is not one of this key and this webhook."""


def new_secret() -> str:
    """A secret as receivers are given it: `whsec_` and 256 random bits in base64."""
    return PREFIX + base64.b64encode(secrets.token_bytes(SECRET_BYTES)).decode()


def encrypt(key: bytes, webhook_id: str, secret: str) -> str:
    """AES-256-GCM under a random nonce; bound to the webhook, so that a row's secret opens no other row."""
    nonce = os.urandom(NONCE_BYTES)
    return base64.b64encode(nonce + AESGCM(key).encrypt(nonce, secret.encode(), webhook_id.encode())).decode()


def decrypt(keys: bytes | Sequence[bytes], webhook_id: str, stored: str) -> str:
    """The secret back.

    Args:
        keys: one key; or the one in use and those that it replaced.

    Raises:
        Unreadable: it was encrypted under another key, for another webhook, or is damaged.
    """
    for key in (keys,) if isinstance(keys, bytes) else keys:
        try:
            sealed = base64.b64decode(stored, validate=True)
            return AESGCM(key).decrypt(sealed[:NONCE_BYTES], sealed[NONCE_BYTES:], webhook_id.encode()).decode()
        except (InvalidTag, ValueError):
            continue
    raise Unreadable("a stored secret cannot be read")
