"""Headers that every answer carries, whichever part of the service made it; hosts; HEAD and 405."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from fastapi.testclient import TestClient

from app.web.headers import API_POLICY, EVERYWHERE, POLICIES
from tests.dashboard.scene import Everything, Scene

Whole = tuple[Scene, Everything]


def assert_safe(answer: httpx.Response, policy: str = API_POLICY) -> None:
    for name, value in EVERYWHERE.items():
        assert answer.headers.get_list(name) == [value], (answer.url, name)
    assert answer.headers.get_list("Content-Security-Policy") == [policy]
    assert "default-src 'none'" in policy and "frame-ancestors 'none'" in policy and "unsafe" not in policy
    if "/static/" not in str(answer.url):
        assert answer.headers["Cache-Control"] == "no-store", answer.url


def test_every_answer_of_the_api_is_safe(client: TestClient, whole: Whole) -> None:
    scene, ids = whole
    key = {"Authorization": f"Bearer {scene.admin.token}"}
    job = f"/v1/jobs/{ids.succeeded}"
    asked: list[tuple[int, dict[str, Any]]] = [
        (200, {"url": "/healthz"}),
        (200, {"url": "/v1/jobs", "headers": key}),
        (200, {"url": "/openapi.json", "headers": key}),
        (200, {"url": f"{job}/events", "headers": key | {"Accept": "text/event-stream"}}),
        (200, {"url": f"/v1/datasets/{ids.reviews}/events", "headers": key | {"Accept": "text/event-stream"}}),
        (200, {"url": f"{job}/artifacts/model.safetensors", "headers": key}),
        (206, {"url": f"{job}/artifacts/model.safetensors", "headers": key | {"Range": "bytes=0-3"}}),
        (416, {"url": f"{job}/artifacts/model.safetensors", "headers": key | {"Range": "bytes=900-"}}),
        (400, {"url": f"{job}/artifacts/model.safetensors", "headers": key | {"Range": "bytes=x"}}),
        (400, {"url": "/healthz", "headers": {"Host": "evil.example"}}),
        (401, {"url": "/v1/jobs"}),
        (404, {"url": "/v1/nothing", "headers": key}),
        (404, {"url": "/v1/jobs/", "headers": key}),
        (405, {"url": "/v1/jobs", "method": "PUT", "headers": key}),
        (413, {"url": "/v1/quotes", "method": "POST", "content": b"x" * 2**21, "headers": key}),
        (422, {"url": "/v1/quotes", "method": "POST", "content": b"{", "headers": key}),
    ]
    for status, request in asked:
        answer = client.request(**{"method": "GET"} | request)
        assert answer.status_code == status, (request["url"], answer.text)
        assert_safe(answer)
        if status >= 400:
            assert answer.headers["content-type"] == "application/problem+json", answer.url
            assert answer.json()["status"] == status


def test_pages_files_and_redirects_are_safe(client: TestClient, whole: Whole) -> None:
    for address, status in (
        ("/dashboard", 303),
        ("/dashboard/login", 200),
        ("/dashboard/static/live.js", 200),
        ("/dashboard/static/nothing.js", 404),
        ("/docs", 303),
        ("/docs/static/page.js", 200),
        ("/docs/static/..%2froutes.py", 404),
    ):
        answer = client.get(address)
        assert answer.status_code == status, address
        assert_safe(answer, POLICIES["/docs" if address.startswith("/docs") else "/dashboard"])


def test_an_unexpected_error_is_a_safe_problem_and_tells_nothing(whole: Whole, monkeypatch: pytest.MonkeyPatch) -> None:
    from app.main import create_app

    def broken(*_: Any, **__: Any) -> None:
        raise RuntimeError("a secret value")

    monkeypatch.setattr("app.jobs.repository.PageOfJobs.rows", broken)
    app = create_app(whole[0].settings)
    with TestClient(app) as client:
        answer = client.get("/v1/jobs", headers={"Authorization": f"Bearer {whole[0].admin.token}"})
    assert (answer.status_code, answer.json()["type"]) == (500, "/problems/internal-error")
    assert "secret value" not in answer.text
    assert_safe(answer)


def test_over_https_browsers_are_told_to_stay_there(client: TestClient) -> None:
    assert "strict-transport-security" not in client.get("/healthz").headers
    answer = client.get("https://testserver/healthz")
    assert answer.headers["strict-transport-security"] == "max-age=31536000"


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("testserver", 200),
        ("TestServer:8100", 200),
        ("127.0.0.1:1", 200),
        ("", 400),
        ("evil.example", 400),
        ("testserver.evil.example", 400),
        ("testserver:80:80", 400),
        ("testserver@evil.example", 400),
        ("[::1]", 400),
    ],
)
def test_only_named_hosts_are_answered(client: TestClient, host: str, status: int) -> None:
    answer = client.get("/healthz", headers={"Host": host})
    assert answer.status_code == status
    if status == 400:
        assert answer.json()["type"] == "/problems/unknown-host"


def test_hosts_may_be_named_by_a_pattern() -> None:
    from app.web.headers import HostCheck

    check = HostCheck(["*.example.com", "[::1]"])
    assert check.is_allowed("a.example.com") and check.is_allowed("[::1]:8100") and check.is_allowed("[::1]")
    assert not check.is_allowed("example.com") and not check.is_allowed("aexample.com")
    assert HostCheck(["*"]).is_allowed("whatever")


def test_head_is_get_without_the_body(client: TestClient, whole: Whole) -> None:
    scene, ids = whole
    key = {"Authorization": f"Bearer {scene.analyst.token}"}
    for address in (
        "/healthz",
        "/v1/jobs",
        f"/v1/jobs/{ids.succeeded}/artifacts/model.safetensors",
        "/dashboard/login",
    ):
        got, head = client.get(address, headers=key), client.head(address, headers=key)
        assert (head.status_code, head.content) == (got.status_code, b""), address
        assert head.headers["content-length"] == got.headers["content-length"]
    assert client.head("/v1/jobs").status_code == 401
    stream = client.head(f"/v1/jobs/{ids.running}/events", headers=key | {"Accept": "text/event-stream"})
    assert (stream.status_code, stream.headers["allow"]) == (405, "GET, HEAD")
    text = client.get("/metrics", headers={"Authorization": f"Bearer {scene.admin.token}"}).text
    assert 'method="HEAD",route="/healthz"' in text


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("PUT", "/v1/jobs", "GET, HEAD, POST"),
        ("DELETE", "/v1/datasets", "GET, HEAD, POST"),
        ("GET", "/v1/quotes", "POST"),
        ("GET", "/v1/keys/key_x", "DELETE, PATCH"),
        ("POST", "/healthz", "GET, HEAD"),
        ("OPTIONS", "/v1/jobs/job_x", "GET, HEAD, PATCH"),
        ("PROPFIND", "/v1/jobs", "GET, HEAD, POST"),
    ],
)
def test_a_405_names_what_is_allowed(client: TestClient, method: str, path: str, allowed: str) -> None:
    answer = client.request(method, path)
    assert (answer.status_code, answer.headers["allow"]) == (405, allowed)
    assert answer.json()["type"] == "/problems/method-not-allowed"
    assert answer.json()["detail"] == f"this address takes {allowed}"


def test_an_address_that_there_is_not_says_where_all_are(client: TestClient) -> None:
    answer = client.post("/v1/jobs/job_x/predictions")
    assert answer.status_code == 404 and "GET /openapi.json" in answer.json()["detail"]
