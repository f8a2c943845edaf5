"""What somebody without a key can do to an API process: nothing is read, parsed or kept for him but his headers."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, suppress
from typing import Any

import httpx
import pytest

from app.db.models import ApiKey
from app.front import Front
from app.keys import auth
from app.main import create_app
from app.web import strict_json
from app.web.ratelimit import RequestLimits
from core.errors import InvalidRequest, TooLarge
from core.ids import now
from scrimp_server.api import BoundedHttp
from tests.access.world import World
from tests.dashboard.conftest import api_process
from tests.factories import job_spec
from tests.listening import listening

NESTED = b"[" + b"[]," * 340_000 + b"[]]"
JSON = {"Content-Type": "application/json"}
POST_HEAD = b"POST /v1/quotes HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"


class Client:
    """One request to the application, with a body that counts what is asked of it."""

    def __init__(self, method: str, path: str, body: bytes = b"{}", **headers: str) -> None:
        self.body, self.asked, self.status, self.sent = body, 0, 0, b""
        named = {"host": "testserver", "content-type": "application/json", "transfer-encoding": "chunked"}
        named |= {name.lower().replace("_", "-"): value for name, value in headers.items()}
        raw = [(name.encode(), value.encode()) for name, value in named.items()]
        self.scope = {"type": "http", "method": method, "path": path, "raw_path": path.encode(), "headers": raw}
        self.scope |= {"query_string": b"", "scheme": "http", "http_version": "1.1", "server": ("testserver", 80)}
        self.scope |= {"asgi": {"version": "3.0"}, "client": ("127.0.0.1", 1)}

    async def receive(self) -> dict[str, Any]:
        self.asked += 1
        return {"type": "http.request", "body": self.body, "more_body": False}

    async def send(self, message: Any) -> None:
        self.status = message.get("status", self.status)
        self.sent += message.get("body", b"")

    def run(self, app: Any) -> Client:
        asyncio.run(app(self.scope, self.receive, self.send))
        return self

    @property
    def problem(self) -> str:
        return str(json.loads(self.sent)["type"])


POSTS = ["/v1/quotes", "/v1/jobs", "/v1/datasets", "/v1/keys", "/v1/webhooks", "/v1/nowhere"]


@pytest.mark.every_case
@pytest.mark.parametrize("path", POSTS)
@pytest.mark.parametrize("token", [None, "unknown", "revoked"])
def test_the_key_comes_before_the_body(shared_world: World, path: str, token: str | None) -> None:
    headers = {} if token is None else {"authorization": f"Bearer {shared_world.tokens[token]}"}
    asked = Client("POST", path, NESTED, **headers).run(shared_world.client.app)
    assert (asked.status, asked.problem, asked.asked) == (401, "/problems/unauthenticated", 0)


@pytest.mark.parametrize("path", ["draft", "check", "file"])
@pytest.mark.parametrize(
    "kind", ["application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "application/json"]
)
def test_the_session_comes_before_a_declaration(shared_world: World, path: str, kind: str) -> None:
    address, app = f"/dashboard/register/{path}", shared_world.client.app
    for sent in ({}, {"cookie": "scrimp_session=forged.0.0.x.y"}):
        asked = Client("POST", address, b"a" * 600_000, content_type=kind, **sent).run(app)
        assert (asked.status, asked.asked) == (303, 0)
    bad = Client("POST", address, b"a", authorization="Bearer scrimp_key_nothing", content_type=kind).run(app)
    assert (bad.status, bad.asked) == (401, 0)


def test_a_body_with_get_needs_a_key_as_well(shared_world: World) -> None:
    asked = Client("GET", "/v1/jobs", NESTED).run(shared_world.client.app)
    assert (asked.status, asked.asked) == (401, 0)


def test_a_key_that_is_revoked_while_its_body_comes_does_not_hold(world: World, monkeypatch: Any) -> None:
    """The key is looked at again where the body took a while."""
    monkeypatch.setattr(auth, "FRESH_S", 0.0)
    body = json.dumps(job_spec(world.mine.dataset)).encode()

    class Slow(Client):
        async def receive(self) -> dict[str, Any]:
            with world.db.write() as session:
                session.get_one(ApiKey, world.ids["trainer"]).revoked_at = now()
            return await super().receive()

    asked = Slow("POST", "/v1/quotes", body, authorization=f"Bearer {world.tokens['trainer']}").run(world.client.app)
    assert (asked.status, asked.asked) == (401, 1)


def test_most_routes_take_64_kib(shared_world: World) -> None:
    """Attack (Doors): With a key: a large or deep body
    Now: 64 KiB where not more is needed, 10⁴ nodes counted before anything is made of them
    Also: tests/access/test_doors.py::test_nodes_are_counted_before_anything_is_made_of_them
    """
    big = {"spec": "x" * 70_000}
    for path in ("/v1/quotes", "/v1/keys"):
        assert shared_world.ask("admin", "POST", path, json=big).status_code == 413, path
    answers = [
        shared_world.ask("admin", "POST", path, json=big).status_code
        for path in ("/v1/datasets", f"/v1/jobs/{shared_world.mine.job}/predict")
    ]
    assert answers == [422, 422], "a specification may name many columns, a prediction has records"


@pytest.mark.parametrize("inner", [b"[],", b"{},", b"1,", b'"",', b'{"a":[1]},'])
def test_nodes_are_counted_before_anything_is_made_of_them(inner: bytes) -> None:
    per = {b"[],": 1, b"{},": 1, b"1,": 1, b'"",': 1, b'{"a":[1]},': 3}[inner]
    fits = (strict_json.MAX_NODES - 2) // per
    strict_json.check(b"[" + inner * fits + b"0]")
    with pytest.raises(TooLarge) as refused:
        strict_json.check(b"[" + inner * (fits + 2) + b"0]")
    assert refused.value.members == {"limit_nodes": strict_json.MAX_NODES}


def test_brackets_and_commas_in_texts_are_no_nodes() -> None:
    text = json.dumps({"a": '[{",\\"' * 10_000, 'b\\": ["]': ["\\", "[,"]})
    strict_json.check(text.encode(), max_nodes=5)
    with pytest.raises(TooLarge):
        strict_json.check(text.encode(), max_nodes=4)


@pytest.mark.parametrize("content", [b'\\"' * 500_000, b'"' * 1_000_001, b"[ " * 500_000, b'["' + b"\\" * 999_999])
def test_no_body_takes_more_than_time_in_its_length(content: bytes) -> None:
    """A pattern that looks back would take hours for these, so that it needs no clock to tell."""
    with suppress(InvalidRequest):
        strict_json.check(content, max_nodes=2**40)


def test_missing_and_wrong_keys_are_counted_together(world: World) -> None:
    """Attack (Doors): Guessing keys from a shared address
    Now: counted with wrong ones; keyed callers of the address go on
    """
    settings = world.settings.model_copy(update={"failed_sign_ins_per_minute": 3})
    world.client.app.state.limits = RequestLimits(settings)  # type: ignore[attr-defined]
    asked = [("nobody", "GET"), ("unknown", "GET"), ("nobody", "POST"), ("nobody", "GET"), ("unknown", "POST")]
    answers = [
        world.ask(who, method, "/v1/jobs", **({"json": {}} if method == "POST" else {})) for who, method in asked
    ]
    assert [each.status_code for each in answers] == [401, 401, 401, 429, 429]
    assert world.ask("trainer", "GET", "/v1/jobs").status_code == 200, "an office or a proxy has one address"
    spec = job_spec(world.mine.dataset, privacy={"target_epsilon": 0.01}, evaluation=None)
    assert world.ask("trainer", "POST", "/v1/quotes", json=spec).status_code == 200


@pytest.fixture(scope="module")
def process(shared_world: World, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, int]]:
    """The API as `scrimp serve` starts it: its address and process id."""
    log = tmp_path_factory.mktemp("doors") / "log"
    with api_process(shared_world.settings.home, log, head_time_s="300", failed_sign_ins_per_minute="1000000") as made:
        yield made


@pytest.fixture(scope="module")
def hasty(shared_world: World, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, int]]:
    """One in which heads have a quarter of a second to come: whoever is to be answered needs another."""
    log = tmp_path_factory.mktemp("hasty") / "log"
    with api_process(shared_world.settings.home, log, head_time_s="0.25") as made:
        yield made


@pytest.mark.attack
def test_a_flood_of_nested_bodies_is_refused_unread(process: tuple[str, int]) -> None:
    """Each cost 1.6 s of processor time for its 401, on the event loop: two senders took /healthz from 4 ms to 9.8 s.

    No clock tells here, however busy the machine is: each of the senders has its answer, and the others theirs, while
    its body is not there to be parsed.

    Attack (Doors): Without a key: 1 MB of `[[],[],…]`, two senders
    Now: 401 from the headers; of the body nothing is read
    Also: tests/access/test_doors.py::test_the_key_comes_before_the_body
    """
    with ExitStack() as stack:
        senders = [
            stack.enter_context(closing(socket.create_connection(address_of(process), timeout=300))) for _ in range(40)
        ]
        for sender in senders:
            sender.sendall(POST_HEAD + b"Content-Length: %d\r\n\r\n" % len(NESTED) + NESTED[: 32 * 1024])
        assert httpx.get(f"{process[0]}/healthz", timeout=300, trust_env=False).status_code == 200
        for sender in senders:
            assert until_closed(sender).startswith(b"HTTP/1.1 401 ")
    with httpx.Client(base_url=process[0], timeout=300) as client, suppress(httpx.WriteError, httpx.ReadError):
        # Told off before it had sent everything, where its connection ends meanwhile.
        assert client.post("/v1/quotes", content=NESTED, headers=JSON).status_code == 401


def address_of(process: tuple[str, int]) -> tuple[str, int]:
    return "127.0.0.1", int(process[0].rpartition(":")[2])


def until_closed(connection: socket.socket) -> bytes:
    received = b""
    with suppress(ConnectionResetError):  # an end while there is something that nobody has read
        while piece := connection.recv(4096):
            received += piece
    return received


@pytest.mark.parametrize(
    ("first", "then"),
    [(b"", b""), (b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\nX-A: ", b"a"), (b"G", b"")],
    ids=["silent", "dripping", "one-byte"],
)
def test_who_does_not_finish_his_headers_is_cut_off(hasty: tuple[str, int], first: bytes, then: bytes) -> None:
    """Attack (Doors): Headers that drip
    Now: cut off
    """
    with closing(socket.create_connection(address_of(hasty), timeout=300)) as connection, suppress(ConnectionError):
        connection.sendall(first)
        connection.settimeout(0.05)
        deadline = time.monotonic() + 300
        while True:
            assert time.monotonic() < deadline, "it would have gone on"
            try:
                connection.sendall(then)
                if connection.recv(4096) == b"":
                    break
            except TimeoutError:
                continue


def test_a_refused_body_is_not_waited_for_long(shared_world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The answer is there at once; the connection ends though the client goes on sending a body that nobody reads.

    The time for headers does not begin here: a machine that stands still within it answers nobody."""
    expect = BoundedHttp._expect
    monkeypatch.setattr(BoundedHttp, "head_time_s", 0.25)
    monkeypatch.setattr(BoundedHttp, "_expect", lambda protocol: expect(protocol) if protocol.in_body else None)
    with listening(shared_world.settings) as url, closing(socket.create_connection(address_of((url, 0)))) as connection:
        connection.settimeout(300)
        connection.sendall(POST_HEAD + b"Content-Length: 1000000\r\n\r\n[")
        assert until_closed(connection).startswith(b"HTTP/1.1 401 ")


