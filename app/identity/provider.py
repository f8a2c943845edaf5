"""The identity provider: OpenID Connect's authorization code flow with PKCE (the extra `oidc`).

    browser ──GET /dashboard/sign-in──▶ Scrimp ──303──▶ provider: state, nonce, S256(verifier)
    browser ──GET …/callback?code&state─▶ Scrimp ──code, verifier──▶ provider's token endpoint ──▶ ID token

state, nonce and verifier are HMACs of one random value in the visitor's cookie, so nothing is stored and another
browser's code is refused. The ID token alone says who signed in: its issuer, audience, nonce and times are checked, and
its signature under the provider's published keys with an asymmetric algorithm.

Sources: OpenID Connect Core 3.1.3.7 and Discovery 4.3; RFC 9207 (`iss` in answers); RFC 9700.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from app.settings import Settings
from core.errors import RequestError, ServiceError, Unavailable

if TYPE_CHECKING:
    import httpx

# Never `none`, and never an HMAC: its key would be public.
ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "Ed25519", "EdDSA")
ASYMMETRIC = ("RSA", "EC", "OKP")
ENDPOINTS = ("authorization_endpoint", "token_endpoint", "jwks_uri")
LOOPBACK = ("127.0.0.1", "::1", "localhost")
TIMEOUT_S = 10.0
KEPT_S = 600.0  # the provider's metadata and keys
WAIT_S = 1.0  # for another visitor's request for them: whoever waits holds a thread of the service
REFETCH_S = 30.0  # an unknown key id fetches the keys again, at most this often
LEEWAY_S = 60  # between the two clocks
MAX_BYTES = 1024 * 1024  # of a document of the provider


class SignInRefused(RequestError):
    """The provider's answer proves nobody's identity. The message names no part of the answer."""

    code = "sign-in-refused"
    status = 403
    title = "The sign-in was refused"


@dataclass(frozen=True)
class Proof:
    """What binds an answer of the provider to the browser that asked (`app.dashboard.single_sign_on`)."""

    state: str
    nonce: str
    verifier: str


@dataclass(frozen=True)
class Identity:
    """Who signed in: the provider's claims that are used."""

    issuer: str
    subject: str
    name: str
    groups: frozenset[str]


@dataclass(frozen=True)
class _Metadata:
    """The provider's published document, and its keys."""

    document: Mapping[str, Any]
    keys: Any  # joserfc's KeySet
    at_s: float


