"""The identity provider: OpenID Connect's authorization code flow with PKCE (the extra `oidc`).

    browser ──GET /dashboard/sign-in──▶ Scrimp ──303──▶ provider: state, nonce, S256(verifier)
    browser ──GET …/callback?code&state─▶ Scrimp ──code, verifier──▶ provider's token endpoint ──▶ ID token

state, nonce and verifier are HMACs of one random value in the visitor's cookie, so nothing is stored and another
browser's code is refused. The ID token alone says who signed in: its issuer, audience, nonce and times are checked, and
its signature under the provider's published keys with an asymmetric algorithm.

Sources: OpenID Connect Core 3.1.3.7 and Discovery 4.3; RFC 9207 (`iss` in answers); RFC 9700.
"""

from __future__ import annotations

import base64
import hashlib
import threading
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode, urlsplit

import anyio

from app.identity.provider_requests import NoAnswer, Requests
from app.settings import Settings
from core.errors import RequestError, ServiceError, Unavailable

# Never `none`, and never an HMAC: its key would be public.
ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "Ed25519", "EdDSA")
ASYMMETRIC = ("RSA", "EC", "OKP")
ENDPOINTS = ("authorization_endpoint", "token_endpoint", "jwks_uri")
LOOPBACK = ("127.0.0.1", "::1", "localhost")
AWAY = "the identity provider does not answer: try again later"
KEPT_S = 600.0  # the provider's metadata and keys
WAIT_S = 1.0  # for another visitor's request for them: whoever waits holds a thread of the service
REFETCH_S = 30.0  # an unknown key id fetches the keys again, at most this often
LEEWAY_S = 60  # between the two clocks
LOOK_S = 0.1  # for a place that became free
# Codes that are exchanged for ID tokens at once. Anybody may begin a sign-in and bring a junk code, and the provider
# may be slow: so they hold threads of their own, and whoever comes from one network holds a few of them.
EXCHANGES, OF_NETWORK = 32, 4


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


class _Places:
    """Of callbacks that are under way: one for each begun sign-in, OF_NETWORK for one network, EXCHANGES in all."""

    def __init__(self) -> None:
        self._lock, self._taken = threading.Lock(), dict[str, str]()  # state → network

    @asynccontextmanager
    async def one(self, state: str, network: str) -> AsyncIterator[None]:
        """Waits for a place without a thread. Raises Unavailable if there is none within WAIT_S."""
        ends = time.monotonic() + WAIT_S
        while not self._take(state, network):
            if time.monotonic() >= ends:
                raise Unavailable("many people sign in at the same time: try again in a moment")
            await anyio.sleep(LOOK_S)
        try:
            yield
        finally:
            with self._lock:
                del self._taken[state]

    def _take(self, state: str, network: str) -> bool:
        with self._lock:
            of_network = sum(each == network for each in self._taken.values())
            if state in self._taken or of_network >= OF_NETWORK or len(self._taken) >= EXCHANGES:
                return False
            self._taken[state] = network
            return True


