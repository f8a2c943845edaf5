"""People sign in at an identity provider: the whole flow against a real one, and whoever tries to cheat.

browser   a visitor of the service; follows the provider's redirect by hand, as a browser would
provider  Authlib's server on loopback (tests/identity/provider.py)
"""

from __future__ import annotations

import gzip
import hashlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any, cast
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest
from anyio import CapacityLimiter, to_thread
from fastapi.testclient import TestClient
from joserfc import jwt
from joserfc.jwk import RSAKey
from sqlalchemy import select

from app.db.database import Database
from app.db.models import ApiKey, AuditEntry
from app.identity import people
from app.identity.provider import Identity, SignInRefused
from app.keys import service as keys
from app.main import create_app
from app.settings import Settings
from app.web.ratelimit import network_of
from core.errors import Conflict, ServiceError
from tests.dashboard.conftest import Browser, token_of
from tests.dashboard.scene import Scene
from tests.identity.provider import (
    CALLBACK,
    CLIENT,
    Claims,
    LocalProvider,
    by_hmac,
    local_provider,
    unsigned,
    with_provider,
)

Visit = Callable[..., Browser]


@pytest.fixture
def provider(monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalProvider]:
    with local_provider(monkeypatch) as made:
        yield made


@pytest.fixture
def scene(db: Database, settings: Settings) -> Scene:
    return Scene(db, settings)


@pytest.fixture
def configured(settings: Settings, provider: LocalProvider) -> Settings:
    return with_provider(settings, provider)


@pytest.fixture
def visit(configured: Settings) -> Iterator[Visit]:
    app = create_app(configured)
    yield lambda address="192.0.2.9": Browser(TestClient(app, follow_redirects=False, client=(address, 50000)))
    app.state.pricing.close()
    app.state.db.close()


def begin(browser: Browser, following: str | None = None) -> str:
    """Starts a sign-in; returns the provider's address."""
    answer = browser.get("/dashboard/sign-in", params={"next": following} if following else {})
    assert answer.status_code == 303
    return str(answer.headers["location"])


def at_provider(address: str) -> str:
    """The callback that the provider leads to, without its host."""
    answer = httpx.get(address, follow_redirects=False)
    assert answer.status_code == 302, answer.text
    parts = urlsplit(answer.headers["location"])
    assert f"{parts.scheme}://{parts.netloc}{parts.path}" == CALLBACK
    return f"{parts.path}?{parts.query}"


def sign_in(browser: Browser, following: str | None = None) -> httpx.Response:
    return browser.get(at_provider(begin(browser, following)))


def is_in(browser: Browser) -> bool:
    return browser.get("/dashboard").status_code == 200


def threads_of(browser: Browser) -> CapacityLimiter:
    """Those of callbacks, in the service that this browser visits."""
    limiter = cast("Any", browser.client.app).state.provider.threads
    assert isinstance(limiter, CapacityLimiter)
    return limiter


def persons(db: Database) -> list[ApiKey]:
    with db.read() as session:
        return list(session.scalars(select(ApiKey).where(ApiKey.subject.is_not(None))))


def test_a_person_signs_in(visit: Visit, provider: LocalProvider, db: Database) -> None:
    browser = visit()
    assert "/dashboard/sign-in" in browser.get("/dashboard/login").text
    answer = sign_in(browser, "/dashboard/datasets")
    assert answer.status_code == 200 and 'content="0; url=/dashboard/datasets"' in answer.text
    cookie = next(each for each in answer.headers.get_list("set-cookie") if each.startswith("scrimp_session="))
    for part in ("HttpOnly", "SameSite=strict", "Path=/;", "Max-Age=3600"):
        assert part in cookie
    page = browser.get("/dashboard")
    assert page.status_code == 200 and "ann" in page.text and "analyst" in page.text
    (key,) = persons(db)
    assert (key.issuer, key.subject, key.role, key.name) == (provider.issuer, "u-ann", "analyst", named(provider))
    with db.read() as session:
        actions = list(session.scalars(select(AuditEntry.action).where(AuditEntry.target == key.id)))
    assert sorted(actions) == ["dashboard.signed_in", "key.created"]
    # PKCE: the provider got a verifier whose hash it had been shown.
    assert provider.token_requests[0]["code_verifier"]
    assert browser.client.post("/dashboard/logout", data={"csrf": token_of(page)}).status_code == 303
    assert not is_in(browser)
    assert sign_in(browser).status_code == 200 and is_in(browser) and len(persons(db)) == 1


