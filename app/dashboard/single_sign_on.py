"""/dashboard/sign-in: people sign in at the identity provider (`app.identity`).

The visitor's cookie holds one random value and where to go afterwards, signed. state, nonce and PKCE's verifier are
HMACs of that value: a callback that another browser began, or one that is older than PENDING_S, proves nothing.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
from dataclasses import dataclass
from functools import partial
from typing import Annotated, cast

from anyio import to_thread
from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import RedirectResponse
from itsdangerous import BadSignature, TimestampSigner

from app.audit import record as audit
from app.dashboard.page import PageRoute, render
from app.dashboard.viewer import SIGN_IN, safe_next, set_cookie, sign_in
from app.db.database import Database
from app.identity import people
from app.identity.provider import Proof, Provider, SignInRefused
from app.keys.auth import limits_of
from app.secrets import load_secret
from app.settings import Settings
from app.web.deps import Db, ServiceSettings
from app.web.ratelimit import network_of
from app.web.route_operation import Page
from core.errors import NotFound

router = APIRouter(prefix=SIGN_IN, include_in_schema=False, route_class=PageRoute)
COOKIE = "scrimp_sign_in"
PENDING_S = 600
Text = Annotated[str, Query(max_length=2000)]


@router.get("")
@Page("anyone")
def begin(request: Request, settings: ServiceSettings, next: str | None = None) -> Response:
    """Sends the visitor to the identity provider."""
    provider = _provider(request)
    seed = secrets.token_urlsafe(32)
    response = RedirectResponse(provider.address(_proof(settings, seed)), 303)
    pending = _signer(settings).sign(f"{seed} {safe_next(next)}").decode()
    # Not strict: the provider's page leads back here.
    set_cookie(response, request, COOKIE, pending, PENDING_S, path=SIGN_IN, strict=False)
    return response


@router.get("/callback")
@Page("anyone", audit="dashboard.signed_in")
async def callback(
    request: Request,
    db: Db,
    settings: ServiceSettings,
    state: Text = "",
    code: Text = "",
    iss: Text | None = None,
    error: Text = "",
) -> Response:
    """Takes the provider's answer, and opens a session.

    Raises:
        SignInRefused: it is not the answer to what this browser asked, it proves nobody, or they have no role here.
        TooManyRequests: too many refused answers came from this address.
        Unavailable: the provider does not answer, or too many people sign in at once.
    """
    provider = _provider(request)
    answer = _Answer(state, code, iss, error)
    work = partial(_answered, request, db, settings, provider, answer)
    async with provider.places.one(state, network_of(request.client.host if request.client else None)):
        return await to_thread.run_sync(work, limiter=provider.threads)  # a slow provider holds none that others need


@dataclass(frozen=True)
class _Answer:
    """What the provider had the browser bring."""

    state: str
    code: str
    iss: str | None
    error: str


def _answered(request: Request, db: Database, settings: Settings, provider: Provider, answer: _Answer) -> Response:
    address = request.client.host if request.client else None
    try:
        seed, following = _pending(settings, request.cookies.get(COOKIE, ""))
        proof = _proof(settings, seed)
        if not hmac.compare_digest(proof.state.encode(), answer.state.encode()):
            raise SignInRefused("this sign-in did not begin in this browser, or another one began since: begin again")
        if answer.error or not answer.code:
            raise SignInRefused("the identity provider did not sign you in")
        identity = provider.identity(answer.code, answer.iss, proof)
    except SignInRefused:
        limits_of(request).failure(address)
        with db.write() as session:
            audit.record(session, "dashboard.signed_in", outcome="failed")
        raise
    caller, sign_outs = people.sign_in(db, settings, request.app.state.peppers[0], identity)
    # A page of ours leads on, not a redirect: a browser sends the session's strict cookie only on our own pages' links.
    response = render(request, "signed_in.html", viewer=None, following=following)
    sign_in(response, request, caller, sign_outs, hours=settings.oidc_session_hours)
    response.delete_cookie(COOKIE, path=SIGN_IN)
    return response


def _provider(request: Request) -> Provider:
    provider = cast("Provider | None", request.app.state.provider)
    if provider is None:
        raise NotFound("people sign in with API keys here: no identity provider is set")
    return provider


def _pending(settings: Settings, cookie: str) -> tuple[str, str]:
    """The random value of a begun sign-in, and where to go afterwards."""
    try:
        seed, following = _signer(settings).unsign(cookie, max_age=PENDING_S).decode().split(" ")
    except (BadSignature, ValueError):
        raise SignInRefused("this sign-in did not begin in this browser, or took too long: begin again") from None
    return seed, safe_next(following)


def _proof(settings: Settings, seed: str) -> Proof:
    """What only the service can derive from a visitor's random value."""
    key = load_secret(settings, "session_key")
    state, nonce, verifier = (
        base64.urlsafe_b64encode(hmac.digest(key, f"scrimp/sign-in/{use}/v1 {seed}".encode(), hashlib.sha256))
        .decode()
        .rstrip("=")
        for use in ("state", "nonce", "verifier")
    )
    return Proof(state, nonce, verifier)


def _signer(settings: Settings) -> TimestampSigner:
    key = load_secret(settings, "session_key")
    return TimestampSigner(
        key, salt=b"scrimp/dashboard/sign-in/v1", key_derivation="hmac", digest_method=hashlib.sha256
    )
