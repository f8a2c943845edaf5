"""Signing in and out: who sees pages, what the cookie is, and that no other site can send our forms."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from app.db.models import ApiKey
from app.keys import service as keys
from app.keys import sessions
from tests.dashboard.conftest import Browser, token_of
from tests.dashboard.scene import Key, Scene

Visit = Callable[[], Browser]
PAGES = ["/dashboard", "/dashboard/datasets", "/dashboard/jobs/job_x", "/dashboard/datasets/ds_x", "/dashboard/nothing"]
PARTS = ["/dashboard/live/jobs", "/dashboard/live/jobs/job_x", "/dashboard/live/datasets/ds_x"]
FILES = ["/dashboard/jobs/job_x/certificate", "/dashboard/jobs/job_x/artifacts/model.safetensors"]


def test_the_service_s_address_leads_to_the_dashboard(visit: Visit) -> None:
    answer = visit().get("/")
    assert (answer.status_code, answer.headers["location"]) == (303, "/dashboard")


@pytest.mark.parametrize("path", PAGES + PARTS + FILES)
def test_without_a_session_every_page_leads_to_the_login(visit: Visit, path: str) -> None:
    answer = visit().get(path)
    assert answer.status_code == 303
    assert answer.headers["location"].startswith("/dashboard/login")


@pytest.mark.parametrize("path", ["/dashboard/logout", "/dashboard/jobs/job_x/cancel"])
def test_without_a_session_no_form_is_taken(visit: Visit, path: str) -> None:
    answer = visit().client.post(path, data={"csrf": "0" * 64})
    assert (answer.status_code, answer.headers["location"]) == (303, "/dashboard/login")


def test_signing_in_sets_a_strict_cookie_that_holds_the_keys_id_alone(visit: Visit, scene: Scene) -> None:
    browser = visit()
    answer = browser.sign_in(scene.analyst)
    assert (answer.status_code, answer.headers["location"]) == (303, "/dashboard")
    cookie = next(each for each in answer.headers.get_list("set-cookie") if each.startswith("scrimp_session="))
    for part in ("HttpOnly", "SameSite=strict", "Path=/;", f"Max-Age={12 * 3600}"):
        assert part in cookie
    assert "Secure" not in cookie  # plain http on loopback; over https it is set
    value = cookie.split(";")[0].removeprefix("scrimp_session=")
    assert value.split(".")[0] == scene.analyst.id
    secret = scene.analyst.token.removeprefix(f"scrimp_{scene.analyst.id}_")  # it may have a _ of its own
    assert len(secret) < len(scene.analyst.token) and secret not in value
    page = browser.get("/dashboard")
    assert page.status_code == 200
    assert "Anand" in page.text


def test_over_https_the_cookie_is_secure(visit: Visit, scene: Scene) -> None:
    browser = visit()
    browser.client.base_url = browser.client.base_url.copy_with(scheme="https")
    answer = browser.sign_in(scene.analyst)
    cookies = answer.headers.get_list("set-cookie")
    assert all("Secure" in each for each in cookies if "Max-Age=0" not in each)


@pytest.mark.parametrize("token", ["", "wrong", "scrimp_key_aaaa_bbbb", "scrimp_key_\x00_x", "ключ", "x" * 5000])
def test_a_wrong_key_is_401_with_a_message_and_no_session(visit: Visit, scene: Scene, token: str) -> None:
    browser = visit()
    answer = browser.sign_in(Key("key_x", token, "admin"))
    assert answer.status_code == 401
    assert "unknown, expired or revoked" in answer.text
    assert token not in answer.text or not token
    assert browser.get("/dashboard").status_code == 303


def test_a_revoked_key_stops_at_once(visit: Visit, scene: Scene) -> None:
    browser = visit()
    browser.sign_in(scene.analyst)
    assert browser.get("/dashboard").status_code == 200
    with scene.db.write() as session:
        keys.revoke(session, scene.analyst.id)
    assert browser.get("/dashboard").status_code == 303
    assert browser.sign_in(scene.analyst).status_code == 401


def test_a_session_ends_after_its_hours(visit: Visit, scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    browser = visit()
    signer = sessions._signer(scene.settings)
    now = signer.get_timestamp()
    with scene.db.read() as session:
        generation = keys.generation_of(session.get_one(ApiKey, scene.admin.id).secret_hmac)
    for age_s, expected in ((12 * 3600 - 60, 200), (12 * 3600 + 60, 303)):
        monkeypatch.setattr(signer, "get_timestamp", lambda age_s=age_s: now - age_s)
        cookie = signer.sign(f"{scene.admin.id}.{generation}.0").decode()
        browser.client.cookies.set("scrimp_session", cookie, path="/")
        assert browser.get("/dashboard").status_code == expected


def test_signing_out_ends_a_session_whose_cookie_was_copied(visit: Visit, scene: Scene) -> None:
    browser, other = visit(), visit()
    browser.sign_in(scene.analyst)
    other.client.cookies.update(browser.client.cookies)
    page = other.get("/dashboard")
    assert page.status_code == 200
    assert browser.client.post("/dashboard/logout", data={"csrf": token_of(page)}).status_code == 303
    assert other.get("/dashboard").status_code == 303
    assert other.sign_in(scene.analyst).status_code == 303
    assert other.get("/dashboard").status_code == 200


def test_a_session_of_another_key_goes_on_after_a_sign_out(visit: Visit, scene: Scene) -> None:
    browser, other = visit(), visit()
    browser.sign_in(scene.analyst)
    other.sign_in(scene.owner)
    csrf = token_of(browser.get("/dashboard"))
    assert browser.client.post("/dashboard/logout", data={"csrf": csrf}).status_code == 303
    assert other.get("/dashboard").status_code == 200


def test_a_cookie_from_before_sign_outs_were_counted_is_no_session(visit: Visit, scene: Scene) -> None:
    browser = visit()
    browser.client.cookies.set(
        "scrimp_session", sessions._signer(scene.settings).sign(f"{scene.admin.id}.x").decode(), path="/"
    )
    assert browser.get("/dashboard").status_code == 303


@pytest.mark.parametrize(
    "cookie",
    ["", "x", "key_x.aaaa.bbbb", "{id}", "{id}.{time}.", "{id}.{time}.AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"],
)
def test_a_forged_cookie_is_no_session(visit: Visit, scene: Scene, cookie: str) -> None:
    browser = visit()
    cookie = cookie.format(id=scene.admin.id, time=sessions._signer(scene.settings).sign("x").decode().split(".")[1])
    browser.client.cookies.set("scrimp_session", cookie, path="/")
    assert browser.get("/dashboard").status_code == 303


def test_a_session_of_another_secret_is_none(visit: Visit, scene: Scene) -> None:
    browser = visit()
    browser.sign_in(scene.admin)
    (scene.settings.effective_secrets_dir / "session_key").write_text("ab" * 32)
    assert browser.get("/dashboard").status_code == 303


def test_a_bearer_key_is_taken_too(visit: Visit, scene: Scene) -> None:
    browser = visit()
    page = browser.get("/dashboard", headers={"Authorization": f"Bearer {scene.owner.token}"})
    assert page.status_code == 200
    wrong = browser.get("/dashboard", headers={"Authorization": "Bearer scrimp_key_a_b"})
    assert wrong.status_code == 401


def test_the_cookie_opens_nothing_outside_the_dashboard(visit: Visit, scene: Scene) -> None:
    browser = visit()
    browser.sign_in(scene.admin)
    assert browser.get("/v1/jobs").status_code == 401
    assert browser.client.post("/v1/keys", json={"name": "mine", "role": "admin"}).status_code == 401
    assert browser.get("/metrics").status_code == 401


def test_signing_out_needs_the_forms_token(visit: Visit, scene: Scene) -> None:
    browser = visit()
    browser.sign_in(scene.analyst)
    for wrong in ({}, {"csrf": ""}, {"csrf": "0" * 64}, {"csrf": "é"}):
        assert browser.client.post("/dashboard/logout", data=wrong).status_code == 403
    assert browser.get("/dashboard").status_code == 200
    token = token_of(browser.get("/dashboard"))
    assert browser.client.post("/dashboard/logout", data={"csrf": token}).status_code == 303
    assert browser.get("/dashboard").status_code == 303


def test_a_token_of_another_session_is_not_taken(visit: Visit, scene: Scene) -> None:
    one, other = visit(), visit()
    one.sign_in(scene.analyst)
    other.sign_in(scene.owner)
    stolen = token_of(other.get("/dashboard"))
    assert one.client.post("/dashboard/logout", data={"csrf": stolen}).status_code == 403


def test_the_login_form_is_bound_to_the_browser_that_was_shown_it(visit: Visit, scene: Scene) -> None:
    shown = visit()
    token = token_of(shown.get("/dashboard/login"))
    victim = visit()
    form = {"key": scene.analyst.token, "csrf": token}
    assert victim.client.post("/dashboard/login", data=form).status_code == 403
    victim.get("/dashboard/login")
    assert victim.client.post("/dashboard/login", data=form).status_code == 403
    assert shown.client.post("/dashboard/login", data=form).status_code == 303


def test_after_the_login_comes_the_page_that_was_asked_for(visit: Visit, scene: Scene) -> None:
    browser = visit()
    answer = browser.get("/dashboard/jobs/job_x?a=1")
    assert answer.headers["location"] == "/dashboard/login?next=%2Fdashboard%2Fjobs%2Fjob_x%3Fa%3D1"
    page = browser.get(answer.headers["location"])
    assert 'name="next" value="/dashboard/jobs/job_x?a=1"' in page.text
    assert (
        browser.sign_in(scene.analyst, "/dashboard/jobs/job_x?a=1").headers["location"] == "/dashboard/jobs/job_x?a=1"
    )
    again = browser.get("/dashboard/login?next=/dashboard/datasets")
    assert (again.status_code, again.headers["location"]) == (303, "/dashboard/datasets")


@pytest.mark.parametrize(
    "target",
    [
        "https://evil.example/",
        "//evil.example",
        "/\\evil.example",
        "/dashboard//evil.example",
        "/dashboard/../v1/jobs",
        "/dashboard@evil.example",
        "/dashboard.evil.example",
        "/dashboard\r\nSet-Cookie: a=b",
        "javascript:alert(1)",
        "/v1/keys",
        "/dashboard/login?next=/dashboard/login",
        "/docs/../v1/keys",
        "/docs.evil.example",
        "",
    ],
)
def test_the_login_leads_nowhere_else(visit: Visit, scene: Scene, target: str) -> None:
    assert visit().sign_in(scene.analyst, target).headers["location"] == "/dashboard"


def test_foreign_hosts_are_refused(visit: Visit) -> None:
    assert visit().get("/dashboard/login", headers={"Host": "evil.example"}).status_code == 400
