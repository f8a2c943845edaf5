"""People who sign in at the identity provider: each has one key, which has no token.

    first sign-in   makes the key; grants, jobs and audit entries name it like any other
    each sign-in    sets role and name to what the provider says now, and the key's end to LIFE from now
    refused         no group has a role any more: the key ends, and with it its sessions, streams and webhooks

A person's key is never the last admin key: it expires unless its person comes back.
"""

from __future__ import annotations

from datetime import timedelta

from sqlalchemy import select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from app.audit import record as audit
from app.db.database import Database
from app.db.models import ApiKey
from app.identity.provider import Identity, SignInRefused
from app.keys import service as keys
from app.keys.service import Caller, Role
from app.settings import Settings
from core.ids import now

LIFE = timedelta(days=30)
ROLES: tuple[Role, ...] = ("admin", "owner", "analyst", "viewer")  # the strongest first
NO_ROLE = "no group of yours has a role in this service: ask an admin"


def role_of(settings: Settings, identity: Identity) -> Role | None:
    """The strongest role that the settings give to one of a person's groups."""
    roles = {role for group, role in settings.oidc_roles.items() if group in identity.groups}
    return next((role for role in ROLES if role in roles), None)


def sign_in(db: Database, settings: Settings, pepper: bytes, identity: Identity) -> tuple[Caller, int]:
    """Signs a person in: returns the caller, and the key's number of earlier sign-outs, for the session's cookie.

    Raises:
        SignInRefused: no group of theirs has a role, or their key was revoked.
    """
    role = role_of(settings, identity)
    for last in (False, True):
        try:
            with db.write() as session:
                key = _known(session, identity)
                if role is None:
                    if key is not None:
                        _end(session, key)
                    signed_in = None
                else:
                    signed_in = _enter(session, pepper, key, identity, role)
                if signed_in is not None:
                    audit.authenticated(signed_in[0].id)
                    audit.record(session, "dashboard.signed_in", signed_in[0].id)
                else:
                    audit.record(session, "dashboard.signed_in", None if key is None else key.id, "refused")
            break
        except IntegrityError:  # another request made this person's key at the same moment
            if last:
                raise
    if signed_in is None:
        raise SignInRefused(NO_ROLE if role is None else "your access to this service was revoked: ask an admin")
    return signed_in


def _known(session: Session, identity: Identity) -> ApiKey | None:
    return session.scalars(
        select(ApiKey)
        .where(ApiKey.issuer == identity.issuer, ApiKey.subject == identity.subject)
        .with_for_update(key_share=True)
    ).one_or_none()


def _enter(
    session: Session, pepper: bytes, key: ApiKey | None, identity: Identity, role: Role
) -> tuple[Caller, int] | None:
    """Makes or renews a person's key; None if it was revoked, which is final."""
    if key is None:
        key, _unused = keys.create(session, pepper, name=identity.name, role=role, created_by=None)
        key.issuer, key.subject = identity.issuer, identity.subject
        audit.record(session, "key.created", key.id, role=role)
    elif key.revoked_at is not None:
        return None
    elif key.role != role:
        # What an open stream or another session of this person may do changes with their next statement.
        audit.record(session, "key.changed", key.id, role=role)
    key.name, key.role, key.expires_at = identity.name, role, now() + LIFE
    session.flush()
    return keys.still(key, keys.generation_of(key.secret_hmac)), key.sign_outs


def _end(session: Session, key: ApiKey) -> None:
    """Ends a person's key until they sign in with a role again."""
    keys.sign_out(session, key.id)
    if key.expires_at is None or key.expires_at > now():
        key.expires_at = now()
