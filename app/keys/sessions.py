"""A dashboard session: a signed cookie made from an API key, and the token that proves a request is from our own pages.

The cookie holds the key's id, a name of the sent token (not the token), the number of earlier sign-outs, and the time
of signing; that of a person who signed in at the identity provider also its end. The key is looked up at every request,
so that a revoked, rotated or expired key stops at once. The form's
token is an HMAC of the visitor's own cookie, which another site can neither read nor make.
"""

from __future__ import annotations

import hashlib
import hmac
import time
from dataclasses import dataclass

from itsdangerous import BadSignature, TimestampSigner

from app.db.database import Database
from app.keys import service
from app.keys.service import Caller, KeyLike
from app.secrets import load_secret
from app.settings import Settings
from core.errors import Unauthenticated

SESSION_COOKIE = "scrimp_session"
CSRF_HEADER = "X-CSRF-Token"
NOT_SIGNED_IN = "sign in first"


def cookie_for(settings: Settings, caller: Caller, sign_outs: int, hours: float | None = None) -> str:
    """The value of a new session's cookie.

    Args:
        hours: until its end, if that may come before the settings' hours.
    """
    end = "" if hours is None else f".{int(time.time() + hours * 3600)}"
    return _signer(settings).sign(f"{caller.id}.{caller.generation}.{sign_outs}{end}").decode()


@dataclass(frozen=True)
class Signed:
    """What a session's cookie says: see `service.in_session`."""

    key_id: str
    generation: str
    sign_outs: int

    def caller(self, key: KeyLike | None) -> Caller:
        """The caller, if the key, given as its row, still holds.

        Raises:
            Unauthenticated: it does not.
        """
        return service.in_session(key, self.generation, self.sign_outs)


def signed_in(cookie: str, settings: Settings) -> Signed:
    """What a cookie says; the key is not looked up.

    Raises:
        Unauthenticated: no session, an expired or forged one.
    """
    try:
        signed = _signer(settings).unsign(cookie, max_age=int(settings.session_hours * 3600)).decode()
        key_id, generation, sign_outs, *ends = signed.split(".")
        if any(time.time() >= int(end) for end in ends):
            raise Unauthenticated(NOT_SIGNED_IN)
        return Signed(key_id, generation, int(sign_outs))
    except (BadSignature, ValueError):  # ValueError: signed by an older version
        raise Unauthenticated(NOT_SIGNED_IN) from None


def caller_of(cookie: str, db: Database, settings: Settings) -> Caller:
    """The caller of a session's cookie.

    Raises:
        Unauthenticated: as `signed_in`, or its key is no longer valid.
    """
    signed = signed_in(cookie, settings)
    with db.quick_read() as connection:
        return signed.caller(connection.execute(service.BY_ID, {"key": signed.key_id}).one_or_none())


def form_token(settings: Settings, cookie: str) -> str:
    """HMAC of a cookie: bound to this browser's session, and nothing has to be stored."""
    key = load_secret(settings, "session_key")
    return hmac.new(key, b"scrimp/dashboard/csrf/v1" + cookie.encode(), hashlib.sha256).hexdigest()


def is_form_token(settings: Settings, cookie: str, token: str) -> bool:
    """Returns True if the token belongs to the cookie."""
    return hmac.compare_digest(form_token(settings, cookie).encode(), token.encode())


def _signer(settings: Settings) -> TimestampSigner:
    key = load_secret(settings, "session_key")
    return TimestampSigner(
        key, salt=b"scrimp/dashboard/session/v1", key_derivation="hmac", digest_method=hashlib.sha256
    )