def named(provider: LocalProvider, name: str = "ann", subject: str = "u-ann") -> str:
    digits = hashlib.sha256(f"{provider.issuer}\n{subject}".encode()).hexdigest()[:8]
    return f"{name} (person {digits})"


def test_nobody_signs_in_under_anothers_name(visit: Visit, provider: LocalProvider, db: Database, scene: Scene) -> None:
    """At many providers people choose the name that they show."""
    with db.read() as session:
        owner = session.get_one(ApiKey, scene.owner.id).name
    for subject, name in (("u-1", owner), ("u-2", owner), ("u-3", named(provider, owner, "u-1"))):
        provider.person = {"sub": subject, "preferred_username": name, "groups": ["ml"]}
        assert sign_in(visit()).status_code == 200
    with db.read() as session:
        among = ApiKey.subject.is_not(None) | (ApiKey.id == scene.owner.id)
        names = list(session.scalars(select(ApiKey.name).where(among)))
    assert len(set(names)) == len(names) == 4


def test_what_the_provider_is_asked(visit: Visit) -> None:
    asked = parse_qs(urlsplit(begin(visit())).query)
    assert asked["code_challenge_method"] == ["S256"] and len(asked["code_challenge"][0]) == 43
    assert (asked["response_type"], asked["client_id"], asked["redirect_uri"]) == (["code"], [CLIENT], [CALLBACK])
    assert len(asked["state"][0]) == len(asked["nonce"][0]) == 43 and asked["state"] != asked["nonce"]


def test_without_a_provider_there_is_no_such_page(db: Database, settings: Settings) -> None:
    app = create_app(settings.model_copy(update={"allowed_hosts": ["testserver"]}))
    client = TestClient(app, follow_redirects=False)
    assert client.get("/dashboard/sign-in").status_code == 404
    assert client.get("/dashboard/sign-in/callback?code=a&state=b").status_code == 404
    assert "/dashboard/sign-in" not in client.get("/dashboard/login").text
    app.state.pricing.close()
    app.state.db.close()


def test_an_issuer_without_roles_does_not_start(settings: Settings) -> None:
    with pytest.raises(ServiceError, match="SCRIMP_OIDC_ROLES"):
        create_app(settings.model_copy(update={"oidc_issuer": "https://id.example.org"}))


@pytest.mark.parametrize("issuer", ["http://id.example.org", "ftp://x", "http://127.0.0.1.evil.example", "id.example"])
def test_an_issuer_is_reached_over_tls(issuer: str) -> None:
    with pytest.raises(ValueError, match="oidc_issuer"):
        Settings(oidc_issuer=issuer)


@pytest.mark.parametrize(
    "target", ["https://evil.example/", "//evil.example", "/\\evil.example", "/dashboard/../x", "/dashboard/sign-in"]
)
def test_no_open_redirect(visit: Visit, target: str) -> None:
    answer = sign_in(visit(), target)
    assert answer.status_code == 200 and 'content="0; url=/dashboard"' in answer.text and "evil" not in answer.text


# What an attacker makes of the claims that an honest provider would sign.
def _of(**changes: Any) -> Callable[[LocalProvider, Claims], str]:
    return lambda provider, claims: provider.sign({**claims, **changes})


