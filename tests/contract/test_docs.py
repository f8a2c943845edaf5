"""/docs in a real browser under the strict policy: what it shows, what it asks for, and who may see it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from app.docs import routes
from tests.dashboard.conftest import Browser
from tests.dashboard.scene import Everything, Scene

Whole = tuple[Scene, Everything]
# Of the npm package swagger-ui-dist 5.35.0.
VENDORED = {
    "swagger-ui-bundle.js": "e6a898692f2d768e807c3ba4626068a69a2c5dd960dd6c76f3e4d3a3de180af2",
    "swagger-ui.css": "5ed08757e53da3e026d6cbecc61fe5d43585c9560b302d534ad56692519a273d",
}


def test_who_is_not_signed_in_is_led_to_the_login_and_back(visit: Callable[[], Browser], scene: Scene) -> None:
    browser = visit()
    answer = browser.get("/docs")
    assert (answer.status_code, answer.headers["location"]) == (303, "/dashboard/login?next=%2Fdocs")
    assert browser.get("/openapi.json").status_code == 401
    assert browser.sign_in(scene.analyst, "/docs").headers["location"] == "/docs"
    assert browser.get("/docs").status_code == 200
    assert browser.get("/openapi.json").json()["info"]["title"] == "Scrimp"
    assert 'href="/docs"' in browser.get("/dashboard").text


def test_a_key_opens_them_too(visit: Callable[[], Browser], scene: Scene) -> None:
    for address in ("/docs", "/openapi.json"):
        headers = {"Authorization": f"Bearer {scene.analyst.token}"}
        assert visit().get(address, headers=headers).status_code == 200
        assert visit().get(address, headers={"Authorization": "Bearer scrimp_key_a_b"}).status_code == 401


def test_the_rest_api_takes_no_cookie_alone(visit: Callable[[], Browser], scene: Scene) -> None:
    browser = visit()
    browser.sign_in(scene.admin)
    for method, path in (("GET", "/v1/keys"), ("POST", "/v1/keys"), ("POST", "/v1/jobs"), ("GET", "/metrics")):
        sent = {} if method == "GET" else {"json": {"name": "mine", "role": "admin"}}
        answer = browser.client.request(method, path, headers={"Idempotency-Key": "k"}, **sent)
        assert "scrimp_session=" in answer.request.headers["cookie"]
        assert answer.status_code == 401, path


def test_the_rest_api_takes_a_session_with_its_token_alone(visit: Callable[[], Browser], scene: Scene) -> None:
    one, other = visit(), visit()
    one.sign_in(scene.admin)
    other.sign_in(scene.analyst)
    tokens = [browser.get("/docs/session.json").json()["csrf"] for browser in (one, other)]
    made = {"name": "from-the-docs", "role": "viewer"}

    def post(browser: Browser, token: str) -> int:
        return browser.client.post("/v1/keys", headers={"X-CSRF-Token": token}, json=made).status_code

    assert [post(one, tokens[1]), post(other, tokens[0]), post(one, ""), post(visit(), tokens[0])] == [401] * 4
    assert post(other, tokens[1]) == 403
    assert post(one, tokens[0]) == 201
    assert one.client.get("/v1/jobs/job_x", headers={"X-CSRF-Token": tokens[0]}).status_code == 404
    assert one.client.get("/v1/jobs/job_x").status_code == 401
    headers = {"Authorization": f"Bearer {scene.analyst.token}"}
    assert visit().get("/docs/session.json", headers=headers).json() == {"csrf": None}
    one.client.post("/dashboard/logout", data={"csrf": tokens[0]})
    assert post(one, tokens[0]) == 401


def test_the_vendored_files_are_what_was_published() -> None:
    for name, digest in VENDORED.items():
        assert hashlib.sha256((routes.HERE / name).read_bytes()).hexdigest() == digest, name
        assert (Path(routes.HERE) / "swagger-ui.LICENSE.txt").exists()


@pytest.mark.nightly  # the page is the vendored one, and by day the document is checked
@pytest.mark.browser
def test_the_page_shows_the_operations_and_tries_one(chromium: Any, server: str, whole: Whole) -> None:
    scene, ids = whole
    complaints: list[str] = []
    context = chromium.new_context(base_url=server, viewport={"width": 1280, "height": 900})
    page = context.new_page()
    page.set_default_timeout(300_000)
    page.on("console", lambda said: complaints.append(said.text) if said.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("request", lambda asked: None if asked.url.startswith((server, "data:")) else complaints.append(asked.url))
    page.goto("/dashboard")
    page.get_by_label("API key").fill(scene.analyst.token)
    page.get_by_role("button", name="Sign in").click()
    page.get_by_role("link", name="API", exact=True).click()
    page.wait_for_url(f"{server}/docs")
    page.locator(".opblock").first.wait_for()
    assert page.locator(".opblock").count() == sum(map(len, page.evaluate(OPERATIONS)))
    page.locator("#operations-jobs-list_jobs .opblock-summary-control").click()
    page.get_by_role("button", name="Try it out").click()
    page.get_by_role("button", name="Execute").click()
    answer = page.locator("#operations-jobs-list_jobs .live-responses-table")
    answer.wait_for()
    assert "200" in answer.inner_text()  # as the signed-in user: no key was entered
    assert "X-CSRF-Token" not in page.locator("#operations-jobs-list_jobs .curl-command").inner_text()
    assert ids.succeeded in answer.inner_text()
    context.close()
    assert complaints == []


OPERATIONS = """async () => {
  const document = await (await fetch("/openapi.json")).json();
  return Object.values(document.paths).map((methods) => Object.keys(methods));
}"""