def test_a_kept_connection_is_not_cut_off_while_it_is_used(
    shared_world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is to be met once a request is there, and the next one has a time of its own."""
    made, times = list[BoundedHttp](), list[str]()
    begun, met, expect = BoundedHttp.connection_made, BoundedHttp._met, BoundedHttp._expect

    def noted(what: str, act: Callable[..., None]) -> Callable[..., None]:
        def call(protocol: BoundedHttp, *arguments: Any) -> None:
            act(protocol, *arguments)
            times.append(what)

        return call

    def connected(protocol: BoundedHttp, transport: Any) -> None:
        made.append(protocol)
        begun(protocol, transport)

    monkeypatch.setattr(BoundedHttp, "connection_made", connected)
    monkeypatch.setattr(BoundedHttp, "_met", noted("met", met))
    monkeypatch.setattr(BoundedHttp, "_expect", noted("expects", expect))
    with listening(shared_world.settings) as url, httpx.Client(base_url=url, timeout=300, trust_env=False) as client:
        for _ in range(4):
            times.clear()
            assert client.get("/healthz").status_code == 200
            assert times.index("expects") < len(times) - 1 and times[-1] == "met"
            assert [protocol._deadline for protocol in made] == [None]


def test_one_layer_stands_before_the_routes(shared_world: World) -> None:
    app = create_app(shared_world.settings)
    assert [each.cls for each in app.user_middleware] == [Front]  # type: ignore[comparison-overlap]
    app.state.db.close()