FORGED: dict[str, Callable[[LocalProvider, Claims], str]] = {
    "another issuer": _of(iss="https://evil.example"),
    "the issuer with a slash": lambda provider, claims: provider.sign({**claims, "iss": provider.issuer + "/"}),
    "another audience": _of(aud="another application"),
    "two audiences": _of(aud=[CLIENT, "another application"]),
    "no audience": lambda provider, claims: provider.sign({k: v for k, v in claims.items() if k != "aud"}),
    "another authorized party": _of(azp="another application"),
    "expired": _of(exp=int(time.time()) - 3600),
    "no expiry": lambda provider, claims: provider.sign({k: v for k, v in claims.items() if k != "exp"}),
    "from the future": _of(iat=int(time.time()) + 3600, exp=int(time.time()) + 7200),
    "another nonce": _of(nonce="another sign-in's"),
    "no nonce": lambda provider, claims: provider.sign({k: v for k, v in claims.items() if k != "nonce"}),
    "no subject": lambda provider, claims: provider.sign({k: v for k, v in claims.items() if k != "sub"}),
    "an empty subject": _of(sub=""),
    "a subject that is no text": _of(sub=["u-ann"]),
    "alg none": lambda _, claims: unsigned(claims),
    "HS256 with the public key": lambda provider, claims: by_hmac(claims, provider.public_pem()),
    "HS256 with the published secret": lambda _, claims: by_hmac(claims, b"k" * 32),
    "another key under this key's id": lambda _, claims: jwt.encode(
        {"alg": "RS256", "kid": "first"}, claims, RSAKey.generate_key(2048)
    ),
    "the key that encrypts": lambda provider, claims: jwt.encode(
        {"alg": "ES256", "kid": "encrypts"}, claims, provider.other_key
    ),
    "an unknown key": lambda provider, claims: provider.sign(claims, kid="nobody's"),
    "a changed signature": lambda provider, claims: provider.sign(claims)[:-8] + "AAAAAAAA",
    "not a token": lambda *_: "x.y.z",
    "nothing": lambda *_: "",
}


@pytest.mark.parametrize("name", FORGED)
def test_a_forged_id_token_signs_nobody_in(visit: Visit, provider: LocalProvider, db: Database, name: str) -> None:
    provider.forge = lambda claims: FORGED[name](provider, claims)
    browser = visit()
    answer = sign_in(browser)
    assert answer.status_code == 403 and not is_in(browser) and persons(db) == []
    with db.read() as session:
        entry = session.scalars(select(AuditEntry).where(AuditEntry.action == "dashboard.signed_in")).one()
    assert (entry.outcome, entry.target) == ("failed", None)


def test_what_is_forged_is_all_that_is_wrong(visit: Visit, provider: LocalProvider) -> None:
    """The same way to forge, with nothing changed, signs in: the refusals above are about what they change."""
    provider.forge = lambda claims: _of(azp=CLIENT, aud=[CLIENT])(provider, claims)
    assert sign_in(visit()).status_code == 200


def test_a_code_is_good_once(visit: Visit, provider: LocalProvider) -> None:
    browser, thief = visit(), visit()
    address = begin(browser)
    thief.client.cookies.update(browser.client.cookies)  # even with the cookie
    callback = at_provider(address)
    assert browser.get(callback).status_code == 200
    assert thief.get(callback).status_code == 403 and not is_in(thief)


def test_another_browsers_callback_is_refused(visit: Visit, provider: LocalProvider) -> None:
    """Login CSRF: an attacker has a victim open the callback of the attacker's own sign-in."""
    attacker, victim = visit(), visit()
    callback = at_provider(begin(attacker))
    for prepare in (lambda: None, lambda: begin(victim)):  # the victim began none, or one of their own
        prepare()
        assert victim.get(callback).status_code == 403 and not is_in(victim)
    assert provider.token_requests == []  # the code was not even sent


def test_a_stolen_code_needs_its_verifier(visit: Visit, provider: LocalProvider) -> None:
    """An attacker injects a victim's code into a sign-in of their own: PKCE and the nonce bind it to the victim's."""
    victim, attacker = visit(), visit()
    code = parse_qs(urlsplit(at_provider(begin(victim))).query)["code"][0]
    state = parse_qs(urlsplit(begin(attacker)).query)["state"][0]
    answer = attacker.get("/dashboard/sign-in/callback", params={"code": code, "state": state, "iss": provider.issuer})
    assert answer.status_code == 403 and not is_in(attacker) and len(provider.token_requests) == 1


