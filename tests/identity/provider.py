"""A real identity provider on loopback: Authlib's authorization server, with PKCE and OpenID Connect, over HTTP.

Its person is whoever `person` says, without a page of its own. A test plays an attacker by `forge`, which makes the ID
token from the claims that an honest provider would sign, or by changing `document`.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import pytest
from authlib.integrations.flask_oauth2 import AuthorizationServer
from authlib.oauth2.rfc6749 import grants
from authlib.oauth2.rfc6749.errors import OAuth2Error
from authlib.oauth2.rfc7636 import CodeChallenge
from flask import Flask, jsonify, request
from joserfc import jwt
from joserfc.jwk import ECKey, RSAKey
from werkzeug.serving import make_server

from app.settings import Settings
from tests import servers

Claims = dict[str, Any]
CALLBACK = "http://testserver/dashboard/sign-in/callback"
CLIENT, SECRET = "scrimp", "a secret of the client"


@cache
def _key() -> RSAKey:
    """One for all providers: to generate it takes a tenth of a second."""
    return RSAKey.generate_key(2048)


class _Client:
    """The one registered application."""

    client_id = CLIENT

    def __init__(self, redirect_uri: str) -> None:
        self.redirect_uri = redirect_uri

    def get_client_id(self) -> str:
        return CLIENT

    def get_default_redirect_uri(self) -> str:
        return self.redirect_uri

    def get_allowed_scope(self, scope: str) -> str:
        return scope

    def check_redirect_uri(self, redirect_uri: str) -> bool:
        return redirect_uri == self.redirect_uri

    def check_client_secret(self, client_secret: str) -> bool:
        return client_secret == SECRET

    def check_endpoint_auth_method(self, method: str, endpoint: str) -> bool:
        return method in ("client_secret_basic", "client_secret_post")

    def check_response_type(self, response_type: str) -> bool:
        return response_type == "code"

    def check_grant_type(self, grant_type: str) -> bool:
        return grant_type == "authorization_code"


class _Code:
    """An authorization code, as Authlib wants it."""

    def __init__(self, payload: Any, person: Claims) -> None:
        data = payload.data
        self.person, self.nonce, self.redirect_uri = person, data.get("nonce"), data["redirect_uri"]
        self.scope, self.code_challenge = data["scope"], data["code_challenge"]
        self.code_challenge_method = data["code_challenge_method"]

    def get_redirect_uri(self) -> str:
        return str(self.redirect_uri)

    def get_scope(self) -> str:
        return str(self.scope)


class LocalProvider:
    """Its state, which tests read and change."""

    def __init__(self, issuer: str) -> None:
        self.issuer = issuer
        self.person: Claims = {"sub": "u-ann", "preferred_username": "ann", "groups": ["ml"]}
        self.key, self.other_key = _key(), ECKey.generate_key("P-256")
        self.key_id = "first"
        self.forge: Callable[[Claims], str] = self.sign
        self.hold: Callable[[], object] = lambda: None  # before it answers with its document
        self.codes: dict[str, _Code] = {}
        self.token_requests: list[dict[str, str]] = []
        self.document: Claims = {
            "issuer": issuer,
            "authorization_endpoint": f"{issuer}/authorize",
            "token_endpoint": f"{issuer}/token",
            "jwks_uri": f"{issuer}/keys",
            "token_endpoint_auth_methods_supported": ["client_secret_basic"],
            "authorization_response_iss_parameter_supported": True,
        }
        self.client = _Client(CALLBACK)

    def sign(self, claims: Claims, **header: str) -> str:
        """What an honest provider does."""
        return jwt.encode({"alg": "RS256", "kid": self.key_id} | header, claims, self.key)

    def public_pem(self) -> bytes:
        """The public key's text: the secret of an attacker who signs with HS256."""
        return self.key.as_pem(private=False)

    def keys(self) -> dict[str, Any]:
        """The published keys, with one that is for encryption and one of a kind that is never used."""
        first = self.key.as_dict(private=False) | {"kid": self.key_id, "use": "sig"}
        encrypts = self.other_key.as_dict(private=False) | {"kid": "encrypts", "use": "enc"}
        shared = {"kty": "oct", "k": base64.urlsafe_b64encode(b"k" * 32).decode().rstrip("="), "kid": "shared"}
        return {"keys": [first, encrypts, shared]}


