"""API keys: `scrimp_<id>_<secret>`, stored as an HMAC under a pepper that only the API holds.

A key is valid until it is revoked or expires. Rotation gives it a new token under the same id, so that its grants and
jobs stay. The old token stays valid for an overlap, if one is requested. One admin key without an expiry always exists.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

from sqlalchemy import Connection, Row, bindparam, select, update
from sqlalchemy.orm import Session

from app.audit import record as audit
from app.db.database import Database
from app.db.models import ApiKey, table_of
from app.keys.key_limits import OwnLimits
from app.secrets import load_secrets, write_private
from app.settings import Settings
from core.errors import Conflict, Forbidden, InvalidRequest, NotFound, Unauthenticated
from core.ids import new_id, now

Role = Literal["admin", "owner", "analyst", "viewer"]
logger = logging.getLogger(__name__)
NO_SUCH_KEY = "there is no such key"
NOT_HELD = "this key is unknown, expired or revoked: check it, or ask an admin for a new one"
UNLESS_SET = {"weight": 1, "max_priority": 10}
LONGEST_LIFE = timedelta(days=36525)
KEY = table_of(ApiKey).c
BY_ID = select(table_of(ApiKey)).where(KEY.id == bindparam("key"))
# The columns that `check` and `still` read.
CHECKED = [
    KEY.id,
    KEY.name,
    KEY.role,
    KEY.secret_hmac,
    KEY.previous_hmac,
    KEY.previous_until,
    KEY.revoked_at,
    KEY.expires_at,
    KEY.requests_per_minute,
    KEY.max_priority,
    KEY.max_job_s,
]
# Locks the row against others who count its jobs or change it. Inserts of new jobs do not wait.
LOCKED = BY_ID.with_for_update(key_share=True)
KeyLike = ApiKey | Row[Any] | SimpleNamespace  # the ORM's row, or any object with its columns


# The roles that may do what a role may.
AS_MUCH = {"admin": ("admin",), "owner": ("owner", "admin"), "analyst": ("analyst", "owner", "admin")}


@dataclass(frozen=True)
class Caller:
    """An authenticated caller.

    Attributes:
        role: an admin may do everything; an owner registers data; an analyst trains on the data sets granted to it,
            and a viewer looks at them.
        generation: which of the key's tokens was sent, see `generation_of`.
        requests_per_minute: the key's own limit; None for the setting's.
        max_priority: the highest priority of its jobs, among themselves.
        max_job_s: how long one of its jobs may run; None for the workers' setting.
    """

    id: str
    name: str
    role: str
    generation: str = ""
    requests_per_minute: int | None = None
    max_priority: int = 10
    max_job_s: int | None = None

    @property
    def is_admin(self) -> bool:
        """Returns True for an admin's key."""
        return self.role == "admin"

    def may(self, role: str) -> bool:
        """Returns True if the key's role is `role`, or one that may do the same and more."""
        return self.role in AS_MUCH[role]


def digest(pepper: bytes, token: str) -> str:
    """The HMAC under which a token is stored."""
    return hmac.new(pepper, token.encode(), hashlib.sha256).hexdigest()


def generation_of(secret_hmac: str) -> str:
    """A public name for one token of a key; it changes at each rotation and reveals nothing about the token."""
    return hashlib.sha256(b"scrimp/key-generation/v1:" + secret_hmac.encode()).hexdigest()[:16]


def create(
    session: Session,
    pepper: bytes,
    *,
    name: str,
    role: Role,
    created_by: str | None,
    expires_at: datetime | None = None,
    limits: OwnLimits = OwnLimits(),
) -> tuple[ApiKey, str]:
    """Creates a key. Returns it with its token, which is shown once and stored nowhere.

    Raises:
        InvalidRequest: it would expire in the past, or after more than a century.
    """
    if expires_at is not None and not now() < expires_at <= now() + LONGEST_LIFE:
        raise InvalidRequest.at(
            "/expires_at",
            "a key must expire in the future, within a century; leave `expires_at` out for a key that does not expire",
        )
    key_id = new_id("key")
    token = _new_token(key_id)
    key = ApiKey(
        id=key_id,
        name=name,
        role=role,
        secret_hmac=digest(pepper, token),
        created_at=now(),
        created_by=created_by,
        revoked_at=None,
        expires_at=expires_at,
        **_in_columns(limits.model_dump()),
    )
    session.add(key)
    session.flush()
    return key, token


