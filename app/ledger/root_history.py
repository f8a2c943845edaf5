"""The history of the signing keys that the offline root signed, as the operator keeps it beside the service.

The service has no root key: it shows the file, and signs with no key that the root does not name. Whoever reads the
history checks it under the root's key that they keep (scrimp/key_history.py).
"""

from __future__ import annotations

import base64
import json
from datetime import datetime

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from pydantic import AwareDatetime, ConfigDict, Field, ValidationError

from app.ledger.transparency.attestations import Envelope, Signature, encoded
from app.secrets import SecretError
from app.settings import Settings
from core.contracts.base import Document
from core.ids import now

PAYLOAD_TYPE = "application/vnd.scrimp.signing-keys+json"


class Period(Document):
    """When a key signs, and since when it is revoked and why."""

    model_config = ConfigDict(extra="ignore")

    public_key: str
    start: AwareDatetime = Field(alias="from")
    until: AwareDatetime | None
    revoked_from: AwareDatetime | None
    reason: str | None = None

    def has(self, at: datetime) -> bool:
        """True if the root trusts what the key signs at this time."""
        ends = [each for each in (self.until, self.revoked_from) if each is not None]
        return self.start <= at and all(at < each for each in ends)


class History(Document):
    """All signing keys that the root named, the oldest first. `number`: how often it has signed."""

    model_config = ConfigDict(extra="ignore")

    number: int
    keys: tuple[Period, ...]


def envelope_of(settings: Settings) -> Envelope | None:
    """The history in its envelope; None: this service has no root.

    Raises:
        SecretError: the file cannot be read, or is none.
    """
    path = settings.signing_history
    if path is None:
        return None
    try:
        return Envelope.model_validate(json.loads(path.read_text()))
    except OSError as error:
        raise SecretError(f"SCRIMP_SIGNING_HISTORY cannot be read: {error.strerror}") from None
    except ValueError:
        raise SecretError("SCRIMP_SIGNING_HISTORY is no history of signing keys (scrimp keys root)") from None


def history_of(settings: Settings) -> History | None:
    """What the root signed; None: this service has no root.

    Raises:
        SecretError: the settings name no root, or its history cannot be read.
    """
    envelope = envelope_of(settings)
    if envelope is None:
        return None
    try:
        payload = base64.b64decode(envelope.payload, validate=True)
        (signature,) = (Signature.model_validate(each) for each in envelope.signatures)
        root = Ed25519PublicKey.from_public_bytes(base64.b64decode(settings.signing_root, validate=True))
        root.verify(base64.b64decode(signature.sig, validate=True), encoded(PAYLOAD_TYPE, payload))
        return History.model_validate_json(payload)
    except (InvalidSignature, ValidationError, ValueError):
        raise SecretError("SCRIMP_SIGNING_ROOT, a root's public key, did not sign SCRIMP_SIGNING_HISTORY") from None


def require_named(settings: Settings, public_key: str) -> None:
    """Refuses to sign with a key that the root does not name for this time, where there is a root.

    Raises:
        SecretError: it does not; or as `history_of`.
    """
    history = history_of(settings)
    if history is None:
        return
    if not any(each.public_key == public_key and each.has(now()) for each in history.keys):
        raise SecretError(
            f"the root does not name the signing key {public_key} for now: scrimp keys root sign-rotation, and put "
            "its history at SCRIMP_SIGNING_HISTORY"
        )