class Provider:
    """One provider. Safe to share between threads. It is asked at the first sign-in, so that the API starts without it.

    Raises:
        ServiceError: the extra `oidc` is not installed, or a setting is missing.
    """

    def __init__(self, settings: Settings) -> None:
        try:
            import authlib  # noqa: F401, PLC0415 - optional
            import joserfc  # noqa: F401, PLC0415
        except ImportError:
            raise ServiceError("SCRIMP_OIDC_ISSUER needs the extra: pip install 'scrimp[oidc]'") from None
        if not (settings.oidc_client_id and settings.oidc_redirect_url and settings.oidc_roles):
            raise ServiceError(
                "SCRIMP_OIDC_ISSUER needs SCRIMP_OIDC_CLIENT_ID, SCRIMP_OIDC_REDIRECT_URL and SCRIMP_OIDC_ROLES too"
            )
        self._settings = settings
        self._issuer = settings.oidc_issuer
        self._lock = threading.Lock()
        self._metadata: _Metadata | None = None

    @classmethod
    def of(cls, settings: Settings) -> Provider | None:
        """The provider of the settings, if they name one."""
        return cls(settings) if settings.oidc_issuer else None

    def address(self, proof: Proof) -> str:
        """Where a browser is sent to sign in.

        Raises:
            Unavailable: the provider cannot be reached, or is not the one that the settings name.
        """
        with self._client() as client:
            url, _ = client.create_authorization_url(
                self._known().document["authorization_endpoint"],
                state=proof.state,
                nonce=proof.nonce,
                code_verifier=proof.verifier,
            )
        return str(url)

    def identity(self, code: str, issuer: str | None, proof: Proof) -> Identity:
        """Redeems an authorization code, and returns whom its ID token names.

        Args:
            issuer: the answer's `iss`, if it has one: another provider's answer is refused before its code is sent.
            proof: of the browser that brought the code; its state is checked by the caller.

        Raises:
            SignInRefused: the code or the ID token is not valid.
            Unavailable: as `address`.
        """
        metadata = self._known()
        always = metadata.document.get("authorization_response_iss_parameter_supported") is True
        if issuer != self._issuer and (issuer is not None or always):
            raise SignInRefused("this answer is not the configured provider's")
        return self._read(self._redeem(metadata, code, proof), proof.nonce)

    def _redeem(self, metadata: _Metadata, code: str, proof: Proof) -> str:
        """Exchanges a code for an ID token."""
        import httpx  # noqa: PLC0415 - optional, as authlib
        from authlib.common.errors import AuthlibBaseError  # noqa: PLC0415

        try:
            with self._client(metadata) as client:
                token = client.fetch_token(
                    metadata.document["token_endpoint"],
                    grant_type="authorization_code",
                    code=code,
                    code_verifier=proof.verifier,
                )
        except AuthlibBaseError:  # its text is the provider's
            raise SignInRefused("the provider did not accept this sign-in: begin again") from None
        except (httpx.HTTPError, ValueError):
            raise Unavailable("the identity provider does not answer: try again later") from None
        found = token.get("id_token")
        if not isinstance(found, str):
            raise SignInRefused("the provider sent no ID token: is `openid` among SCRIMP_OIDC_SCOPES?")
        return found

    def _read(self, id_token: str, nonce: str) -> Identity:
        """Checks an ID token and reads its claims."""
        claims = self._verified(id_token, nonce)
        audience = claims["aud"]
        others = isinstance(audience, list) and audience != [self._settings.oidc_client_id]
        if claims.get("azp", self._settings.oidc_client_id) != self._settings.oidc_client_id or others:
            raise SignInRefused("the ID token is for another application")
        subject = claims["sub"]
        if not isinstance(subject, str) or not 0 < len(subject) <= 255:
            raise SignInRefused("the ID token names nobody")
        groups = claims.get(self._settings.oidc_groups_claim, [])
        listed = groups if isinstance(groups, list) else [groups]
        return Identity(self._issuer, subject, _label(claims), frozenset(each for each in listed if type(each) is str))

    def _verified(self, id_token: str, nonce: str) -> dict[str, Any]:
        """The claims of an ID token that the provider signed for this sign-in."""
        from joserfc import jwt  # noqa: PLC0415 - optional
        from joserfc.errors import InvalidKeyIdError, JoseError  # noqa: PLC0415

        rules = jwt.JWTClaimsRegistry(
            leeway=LEEWAY_S,
            iss={"essential": True, "value": self._issuer},
            sub={"essential": True},
            aud={"essential": True, "value": self._settings.oidc_client_id},
            exp={"essential": True},
            iat={"essential": True},
            nonce={"essential": True, "value": nonce},
        )
        metadata = self._known()
        try:
            try:
                token = jwt.decode(id_token, metadata.keys, algorithms=ALGORITHMS)
            except InvalidKeyIdError:  # the provider may have a new key
                token = jwt.decode(id_token, self._known(older_s=REFETCH_S).keys, algorithms=ALGORITHMS)
            rules.validate(token.claims)
        except (JoseError, ValueError, TypeError):
            raise SignInRefused("the ID token is not valid for this sign-in: begin again") from None
        claims: dict[str, Any] = token.claims
        return claims

    def _known(self, older_s: float = KEPT_S) -> _Metadata:
        """The provider's metadata, fetched anew by one visitor at a time if it is older than this."""
        known = self._metadata
        if known is not None and time.monotonic() - known.at_s <= older_s:
            return known
        if not self._lock.acquire(timeout=WAIT_S):
            if known is None:
                raise Unavailable("the identity provider does not answer: try again later")
            return known
        try:
            now_s = time.monotonic()
            if self._metadata is None or now_s - self._metadata.at_s > older_s:
                self._metadata = self._fetched(now_s)
            return self._metadata
        finally:
            self._lock.release()

    def _fetched(self, now_s: float) -> _Metadata:
        import httpx  # noqa: PLC0415 - optional, as authlib
        from joserfc.errors import JoseError  # noqa: PLC0415
        from joserfc.jwk import KeySet  # noqa: PLC0415

        try:
            with httpx.Client(timeout=TIMEOUT_S, follow_redirects=False) as client:
                document = _json(client, f"{self._issuer.rstrip('/')}/.well-known/openid-configuration")
                if document.get("issuer") != self._issuer:  # exactly: a trailing slash is another issuer
                    raise Unavailable("the identity provider calls itself by another name than SCRIMP_OIDC_ISSUER")
                for name in ENDPOINTS:
                    self._require_safe(name, document.get(name))
                keys = _json(client, document["jwks_uri"])["keys"]
            usable = [each for each in keys if each.get("use", "sig") == "sig" and each.get("kty") in ASYMMETRIC]
            return _Metadata(document, KeySet.import_key_set({"keys": usable}), now_s)
        except (httpx.HTTPError, JoseError, ValueError, KeyError, TypeError, AttributeError):
            raise Unavailable("the identity provider does not answer as OpenID Connect says: try again later") from None

    def _require_safe(self, name: str, url: object) -> None:
        """An endpoint that receives codes and secrets is reached over TLS, or on this machine if the issuer is too."""
        parts = urlsplit(url if isinstance(url, str) else "")
        local = parts.scheme == "http" and parts.hostname in LOOPBACK and urlsplit(self._issuer).scheme == "http"
        if not (parts.scheme == "https" or local) or not parts.hostname:
            raise Unavailable(f"the identity provider's {name} is not an https address")

    def _client(self, metadata: _Metadata | None = None) -> Any:
        """Authlib's client, which makes requests as the provider wants them."""
        from authlib.integrations.httpx_client import OAuth2Client  # noqa: PLC0415 - optional

        secret_file = self._settings.oidc_client_secret_file
        secret = None if secret_file is None else secret_file.read_text().strip()
        methods = ["client_secret_basic"]
        if metadata is not None:
            methods = metadata.document.get("token_endpoint_auth_methods_supported", methods)
        basic = "client_secret_basic" in methods
        return OAuth2Client(
            self._settings.oidc_client_id,
            secret,
            token_endpoint_auth_method="none"
            if secret is None
            else ("client_secret_basic" if basic else "client_secret_post"),
            scope=self._settings.oidc_scopes,
            redirect_uri=self._settings.oidc_redirect_url,
            code_challenge_method="S256",
            timeout=TIMEOUT_S,
            follow_redirects=False,
        )


def _json(client: httpx.Client, url: str) -> dict[str, Any]:
    """A document of the provider. Raises httpx.HTTPError or ValueError."""
    with client.stream("GET", url, headers={"Accept": "application/json"}) as answer:
        answer.raise_for_status()
        body = b""
        for piece in answer.iter_bytes():
            body += piece
            if len(body) > MAX_BYTES:
                raise ValueError("the document is too large")
    found = json.loads(body)
    if not isinstance(found, dict) or not answer.is_success:
        raise ValueError("this is not a JSON object")
    return found


def _label(claims: Mapping[str, Any]) -> str:
    """The person's name for readers. It identifies nobody: issuer and subject do."""
    for name in ("preferred_username", "email", "name", "sub"):
        text = claims.get(name)
        if isinstance(text, str) and (label := "".join(filter(str.isprintable, text)).strip()[:100]):
            return label
    return "a person"
