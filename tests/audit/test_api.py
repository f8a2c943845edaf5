"""Every route that changes something, or hands out a model or certificate, leaves its entry; /v1/audit."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi.testclient import TestClient
from sqlalchemy import select

from app.audit.audit_chain import seal
from app.db.database import Database
from app.db.models import ApiKey, AuditEntry
from app.identity.provider import Provider
from app.lifecycle.relay import Relay
from app.main import create_app
from core.ids import new_id
from tests.dashboard.conftest import Browser, make_home, token_of
from tests.dashboard.scene import Key, Scene
from tests.dashboard.test_submit import sent_from
from tests.declared import declarations
from tests.factories import add_dataset, job_spec
from tests.graphs.small import small_graph
from tests.identity.provider import local_provider, with_provider
from tests.lifecycle.test_relay import Notifier

HOOK = {"url": "https://93.184.216.34/hook", "events": ["job.succeeded"]}
CSV = "a,b,y\n" + "".join(f"{i},{i * i % 7},{i % 2}\n" for i in range(60))
PAGES, KEYS = "/dashboard/webhooks", "/dashboard/keys"
MANAGE = "/dashboard/datasets/{dataset_id}/manage"


class World:
    """The API over a home with a finished job."""

    def __init__(self, scene: Scene) -> None:
        self.scene, self.db = scene, scene.db
        self.client = TestClient(create_app(scene.settings), raise_server_exceptions=False, follow_redirects=False)
        self.browser = Browser(self.client)
        self.dataset = scene.dataset("first")
        self.done = scene.job(self.dataset, "done")
        log = scene.start(self.done)
        scene.step(log, 50)
        scene.finish(log)

    def call(self, method: str, path: str, by: Key | None = None, **more: Any) -> httpx.Response:
        headers = {"Authorization": f"Bearer {(by or self.scene.admin).token}"} | more.pop("headers", {})
        return self.client.request(method, path, headers=headers, **more)

    def made(self, path: str, body: Any, *member: str) -> str:
        """The id of something new."""
        answer = self.call("POST", path, json=body).json()
        for name in member:
            answer = answer[name]
        return str(answer["id"])

    def hook(self) -> str:
        return self.made("/v1/webhooks", HOOK, "webhook")

    def upload(self) -> str:
        return self.made("/v1/uploads", {"size": 1})

    def key(self) -> str:
        return self.made("/v1/keys", {"name": "n", "role": "analyst"}, "key")

    def entries(self) -> list[AuditEntry]:
        with self.db.read() as session:
            return list(session.scalars(select(AuditEntry).order_by(AuditEntry.id)))


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory, migrated_database: Path) -> Iterator[World]:
    settings = make_home(tmp_path_factory.mktemp("audited") / "home", migrated_database)
    db = Database.of(settings)
    made = World(Scene(db, settings))
    yield made
    made.client.app.state.pricing.close()  # type: ignore[attr-defined]
    made.client.app.state.db.close()  # type: ignore[attr-defined]
    db.close()


def upload(world: World, path: str = "/v1/datasets", name: str = "uploaded") -> httpx.Response:
    spec = {
        "name": name,
        "format": "csv",
        "task": {"kind": "classification", "label": "y", "classes": [0, 1]},
        "features": {"kind": "columns", "columns": ["a", "b"]},
        "privacy": {"sensitivity": "public"},
        "holdout": {"kind": "split", "fraction": 0.2},
    }
    parts: dict[str, Any] = {"spec": (None, json.dumps(spec), "application/json"), "file": ("file", CSV)}
    return world.call("POST", path, files=parts)


def add_graph(world: World) -> httpx.Response:
    content = small_graph(len(world.entries()))  # one that was not there
    upload = world.made("/v1/uploads", {"size": len(content)})
    world.call("PATCH", f"/v1/uploads/{upload}", content=content, headers={"Upload-Offset": "0"})
    return world.call("POST", "/v1/graphs", json={"upload": upload})


def delete_graph(world: World) -> httpx.Response:
    return world.call("DELETE", f"/v1/graphs/{add_graph(world).json()['sha256']}")


def delete_graph_on_page(world: World) -> httpx.Response:
    return world.call("POST", f"/dashboard/graphs/{add_graph(world).json()['sha256']}/delete")


def upload_on_page(world: World) -> httpx.Response:
    return upload(world, "/dashboard/register/file", "uploaded-on-page")


def sign_in_at_provider(world: World) -> httpx.Response:
    """The admin's key is a person's for a while."""
    state, key_id = world.client.app.state, world.scene.admin.id  # type: ignore[attr-defined]
    before = state.settings
    with pytest.MonkeyPatch.context() as patched, local_provider(patched) as provider:
        state.settings = with_provider(before, provider)
        state.provider = Provider(state.settings)
        provider.person = {"sub": "the admin", "groups": ["ops"]}
        with world.db.write() as session:
            admin = session.get_one(ApiKey, key_id)
            admin.issuer, admin.subject = provider.issuer, "the admin"
        callback = httpx.get(world.client.get("/dashboard/sign-in").headers["location"]).headers["location"]
        answer = world.client.get(callback)
        with world.db.write() as session:
            admin = session.get_one(ApiKey, key_id)
            admin.issuer = admin.subject = admin.expires_at = None
        state.settings, state.provider = before, None
    return answer


def join(world: World) -> httpx.Response:
    into = {"into": add_dataset(world.db), "reason": "the same records"}
    return world.call("POST", f"/v1/datasets/{add_dataset(world.db)}/ledger/join", json=into)


def reserve(world: World) -> httpx.Response:
    mechanism = {"kind": "laplace", "scale": 50.0}
    body = {"dataset": add_dataset(world.db), "mechanism": mechanism, "unit": "example", "attested": "a test"}
    return world.call("POST", "/v1/charges", json=body, headers={"Idempotency-Key": new_id("once")})


def submit(world: World) -> httpx.Response:
    headers = {"Idempotency-Key": f"k{len(world.entries())}"}
    spec = job_spec(add_dataset(world.db), privacy={"target_epsilon": 0.5})
    return world.call("POST", "/v1/jobs", json=spec, headers=headers)


def submit_on_page(world: World) -> httpx.Response:
    sign_in(world)
    post = world.client.post
    page = world.browser.get(f"/dashboard/submit?dataset={add_dataset(world.db)}")
    sent = sent_from(page, **{"/privacy/target_epsilon": "0.21"})
    return post(
        "/dashboard/submit", data=sent_from(post("/dashboard/submit", data=sent | {"do": "quote"}), do="submit")
    )


def sign_in(world: World) -> httpx.Response:
    world.client.cookies.clear()
    return world.browser.sign_in(world.scene.admin)


def sign_out(world: World) -> httpx.Response:
    sign_in(world)
    return world.client.post("/dashboard/logout", data={"csrf": token_of(world.browser.get("/dashboard"))})


def take_back(world: World) -> httpx.Response:
    path = f"/v1/datasets/{world.dataset}/grants/{world.key()}"
    assert world.call("PUT", path, json={"access": "view"}).status_code == 200
    return world.call("DELETE", path)


def grant_on_page(world: World) -> httpx.Response:
    sent = {"dataset": world.dataset, "key": world.key(), "access": "view"}
    return world.call("POST", f"{KEYS}/grants", data=sent)


def take_back_on_page(world: World) -> httpx.Response:
    sent = {"dataset": world.dataset, "key": world.key(), "access": "view"}
    assert world.call("POST", f"{KEYS}/grants", data=sent).status_code == 303
    return world.call("POST", f"{KEYS}/grants/remove", data=sent)


def delete_content(world: World) -> httpx.Response:
    return world.call("DELETE", f"/v1/datasets/{add_dataset(world.db)}/content")


def delete_artifacts(world: World) -> httpx.Response:
    job = world.scene.job(world.dataset)
    world.scene.finish(world.scene.start(job))
    return world.call("DELETE", f"/v1/jobs/{job}/artifacts")


def retire(world: World) -> httpx.Response:
    return world.call("POST", f"/v1/datasets/{add_dataset(world.db)}/retire")


def public(world: World) -> str:
    return str(upload(world, name=f"public-{len(world.entries())}").json()["id"])


def redeclare(world: World) -> httpx.Response:
    return world.call("POST", f"/v1/datasets/{public(world)}/declarations", json={"classes": [0, 1, 2]})


def append_block(world: World) -> httpx.Response:
    """A block of a data set that this registers first; it is private, and may grow."""
    name, cap = f"grows-{len(world.entries())}", {"epsilon": 4.0, "delta": 1e-5}
    spec = {
        "name": name,
        "format": "csv",
        "task": {"kind": "classification", "label": "y", "classes": [0, 1]},
        "features": {"kind": "columns", "columns": ["a", "b"]},
        "privacy": {"sensitivity": "private", "records": 2, "cap": cap, "order": 8.0},
    }
    first, second = (f"a,b,y\n{len(world.entries())},{number},1\n" for number in (1, 2))
    parts = {"spec": (None, json.dumps(spec), "application/json"), "file": ("file", first)}
    made = world.call("POST", "/v1/datasets", files=parts)
    assert made.status_code == 201, made.text
    block = {"spec": (None, json.dumps({"label": "two", "records": 2}), "application/json"), "file": ("file", second)}
    return world.call("POST", f"/v1/datasets/{name}/blocks", files=block)


def managed(to: str, act: Callable[[World], tuple[str, dict[str, str]]]) -> Call:
    """An act of an owner on the page of a data set, which `act` makes, with the fields that it sends."""

    def call(world: World) -> httpx.Response:
        dataset, sent = act(world)
        return world.call("POST", f"/dashboard/datasets/{dataset}/manage/{to}", data=sent)

    return call


def change_cap_on_page(world: World) -> httpx.Response:
    address = f"/dashboard/datasets/{add_dataset(world.db)}/manage"
    shown = re.search(r'name="version" value="([^"]*)"', world.call("GET", address).text)
    assert shown is not None
    return world.call("POST", f"{address}/cap", data={"epsilon": "6", "reason": "more", "version": shown[1]})


def append_block_on_page(world: World) -> httpx.Response:
    block = append_block(world).json()
    table = f"a,b,y\n{len(world.entries())},3,1\n"
    spec = {"label": "three", "records": 2}
    parts = {"spec": (None, json.dumps(spec), "application/json"), "file": ("file", table)}
    return world.call("POST", f"/dashboard/datasets/{block['dataset']}/manage/blocks", files=parts)


def retire_block(world: World) -> httpx.Response:
    block = append_block(world).json()
    return world.call("POST", f"/v1/datasets/{block['dataset']}/blocks/two/retire")


def close_budget(world: World) -> httpx.Response:
    path = f"/v1/datasets/{world.dataset}/budgets/{world.key()}"
    assert world.call("PUT", path, json={"epsilon": 1.0}).status_code == 200
    return world.call("DELETE", path, headers={"If-Match": "*"})


def resume(world: World, path: str = "/v1") -> httpx.Response:
    job = world.scene.job(add_dataset(world.db))
    assert world.call("POST", f"/v1/jobs/{job}/pause").status_code == 202
    sent: Any = {"data": {}} if path == "/dashboard" else {}
    return world.call("POST", f"{path}/jobs/{job}/resume", **sent)


def resume_on_page(world: World) -> httpx.Response:
    return resume(world, "/dashboard")


def ask_for_budget(world: World) -> httpx.Response:
    body = {"dataset": add_dataset(world.db), "epsilon": 1.0, "reason": "a test"}
    return world.call("POST", "/v1/budget-requests", json=body)


def budgets_page(world: World) -> str:
    return f"/dashboard/datasets/{add_dataset(world.db)}/budgets"


def set_budget_on_page(world: World) -> httpx.Response:
    return world.call("POST", budgets_page(world), data={"epsilon": "1", "keys": world.key()})


def close_budget_on_page(world: World) -> httpx.Response:
    page = budgets_page(world)
    made = world.call("POST", page, data={"epsilon": "1", "name": "team", "keys": world.key()})
    assert made.status_code == 303, made.text
    return world.call("POST", f"{page}/close", data={"name": "team", "version": "1"})


def ask_on_page(world: World) -> httpx.Response:
    return world.call("POST", f"{budgets_page(world)}/requests", data={"epsilon": "1", "reason": "a test"})


def two_persons(world: World) -> str:
    """A data set on which the admin and the owner decide together; an act that the owner has asked for."""
    persons = {"persons": {"Ada": [world.scene.admin.id], "Olga": [world.scene.owner.id]}}
    path = f"/v1/datasets/{add_dataset(world.db, owner=world.scene.owner.id)}/persons"
    assert world.call("PUT", path, json=persons).status_code == 200
    return str(world.call("PUT", path, world.scene.owner, json={"persons": {}}).json()["id"])


def agree(world: World, path: str = "/v1") -> httpx.Response:
    """To an egress: what the word does besides is for the relay."""
    dataset = world.scene.dataset(f"leaves-{len(world.entries())}")
    persons = {"persons": {"Ada": [world.scene.admin.id], "Olga": [world.scene.owner.id]}}
    assert world.call("PUT", f"/v1/datasets/{dataset}/persons", json=persons).status_code == 200
    job = world.scene.job(dataset, "leaves")
    log = world.scene.start(job)
    world.scene.step(log, 50)
    world.scene.finish(log)
    asked = ask_for_egress(world, job, by=world.scene.owner).json()
    return world.call("POST", f"{path}/approvals/{asked['approval']}/agree")


def ask_for_egress(
    world: World, job: str | None = None, path: str = "/v1/jobs/{}/egress", **more: Any
) -> httpx.Response:
    body = {"recipient": f"somebody {len(world.entries())}", "reason": "a test"}
    sent: Any = {"data": body} if path.startswith("/dashboard") else {"json": body}
    return world.call("POST", path.format(job or world.done), **sent, **more)


def fetch_egress(world: World, path: str = "/v1") -> httpx.Response:
    assert ask_for_egress(world).status_code == 202
    relay = Relay(world.db, world.scene.settings, world.scene.signing_key, Notifier([].append))
    while relay.let_out():  # also those that other tests have left open
        pass
    return world.call("GET", f"{path}/jobs/{world.done}/egress")


Call = Callable[[World], httpx.Response]


def plain(path: str, body: Any = None, method: str = "POST", headers: dict[str, str] | None = None) -> Call:
    """A call by an admin. In the path {hook}, {job}, {key} are new ones, {done} is the finished job."""

    def call(world: World) -> httpx.Response:
        makers = {
            "hook": world.hook,
            "key": world.key,
            "upload": world.upload,
            "charge": lambda: str(reserve(world).json()["id"]),
            "request": lambda: str(ask_for_budget(world).json()["id"]),
            "approval": lambda: two_persons(world),
            "job": lambda: world.scene.job(add_dataset(world.db)),
        }
        known = {"done": world.done, "data": world.dataset}
        made = {name: known.get(name) or makers[name]() for name in re.findall(r"{(\w+)}", path)}
        sent = {"data": body or {}} if path.startswith("/dashboard") else {"json": body}
        more = {} if headers is None else {"headers": headers}
        return world.call(method, path.format(**made), **(sent if method != "GET" else {}), **more)

    return call


# How the routes of the API are called that leave something, by what they declare (app.web.route_operation).
CALLS: dict[tuple[str, str], Call] = {
    ("POST", "/v1/uploads"): plain("/v1/uploads", {"size": 1}),
    ("DELETE", "/v1/uploads/{upload_id}"): plain("/v1/uploads/{upload}", method="DELETE"),
    ("POST", "/v1/graphs"): add_graph,
    ("DELETE", "/v1/graphs/{sha256}"): delete_graph,
    ("POST", "/v1/keys"): plain("/v1/keys", {"name": "n", "role": "viewer"}),
    ("PATCH", "/v1/keys/{key_id}"): plain("/v1/keys/{key}", {"weight": 2}, method="PATCH"),
    ("DELETE", "/v1/keys/{key_id}"): plain("/v1/keys/{key}", method="DELETE"),
    ("POST", "/v1/keys/{key_id}/rotate"): plain("/v1/keys/{key}/rotate"),
    ("PUT", "/v1/datasets/{dataset_id}/grants/{key_id}"): plain(
        "/v1/datasets/{data}/grants/{key}", {"access": "train", "max_epsilon_per_job": 1.0}, method="PUT"
    ),
    ("DELETE", "/v1/datasets/{dataset_id}/grants/{key_id}"): take_back,
    ("POST", "/v1/datasets"): upload,
    ("POST", "/v1/datasets/{dataset_id}/blocks"): append_block,
    ("POST", "/v1/datasets/{dataset_id}/blocks/{label}/retire"): retire_block,
    ("POST", "/v1/datasets/{dataset_id}/retire"): retire,
    ("POST", "/v1/datasets/{dataset_id}/declarations"): redeclare,
    ("POST", "/v1/datasets/{dataset_id}/ledger/cap"): plain(
        "/v1/datasets/{data}/ledger/cap", {"epsilon": 5.0, "reason": "more"}, headers={"If-Match": "*"}
    ),
    ("PUT", "/v1/datasets/{dataset_id}/persons"): plain("/v1/datasets/{data}/persons", {"persons": {}}, method="PUT"),
    ("POST", "/v1/approvals/{approval_id}/agree"): agree,
    ("POST", "/v1/approvals/{approval_id}/deny"): plain("/v1/approvals/{approval}/deny"),
    ("POST", "/v1/jobs/{job_id}/egress"): ask_for_egress,
    ("GET", "/v1/jobs/{job_id}/egress"): fetch_egress,
    ("PUT", "/v1/datasets/{dataset_id}/budgets/{budget}"): plain(
        "/v1/datasets/{data}/budgets/{key}", {"epsilon": 1.0}, method="PUT"
    ),
    ("DELETE", "/v1/datasets/{dataset_id}/budgets/{budget}"): close_budget,
    ("POST", "/v1/budget-requests"): ask_for_budget,
    ("POST", "/v1/budget-requests/{request_id}/approve"): plain(
        "/v1/budget-requests/{request}/approve", {}, headers={"If-Match": "*"}
    ),
    ("POST", "/v1/budget-requests/{request_id}/deny"): plain("/v1/budget-requests/{request}/deny", {}),
    ("POST", "/v1/datasets/{dataset_id}/ledger/join"): join,
    ("POST", "/v1/charges"): reserve,
    ("POST", "/v1/charges/{charge_id}/post"): plain("/v1/charges/{charge}/post"),
    ("POST", "/v1/charges/{charge_id}/void"): plain("/v1/charges/{charge}/void", {"reason": "none"}),
    ("POST", "/v1/jobs"): submit,
    ("POST", "/v1/jobs/{job_id}/cancel"): plain("/v1/jobs/{job}/cancel"),
    ("POST", "/v1/jobs/{job_id}/pause"): plain("/v1/jobs/{job}/pause"),
    ("POST", "/v1/jobs/{job_id}/resume"): resume,
    ("POST", "/v1/jobs/{job_id}/predict"): plain("/v1/jobs/{done}/predict", {"records": [{"a": 1.0, "b": 2.0}]}),
    ("GET", "/v1/jobs/{job_id}/artifacts/{name}"): plain("/v1/jobs/{done}/artifacts/model.safetensors", method="GET"),
    ("GET", "/v1/jobs/{job_id}/certificate"): plain("/v1/jobs/{done}/certificate", method="GET"),
    ("POST", "/v1/webhooks"): plain("/v1/webhooks", HOOK),
    ("PATCH", "/v1/webhooks/{webhook_id}"): plain("/v1/webhooks/{hook}", {"enabled": False}, method="PATCH"),
    ("DELETE", "/v1/webhooks/{webhook_id}"): plain("/v1/webhooks/{hook}", method="DELETE"),
    ("POST", "/v1/webhooks/{webhook_id}/rotate-secret"): plain("/v1/webhooks/{hook}/rotate-secret"),
    ("POST", "/v1/webhooks/{webhook_id}/test"): plain("/v1/webhooks/{hook}/test"),
    ("PATCH", "/v1/jobs/{job_id}"): plain("/v1/jobs/{done}", {"tags": ["a"]}, method="PATCH"),
    ("DELETE", "/v1/datasets/{dataset_id}/content"): delete_content,
    ("DELETE", "/v1/jobs/{job_id}/artifacts"): delete_artifacts,
}
# How the pages are called that leave something.
PAGE_CALLS: dict[tuple[str, str], Call] = {
    ("POST", "/dashboard/login"): sign_in,
    ("POST", "/dashboard/logout"): sign_out,
    ("GET", "/dashboard/sign-in/callback"): sign_in_at_provider,
    ("POST", "/dashboard/jobs/{job_id}/cancel"): plain("/dashboard/jobs/{job}/cancel"),
    ("POST", "/dashboard/jobs/{job_id}/pause"): plain("/dashboard/jobs/{job}/pause"),
    ("POST", "/dashboard/jobs/{job_id}/resume"): resume_on_page,
    ("GET", "/dashboard/jobs/{job_id}/artifacts/{name}"): plain(
        "/dashboard/jobs/{done}/artifacts/model.safetensors", method="GET"
    ),
    ("GET", "/dashboard/jobs/{job_id}/certificate"): plain("/dashboard/jobs/{done}/certificate", method="GET"),
    ("GET", "/dashboard/jobs/{job_id}"): plain("/dashboard/jobs/{done}", method="GET"),
    ("GET", "/dashboard/live/jobs/{job_id}"): plain("/dashboard/live/jobs/{done}", method="GET"),
    ("POST", "/dashboard/datasets/{dataset_id}/budgets"): set_budget_on_page,
    ("POST", "/dashboard/datasets/{dataset_id}/budgets/close"): close_budget_on_page,
    ("POST", "/dashboard/datasets/{dataset_id}/budgets/requests"): ask_on_page,
    ("POST", "/dashboard/datasets/{dataset_id}/budgets/requests/{request_id}"): plain(
        "/dashboard/datasets/{data}/budgets/requests/{request}", {"decision": "deny"}
    ),
    ("POST", f"{MANAGE}/cap"): change_cap_on_page,
    ("POST", f"{MANAGE}/declaration"): managed(
        "declaration", lambda world: (public(world), {"others": '{"classes": [0, 1, 2]}'})
    ),
    ("POST", f"{MANAGE}/blocks"): append_block_on_page,
    ("POST", f"{MANAGE}/blocks/retire"): managed(
        "blocks/retire", lambda world: (append_block(world).json()["dataset"], {"label": "two"})
    ),
    ("POST", f"{MANAGE}/retire"): managed("retire", lambda world: (add_dataset(world.db), {})),
    ("POST", f"{MANAGE}/delete"): managed("delete", lambda world: (add_dataset(world.db), {})),
    ("POST", "/dashboard/graphs/{sha256}/delete"): delete_graph_on_page,
    ("POST", "/dashboard/submit"): submit_on_page,
    ("POST", "/dashboard/register/file"): upload_on_page,
    ("POST", PAGES): plain(PAGES, HOOK),
    ("POST", f"{PAGES}/{{webhook_id}}/test"): plain(f"{PAGES}/{{hook}}/test"),
    ("POST", f"{PAGES}/{{webhook_id}}/enabled"): plain(f"{PAGES}/{{hook}}/enabled", {"enabled": "false"}),
    ("POST", f"{PAGES}/{{webhook_id}}/delete"): plain(f"{PAGES}/{{hook}}/delete"),
    ("POST", f"{PAGES}/{{webhook_id}}/events"): plain(f"{PAGES}/{{hook}}/events", {"events": "job.failed"}),
    ("POST", f"{PAGES}/{{webhook_id}}/secret"): plain(f"{PAGES}/{{hook}}/secret"),
    ("POST", "/dashboard/approvals/{approval_id}/agree"): lambda world: agree(world, "/dashboard"),
    ("POST", "/dashboard/approvals/{approval_id}/deny"): lambda world: world.call(
        "POST", f"/dashboard/approvals/{two_persons(world)}/deny"
    ),
    ("POST", "/dashboard/jobs/{job_id}/egresses"): lambda world: ask_for_egress(
        world, path="/dashboard/jobs/{}/egresses"
    ),
    ("GET", "/dashboard/jobs/{job_id}/egress"): lambda world: fetch_egress(world, "/dashboard"),
    ("POST", "/dashboard/jobs/{job_id}/labels"): plain("/dashboard/jobs/{done}/labels"),
    ("POST", KEYS): plain(KEYS, {"name": "n", "role": "viewer"}),
    ("POST", f"{KEYS}/{{key_id}}/rotate"): plain(f"{KEYS}/{{key}}/rotate"),
    ("POST", f"{KEYS}/{{key_id}}/revoke"): plain(f"{KEYS}/{{key}}/revoke"),
    ("POST", f"{KEYS}/grants"): grant_on_page,
    ("POST", f"{KEYS}/grants/remove"): take_back_on_page,
}


# What each route leaves; None: a GET that leaves nothing.
DECLARED = {route: declaration and declaration.audit for route, declaration in declarations().items()}
LEFT = {route: (action, (CALLS | PAGE_CALLS)[route]) for route, action in DECLARED.items() if action}


def test_every_route_that_changes_something_says_what_it_leaves() -> None:
    """A new route fails here until it declares what it leaves in the log, or NOTHING."""
    assert [route for route, action in DECLARED.items() if route[0] != "GET" and action is None] == []
    assert LEFT.keys() == CALLS.keys() | PAGE_CALLS.keys()


@pytest.mark.parametrize("route", sorted(LEFT), ids=" ".join)
def test_the_row_holds(world: World, route: tuple[str, str]) -> None:
    action, call = LEFT[route]
    before = len(world.entries())
    answer = call(world)
    assert answer.status_code in (200, 201, 202, 204, 303), answer.text
    entry = world.entries()[-1]
    assert len(world.entries()) > before
    assert (entry.action, entry.outcome, entry.actor) == (action, "done", world.scene.admin.id)
    assert (entry.address, entry.user_agent) == ("testclient", "testclient")
    assert entry.target


def test_a_look_at_the_headers_alone_is_no_download(world: World) -> None:
    before = len(world.entries())
    for path in ("/v1/jobs/{}/artifacts/model.safetensors", "/v1/jobs/{}/certificate", "/dashboard/jobs/{}"):
        answer = world.call("HEAD", path.format(world.done))
        assert (answer.status_code, answer.content) == (200, b"")
    # Nor is a page without a certificate.
    waiting = world.scene.job(add_dataset(world.db))
    made = len(world.entries())
    assert world.call("GET", f"/dashboard/jobs/{waiting}").status_code == 200
    assert len(world.entries()) == made == before + 1, "the job's own"


def test_what_is_refused_is_recorded(world: World) -> None:
    key = world.key()
    assert world.call("DELETE", f"/v1/keys/{key}", world.scene.analyst).status_code == 403
    entry = world.entries()[-1]
    assert (entry.action, entry.outcome) == ("request.refused", "refused")
    assert (entry.actor, entry.target) == (world.scene.analyst.id, key)
    assert entry.details == {"method": "DELETE", "route": "/v1/keys/{key_id}"}


def test_a_sign_in_that_failed_is_recorded_without_the_key(world: World) -> None:
    world.client.cookies.clear()
    assert world.browser.sign_in(Key("key_x", "scrimp_key_abc_secret", "admin")).status_code == 401
    entry = world.entries()[-1]
    assert (entry.action, entry.outcome, entry.actor, entry.target) == ("dashboard.signed_in", "failed", None, None)


def test_an_act_that_is_refused_by_its_state_leaves_nothing(world: World) -> None:
    before = len(world.entries())
    assert world.call("POST", f"/v1/jobs/{world.done}/cancel").status_code == 409
    assert world.call("GET", f"/v1/jobs/{world.done}/artifacts/none").status_code == 404
    assert len(world.entries()) == before


def test_admins_read_the_log_by_pages_and_filters(world: World) -> None:
    hook = world.hook()
    world.call("POST", f"/v1/webhooks/{hook}/test")
    while seal(world.db):
        pass
    of_hook = world.call("GET", "/v1/audit", params={"target": hook}).json()
    assert [each["action"] for each in of_hook["items"]] == ["webhook.tested", "webhook.created"]
    one = world.call("GET", "/v1/audit", params={"target": hook, "limit": 1}).json()
    two = world.call("GET", "/v1/audit", params={"target": hook, "limit": 1, "after": one["next"]}).json()
    assert one["items"] + two["items"] == of_hook["items"]
    assert two["next"] is None
    oldest = world.call("GET", "/v1/audit", params={"since": 0, "limit": 2}).json()
    assert [each["seq"] for each in oldest["items"]] == [1, 2]
    following = world.call("GET", "/v1/audit", params={"since": 0, "limit": 2, "after": oldest["next"]}).json()
    assert [each["seq"] for each in following["items"]] == [3, 4]
    mine = {"key": world.scene.admin.id, "action": "webhook.tested", "limit": 1}
    assert world.call("GET", "/v1/audit", params=mine).json()["items"] == of_hook["items"][:1]
    found = world.call("GET", "/v1/audit/verify").json()
    assert (found["valid"], found["unsealed"]) == (True, 0)
    for role in (world.scene.owner, world.scene.analyst):
        for path in ("/v1/audit", "/v1/audit/verify"):
            assert world.call("GET", path, role).status_code == 403


def test_who_is_not_let_in_does_not_fill_the_log(world: World) -> None:
    before = len(world.entries())
    elsewhere = TestClient(world.client.app, raise_server_exceptions=False, client=("192.0.2.1", 50000))
    assert elsewhere.post("/dashboard/login", data={"key": "x"}).status_code == 403
    assert elsewhere.post("/v1/keys", json={}).status_code == 401
    assert len(world.entries()) == before
    answers = [Browser(elsewhere).sign_in(Key("key_x", "ключ", "admin")).status_code for _ in range(70)]
    assert answers[-1] == 429
    assert len(world.entries()) - before == answers.count(401) < 70
