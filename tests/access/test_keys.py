"""Keys that expire and rotate, and that nobody locks himself out."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from threading import Event
from typing import Any

import pytest

from app.db.models import ApiKey
from app.identity.provider import label
from app.keys import service as keys
from app.secrets import load_secret
from core.errors import Conflict
from core.ids import now, rfc3339
from tests.access.world import World
from tests.conftest import BACKINGS
from tests.dashboard.conftest import Browser
from tests.locks import until_waiting


@pytest.fixture(params=BACKINGS)
def backing(request: pytest.FixtureRequest) -> str:
    return str(request.param)


DEFAULTS = {
    "requests_per_minute": 6000,
    "max_queued_jobs": 100,
    "max_running_jobs": None,
    "max_job_s": None,
    "max_stored_bytes": None,
    "max_stored_percent": 25,
    "weight": 1,
    "max_priority": 10,
}


def make(world: World, **body: Any) -> Any:
    return world.ask("admin", "POST", "/v1/keys", json={"name": "new", "role": "analyst"} | body)


def full_width(name: str) -> str:
    return "".join(chr(ord(each) + 0xFEE0) if each.isalnum() or each in "()" else each for each in name)


def status(world: World, token: str, path: str = "/v1/keys/self") -> int:
    return int(world.client.get(path, headers={"Authorization": f"Bearer {token}"}).status_code)


def set_expiry(world: World, who: str, seconds: float) -> None:
    with world.db.write() as session:
        session.get_one(ApiKey, world.ids[who]).expires_at = now() + timedelta(seconds=seconds)


@pytest.mark.parametrize("change", [str, str.upper, "x{} ".format, "{}\u200b (build)".format, full_width])
def test_no_key_is_named_as_a_person_is(world: World, change: Callable[[str], str]) -> None:
    """Who reads the audit log takes it for the person who signed in."""
    name = change(label({"name": "ann", "sub": "u-1"}, "https://issuer.example.org"))
    answer = make(world, name=name)
    assert (answer.status_code, answer.json()["errors"][0]["pointer"]) == (422, "/name")
    assert "name the key otherwise" in answer.json()["errors"][0]["detail"]
    assert name not in {each["name"] for each in world.ask("admin", "GET", "/v1/keys").json()["items"]}


@pytest.mark.parametrize("name", ["ann (personal)", "a person", "ann (person)", "person 1a2b3c4d"])
def test_other_names_are_free(world: World, name: str) -> None:
    assert make(world, name=name).json()["key"]["name"] == name


def test_a_key_ends_when_it_expires(world: World) -> None:
    made = make(world, expires_at=rfc3339(now() + timedelta(hours=1)), role="viewer").json()
    assert made["key"]["expires_at"] is not None and made["key"]["role"] == "viewer"
    assert status(world, made["token"]) == 200
    world.ids["new"] = made["key"]["id"]
    set_expiry(world, "new", -1)
    assert status(world, made["token"]) == 401
    assert world.ask("admin", "POST", f"/v1/keys/{world.ids['new']}/rotate").status_code == 409


@pytest.mark.parametrize(
    "moment",
    ["2020-01-01T00:00:00Z", "9999-12-31T23:59:59-14:00", "0001-01-01T00:00:00+14:00", "2040-01-01T00:00:00", "soon"],
)
def test_a_key_expires_in_the_future_within_a_century(world: World, moment: str) -> None:
    answer = make(world, expires_at=moment)
    assert (answer.status_code, answer.json()["errors"][0]["pointer"]) == (422, "/expires_at")


def test_a_key_looks_at_itself(world: World) -> None:
    limits = {"requests_per_minute": 7, "max_queued_jobs": 3, "max_running_jobs": 1, "max_job_s": 60}
    limits |= {"max_stored_bytes": 2**40, "weight": 3, "max_priority": 0}
    made = make(world, **limits).json()
    answer = world.client.get("/v1/keys/self", headers={"Authorization": f"Bearer {made['token']}"}).json()
    assert answer == made["key"]
    assert answer["limits"] == limits | {"max_stored_percent": None}
    default = world.ask("trainer", "GET", "/v1/keys/self").json()
    assert default["limits"] == DEFAULTS
    assert default["expires_at"] is None


def test_an_admin_changes_limits_and_what_is_left_out_stays(world: World) -> None:
    made = make(world, max_job_s=60, weight=5).json()["key"]

    def change(**body: Any) -> Any:
        answer: dict[str, Any] = world.ask("admin", "PATCH", f"/v1/keys/{made['id']}", json=body).json()
        return answer["limits"]

    wanted = DEFAULTS | {"max_job_s": 60, "weight": 5, "max_running_jobs": 2, "max_priority": -10}
    assert change(max_running_jobs=2, max_priority=-10) == wanted
    assert change() == wanted
    assert change(max_job_s=None, weight=None, max_priority=None) == DEFAULTS | {"max_running_jobs": 2}
    entry = world.ask("admin", "GET", "/v1/audit?action=key.changed").json()["items"][0]
    assert entry["target"] == made["id"]
    assert entry["details"] == {"limits": {"max_job_s": None, "weight": None, "max_priority": None}}
    assert world.ask("admin", "PATCH", "/v1/keys/key_none", json={"weight": 2}).status_code == 404


@pytest.mark.parametrize(
    ("name", "bad"),
    [
        *(("weight", bad) for bad in (0, -1, 101, 10**30, 1.5, 3.0, True, "3", [1])),
        *(("max_priority", bad) for bad in (-11, 11, 0.5, False, "high")),
        *(("max_stored_bytes", bad) for bad in (0, -1, 2**63, 1e9)),
        ("role", "admin"),
    ],
)
def test_a_limit_is_a_whole_number_within_bounds(shared_world: World, name: str, bad: object) -> None:
    path = f"/v1/keys/{shared_world.ids['trainer']}"
    answers = [shared_world.ask("admin", "PATCH", path, json={name: bad})]
    if name != "role":
        answers.append(make(shared_world, **{name: bad}))
    for answer in answers:
        assert (answer.status_code, answer.json()["errors"][0]["pointer"]) == (422, f"/{name}")
    assert shared_world.ask("trainer", "GET", "/v1/keys/self").json()["limits"] == DEFAULTS


def test_rotation_gives_the_same_key_a_new_token(world: World) -> None:
    old = world.tokens["trainer"]
    made = world.ask("trainer", "POST", f"/v1/keys/{world.ids['trainer']}/rotate").json()
    assert made["key"]["id"] == world.ids["trainer"] and made["key"]["rotated_at"] is not None
    assert status(world, old) == 401
    assert status(world, made["token"], f"/v1/jobs/{world.mine.job}") == 200, "its grants stay"


def test_the_old_token_works_for_the_overlap(world: World) -> None:
    path = f"/v1/keys/{world.ids['trainer']}/rotate"
    old = world.tokens["trainer"]
    new = world.ask("trainer", "POST", path, json={"overlap_s": 3600}).json()["token"]
    assert status(world, old) == status(world, new) == 200
    # Who has the old token, perhaps a thief, cannot take the key over with it.
    assert world.ask("trainer", "POST", path).status_code == 403
    assert status(world, new) == 200
    with world.db.write() as session:
        session.get_one(ApiKey, world.ids["trainer"]).previous_until = now() - timedelta(seconds=1)
    assert status(world, old) == 401
    assert status(world, new) == 200
    for overlap in (-1, 86_401, 1.5, True, "1"):
        assert world.ask("admin", "POST", path, json={"overlap_s": overlap}).status_code == 422


def test_a_second_rotation_ends_the_first_token_at_once(world: World) -> None:
    path = f"/v1/keys/{world.ids['trainer']}/rotate"
    tokens = [world.tokens["trainer"]]
    for _ in range(2):
        tokens.append(world.ask("admin", "POST", path, json={"overlap_s": 3600}).json()["token"])
    assert [status(world, token) for token in tokens] == [401, 200, 200]


def test_a_dashboard_session_ends_with_the_token_that_opened_it(world: World) -> None:
    world.client.app.state.limits.per_key = 10**6  # type: ignore[attr-defined]
    browser = Browser(world.client)
    key = world.scene.analyst
    browser.sign_in(key)
    assert browser.get("/dashboard").status_code == 200
    path = f"/v1/keys/{key.id}/rotate"
    assert world.ask("admin", "POST", path, json={"overlap_s": 3600}).status_code == 200
    assert browser.get("/dashboard").status_code == 200, "the old token still works"
    assert world.ask("admin", "POST", path).status_code == 200
    assert browser.get("/dashboard").status_code == 303


def test_a_dashboard_session_ends_when_the_key_expires(world: World) -> None:
    browser = Browser(world.client)
    browser.sign_in(world.scene.analyst)
    assert browser.get("/dashboard").status_code == 200
    world.ids["analyst"] = world.scene.analyst.id
    set_expiry(world, "analyst", -1)
    assert browser.get("/dashboard").status_code == 303
    assert browser.sign_in(world.scene.analyst).status_code == 401


def test_the_last_admin_key_stays(world: World) -> None:
    def revoke(key_id: str) -> Any:
        return world.ask("admin", "DELETE", f"/v1/keys/{key_id}")

    ends = make(world, role="admin", expires_at=rfc3339(now() + timedelta(hours=1))).json()["key"]["id"]
    assert revoke(world.scene.admin.id).status_code == 200
    refused = revoke(world.ids["admin"])
    assert (refused.status_code, refused.json()["type"]) == (409, "/problems/last-admin-key")
    assert revoke(ends).status_code == 200
    lasting = make(world, role="admin").json()["key"]["id"]
    assert revoke(lasting).status_code == revoke(lasting).status_code == 200
    assert revoke(world.ids["admin"]).status_code == 409
    assert revoke("key_nobody").status_code == 404


def test_two_admin_keys_that_are_revoked_at_once_leave_one(world: World) -> None:
    """The second one asks while the first one has revoked and not committed."""
    first, second = world.ids["admin"], world.scene.admin.id
    began = Event()

    def revoke(key_id: str) -> str:
        began.set()
        try:
            with world.db.write() as session:
                keys.revoke(session, key_id)
        except Conflict as error:
            return error.code
        return "revoked"

    with ThreadPoolExecutor(1) as pool:
        with world.db.write() as session:
            keys.revoke(session, first)
            session.flush()
            other = pool.submit(revoke, second)
            assert began.wait(300)
            if world.db.engine.dialect.name == "postgresql":  # SQLite lets one writer in at a time
                until_waiting(world.db)
        assert other.result(300) == "last-admin-key"
    with world.db.read() as session:
        assert session.get_one(ApiKey, second).revoked_at is None


def test_the_homes_admin_file_follows_a_rotation(world: World) -> None:
    path = keys.ensure_admin_key(world.db, world.settings)
    token = path.read_text().strip()
    key_id = "key_" + token.split("_")[2]
    made = world.client.post(f"/v1/keys/{key_id}/rotate", headers={"Authorization": f"Bearer {token}"}).json()
    assert path.read_text().strip() == made["token"] != token
    assert path.stat().st_mode & 0o777 == 0o600
    assert keys.ensure_admin_key(world.db, world.settings).read_text().strip() == made["token"], "no second key is made"
    # Another key's rotation leaves the file alone; a revoked one is replaced at the next start, as before.
    assert world.ask("admin", "POST", f"/v1/keys/{world.ids['trainer']}/rotate").status_code == 200
    assert path.read_text().strip() == made["token"]
    assert world.ask("admin", "DELETE", f"/v1/keys/{key_id}").status_code == 200
    fresh = keys.ensure_admin_key(world.db, world.settings).read_text().strip()
    with world.db.read() as session:
        pepper = load_secret(world.settings, "api_key_pepper")
        assert keys.authenticate(session, pepper, fresh).role == "admin"
