"""An attempt's keys: derived from the server's secret and a salt, never stored, never chosen by a caller."""

from __future__ import annotations

import hashlib
from typing import Literal, get_args

from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from core.errors import PrivacyError

KEY_BYTES = 32
Purpose = Literal["noise", "sampler", "release", "init", "dropout", "order", "views"]  # an attempt has these keys
PublicPurpose = Literal["directions"]  # no secret key has it
SupervisorPurpose = Literal["checkpoint"]  # and its supervisor alone this one
PURPOSES = (*get_args(Purpose), *get_args(SupervisorPurpose))


def derive_key(secret: bytes, key_id: str, salt: bytes, purpose: str) -> bytes:
    """HKDF-SHA256(secret, salt, info = "scrimp/v1/<key id>/<purpose>").

    Without the secret, keys of different salts, key ids or purposes look independent. `purpose` comes last and holds no
    slash, so no two pairs of key id and purpose share an info string.

    Args:
        secret: the server's noise secret, at least 32 random bytes.
        key_id: names the secret, so that it can be rotated.
        salt: random bytes stored with the job, at least 16.
        purpose: "noise" (gradients), "sampler" (batches), "release" (noisy sums), "init" (initial parameters),
            "dropout" (masks), "order" (of a batch's records), "views" (of augmented records) or "checkpoint"
            (seals saved states).

    Returns:
        32 bytes, for AES-256.

    Raises:
        PrivacyError: the secret or the salt is missing or too short, or the purpose is unknown. There is no default.

    Source: RFC 5869.
    """
    if len(secret) < KEY_BYTES or len(salt) < 16:
        raise PrivacyError("a key needs a secret of at least 32 bytes and a salt of at least 16")
    if purpose not in PURPOSES:
        raise PrivacyError("unknown key purpose")
    info = f"scrimp/v1/{key_id}/{purpose}".encode()
    return HKDF(algorithm=SHA256(), length=KEY_BYTES, salt=salt, info=info).derive(secret)


def public_key_of_seed(seed: int, purpose: Purpose | PublicPurpose) -> bytes:
    """A key that everyone can compute, for repeatable runs on PUBLIC data and for directions. It protects nothing.

    Args:
        seed: 0 ≤ seed < 2⁶³.
        purpose: what the key is for.
    """
    return hashlib.sha256(f"scrimp/v1/public-seed/{seed}/{purpose}".encode()).digest()


def checked_key(key: bytes | None) -> bytes:
    """Returns the key if it is valid.

    Raises:
        PrivacyError: no key, a wrong length, or all zeros. No key is ever made up instead.
    """
    if key is None or len(key) != KEY_BYTES or not any(key):
        raise PrivacyError("a generator needs its own key of 32 bytes, not all zero")
    return key
