"""The public keys of certificates. Only the relay holds the private key, and publishes the public one.

Whoever can write the database can add a key here: a careful reader keeps the trusted key outside.
"""

from __future__ import annotations

import base64
import hashlib
from functools import partial

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from sqlalchemy.exc import IntegrityError

from app.db.database import Database
from app.db.models import SigningKey
from app.ledger.root_history import require_named
from app.ledger.signer import CommandSigner, Signer, WhileNamed, public_key
from app.secrets import load_secret
from app.settings import Settings
from core.ids import now


def signing_key(settings: Settings) -> Signer:
    """What signs, in the process that holds the private key or may run the program that does.

    Under a root it signs only while the root names it, which is asked at each signature.

    Raises:
        SecretError: as `load_secret`; or SCRIMP_SIGN_COMMAND has no public key; or the root does not name the key.
    """
    if settings.sign_command:
        key: Signer = CommandSigner.of(settings)
    else:
        key = Ed25519PrivateKey.from_private_bytes(load_secret(settings, "signing_key"))
    require_named(settings, public_key(key))
    if settings.signing_history is None:
        return key
    return WhileNamed(key, partial(require_named, settings, public_key(key)))


def publish(db: Database, signing_key: Signer) -> None:
    """Publishes the key that signs certificates from now on; a known key stays as it is."""
    text = public_key(signing_key)
    key_id = hashlib.sha256(base64.b64decode(text)).hexdigest()[:16]
    try:
        with db.write() as session:
            if session.get(SigningKey, key_id) is None:
                session.add(SigningKey(id=key_id, public_key=text, first_used_at=now()))
    except IntegrityError:
        return  # another relay published it at the same moment