def _app(provider: LocalProvider) -> Flask:
    app = Flask("identity")

    class CodeGrant(grants.AuthorizationCodeGrant):  # type: ignore[misc]
        TOKEN_ENDPOINT_AUTH_METHODS = ["client_secret_basic", "client_secret_post"]  # noqa: RUF012

        def save_authorization_code(self, code: str, request: Any) -> None:
            provider.codes[code] = _Code(request.payload, dict(request.user))

        def query_authorization_code(self, code: str, client: _Client) -> _Code | None:
            return provider.codes.get(code)

        def delete_authorization_code(self, authorization_code: _Code) -> None:
            provider.codes = {code: each for code, each in provider.codes.items() if each is not authorization_code}

        def authenticate_user(self, authorization_code: _Code) -> Claims:
            return authorization_code.person

    def save_token(token: dict[str, Any], request: Any) -> None:
        code, now_s = request.authorization_code, int(time.time())
        claims = {"iss": provider.issuer, "aud": CLIENT, "iat": now_s, "exp": now_s + 300, "nonce": code.nonce}
        token["id_token"] = provider.forge(claims | code.person)

    server = AuthorizationServer(
        app, query_client=lambda client_id: provider.client if client_id == CLIENT else None, save_token=save_token
    )
    server.register_grant(CodeGrant, [CodeChallenge(required=True)])

    @app.get("/.well-known/openid-configuration")
    def document() -> Any:
        provider.hold()
        return jsonify(provider.document)

    @app.get("/keys")
    def keys() -> Any:
        return jsonify(provider.keys())

    @app.get("/authorize")
    def authorize() -> Any:
        try:
            answer = server.create_authorization_response(
                grant_user=provider.person, grant=server.get_consent_grant(end_user=provider.person)
            )
        except OAuth2Error as error:
            return jsonify(dict(error.get_body())), 400
        answer.headers["location"] += f"&iss={provider.issuer}"
        return answer

    @app.post("/token")
    def token() -> Any:
        provider.token_requests.append(dict(request.form))
        return server.create_token_response()

    return app


def with_provider(settings: Settings, provider: LocalProvider) -> Settings:
    """Settings that name this provider; its client's secret lies in the home."""
    secret = settings.home / "client-secret"
    secret.write_text(SECRET + "\n")
    return settings.model_copy(
        update={
            "allowed_hosts": ["testserver"],
            "oidc_issuer": provider.issuer,
            "oidc_client_id": CLIENT,
            "oidc_client_secret_file": secret,
            "oidc_redirect_url": CALLBACK,
            "oidc_roles": {"ml": "analyst", "data": "owner", "ops": "admin"},
        }
    )


@contextmanager
def local_provider(monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalProvider]:
    """A provider that answers on loopback until the block ends."""
    monkeypatch.setenv("AUTHLIB_INSECURE_TRANSPORT", "true")  # of Authlib's server: it has no TLS here
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        bound.listen()
        port = bound.getsockname()[1]
        provider = LocalProvider(f"http://127.0.0.1:{port}")
        server = make_server("127.0.0.1", port, _app(provider), threaded=True, fd=bound.fileno())
    with servers.answering(server):
        yield provider


def unsigned(claims: Claims) -> str:
    """An ID token with `alg: none`."""
    parts = [json.dumps({"alg": "none", "kid": "first"}).encode(), json.dumps(claims).encode()]
    return ".".join(base64.urlsafe_b64encode(each).decode().rstrip("=") for each in parts) + "."


def by_hmac(claims: Claims, secret: bytes) -> str:
    """An ID token with `alg: HS256` under these bytes."""

    head = json.dumps({"alg": "HS256", "kid": "first"}).encode()
    signed = ".".join(
        base64.urlsafe_b64encode(each).decode().rstrip("=") for each in (head, json.dumps(claims).encode())
    )
    mac = hmac.digest(secret, signed.encode(), hashlib.sha256)
    return f"{signed}.{base64.urlsafe_b64encode(mac).decode().rstrip('=')}"
