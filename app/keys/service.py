"""API keys: `scrimp_<id>_<secret>`, stored as an HMAC under a pepper that only the API holds."""

from __future__ import annotations

import hashlib
import hmac
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from sqlalchemy import select
from sqlalchemy.orm import Session

from app.db.engine import Database
from app.db.models import ApiKey
from app.errors import NotFound, Unauthenticated
from app.ids import new_id, now
from app.secrets import load_secret, write_private
from app.settings import Settings

Role = Literal["admin", "owner", "analyst"]


@dataclass(frozen=True)
class Caller:
    """Who asks. An admin may do everything; an owner registers data; an analyst trains on it."""

    id: str
    name: str
    role: str

    def may(self, role: str) -> bool:
        return self.role in ("admin", role)


def digest(pepper: bytes, token: str) -> str:
    return hmac.new(pepper, token.encode(), hashlib.sha256).hexdigest()


def create(session: Session, pepper: bytes, *, name: str, role: Role, created_by: str | None) -> tuple[ApiKey, str]:
    """A new key and its token, which is shown once and stored nowhere."""
    key_id = new_id("key")
    token = f"scrimp_{key_id}_{secrets.token_urlsafe(32)}"
    key = ApiKey(
        id=key_id,
        name=name,
        role=role,
        secret_hmac=digest(pepper, token),
        created_at=now(),
        created_by=created_by,
        revoked_at=None,
    )
    session.add(key)
    session.flush()
    return key, token


def authenticate(session: Session, pepper: bytes, token: str) -> Caller:
    """The caller that a token names.

    Raises:
        Unauthenticated: unknown, malformed or revoked; which of them is not said.
    """
    parts = token.split("_", 3)
    key = session.get(ApiKey, f"key_{parts[2]}") if len(parts) == 4 and token.startswith("scrimp_key_") else None
    # Compared also where there is no such key, so that the time taken does not tell which ids exist.
    matches = hmac.compare_digest(digest(pepper, token), key.secret_hmac if key else digest(pepper, ""))
    if key is None or not matches or key.revoked_at is not None:
        raise Unauthenticated("this key is unknown or was revoked")
    return Caller(key.id, key.name, key.role)


def caller_of(session: Session, key_id: str) -> Caller:
    """The caller behind a signed dashboard session, if its key still holds."""
    key = session.get(ApiKey, key_id)
    if key is None or key.revoked_at is not None:
        raise Unauthenticated("this key is unknown or was revoked")
    return Caller(key.id, key.name, key.role)


def revoke(session: Session, key_id: str) -> ApiKey:
    key = session.get(ApiKey, key_id)
    if key is None:
        raise NotFound("there is no such key")
    if key.revoked_at is None:
        key.revoked_at = now()
    return key


def list_keys(session: Session) -> list[ApiKey]:
    return list(session.scalars(select(ApiKey).order_by(ApiKey.created_at, ApiKey.id)))


def ensure_admin_key(db: Database, settings: Settings) -> Path:
    """Writes the first admin key to `home/admin.key` (0600), once; returns the file.

    Where the file is lost or does not open this database, a new admin key is made: whoever can write the home folder
    owns the service anyhow.
    """
    path = settings.home / "admin.key"
    pepper = load_secret(settings, "api_key_pepper")
    with db.write() as session:
        if path.exists():
            try:
                authenticate(session, pepper, path.read_text().strip())
                return path
            except Unauthenticated:
                pass
        _key, token = create(session, pepper, name="admin", role="admin", created_by=None)
        write_private(path, token + "\n", overwrite=True)
    return path
