"""JSON that parsers disagree about, bodies that come too slowly, and where errors point."""

from __future__ import annotations

import asyncio
import json
import socket
from types import SimpleNamespace
from typing import Any

import pytest
from fastapi.testclient import TestClient
from hypothesis import given
from hypothesis import strategies as st

from app.datasets import resumable
from app.main import create_app
from app.web import body_limits, strict_json
from core.errors import InvalidRequest
from tests.dashboard.conftest import serving
from tests.dashboard.scene import Everything, Scene
from tests.factories import job_spec

Whole = tuple[Scene, Everything]
DEEP = '{"a":' * 80 + "1" + "}" * 80

REFUSED: list[tuple[str, str, str]] = [
    ('{"a": 1, "a": 1}', "/a", "twice"),
    ('{"x": [{"b/c": 1, "b/c": 2}]}', "/x/0/b~1c", "twice"),
    ('{"a": NaN}', "/a", "NaN"),
    ('{"a": -Infinity}', "/a", "Infinity"),
    ("[1, Infinity]", "/1", "Infinity"),
    ('{"a": 1e400}', "/a", "float"),
    ('{"a": -1e999}', "/a", "float"),
    ('{"a": 1' + "0" * 5000 + "}", "/a", "64 bits"),
    ('{"a": 9223372036854775808}', "/a", "64 bits"),
    ('{"a": "\\ud800"}', "/a", "surrogate"),
    ('{"\\udc00": 1}', "", "surrogate"),
    ('{"a": "x\\u0000y"}', "/a", "NUL"),
    ('{"\\u0000": 1}', "", "NUL"),
    (DEEP, "/a" * 64, "levels"),
    ("[" * 9_000 + "]" * 9_000, "", "levels"),
]


@pytest.mark.parametrize(("text", "pointer", "detail"), REFUSED, ids=[f"{each[0][:20]!r}" for each in REFUSED])
def test_what_parsers_disagree_about_is_refused(
    client: TestClient, whole: Whole, text: str, pointer: str, detail: str
) -> None:
    headers = {"Authorization": f"Bearer {whole[0].analyst.token}", "Content-Type": "application/json"}
    answer = client.post("/v1/quotes", content=text, headers=headers)
    assert (answer.status_code, answer.json()["type"]) == (422, "/problems/invalid-request")
    [error] = answer.json()["errors"]
    assert error["pointer"] == pointer
    assert detail in error["detail"]


def test_utf_16_is_not_read(client: TestClient, whole: Whole) -> None:
    headers = {"Authorization": f"Bearer {whole[0].analyst.token}", "Content-Type": "application/json"}
    answer = client.post("/v1/quotes", content='{"dataset": "é"}'.encode("utf-16"), headers=headers)
    assert answer.json()["errors"] == [{"pointer": "", "detail": "the body is not UTF-8"}]


def test_the_spec_of_an_upload_is_as_strict(client: TestClient, whole: Whole) -> None:
    headers = {"Authorization": f"Bearer {whole[0].owner.token}"}
    files = {"spec": (None, '{"name": "a", "name": "b"}'), "file": ("a.csv", b"a,y\n1,0\n")}
    answer = client.post("/v1/datasets", files=files, headers=headers)
    assert answer.json()["errors"] == [{"pointer": "/name", "detail": "this member appears twice"}]


PLAIN = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | PLAIN,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(PLAIN, inner, max_size=3),
    max_leaves=20,
)


@given(JSON)
def test_what_json_is_for_passes(document: Any) -> None:
    strict_json.check(json.dumps(document).encode())


@given(st.text(alphabet='{}[]",:0123456789eE+-.NaInfity\\u0d8t ', max_size=60) | st.binary(max_size=40))
def test_nothing_else_than_a_refusal_comes_of_any_text(text: str | bytes) -> None:
    content = text if isinstance(text, bytes) else text.encode()
    try:
        strict_json.check(content)
    except InvalidRequest:
        return
    try:
        json.dumps(json.loads(content), allow_nan=False).encode()
    except ValueError as error:
        assert isinstance(error, json.JSONDecodeError), content


def test_errors_point_at_parameters_by_their_place(client: TestClient, whole: Whole) -> None:
    scene, ids = whole
    headers = {"Authorization": f"Bearer {scene.analyst.token}"}
    pointers = []
    for answer in (
        client.get("/v1/jobs?limit=0&status=odd", headers=headers),
        client.get("/v1/jobs?after=nonsense", headers=headers),
        client.post("/v1/jobs", json=job_spec(ids.reviews), headers=headers),
        client.get(f"/v1/jobs/{ids.running}/events", headers=headers | {"Last-Event-ID": "x"}),
        client.post("/v1/quotes", json=job_spec(ids.reviews, length={"steps": 0}), headers=headers),
        client.post("/v1/quotes", content=b"[", headers=headers | {"Content-Type": "application/json"}),
        client.post("/v1/datasets", content=b"", headers={"Authorization": f"Bearer {scene.owner.token}"}),
    ):
        assert answer.status_code == 422, answer.text
        pointers += [error["pointer"] for error in answer.json()["errors"]]
    assert pointers == [
        "/query/status",
        "/query/limit",
        "/query/after",
        "/headers/Idempotency-Key",
        "/headers/last-event-id",
        "/length/steps",  # it is no number from 1
        "/length/steps",  # nor "auto"
        "",
        "/headers/Content-Type",
    ]


