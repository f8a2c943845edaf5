"""Rotation of the service's secrets: `scrimp secrets rotate NAME`, and `finish NAME` once nothing needs the old one.

                    rotate                                          finish
    api_key_pepper  a key's token moves to the new pepper at its    drops the old one: keys that were not used in
                    next use                                        between are dead, an admin rotates them
    session_key     replaced: signed-in users sign in again         -
    webhook_key     new secrets are encrypted under the new one     encrypts the others anew, drops the old one
    parts_key       put on top: each sealed file's data key is  clears the old wraps, drops the old one
                    wrapped under it, too
    data_hmac_key   put on top: every stored hash is renewed        renews what an interrupted rotation left
    signing_key     replaced; both public keys are published        -
    noise_secret    new jobs are keyed by the new one               drops the old one: jobs that began under it
                                                                    draw anew, charged again out of the same hold

Older secrets are kept in the same file, on the lines below the new one. Processes read their secrets at start: restart
each of them between `rotate` and `finish`.
"""

from __future__ import annotations

import os
import secrets
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from sqlalchemy import select
from sqlalchemy.exc import SQLAlchemyError

from app.audit import record as audit
from app.datasets import hashes
from app.db.database import Database
from app.db.models import Webhook
from app.ledger.signer import public_key
from app.ledger.signing_keys import publish
from app.renewal import resealing
from app.secrets import NAMES, SECRET_BYTES, SecretError, load_secrets, secret_id, write_private
from app.settings import Settings
from app.webhooks import encryption

KEPT = ("api_key_pepper", "webhook_key", "parts_key", "data_hmac_key", "noise_secret")
PUBLIC_KEY_FILE = "signing_key.pub"


@dataclass(frozen=True)
class State:
    """A secret by its public names. `older` are the ones kept, the newest first."""

    name: str
    id: str
    older: tuple[str, ...]


def states(settings: Settings) -> list[State]:
    """The state of every secret that this process can read."""
    states_of = []
    for name in NAMES:
        try:
            first, *older = map(secret_id, load_secrets(settings, name))
        except SecretError:
            continue
        states_of.append(State(name, first, tuple(older)))
    return states_of


def rotate(db: Database, settings: Settings, name: str) -> State:
    """Replaces the secret in use by a new one, and renews what can be renewed at once.

    Raises:
        SecretError: there is no such secret, it is not in a file, or a rotation of it is not finished.
    """
    if name == "signing_key" and settings.sign_command:
        raise SecretError("SCRIMP_SIGN_COMMAND signs, not the secret: change it and SCRIMP_SIGN_PUBLIC_KEY instead")
    path = _file(settings, name)
    old = load_secrets(settings, name)
    if len(old) > 1 and name != "data_hmac_key":
        raise SecretError(f"the last rotation of {name} is not finished: run scrimp secrets finish {name} first")
    new = (secrets.token_bytes(SECRET_BYTES), *(old if name in KEPT else ()))
    if name == "signing_key":
        # Both are published before the new one signs its first certificate.
        for secret in (old[0], new[0]):
            publish(db, Ed25519PrivateKey.from_private_bytes(secret))
    _write(path, new)
    if name == "signing_key" and settings.secrets_dir is None:
        text = public_key(Ed25519PrivateKey.from_private_bytes(new[0]))
        write_private(settings.home / PUBLIC_KEY_FILE, text + "\n", overwrite=True)
    if name == "data_hmac_key":
        _renew_hashes(db, new)
    if name == "parts_key":
        resealing.rewrap(settings, drop=False)
    return _noted(db, name, new, "secret.rotated")


def finish(db: Database, settings: Settings, name: str) -> State:
    """Ends all dependence on older secrets, and drops them. Repeating it changes nothing.

    Raises:
        SecretError: there is no such secret, or it is not in a file.
        encryption.Unreadable: a webhook's secret is encrypted under a key that no longer exists.
    """
    if name == "parts_key":  # first: it needs no right to write the secret's file
        resealing.rewrap(settings, drop=True)
    path = _file(settings, name)
    keys = load_secrets(settings, name)
    if name == "data_hmac_key":
        _renew_hashes(db, keys)
        return State(name, secret_id(keys[0]), tuple(map(secret_id, keys[1:])))
    if name == "webhook_key":
        _encrypt_anew(db, keys)
    if len(keys) > 1:
        _write(path, keys[:1])
    return _noted(db, name, keys[:1], "secret.rotation_finished")


def seal(db: Database, settings: Settings) -> int:
    """Seals what is stored in plaintext, and notes it in the audit log, also if it ends half-way. Returns how many
    files it sealed.

    Raises: as `resealing.seal`.
    """
    try:
        count = resealing.seal(settings)
    except Exception:
        with suppress(SQLAlchemyError), db.write() as session:  # the disk may be full
            audit.record(session, "files.sealed", outcome="failed")
        raise
    with db.write() as session:
        audit.record(session, "files.sealed", files=count)
    return count


def _file(settings: Settings, name: str) -> Path:
    if name not in NAMES:
        raise SecretError(f"there is no secret {name!r}; choose one of {', '.join(NAMES)}")
    if f"SCRIMP_SECRET_{name.upper()}" in os.environ:
        raise SecretError(f"{name} comes from the environment: change it there (docs/secrets.md has the format)")
    return settings.effective_secrets_dir / name


def _write(path: Path, keys: tuple[bytes, ...]) -> None:
    try:
        write_private(path, "".join(each.hex() + "\n" for each in keys), overwrite=True)
    except OSError as error:
        raise SecretError(
            f"{path} cannot be written ({error.strerror}): run this where the secret files are made"
        ) from None


def _renew_hashes(db: Database, chain: tuple[bytes, ...]) -> None:
    with db.write() as session:
        hashes.renew(session, chain)


def _encrypt_anew(db: Database, keys: tuple[bytes, ...]) -> None:
    with db.write() as session:
        for webhook in session.scalars(select(Webhook).with_for_update()):
            webhook.secret = _anew(keys, webhook.id, webhook.secret)
            if webhook.previous_secret is not None:
                webhook.previous_secret = _anew(keys, webhook.id, webhook.previous_secret)


def _anew(keys: tuple[bytes, ...], webhook_id: str, stored: str) -> str:
    return encryption.encrypt(keys[0], webhook_id, encryption.decrypt(keys, webhook_id, stored))


def _noted(db: Database, name: str, keys: tuple[bytes, ...], action: audit.Action) -> State:
    with db.write() as session:
        audit.record(session, action, name)
    return State(name, secret_id(keys[0]), tuple(map(secret_id, keys[1:])))