@pytest.mark.parametrize("issuer", ["https://evil.example", "", None])
def test_another_providers_answer_is_refused_before_its_code_is_sent(
    visit: Visit, provider: LocalProvider, issuer: str | None
) -> None:
    """Mix-up: the provider says that its answers name it (RFC 9207), so one that does not is another's."""
    browser = visit()
    query = parse_qs(urlsplit(at_provider(begin(browser))).query)
    changed = {"code": query["code"][0], "state": query["state"][0]} | ({} if issuer is None else {"iss": issuer})
    assert browser.get("/dashboard/sign-in/callback", params=changed).status_code == 403
    assert provider.token_requests == [] and not is_in(browser)


@pytest.mark.parametrize("change", ["issuer", "endpoint"])
def test_a_provider_that_is_another_is_not_asked(visit: Visit, provider: LocalProvider, change: str) -> None:
    evil = "http://evil.example/token"
    provider.document |= {"issuer": "https://evil.example"} if change == "issuer" else {"token_endpoint": evil}
    answer = visit().get("/dashboard/sign-in")
    assert answer.status_code == 503 and "evil" not in answer.text


def test_a_provider_that_does_not_answer_holds_no_other_visitor(
    visit: Visit, provider: LocalProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Anybody may begin: visitors who wait for it would take all threads of the service."""
    asked, answers = threading.Event(), threading.Event()

    monkeypatch.setattr("app.identity.provider_requests.TOTAL_S", 50.0)

    def hold() -> None:
        asked.set()
        assert answers.wait(40)

    provider.hold = hold
    try:
        with ThreadPoolExecutor(1) as threads:
            first = threads.submit(visit().get, "/dashboard/sign-in")
            assert asked.wait(60)
            assert visit().get("/dashboard/sign-in").status_code == 503 and not first.done()
            answers.set()
            assert first.result(60).status_code == 303
    finally:
        answers.set()


@contextmanager
def peer(answer: Callable[[socket.socket, threading.Event], None]) -> Iterator[tuple[str, threading.Event]]:
    """A server on loopback that answers each connection so; its address, and what ends it."""
    over = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listening, ThreadPoolExecutor(8) as threads:

        def serve(connection: socket.socket) -> None:
            with connection, suppress(OSError):
                connection.recv(65536)
                answer(connection, over)

        def accept() -> None:
            with suppress(OSError):
                while not over.is_set():
                    threads.submit(serve, listening.accept()[0])

        threads.submit(accept)
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}", over
        finally:
            over.set()
            listening.shutdown(socket.SHUT_RDWR)


def dripping(head: bytes) -> Callable[[socket.socket, threading.Event], None]:
    def answer(connection: socket.socket, over: threading.Event) -> None:
        connection.sendall(head)
        while not over.wait(0.02):
            connection.sendall(b"a")

    return answer


def at_once(head: bytes, body: bytes) -> Callable[[socket.socket, threading.Event], None]:
    return lambda connection, _: connection.sendall(head + b"\r\nContent-Length: %d\r\n\r\n" % len(body) + body)


OK = b"HTTP/1.1 200 OK\r\nContent-Type: application/json"
BAD = {
    "a header that never ends": dripping(OK + b"\r\nX: "),
    "a body that never ends": dripping(OK + b"\r\n\r\n{"),
    "no answer": lambda _connection, over: over.wait(),
    "a large answer": at_once(OK, b" " * (1024 * 1024 + 1)),
    "a small answer that is large": at_once(OK + b"\r\nContent-Encoding: gzip", gzip.compress(bytes(10**8))),
    "another kind of answer": at_once(OK, b'["id_token"]'),
    "deep": at_once(OK, b"[" * 10**6),
    "no text": at_once(OK, b"\xff\xfe"),
}


@pytest.mark.every_case
@pytest.mark.parametrize("endpoint", ["token_endpoint", "jwks_uri"])
@pytest.mark.parametrize("name", BAD)
def test_a_provider_that_answers_badly_holds_nobody(
    visit: Visit, provider: LocalProvider, monkeypatch: pytest.MonkeyPatch, name: str, endpoint: str
) -> None:
    """However it drips, and whatever it sends: a request to it ends by one deadline, and is 503 in words."""
    monkeypatch.setattr(
        "app.identity.provider_requests.TOTAL_S", 2.0 if "never" in name or name == "no answer" else 50.0
    )
    browser = visit()
    with peer(BAD[name]) as (address, _):
        provider.document[endpoint] = address
        answer = sign_in(browser) if endpoint == "token_endpoint" else browser.get("/dashboard/sign-in")
    assert answer.status_code == 503 and "the identity provider does not answer" in answer.text


def test_codes_that_anybody_brings_do_not_take_all_threads(
    visit: Visit, provider: LocalProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever began a sign-in has a state; the codes that they bring may be junk, and the provider slow."""
    began = threading.Semaphore(0)

    def hang(_connection: socket.socket, over: threading.Event) -> None:
        began.release()
        over.wait()

    monkeypatch.setattr("app.identity.provider.EXCHANGES", 4)
    monkeypatch.setattr("app.identity.provider.OF_NETWORK", 2)
    monkeypatch.setattr("app.identity.provider_requests.TOTAL_S", 300.0)
    strangers = [visit("192.0.2.1"), visit("192.0.2.1"), visit("192.0.2.1"), visit("192.0.2.2"), visit("192.0.2.3")]
    with ThreadPoolExecutor(8) as threads, peer(hang) as (address, over):
        provider.document["token_endpoint"] = address
        callbacks = [at_provider(begin(browser)) for browser in strangers]
        waiting = [threads.submit(strangers[each].get, callbacks[each]) for each in (0, 1)]
        for _ in waiting:
            assert began.acquire(timeout=60)
        for refused in (0, 2):  # one that is under way already, and a third from that network
            answer = strangers[refused].get(callbacks[refused])
            assert answer.status_code == 503 and "many people sign in" in answer.text
        for each in (3, 4):  # people elsewhere come through to the provider
            waiting.append(threads.submit(strangers[each].get, callbacks[each]))
            assert began.acquire(timeout=60)
        last = visit("192.0.2.4")
        answer = last.get(at_provider(begin(last)))
        assert answer.status_code == 503 and "many people sign in" in answer.text
        assert not any(each.done() for each in waiting)
        over.set()
        assert [each.result(60).status_code for each in waiting] == [503] * 4


def test_codes_that_wait_hold_no_thread(visit: Visit, provider: LocalProvider, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever brings many codes from one network waits for their own places, and not in those of others."""
    began, came, go = threading.Semaphore(0), threading.Semaphore(0), threading.Event()

    def hang(_connection: socket.socket, _over: threading.Event) -> None:
        began.release()
        go.wait(120)

    def network(address: str | None) -> str:
        came.release()
        return network_of(address)

    monkeypatch.setattr("app.identity.provider.OF_NETWORK", 2)
    monkeypatch.setattr("app.identity.provider.WAIT_S", 300.0)
    monkeypatch.setattr("app.identity.provider_requests.TOTAL_S", 300.0)
    monkeypatch.setattr("app.dashboard.single_sign_on.network_of", network)
    strangers = [visit("192.0.2.1") for _ in range(5)]
    person = visit("192.0.2.2")
    threads_of(person).total_tokens = 4
    with ThreadPoolExecutor(8) as threads, peer(hang) as (address, _):
        provider.document["token_endpoint"] = address
        callbacks = [at_provider(begin(browser)) for browser in strangers]
        waiting = [threads.submit(browser.get, callbacks[each]) for each, browser in enumerate(strangers)]
        for _ in strangers:
            assert came.acquire(timeout=60)
        waiting.append(threads.submit(person.get, at_provider(begin(person))))
        for _ in range(3):  # two of theirs, and the person's
            assert began.acquire(timeout=60)
        assert not began.acquire(blocking=False) and threads_of(person).borrowed_tokens == 3
        go.set()
        assert [each.result(60).status_code for each in waiting] == [503] * 6


def test_a_slow_provider_holds_no_thread_of_other_pages(
    visit: Visit, provider: LocalProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Callbacks run in threads of their own: every one of them may hang, and another page still answers."""
    monkeypatch.setattr("app.identity.provider_requests.TOTAL_S", 300.0)
    began = threading.Semaphore(0)

    def hang(_connection: socket.socket, over: threading.Event) -> None:
        began.release()
        over.wait()

    browser = visit()
    with browser.client as client, ThreadPoolExecutor(4) as threads, peer(hang) as (address, over):
        assert client.portal is not None
        others = client.portal.call(to_thread.current_default_thread_limiter)
        provider.document["token_endpoint"] = address
        waiting = threads.submit(browser.get, at_provider(begin(browser)))
        assert began.acquire(timeout=60)
        assert others.borrowed_tokens == 0 and not waiting.done()
        over.set()
        assert waiting.result(60).status_code == 503


def test_a_client_secret_that_cannot_be_read_is_said(configured: Settings, db: Database) -> None:
    """At the start as an error of the settings; later, as a sign-in that is not possible now."""
    path = configured.oidc_client_secret_file
    assert path is not None
    app = create_app(configured)
    for spoil in (path.unlink, lambda: path.write_bytes(b"\xff"), lambda: path.write_text("\n"), path.unlink):
        spoil()
        answer = TestClient(app, follow_redirects=False).get("/dashboard/sign-in")
        assert answer.status_code == 503 and "SCRIMP_OIDC_CLIENT_SECRET_FILE" in answer.text
        with pytest.raises(ServiceError, match="SCRIMP_OIDC_CLIENT_SECRET_FILE"):
            create_app(configured)
    app.state.pricing.close()
    app.state.db.close()


def test_a_sign_in_that_took_too_long_is_begun_again(
    visit: Visit, provider: LocalProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    browser = visit()
    callback = at_provider(begin(browser))
    monkeypatch.setattr("app.dashboard.single_sign_on.PENDING_S", -1)
    assert browser.get(callback).status_code == 403 and provider.token_requests == []


def test_an_error_of_the_provider_is_not_shown(visit: Visit) -> None:
    browser = visit()
    state = parse_qs(urlsplit(begin(browser)).query)["state"][0]
    answer = browser.get(f"/dashboard/sign-in/callback?error=access_denied&error_description=<b>x</b>&state={state}")
    assert answer.status_code == 403 and "<b>x" not in answer.text and "access_denied" not in answer.text


def test_refused_answers_count_against_their_address(configured: Settings) -> None:
    app = create_app(configured.model_copy(update={"failed_sign_ins_per_minute": 5}))
    client = TestClient(app, follow_redirects=False)
    answers = [client.get("/dashboard/sign-in/callback?code=a&state=b").status_code for _ in range(20)]
    assert answers[0] == 403 and answers[-1] == 429
    app.state.pricing.close()
    app.state.db.close()


def test_a_new_key_of_the_provider_is_fetched(visit: Visit, provider: LocalProvider) -> None:
    browser = visit()
    assert sign_in(browser).status_code == 200
    known = browser.client.app.state.provider  # type: ignore[attr-defined]
    provider.key, provider.key_id = RSAKey.generate_key(2048), "second"
    assert sign_in(visit()).status_code == 403  # the keys were fetched a moment ago
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("app.identity.provider.REFETCH_S", -1.0)
        assert sign_in(visit()).status_code == 200
    assert known._metadata is not None


def test_a_removed_group_ends_every_session(visit: Visit, provider: LocalProvider, db: Database) -> None:
    first, second = visit(), visit()
    assert sign_in(first).status_code == sign_in(second).status_code == 200
    assert is_in(first) and is_in(second)
    provider.person = provider.person | {"groups": ["canteen"]}
    answer = sign_in(second)
    assert answer.status_code == 403 and "no group of yours" in answer.text
    assert not is_in(first) and not is_in(second)
    (key,) = persons(db)
    assert not keys.is_alive(key)
    provider.person = provider.person | {"groups": ["ml"]}
    assert sign_in(second).status_code == 200 and is_in(second) and not is_in(first)


@pytest.mark.parametrize(
    ("groups", "role"),
    [
        (["ml"], "analyst"),
        (["ml", "data"], "owner"),
        (["ops", "ml"], "admin"),
        ("ml", "analyst"),
        ([["ops"], "ml", 3], "analyst"),
    ],
)
def test_the_strongest_group_counts(
    visit: Visit, provider: LocalProvider, db: Database, groups: Any, role: str
) -> None:
    provider.person = provider.person | {"groups": groups}
    assert sign_in(visit()).status_code == 200
    assert [each.role for each in persons(db)] == [role]


@pytest.mark.parametrize("groups", [[], ["ML"], ["mlx"], None, {"ml": True}, "ml,ops"])
def test_without_a_role_nobody_enters(visit: Visit, provider: LocalProvider, db: Database, groups: Any) -> None:
    provider.person = provider.person | {"groups": groups}
    browser = visit()
    assert sign_in(browser).status_code == 403 and not is_in(browser) and persons(db) == []


def test_a_weaker_role_holds_at_once_in_other_browsers(visit: Visit, provider: LocalProvider) -> None:
    first, second = visit(), visit()
    provider.person = provider.person | {"groups": ["ops"]}
    assert sign_in(first).status_code == 200 and first.get("/dashboard/audit").status_code == 200
    provider.person = provider.person | {"groups": ["ml"]}
    assert sign_in(second).status_code == 200
    assert first.get("/dashboard/audit").status_code == 403


def test_a_session_ends_at_its_hours(visit: Visit, provider: LocalProvider, monkeypatch: pytest.MonkeyPatch) -> None:
    browser = visit()
    assert sign_in(browser).status_code == 200
    began = time.time()
    for later_s, expected in ((3500, True), (3700, False)):
        monkeypatch.setattr("app.keys.sessions.time.time", lambda later_s=later_s: began + later_s)
        assert is_in(browser) is expected


def test_a_persons_key_has_no_token(visit: Visit, provider: LocalProvider, db: Database, scene: Scene) -> None:
    """A token would outlive the person's groups: neither they nor an admin can make one."""
    browser = visit()
    assert sign_in(browser).status_code == 200
    (key,) = persons(db)
    sent = {"Authorization": f"Bearer {scene.admin.token}"}
    answer = browser.client.post(f"/v1/keys/{key.id}/rotate", headers=sent)
    assert answer.status_code == 409 and "person" in answer.json()["detail"]
    page = browser.get("/dashboard")
    own = browser.client.post(f"/v1/keys/{key.id}/rotate", headers={"X-CSRF-Token": token_of(page)})
    assert own.status_code == 409
    shown = browser.client.get("/v1/keys", headers=sent).json()["items"]
    assert [each["subject"] for each in shown if each["id"] == key.id] == ["u-ann"]


def test_a_revoked_person_stays_out(visit: Visit, provider: LocalProvider, db: Database) -> None:
    browser = visit()
    assert sign_in(browser).status_code == 200
    (key,) = persons(db)
    with db.write() as session:
        keys.revoke(session, key.id)
    assert not is_in(browser)
    assert sign_in(browser).status_code == 403 and not is_in(browser)


def test_a_persons_admin_key_is_not_the_last(visit: Visit, provider: LocalProvider, db: Database, scene: Scene) -> None:
    provider.person = provider.person | {"groups": ["ops"]}
    assert sign_in(visit()).status_code == 200
    with pytest.raises(Conflict, match="last admin key"), db.write() as session:
        keys.revoke(session, scene.admin.id)


def test_the_same_subject_of_another_issuer_is_another_person(configured: Settings, db: Database) -> None:
    groups, pepper = frozenset({"ml"}), b"p" * 32
    first, _ = people.sign_in(db, configured, pepper, Identity("https://one.example", "u", "u", groups))
    again, _ = people.sign_in(db, configured, pepper, Identity("https://one.example", "u", "u", groups))
    other, _ = people.sign_in(db, configured, pepper, Identity("https://two.example", "u", "u", groups))
    assert first.id == again.id != other.id
    with pytest.raises(SignInRefused):
        people.sign_in(db, configured, pepper, Identity("https://one.example", "u", "u", frozenset()))
