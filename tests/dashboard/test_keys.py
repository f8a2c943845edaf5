"""Keys, grants and the audit log on the dashboard: what each role sees and does, and tokens shown once."""

from __future__ import annotations

import json
import re
from collections.abc import Callable

import pytest
from sqlalchemy import select

from app.audit.audit_chain import seal
from app.chain import digest
from app.db.models import ApiKey, AuditEntry, Grant
from tests.dashboard.conftest import Browser, token_of
from tests.dashboard.scene import XSS, Scene

Visit = Callable[[], Browser]


def signed(visit: Visit, scene: Scene, role: str) -> Browser:
    browser = visit()
    assert browser.sign_in(getattr(scene, role)).status_code == 303
    return browser


def post(browser: Browser, path: str, **form: str) -> tuple[int, str]:
    sent = form | {"csrf": token_of(browser.get("/dashboard/keys"))}
    answer = browser.client.post(f"/dashboard/keys{path}", data=sent)
    return answer.status_code, answer.text


def made_token(text: str) -> str:
    found = re.search(r'<code id="token">(scrimp_key_\w+-?[\w-]*)</code>', text)
    assert found is not None
    return found.group(1)


def test_an_admin_makes_a_key_whose_token_is_shown_once(scene: Scene, visit: Visit) -> None:
    browser = signed(visit, scene, "admin")
    status, text = post(browser, "", name=XSS, role="viewer", days="30")
    token = made_token(text)
    assert status == 200 and XSS not in text
    key_id = token.split("_", 3)[2]
    page = browser.get("/dashboard/keys").text
    assert token not in page and f'id="key_{key_id}"' in page
    with scene.db.read() as session:
        key = session.get_one(ApiKey, f"key_{key_id}")
        assert (key.role, key.created_by) == ("viewer", scene.admin.id) and key.expires_at is not None
    assert browser.client.get("/v1/keys/self", headers={"Authorization": f"Bearer {token}"}).status_code == 200
    assert post(browser, f"/key_{key_id}/revoke")[0] == 303
    assert browser.client.get("/v1/keys/self", headers={"Authorization": f"Bearer {token}"}).status_code == 401
    assert post(browser, "", name="", role="viewer")[0] == post(browser, "", name="x", role="king")[0] == 422
    status, text = post(browser, f"/{scene.admin.id}/revoke")
    assert status == 409 and "last admin key" in text


def test_each_role_sees_its_own_part(scene: Scene, visit: Visit) -> None:
    scene.dataset("mine")
    sections = {"admin": (1, 1, 1), "owner": (0, 1, 1), "analyst": (0, 0, 1)}
    for role, expected in sections.items():
        text = signed(visit, scene, role).get("/dashboard/keys").text
        assert tuple(text.count(f'id="{each}"') for each in ("all", "grants", "own")) == expected, role
        assert ("/dashboard/audit" in text) == (role == "admin")
    assert scene.admin.id not in signed(visit, scene, "owner").get("/dashboard/keys").text


def test_a_key_rotates_itself_and_its_session_ends(scene: Scene, visit: Visit) -> None:
    browser = signed(visit, scene, "analyst")
    status, text = post(browser, f"/{scene.analyst.id}/rotate", overlap="0")
    assert status == 200 and "sign in again" in text
    assert browser.get("/dashboard/keys").status_code == 303
    token = made_token(text)
    assert browser.client.get("/v1/keys/self", headers={"Authorization": f"Bearer {token}"}).status_code == 200


def test_an_owner_grants_and_ends_a_grant_and_nobody_else_may(scene: Scene, visit: Visit) -> None:
    dataset = scene.dataset("mine")
    newcomer = scene.key("analyst")
    owner = signed(visit, scene, "owner")
    status, _ = post(owner, "/grants", dataset=dataset, key=newcomer.id, access="train", epsilon="0.5")
    with scene.db.read() as session:
        granted = session.get_one(Grant, (dataset, newcomer.id))
    assert status == 303 and (granted.access, granted.max_epsilon_per_job) == ("train", 0.5)
    assert newcomer.id in owner.get("/dashboard/keys").text
    for form, expected in (
        ({"access": "own"}, 422),
        ({"access": "train", "epsilon": "much"}, 422),
        ({"access": "train", "key": "key_none"}, 404),
        ({"access": "view", "dataset": "ds_none"}, 404),
        ({"access": "view", "key": scene.owner.id}, 422),
    ):
        assert post(owner, "/grants", **{"dataset": dataset, "key": newcomer.id} | form)[0] == expected, form
    stranger = visit()
    stranger.sign_in(newcomer)
    assert post(stranger, "/grants", dataset=dataset, key=newcomer.id, access="train")[0] == 403
    assert post(stranger, "/grants/remove", dataset=dataset, key=newcomer.id)[0] == 403
    assert post(owner, "/grants/remove", dataset=dataset, key=newcomer.id)[0] == 303
    assert post(owner, "/grants/remove", dataset=dataset, key=newcomer.id)[0] == 404
    with scene.db.read() as session:
        actions = session.scalars(select(AuditEntry.action).where(AuditEntry.target == dataset)).all()
    assert {"grant.set", "grant.removed"} <= set(actions)


@pytest.mark.parametrize("path", ["", "/{key}/rotate", "/{key}/revoke", "/grants", "/grants/remove"])
def test_a_form_of_another_site_does_nothing(scene: Scene, visit: Visit, path: str) -> None:
    browser = signed(visit, scene, "admin")
    form = {"name": "x", "role": "admin", "csrf": "0" * 64}
    answer = browser.client.post(f"/dashboard/keys{path.format(key=scene.analyst.id)}", data=form)
    assert answer.status_code == 403
    with scene.db.read() as session:
        assert session.get_one(ApiKey, scene.analyst.id).revoked_at is None


def test_an_admin_filters_checks_and_exports_the_audit_log(scene: Scene, visit: Visit) -> None:
    browser = signed(visit, scene, "admin")
    post(browser, "", name="made", role="analyst")
    while seal(scene.db):
        pass
    page = browser.get("/dashboard/audit").text
    assert "dashboard.signed_in" in page and "key.created" in page
    filtered = browser.get("/dashboard/audit?action=key.created&key=&target=").text
    assert "<td>key.created</td>" in filtered and "<td>dashboard.signed_in</td>" not in filtered
    assert "No entry matches" in browser.get("/dashboard/audit?key=key_none").text
    assert "<strong>Valid.</strong>" in browser.get("/dashboard/audit?check=true").text
    lines = [json.loads(each) for each in browser.get("/dashboard/audit/entries.jsonl").text.splitlines()]
    assert [each["seq"] for each in lines] == list(range(1, len(lines) + 1)) and len(lines) >= 2
    for each in lines:
        assert digest({name: value for name, value in each.items() if name != "hash"}) == each["hash"]


def test_the_audit_log_has_pages_and_is_for_admins(scene: Scene, visit: Visit, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.dashboard.audit_page.ROWS", 2)
    browser = signed(visit, scene, "admin")
    for number in range(3):
        post(browser, "", name=f"key {number}", role="analyst")
    first = browser.get("/dashboard/audit?action=key.created").text
    (older,) = re.findall(r'rel="next" href="([^"]+)"', first)
    second = browser.get(older.replace("&amp;", "&")).text
    assert second.count("<td>key.created</td>") == 1 and first.count("<td>key.created</td>") == 2
    for role in ("owner", "analyst"):
        assert signed(visit, scene, role).get("/dashboard/audit").status_code == 403