def change(session: Session, key_id: str, limits: Mapping[str, int | None]) -> ApiKey:
    """Sets some of a key's limits, as `OwnLimits` names them; a None takes that limit of its own away. Claims and
    submissions follow at once; jobs that run go on.

    Raises:
        NotFound: there is no such key.
    """
    key = locked(session, key_id)
    if key is None:
        raise NotFound(NO_SUCH_KEY)
    for name, value in _in_columns(limits).items():
        setattr(key, name, value)
    audit.record(session, "key.changed", key.id, limits=dict(limits))
    return key


def _in_columns(limits: Mapping[str, int | None]) -> dict[str, int | None]:
    return {name: UNLESS_SET.get(name) if value is None else value for name, value in limits.items()}


def is_alive(key: KeyLike) -> bool:
    """Returns True if the key is neither revoked nor expired."""
    return key.revoked_at is None and (key.expires_at is None or key.expires_at > now())


def id_in(token: str) -> str:
    """The key id in a token; "" if it is not a token."""
    parts = token.split("_", 3)
    return f"key_{parts[2]}" if len(parts) == 4 and token.startswith("scrimp_key_") else ""


def authenticate(session: Session | Connection, pepper: bytes, token: str) -> Caller:
    """The caller that a token names.

    Raises:
        Unauthenticated: as `check`.
    """
    return check(session.execute(BY_ID, {"key": id_in(token)}).one_or_none(), pepper, token)


def check(key: KeyLike | None, pepper: bytes, token: str) -> Caller:
    """Returns the caller if the token opens the key found under its id.

    Raises:
        Unauthenticated: unknown, malformed, expired or revoked; the error does not say which.
    """
    digest_sent = digest(pepper, token)
    # Looked up and compared even if there is no such key, so that the time taken does not reveal which ids exist.
    tokens = _tokens(key) if key is not None else (digest(pepper, ""),)
    matches = [each for each in tokens if hmac.compare_digest(digest_sent, each)]
    if key is None or not matches or not is_alive(key):
        raise Unauthenticated(NOT_HELD)
    return _caller(key, generation_of(digest_sent))


def renewed(db: Database, peppers: Sequence[bytes], key: KeyLike | None, token: str) -> Caller:
    """Like `check`, for a token whose HMAC is under an older pepper: the HMAC is renewed under the one in use.

    Args:
        peppers: the one in use first.

    Raises:
        Unauthenticated: it is valid under none of the older ones.
    """
    new = digest(peppers[0], token)
    for pepper in peppers[1:]:
        try:
            caller = check(key, pepper, token)
        except Unauthenticated:
            continue
        old = digest(pepper, token)
        with db.write() as session:
            for column in (ApiKey.secret_hmac, ApiKey.previous_hmac):
                session.execute(update(ApiKey).where(ApiKey.id == caller.id, column == old).values({column: new}))
        return replace(caller, generation=generation_of(new))
    raise Unauthenticated(NOT_HELD)


def still(key: KeyLike | None, generation: str) -> Caller:
    """The caller behind an open stream or a dashboard session, if the key and the token that opened it are still valid.

    Raises:
        Unauthenticated: they are not.
    """
    if key is None or not is_alive(key) or generation not in map(generation_of, _tokens(key)):
        raise Unauthenticated(NOT_HELD)
    return _caller(key, generation)


def in_session(key: KeyLike | None, generation: str, sign_outs: int) -> Caller:
    """The caller behind a dashboard session.

    Args:
        sign_outs: the key's count when the session began. A later sign-out has ended the session.

    Raises:
        Unauthenticated: as `still`.
    """
    if key is None or key.sign_outs != sign_outs:
        raise Unauthenticated(NOT_HELD)
    return still(key, generation)


def sign_out(session: Session, key_id: str) -> None:
    """Ends all dashboard sessions of a key."""
    session.execute(update(ApiKey).where(ApiKey.id == key_id).values(sign_outs=ApiKey.sign_outs + 1))