class Provider:
    """One provider. Safe to share between threads. It is asked at the first sign-in, so that the API starts without it.

    Raises:
        ServiceError: the extra `oidc` is not installed, a setting is missing, or the client's secret cannot be read.
    """

    def __init__(self, settings: Settings) -> None:
        try:
            import joserfc  # noqa: F401, PLC0415 - optional
        except ImportError:
            raise ServiceError("SCRIMP_OIDC_ISSUER needs the extra: pip install 'scrimp[oidc]'") from None
        if not (settings.oidc_client_id and settings.oidc_redirect_url and settings.oidc_roles):
            raise ServiceError(
                "SCRIMP_OIDC_ISSUER needs SCRIMP_OIDC_CLIENT_ID, SCRIMP_OIDC_REDIRECT_URL and SCRIMP_OIDC_ROLES too"
            )
        self._settings = settings
        _secret(settings)
        self._issuer = settings.oidc_issuer
        self._lock, self.places = threading.Lock(), _Places()
        self.threads = anyio.CapacityLimiter(EXCHANGES)  # of callbacks, one for each place
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
        self._secret()  # before the person leaves: they could not come back
        endpoint = str(self._known().document["authorization_endpoint"])
        challenge = hashlib.sha256(proof.verifier.encode()).digest()
        query = {
            "response_type": "code",
            "client_id": self._settings.oidc_client_id,
            "redirect_uri": self._settings.oidc_redirect_url,
            "scope": self._settings.oidc_scopes,
            "state": proof.state,
            "nonce": proof.nonce,
            "code_challenge": base64.urlsafe_b64encode(challenge).decode().rstrip("="),
            "code_challenge_method": "S256",
        }
        return f"{endpoint}{'&' if '?' in endpoint else '?'}{urlencode(query)}"

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
        secret = self._secret()
        form = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": self._settings.oidc_redirect_url,
            "code_verifier": proof.verifier,
        }
        client = self._settings.oidc_client_id
        methods = metadata.document.get("token_endpoint_auth_methods_supported", ["client_secret_basic"])
        credentials = (client, secret) if secret is not None and "client_secret_basic" in methods else None
        if credentials is None:
            form |= {"client_id": client} | ({} if secret is None else {"client_secret": secret})
        try:
            status, token = Requests().post(metadata.document["token_endpoint"], form, credentials)
        except NoAnswer:
            raise Unavailable(AWAY) from None
        if status < 500 and "error" in token:  # its text is the provider's
            raise SignInRefused("the provider did not accept this sign-in: begin again")
        if status != 200:
            raise Unavailable(AWAY)
        id_token = token.get("id_token")
        if not isinstance(id_token, str):
            raise SignInRefused("the provider sent no ID token: is `openid` among SCRIMP_OIDC_SCOPES?")
        return id_token

    def _secret(self) -> str | None:
        """The client's secret, read at each use, as it may be rotated. Raises Unavailable."""
        try:
            return _secret(self._settings)
        except ServiceError as error:
            raise Unavailable(error.message) from None

    def _read(self, id_token: str, nonce: str) -> Identity:
        """Checks an ID token and reads its claims."""
        claims = self._verified(id_token, nonce)
        audience = claims["aud"]
        has_others = isinstance(audience, list) and audience != [self._settings.oidc_client_id]
        if claims.get("azp", self._settings.oidc_client_id) != self._settings.oidc_client_id or has_others:
            raise SignInRefused("the ID token is for another application")
        subject = claims["sub"]
        if not isinstance(subject, str) or not 0 < len(subject) <= 255:
            raise SignInRefused("the ID token names nobody")
        groups = claims.get(self._settings.oidc_groups_claim, [])
        listed = groups if isinstance(groups, list) else [groups]
        return Identity(
            self._issuer, subject, label(claims, self._issuer), frozenset(each for each in listed if type(each) is str)
        )

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
        metadata = self._metadata
        if metadata is not None and time.monotonic() - metadata.at_s <= older_s:
            return metadata
        if not self._lock.acquire(timeout=WAIT_S):
            if metadata is None:
                raise Unavailable(AWAY)
            return metadata
        try:
            now_s = time.monotonic()
            if self._metadata is None or now_s - self._metadata.at_s > older_s:
                self._metadata = self._fetched(now_s)
            return self._metadata
        finally:
            self._lock.release()

    def _fetched(self, now_s: float) -> _Metadata:
        from joserfc.errors import JoseError  # noqa: PLC0415 - optional
        from joserfc.jwk import KeySet  # noqa: PLC0415

        requests = Requests()
        try:
            document = requests.get(f"{self._issuer.rstrip('/')}/.well-known/openid-configuration")
            if document.get("issuer") != self._issuer:  # exactly: a trailing slash is another issuer
                raise Unavailable("the identity provider calls itself by another name than SCRIMP_OIDC_ISSUER")
            for name in ENDPOINTS:
                self._require_safe(name, document.get(name))
            keys = requests.get(document["jwks_uri"])["keys"]
            usable = [each for each in keys if each.get("use", "sig") == "sig" and each.get("kty") in ASYMMETRIC]
            return _Metadata(document, KeySet.import_key_set({"keys": usable}), now_s)
        except NoAnswer:
            raise Unavailable(AWAY) from None
        except (JoseError, ValueError, KeyError, TypeError, AttributeError):
            raise Unavailable("the identity provider does not answer as OpenID Connect says: try again later") from None

    def _require_safe(self, name: str, url: object) -> None:
        """An endpoint that receives codes and secrets is reached over TLS, or on this machine if the issuer is too."""
        parts = urlsplit(url if isinstance(url, str) else "")
        local = parts.scheme == "http" and parts.hostname in LOOPBACK and urlsplit(self._issuer).scheme == "http"
        if not (parts.scheme == "https" or local) or not parts.hostname:
            raise Unavailable(f"the identity provider's {name} is not an https address")


def _secret(settings: Settings) -> str | None:
    """The client's secret, if the settings name its file.

    Raises:
        ServiceError: it cannot be read, or is empty.
    """
    path = settings.oidc_client_secret_file
    if path is None:
        return None
    try:
        text = path.read_text().strip()
    except OSError as error:
        raise ServiceError(f"SCRIMP_OIDC_CLIENT_SECRET_FILE cannot be read: {error.strerror}") from None
    except ValueError:
        raise ServiceError("SCRIMP_OIDC_CLIENT_SECRET_FILE is not text") from None
    if not text:
        raise ServiceError("SCRIMP_OIDC_CLIENT_SECRET_FILE is empty")
    return text


def label(claims: Mapping[str, Any], issuer: str) -> str:
    """The person's name for readers, with eight digits of a hash of issuer and subject.

    At many providers people choose their names. The digits tell such a person from every other person and, with the
    word before them, from every key of that name.
    """
    digits = hashlib.sha256(f"{issuer}\n{claims['sub']}".encode()).hexdigest()[:8]
    return f"{_name(claims)} (person {digits})"


def _name(claims: Mapping[str, Any]) -> str:
    for name in ("preferred_username", "email", "name", "sub"):
        text = claims.get(name)
        if isinstance(text, str) and (printable := "".join(filter(str.isprintable, text)).strip()[:100]):
            return printable
    return "a person"
