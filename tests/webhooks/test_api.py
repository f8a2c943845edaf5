"""/v1/webhooks over HTTP: a webhook is its key's alone; its secret is shown once and stored encrypted."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select, text, update
from standardwebhooks import Webhook as Reference

from app.db.database import Database
from app.db.models import Webhook, WebhookDelivery
from app.webhooks import encryption, service
from app.webhooks.delivery import _secrets
from app.webhooks.sending import signed
from core.ids import now
from tests.audit.test_api import HOOK, World
from tests.dashboard.conftest import make_home, token_of
from tests.dashboard.scene import Scene

GONE = "wh_none"


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory, migrated_database: Path) -> Iterator[World]:
    settings = make_home(tmp_path_factory.mktemp("hooks") / "home", migrated_database)
    db = Database.of(settings)
    made = World(Scene(db, settings))
    yield made
    made.client.app.state.pricing.close()  # type: ignore[attr-defined]
    made.client.app.state.db.close()  # type: ignore[attr-defined]
    db.close()


def make(world: World, **changes: Any) -> dict[str, Any]:
    answer = world.call("POST", "/v1/webhooks", world.scene.analyst, json=HOOK | changes)
    assert answer.status_code == 201, answer.text
    made: dict[str, Any] = answer.json()
    assert answer.headers["location"] == f"/v1/webhooks/{made['webhook']['id']}"
    return made


def row(world: World, webhook_id: str) -> Webhook:
    with world.db.read() as session:
        return session.get_one(Webhook, webhook_id)


def test_the_secret_is_shown_once_and_stored_encrypted(world: World) -> None:
    made = make(world)
    secret, webhook_id = made["secret"], made["webhook"]["id"]
    assert secret.startswith("whsec_")
    shown = world.call("GET", f"/v1/webhooks/{webhook_id}", world.scene.analyst)
    assert shown.json() == made["webhook"]
    listed = world.call("GET", "/v1/webhooks", world.scene.analyst)
    assert secret not in shown.text + listed.text
    with world.db.read() as session:
        stored = str(session.execute(text("SELECT * FROM webhooks")).all())
    assert secret not in stored
    assert secret.removeprefix("whsec_") not in stored
    key = world.client.app.state.webhook_key  # type: ignore[attr-defined]
    assert encryption.decrypt(key, webhook_id, row(world, webhook_id).secret) == secret
    for other in ((b"x" * 32, webhook_id), (key, "wh_other")):
        with pytest.raises(encryption.Unreadable):
            encryption.decrypt(*other, row(world, webhook_id).secret)
    with pytest.raises(encryption.Unreadable):
        encryption.decrypt(key, webhook_id, "damaged")


def test_a_webhook_is_its_keys_and_admins_alone(world: World) -> None:
    webhook_id = make(world)["webhook"]["id"]
    routes = [("GET", ""), ("PATCH", ""), ("POST", "/rotate-secret"), ("POST", "/test"), ("GET", "/deliveries")]
    for method, tail in [*routes, ("DELETE", "")]:
        answers = [
            world.call(method, f"/v1/webhooks/{each}{tail}", world.scene.owner, json={} if method == "PATCH" else None)
            for each in (webhook_id, GONE)
        ]
        assert [each.status_code for each in answers] == [404, 404], (method, tail)
        assert answers[0].content == answers[1].content
    assert webhook_id not in world.call("GET", "/v1/webhooks", world.scene.owner).text
    assert webhook_id in world.call("GET", "/v1/webhooks", world.scene.admin).text
    for method, tail in [*routes, ("DELETE", "")]:
        answer = world.call(method, f"/v1/webhooks/{webhook_id}{tail}", json={} if method == "PATCH" else None)
        assert answer.is_success, (method, tail, answer.text)
    assert world.call("GET", f"/v1/webhooks/{webhook_id}").status_code == 404


def test_changes(world: World) -> None:
    webhook_id = make(world, description="one")["webhook"]["id"]
    with world.db.write() as session:
        session.get_one(Webhook, webhook_id).failing_since = now()
    path = f"/v1/webhooks/{webhook_id}"
    changed = world.call("PATCH", path, json={"events": ["job.failed", "job.failed"], "enabled": False}).json()
    assert (changed["events"], changed["enabled"], changed["description"]) == (["job.failed"], False, "one")
    assert changed["failing_since"] is None
    refused = world.call("PATCH", path, json={"url": "https://127.0.0.1/"})
    assert (refused.status_code, refused.json()["errors"][0]["pointer"]) == (422, "/url")
    moved = world.call("PATCH", path, json={"url": "https://93.184.216.34/other"}).json()
    assert (moved["url"], moved["enabled"]) == ("https://93.184.216.34/other", False)


@pytest.mark.parametrize(
    ("changes", "pointer"),
    [
        ({"url": "http://93.184.216.34/"}, "/url"),
        ({"url": "https://169.254.169.254/latest/meta-data"}, "/url"),
        ({"url": "https://localhost:8100/v1/keys"}, "/url"),
        ({"url": ""}, "/url"),
        ({"events": []}, "/events"),
        ({"events": ["job.progress"]}, "/events/0"),
        ({"events": ["webhook.test"]}, "/events/0"),
        ({"description": "a\x00b"}, "/description"),
        ({"secret": "whsec_mine"}, "/secret"),
    ],
)
def test_bad_requests(world: World, changes: dict[str, Any], pointer: str) -> None:
    answer = world.call("POST", "/v1/webhooks", json=HOOK | changes)
    assert (answer.status_code, answer.json()["errors"][0]["pointer"]) == (422, pointer)
    assert world.call("POST", "/v1/webhooks", json=HOOK | {"dataset": "ds_none"}).status_code == 404


def test_lists_have_pages(world: World) -> None:
    ids = [make(world)["webhook"]["id"] for _ in range(3)]
    for _ in range(3):
        assert world.call("POST", f"/v1/webhooks/{ids[0]}/test").status_code == 202
        again = world.call("POST", f"/v1/webhooks/{ids[0]}/test")
        assert (again.status_code, again.json()["type"]) == (409, "/problems/wrong-state")  # one at a time
        with world.db.write() as session:
            session.execute(update(WebhookDelivery).values(status="delivered"))
    for path in ("/v1/webhooks", f"/v1/webhooks/{ids[0]}/deliveries"):
        whole = world.call("GET", path, params={"limit": 3}).json()["items"]
        first = world.call("GET", path, params={"limit": 2}).json()
        second = world.call("GET", path, params={"limit": 1, "after": first["next"]}).json()
        assert first["items"] + second["items"] == whole
        assert world.call("GET", path, params={"after": "x"}).status_code == 422


def test_a_key_has_so_many_and_no_more(world: World) -> None:
    with world.db.read() as session:
        mine = len(session.scalars(select(Webhook).where(Webhook.key_id == world.scene.owner.id)).all())
    for _ in range(service.MAX_PER_KEY - mine):
        assert world.call("POST", "/v1/webhooks", world.scene.owner, json=HOOK).status_code == 201
    refused = world.call("POST", "/v1/webhooks", world.scene.owner, json=HOOK)
    assert (refused.status_code, refused.json()["type"]) == (409, "/problems/too-many-webhooks")


def test_after_a_rotation_both_secrets_sign_for_a_day(world: World) -> None:
    made = make(world)
    webhook_id = made["webhook"]["id"]
    again = world.call("POST", f"/v1/webhooks/{webhook_id}/rotate-secret").json()
    assert again["secret"] != made["secret"]
    key = world.client.app.state.webhook_key  # type: ignore[attr-defined]
    secrets = [encryption.decrypt(key, webhook_id, each) for each in _secrets(row(world, webhook_id))]
    assert secrets == [again["secret"], made["secret"]]
    headers = signed("msg_1", b"{}", secrets, now())
    for secret in secrets:
        assert Reference(secret).verify(b"{}", headers) == {}
    with world.db.write() as session:
        session.get_one(Webhook, webhook_id).previous_until = now()
    assert len(_secrets(row(world, webhook_id))) == 1


def test_a_test_is_a_delivery_of_its_own(world: World) -> None:
    webhook_id = make(world)["webhook"]["id"]
    sent = world.call("POST", f"/v1/webhooks/{webhook_id}/test")
    assert sent.status_code == 202
    assert (sent.json()["type"], sent.json()["status"], sent.json()["attempts"]) == ("webhook.test", "pending", 0)
    listed = world.call("GET", f"/v1/webhooks/{webhook_id}/deliveries").json()
    assert listed == {"items": [sent.json()], "next": None}
    assert world.call("DELETE", f"/v1/webhooks/{webhook_id}").status_code == 204
    with world.db.read() as session:
        assert session.get(WebhookDelivery, sent.json()["id"]) is None


def test_the_dashboards_page(world: World) -> None:
    """Added, tested, disabled and deleted by its forms; the secret is shown once; no other site can send them."""
    browser = world.browser
    browser.sign_in(world.scene.analyst)
    token = token_of(browser.get("/dashboard/webhooks"))
    form = HOOK | {"csrf": token, "description": "<b>mine</b>"}
    assert world.client.post("/dashboard/webhooks", data=HOOK).status_code == 403
    bad = world.client.post("/dashboard/webhooks", data=form | {"url": "https://127.0.0.1/"})
    assert (bad.status_code, 'role="alert"' in bad.text) == (422, True)
    assert world.client.post("/dashboard/webhooks", data=form | {"events": []}).status_code == 422
    added = world.client.post("/dashboard/webhooks", data=form)
    assert "whsec_" in added.text
    page = browser.get("/dashboard/webhooks").text
    assert "whsec_" not in page
    assert "&lt;b&gt;mine&lt;/b&gt;" in page
    mine = world.call("GET", "/v1/webhooks", world.scene.analyst).json()["items"][0]["id"]
    for tail, more in (("test", {}), ("enabled", {"enabled": "false"})):
        path = f"/dashboard/webhooks/{mine}/{tail}"
        assert world.client.post(path, data=more).status_code == 403
        assert world.client.post(path, data=more | {"csrf": token}).status_code == 303
    live = browser.get("/dashboard/webhooks/live").text
    assert "webhook.test" in live
    assert "Disabled" in live
    assert world.client.post(f"/dashboard/webhooks/{mine}/delete", data={"csrf": token}).status_code == 303
    assert mine not in browser.get("/dashboard/webhooks").text