def rotate(session: Session, pepper: bytes, caller: Caller, key_id: str, overlap_s: int) -> tuple[ApiKey, str]:
    """Makes a new token for a key; the key itself or an admin may ask.

    Args:
        overlap_s: how long the previous token still works. A token from before that ends at once.

    Raises:
        NotFound: no such key, or another's.
        Forbidden: a key rotates itself with its newest token only: a leaked old token must not take the key over.
        Conflict: `wrong-state`, it was revoked or has expired, or is a person's.
    """
    key = locked(session, key_id) if caller.is_admin or caller.id == key_id else None
    if key is None:
        raise NotFound(NO_SUCH_KEY)
    if caller.id == key_id and caller.generation != generation_of(key.secret_hmac):
        raise Forbidden("this token was replaced by a rotation: rotate with the newest one")
    if not is_alive(key):
        raise Conflict("wrong-state", "this key was revoked or has expired: make a new one")
    if key.subject is not None:  # a token would outlive the person's groups
        raise Conflict("wrong-state", "this is a person's key, who signs in: make another one for programs")
    token = _new_token(key_id)
    key.previous_hmac = key.secret_hmac if overlap_s else None
    key.previous_until = now() + timedelta(seconds=overlap_s) if overlap_s else None
    key.secret_hmac, key.rotated_at = digest(pepper, token), now()
    return key, token


def revoke(session: Session, key_id: str) -> ApiKey:
    """Ends a key at once and for good.

    Raises:
        Conflict: `last-admin-key`: nobody could make or revoke keys any more.
    """
    # Locks all admin keys in one order: if two are revoked at once, the second revocation sees the first.
    admins = session.scalars(
        select(ApiKey)
        .where(ApiKey.role == "admin")
        .order_by(ApiKey.id)
        .with_for_update(key_share=True)
        .execution_options(populate_existing=True)
    ).all()
    key = session.get(ApiKey, key_id)
    if key is None:
        raise NotFound(NO_SUCH_KEY)
    if key.revoked_at is not None:
        return key
    other_admins = [each for each in admins if each is not key and is_alive(each)]
    # If only keys that expire were left, the last of them would end by itself.
    lasting = [each for each in other_admins if each.expires_at is None]
    if key.role == "admin" and is_alive(key) and not (lasting if key.expires_at is None else other_admins):
        raise Conflict("last-admin-key", "this is the last admin key that does not expire: make another one first")
    key.revoked_at = now()
    audit.record(session, "key.revoked", key.id)
    return key


def locked(session: Session, key_id: str) -> ApiKey | None:
    """Reads a key's current state and locks its row as `LOCKED` does."""
    return session.get(ApiKey, key_id, with_for_update={"key_share": True}, populate_existing=True)


def list_keys(session: Session) -> list[ApiKey]:
    """Every key, including revoked ones."""
    return list(session.scalars(select(ApiKey).order_by(ApiKey.created_at, ApiKey.id)))


def ensure_admin_key(db: Database, settings: Settings) -> Path:
    """Writes the first admin key to its own file (0600; `home/admin.key`), once; returns the file.

    If the file is lost or does not open this database, makes a new admin key: anybody who can write the home folder
    owns the service anyway.
    """
    path = settings.admin_key_path
    peppers = load_secrets(settings, "api_key_pepper")
    with db.write() as session:
        for pepper in peppers if path.exists() else ():
            try:
                authenticate(session, pepper, path.read_text().strip())
                return path
            except Unauthenticated:
                continue
        key, token = create(session, peppers[0], name="admin", role="admin", created_by=None)
        audit.record(session, "key.created", key.id, role=key.role)
        write_private(path, token + "\n", overwrite=True)
    return path


def renew_admin_file(settings: Settings, key_id: str, token: str) -> None:
    """Puts the new token of a rotated key into the first admin key's file, if that file holds this key."""
    path = settings.admin_key_path
    try:
        stored = path.read_text()
    except (OSError, UnicodeDecodeError):
        return
    if stored.startswith(f"scrimp_{key_id}_"):
        try:
            write_private(path, token + "\n", overwrite=True)
        except OSError as error:  # the response holds the token all the same, and nothing else does
            logger.error("%s could not be renewed: %s", path.name, type(error).__name__)


def _tokens(key: KeyLike) -> tuple[str, ...]:
    """The HMACs of the tokens that open this key now."""
    if key.previous_hmac is None or key.previous_until is None or key.previous_until <= now():
        return (key.secret_hmac,)
    return (key.secret_hmac, key.previous_hmac)


def _new_token(key_id: str) -> str:
    return f"scrimp_{key_id}_{secrets.token_urlsafe(32)}"


def _caller(key: KeyLike, generation: str) -> Caller:
    limits = (key.requests_per_minute, key.max_priority, key.max_job_s)
    return Caller(key.id, key.name, key.role, generation, *limits)