def test_no_body_has_a_member_that_looks_like_a_place(document: dict[str, Any]) -> None:
    for name in ("JobSpec", "KeyRequest", "CapChange"):
        assert not {"query", "headers"} & set(document["components"]["schemas"][name]["properties"])


class Clock:
    """The time in which bodies arrive: this machine's does not count."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 1000.0
        monkeypatch.setattr(body_limits, "time", SimpleNamespace(monotonic=lambda: self.now_s))


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


async def _asked(app: Any, path: str, content_type: str, pieces: int, clock: Clock, token: str) -> tuple[int, int]:
    """The status that a client gets who sends a byte every 50 ms, and how many it was let to."""
    answers: list[int] = []
    sent = 0

    async def receive() -> dict[str, Any]:
        nonlocal sent
        clock.now_s += 0.05
        sent += 1
        return {"type": "http.request", "body": b"x", "more_body": sent < pieces}

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            answers.append(message["status"])

    headers = [(b"host", b"testserver"), (b"authorization", f"Bearer {token}".encode())]
    headers += [(b"content-type", content_type.encode()), (b"transfer-encoding", b"chunked")]
    scope = {"type": "http", "method": "POST", "path": path, "raw_path": path.encode(), "query_string": b""}
    scope |= {"headers": headers, "scheme": "http", "http_version": "1.1", "server": ("testserver", 80)}
    await app({**scope, "asgi": {"version": "3.0"}, "client": ("127.0.0.1", 1)}, receive, send)
    return answers[0], sent


@pytest.mark.parametrize(
    ("path", "content_type"),
    [("/v1/quotes", "application/json"), ("/v1/datasets", "multipart/form-data; boundary=b")],
)
def test_who_sends_a_byte_at_a_time_is_cut_off(whole: Whole, clock: Clock, path: str, content_type: str) -> None:
    scene, _ids = whole
    app = create_app(scene.settings.model_copy(update={"body_time_s": 0.4}))
    status, sent = asyncio.run(_asked(app, path, content_type, 1000, clock, scene.owner.token))
    assert status == (408 if path == "/v1/quotes" else 422)  # a multipart body that begins with x is none
    assert sent < 10
    app.state.db.close()


def test_a_slow_upload_earns_time_by_its_rate(whole: Whole, clock: Clock) -> None:
    async def received(rate: int) -> int:
        async def receive() -> dict[str, Any]:
            clock.now_s += 0.02
            return {"type": "http.request", "body": b"x" * 100, "more_body": True}

        settings = whole[0].settings.model_copy(update={"body_time_s": 0.1, "body_bytes_per_s": rate})
        body = body_limits._Body(receive, settings, 2000)
        while True:
            try:
                await body.receive()
            except Exception as error:
                return int(error.status)  # type: ignore[attr-defined]

    assert asyncio.run(received(10)) == 413  # 100 bytes in 20 ms are far above 10 bytes a second
    assert asyncio.run(received(10**9)) == 408


@pytest.mark.usefixtures("clock")
def test_a_silent_piece_of_an_upload_is_given_up_however_much_time_it_has_earned(whole: Whole) -> None:
    """Nobody else can append while it holds the upload."""
    scene, _ids = whole
    settings = scene.settings.model_copy(update={"body_time_s": 1.0, "body_bytes_per_s": 1})
    app = create_app(settings)
    upload = resumable.begin(settings, scene.owner.id, 1000, None).id
    headers = [(b"host", b"testserver"), (b"authorization", f"Bearer {scene.owner.token}".encode())]
    headers += [(b"transfer-encoding", b"chunked"), (b"upload-offset", b"0")]
    path, messages, answers = f"/v1/uploads/{upload}", [b"x" * 600], []

    async def receive() -> dict[str, Any]:
        if not messages:
            await asyncio.Event().wait()
        return {"type": "http.request", "body": messages.pop(), "more_body": True}

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            answers.append(message["status"])

    scope = {"type": "http", "method": "PATCH", "path": path, "raw_path": path.encode(), "query_string": b""}
    scope |= {"headers": headers, "scheme": "http", "http_version": "1.1", "server": ("testserver", 80)}
    asyncio.run(app({**scope, "asgi": {"version": "3.0"}, "client": ("127.0.0.1", 1)}, receive, send))
    assert answers == [408]
    app.state.db.close()
    assert resumable.find(settings, scene.owner.id, upload).offset == 600
    resumable.consume(settings, upload)


def test_over_a_real_connection_the_slow_one_is_answered_and_closed(whole: Whole) -> None:
    with (
        serving(whole[0].settings.home, body_time_s=0.3) as url,
        socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2])), timeout=300) as connection,
    ):
        head = "POST /v1/quotes HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 100\r\n"
        head += f"Authorization: Bearer {whole[0].owner.token}\r\n\r\n"
        connection.sendall(head.encode() + b"{")
        answer = b""
        while piece := connection.recv(4096):
            answer += piece
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert b"/problems/too-slow" in answer
