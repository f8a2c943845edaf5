"""Every route × everybody who may ask × a data set that is theirs, granted or foreign, by what the route declares."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from json import loads
from pathlib import Path
from typing import Any

import pytest
from fastapi import APIRouter

from app.web.route_operation import Operation, Page
from tests.access.world import DEAD, LEVELS, ROLES, Target, World
from tests.by_night import but
from tests.declared import declarations
from tests.factories import job_spec

ENOUGH = {
    "view": ("view", "train", "charge", "own"),
    "train": ("train", "own"),
    "charge": ("charge", "own"),
    "own": ("own",),
    "its owner": ("own",),
    "use": ("train", "charge", "own"),
}
DOCUMENT = loads((Path(__file__).parents[2] / "docs" / "openapi.json").read_text())
NOWHERE = Target("ds_aaaaaaaaaaaaaaaaaaaaa", "nothing-of-this-name", "job_aaaaaaaaaaaaaaaaaaaaa")
Sent = dict[str, Any]


@dataclass(frozen=True)
class Rule:
    """Who gets what.

    Attributes:
        ok: the status for who may.
        needs: the access to the data set (or the job's) that is needed; None: the route is about none.
        role: the roles that may; empty: all.
        otherwise: for a key without the role.
        dead: for no key, or one that does not hold; None: the route is open.
        send: body and headers, made anew for each request.
        by_name: the data set may also be named in the path.
    """

    ok: int = 200
    needs: str | None = None
    role: tuple[str, ...] = ()
    otherwise: int = 403
    dead: int | None = 401
    send: Callable[[World, Target, str], Sent] = lambda _world, _target, _who: {}
    by_name: bool = False


def spec_of(world: World, target: Target, who: str) -> Sent:
    spec = job_spec(target.dataset, privacy={"target_epsilon": 0.01}, evaluation=None)
    return {"json": spec, "headers": {"Idempotency-Key": f"table-{who}-{target.dataset}"}}


def sweep_of(_world: World, target: Target, _who: str) -> Sent:
    return {"json": {"spec": job_spec(target.dataset, evaluation=None, hpo={"strategy": "linear_scaling"})}}


def forecast_of(_world: World, target: Target, _who: str) -> Sent:
    return {"json": job_spec(target.dataset, privacy={"target_epsilon": 0.01}, evaluation=None)}


def claim_of(_world: World, target: Target, who: str) -> Sent:
    mechanism = {"kind": "gdp", "mu": 0.001}
    body = {"dataset": target.dataset, "mechanism": mechanism, "unit": "example", "attested": "a test"}
    return {"json": body, "headers": {"Idempotency-Key": f"table-{who}-{target.dataset}"}}


def as_it_was(_world: World, _target: Target, _who: str) -> Sent:
    return {"json": {"epsilon": 4.0, "reason": "as it was"}, "headers": {"If-Match": "*"}}


def a_budget(world: World, target: Target, _who: str) -> Sent:
    if target is not NOWHERE:
        world.open_budget(target)
    return {"json": {"epsilon": 1.0}, "headers": {"If-Match": "*"}}


def an_old_form(world: World, target: Target, _who: str) -> Sent:
    if target is not NOWHERE:
        world.open_budget(target)
    return {"data": {"name": "team", "version": "0"}}


def a_request(_world: World, target: Target, _who: str) -> Sent:
    return {"json": {"dataset": target.dataset, "epsilon": 1.0, "reason": "a test"}}


def to_somebody(_world: World, _target: Target, who: str) -> Sent:
    return {"json": {"recipient": f"{who} {secrets.token_hex(4)}", "reason": "a test"}}


def an_asked_egress(world: World, target: Target, who: str) -> Sent:
    if target is not NOWHERE:
        world.ask("admin", "POST", f"/v1/jobs/{target.job}/egress", **to_somebody(world, target, who))
    return {}


def to_itself(_world: World, target: Target, _who: str) -> Sent:
    return {"json": {"into": target.dataset, "reason": "a test"}}


def a_fresh_grant(world: World, target: Target, _who: str) -> Sent:
    if target is not NOWHERE:
        world.grant("spare", "view", target=target)
    return {}


def something_held(world: World, target: Target, _who: str) -> Sent:
    if target is not NOWHERE:
        world.queued_job(target, "owner" if target is world.mine else "other-owner")
    return {}


def an_open_prediction(world: World, target: Target, _who: str) -> Sent:
    if target is not NOWHERE:
        world.open_prediction(target)
    return {}


def json(body: Any) -> Callable[[World, Target, str], Sent]:
    return lambda _world, _target, _who: {"json": body}


def of_dataset(**more: Any) -> Callable[[World, Target, str], Sent]:
    return lambda _world, target, _who: {"params": {"dataset": target.dataset, **more}}


ADMINS, OWNERS, SUBMITTERS = ("admin",), ("admin", "owner"), ("admin", "owner", "analyst")
HOOK = {"url": "https://93.184.216.34/", "events": ["job.succeeded"]}
NEW_KEY = json({"name": "made by the table", "role": "viewer"})
# By the audience that a route of the API declares: who gets what.
AUDIENCES = {
    "anyone": Rule(dead=None),
    "every key": Rule(),
    "submitters": Rule(role=SUBMITTERS),
    "owners": Rule(role=OWNERS),
    "admins": Rule(role=ADMINS),
    "admins, or the key itself": Rule(role=ADMINS, otherwise=404),
    **{each: Rule(needs=each) for each in ENOUGH},
}
# How a route of the API is called, and answers who may, if a bare call does not succeed.
CALLS: dict[tuple[str, str], Sent] = {
    ("POST", "/v1/keys"): {"send": NEW_KEY},
    ("PATCH", "/v1/keys/{key_id}"): {"send": json({"weight": 1})},
    ("POST", "/v1/datasets"): {"ok": 422, "send": json({})},
    ("POST", "/v1/datasets/check"): {"ok": 422, "send": json({})},
    ("POST", "/v1/uploads"): {"send": json({"size": 1})},
    # Whose an upload is, tests/datasets/test_resumable.py looks at; this one is nobody's.
    ("GET", "/v1/uploads/{upload_id}"): {"ok": 404},
    ("PATCH", "/v1/uploads/{upload_id}"): {"ok": 404, "send": lambda *_: {"headers": {"Upload-Offset": "0"}}},
    ("DELETE", "/v1/uploads/{upload_id}"): {"ok": 404},
    # Whose a graph is, tests/graphs/test_uploads.py looks at; these are nobody's.
    ("POST", "/v1/graphs"): {"ok": 422, "send": json({"upload": "up_aaaaaaaaaaaaaaaaaaaaa"})},
    ("DELETE", "/v1/graphs/{sha256}"): {"ok": 404},
    ("PUT", "/v1/datasets/{dataset_id}/grants/{key_id}"): {"send": json({"access": "view"}), "by_name": False},
    ("DELETE", "/v1/datasets/{dataset_id}/grants/{key_id}"): {"send": a_fresh_grant, "by_name": False},
    # No relay runs, so there is no checkpoint.
    ("GET", "/v1/signatures/{digest}"): {"ok": 404},
    ("GET", "/v1/ledger/checkpoint"): {"ok": 409, "send": of_dataset()},
    ("GET", "/v1/ledger/proof"): {"ok": 409, "send": of_dataset(entry=1)},
    ("POST", "/v1/datasets/{dataset_id}/ledger/forecast"): {"send": forecast_of},
    ("POST", "/v1/datasets/{dataset_id}/ledger/cap"): {"send": as_it_was},
    ("PUT", "/v1/datasets/{dataset_id}/persons"): {"send": json({"persons": {}})},
    ("GET", "/v1/datasets/{dataset_id}/statement"): {"ok": 409},
    # Nothing of it is erased.
    ("GET", "/v1/datasets/{dataset_id}/erasure-note"): {"ok": 409},
    # Whose an approval is, tests/egress looks at; this one is nobody's.
    ("GET", "/v1/approvals/{approval_id}"): {"ok": 404},
    ("POST", "/v1/approvals/{approval_id}/agree"): {"ok": 404},
    ("POST", "/v1/approvals/{approval_id}/deny"): {"ok": 404},
    ("GET", "/v1/datasets/{dataset_id}/budgets/{budget}"): {"send": a_budget},
    ("PUT", "/v1/datasets/{dataset_id}/budgets/{budget}"): {"send": a_budget},
    ("DELETE", "/v1/datasets/{dataset_id}/budgets/{budget}"): {"send": a_budget},
    ("POST", "/v1/budget-requests"): {"send": a_request},
    # Whose a request is, tests/budgets looks at; this one is nobody's.
    ("GET", "/v1/budget-requests/{request_id}"): {"ok": 404},
    ("POST", "/v1/budget-requests/{request_id}/approve"): {"ok": 404, "send": json({})},
    ("POST", "/v1/budget-requests/{request_id}/deny"): {"ok": 404, "send": json({})},
    # A ledger is not joined to itself.
    ("POST", "/v1/datasets/{dataset_id}/ledger/join"): {"ok": 422, "send": to_itself, "by_name": False},
    ("POST", "/v1/datasets/{dataset_id}/retire"): {"ok": 409, "send": something_held},
    # Its units are not known, and it never grew: tests/datasets/test_blocks.py appends and retires.
    ("POST", "/v1/datasets/{dataset_id}/blocks"): {"ok": 409},
    ("POST", "/v1/datasets/{dataset_id}/blocks/{label}/retire"): {"ok": 409},
    ("POST", "/v1/charges"): {"send": claim_of},
    # Whose a charge is, tests/charges looks at; this one is nobody's.
    ("GET", "/v1/charges/{charge_id}"): {"ok": 404},
    ("POST", "/v1/charges/{charge_id}/post"): {"ok": 404},
    ("POST", "/v1/charges/{charge_id}/void"): {"ok": 404, "send": json({"reason": "a test"})},
    # Its task has no scale.
    ("POST", "/v1/datasets/{dataset_id}/declarations"): {"ok": 422, "send": json({"scale": [1, 5]})},
    ("DELETE", "/v1/datasets/{dataset_id}/content"): {"ok": 409, "send": something_held},
    ("DELETE", "/v1/jobs/{job_id}/artifacts"): {"ok": 409, "send": an_open_prediction},
    ("POST", "/v1/quotes"): {"send": spec_of},
    ("POST", "/v1/quotes/sweep"): {"send": sweep_of},
    ("POST", "/v1/jobs"): {"send": spec_of},
    # The job has ended: who may cancel it is told so. It was submitted by the data set's owner.
    ("POST", "/v1/jobs/{job_id}/egress"): {"send": to_somebody},
    # No relay runs: it is not made yet.
    ("GET", "/v1/jobs/{job_id}/egress"): {"ok": 409, "send": an_asked_egress},
    ("PATCH", "/v1/jobs/{job_id}"): {"send": json({"tags": ["kept"]})},
    ("POST", "/v1/jobs/{job_id}/cancel"): {"ok": 409},
    ("POST", "/v1/jobs/{job_id}/pause"): {"ok": 409},
    ("POST", "/v1/jobs/{job_id}/resume"): {"ok": 409},
    # That is no record of the data set's. Whose a prediction is, tests/predictions looks at; this one is nobody's.
    ("POST", "/v1/jobs/{job_id}/predict"): {"ok": 422, "send": json({"records": [None]})},
    ("GET", "/v1/jobs/{job_id}/predictions/{prediction_id}"): {"ok": 404},
    # Whose a webhook is, tests/webhooks looks at; this one is nobody's.
    ("POST", "/v1/webhooks"): {"send": json(HOOK)},
    ("GET", "/v1/webhooks/{webhook_id}"): {"ok": 404},
    ("PATCH", "/v1/webhooks/{webhook_id}"): {"ok": 404, "send": json({})},
    ("DELETE", "/v1/webhooks/{webhook_id}"): {"ok": 404},
    ("POST", "/v1/webhooks/{webhook_id}/rotate-secret"): {"ok": 404},
    ("POST", "/v1/webhooks/{webhook_id}/test"): {"ok": 404},
    ("GET", "/v1/webhooks/{webhook_id}/deliveries"): {"ok": 404},
}


# The same of pages: what an empty form answers who may send it.
PAGES: dict[tuple[str, str], Sent] = {
    ("POST", "/dashboard/webhooks"): {"ok": 422},
    ("POST", "/dashboard/webhooks/{webhook_id}/test"): {"ok": 404},
    ("POST", "/dashboard/webhooks/{webhook_id}/enabled"): {"ok": 404, "send": lambda *_: {"data": {"enabled": "true"}}},
    ("POST", "/dashboard/webhooks/{webhook_id}/events"): {
        "ok": 404,
        "send": lambda *_: {"data": {"events": "job.failed"}},
    },
    ("POST", "/dashboard/webhooks/{webhook_id}/secret"): {"ok": 404},
    ("POST", "/dashboard/webhooks/{webhook_id}/delete"): {"ok": 404},
    ("POST", "/dashboard/graphs/{sha256}/delete"): {"ok": 404},
    ("POST", "/dashboard/keys"): {"ok": 422},
    ("POST", "/dashboard/keys/{key_id}/revoke"): {"ok": 303},
    ("POST", "/dashboard/keys/grants"): {"ok": 422},
    ("POST", "/dashboard/keys/grants/remove"): {"ok": 404},
    ("POST", "/dashboard/submit"): {"ok": 422},
    ("POST", "/dashboard/register/check"): {"ok": 422, "send": json({})},
    ("POST", "/dashboard/register/file"): {"ok": 422, "send": json({})},
    ("GET", "/"): {"ok": 303},
    ("POST", "/dashboard/login"): {"ok": 403},  # without a form of ours
    ("POST", "/dashboard/logout"): {"ok": 303},
    # No identity provider is set here: tests/identity has one.
    ("GET", "/dashboard/sign-in"): {"ok": 404},
    ("GET", "/dashboard/sign-in/callback"): {"ok": 404},
    ("GET", "/dashboard/events/jobs"): {"ok": 204},  # no stream is asked for
    ("GET", "/dashboard/events/readings/{dataset_id}"): {"ok": 204},
    ("GET", "/dashboard/events/jobs/{job_id}"): {"ok": 204},
    ("POST", "/dashboard/jobs/{job_id}/cancel"): {"ok": 409},
    ("POST", "/dashboard/jobs/{job_id}/pause"): {"ok": 409},
    ("POST", "/dashboard/jobs/{job_id}/resume"): {"ok": 409},
    ("POST", "/dashboard/jobs/{job_id}/labels"): {"ok": 303},
    ("POST", "/dashboard/datasets/{dataset_id}/budgets"): {"ok": 422},
    ("POST", "/dashboard/datasets/{dataset_id}/budgets/close"): {"ok": 412, "send": an_old_form},
    ("POST", "/dashboard/datasets/{dataset_id}/budgets/requests"): {"ok": 422},
    ("POST", "/dashboard/datasets/{dataset_id}/budgets/requests/{request_id}"): {"ok": 404},
    ("POST", "/dashboard/datasets/{dataset_id}/manage/cap"): {"ok": 422},
    ("POST", "/dashboard/datasets/{dataset_id}/manage/declaration"): {"ok": 422},
    # No relay runs here: there is no checkpoint.
    ("GET", "/dashboard/datasets/{dataset_id}/statement.json"): {"ok": 409},
    ("GET", "/dashboard/datasets/{dataset_id}/erasure-note"): {"ok": 409},
    # Whose an approval is, tests/egress looks at; this one is nobody's.
    ("POST", "/dashboard/approvals/{approval_id}/agree"): {"ok": 404},
    ("POST", "/dashboard/approvals/{approval_id}/deny"): {"ok": 404},
    ("POST", "/dashboard/jobs/{job_id}/egresses"): {"ok": 422},
    ("GET", "/dashboard/jobs/{job_id}/egress"): {"ok": 409, "send": an_asked_egress},
    ("POST", "/dashboard/datasets/{dataset_id}/manage/blocks"): {"ok": 409},
    ("POST", "/dashboard/datasets/{dataset_id}/manage/blocks/retire"): {"ok": 409},
    ("POST", "/dashboard/datasets/{dataset_id}/manage/retire"): {"ok": 409, "send": something_held},
    ("POST", "/dashboard/datasets/{dataset_id}/manage/delete"): {"ok": 409, "send": something_held},
    ("GET", "/dashboard/{path:path}"): {"ok": 404},
}


def declared() -> dict[tuple[str, str], Rule]:
    """Every route, by its own declaration."""
    rules = {}
    for route, declaration in declarations().items():
        if declaration is None:
            continue
        of_api = isinstance(declaration, Operation)
        described = DOCUMENT["paths"][route[1]][route[0].lower()] if of_api else {"responses": [200]}
        plain = {"ok": int(min(described["responses"])), "by_name": of_api and "{dataset_id}" in route[1]}
        rules[route] = replace(AUDIENCES[declaration.audience], **plain | (CALLS | PAGES).get(route, {}))
    return rules


TABLE = declared()


DOOMED = ("/v1/keys/{key_id}", "/dashboard/keys/{key_id}/revoke")


def address(path: str, target: Target, world: World, *, by_name: bool = False) -> str:
    values = {
        "{dataset_id}": target.name if by_name else target.dataset,
        "{job_id}": target.job,
        "{key_id}": world.ids["doomed" if path in DOOMED else "spare"],
        "{name}": "model.safetensors",
        "{webhook_id}": "wh_none",
        "{digest}": "0" * 64,
        "{upload_id}": "up_none",
        "{sha256}": "0" * 64,
        "{charge_id}": "chg_none",
        "{request_id}": "breq_none",
        "{budget}": "team",
        "{approval_id}": "apr_none",
    }
    for name, value in values.items():
        path = path.replace(name, value)
    file = "page.js" if path.startswith("/docs") else "style.css"
    return path.replace("{path:path}", file if "static" in path else "nothing-here")


def send(world: World, who: str, route: tuple[str, str], target: Target, *, by_name: bool = False) -> Any:
    method, path = route
    return world.ask(
        who, method, address(path, target, world, by_name=by_name), **TABLE[route].send(world, target, who)
    )


def undeclared(routes: Sequence[Any]) -> list[tuple[str, str]]:
    return [route for route, declaration in declarations(routes).items() if declaration is None]


def test_every_route_says_who_may_call_it(shared_world: World) -> None:
    """At the route: `@Operation`, or `@Page` outside the API."""
    routes = shared_world.client.app.routes  # type: ignore[attr-defined]
    assert undeclared(routes) == [] and declarations(routes).keys() == TABLE.keys()


def test_a_route_without_an_audience_is_found() -> None:
    planted = APIRouter()
    planted.get("/v1/secrets")(lambda: None)
    planted.get("/dashboard/secrets")(Page("admins")(lambda: None))
    assert undeclared(planted.routes) == [("GET", "/v1/secrets")]


# By day these alone ask for `foreign`: who sees it, and of those who do not, one by role.
FEW = ("admin", "owner", "other-owner", "trainer", "viewer")


@pytest.mark.parametrize("all_ask", but([False, True], lambda each: not each), ids=("few", "all"))
@pytest.mark.parametrize("route", sorted(TABLE), ids=" ".join)
def test_the_row_holds(request: pytest.FixtureRequest, route: tuple[str, str], all_ask: bool) -> None:
    world: World = request.getfixturevalue("night_world" if all_ask else "shared_world")
    rule = TABLE[route]
    asked = [(who, world.mine) for who in (*LEVELS, *DEAD)]
    if rule.needs or "{dataset_id}" in route[1] or "{job_id}" in route[1]:  # elsewhere nothing of it is sent
        asked += [(who, world.foreign) for who in (LEVELS if all_ask else FEW)]
    for who, target in asked:
        answer = send(world, who, route, target)
        assert answer.status_code == wanted(world, who, route, target), (who, target.name, answer.text[:300])
        # By day of `mine`: of each role somebody may not see it.
        if rule.needs and answer.status_code == 404 and (target is world.mine or all_ask):
            check_tells_nothing(world, who, route, target, answer)


def wanted(world: World, who: str, route: tuple[str, str], target: Target) -> int:
    rule = TABLE[route]
    if who in DEAD and rule.dead is not None:
        # A person is shown the way to the sign-in; a key that does not hold is told so.
        return 303 if route[1].startswith(("/dashboard", "/docs")) and who == "nobody" else rule.dead
    if rule.role and ROLES.get(who, "analyst") not in rule.role:
        return rule.otherwise
    if rule.needs is None:
        return rule.ok
    level = LEVELS[who]
    if target is world.foreign:
        level = "own" if who in ("admin", "other-owner") else None
    if rule.needs == "its owner" and who == "admin":  # no data set of the world is an admin's
        return 403
    return rule.ok if level in ENOUGH[rule.needs] else 403 if level else 404


def check_tells_nothing(world: World, who: str, route: tuple[str, str], target: Target, answer: Any) -> None:
    """What may not be seen, by its id or its name, is answered as what does not exist: to the byte."""
    nothing = send(world, who, route, NOWHERE)
    assert told(nothing) == told(answer), who
    if TABLE[route].by_name:
        assert told(send(world, who, route, target, by_name=True)) == told(nothing), who


def told(answer: Any) -> tuple[int, bytes, list[tuple[str, str]]]:
    """All but the request's own random number, which names its lines in the log."""
    return (
        answer.status_code,
        answer.content,
        sorted(each for each in answer.headers.items() if each[0] != "x-request-id"),
    )


@pytest.mark.parametrize("route", sorted(r for r, rule in TABLE.items() if rule.by_name), ids=" ".join)
def test_a_name_does_as_well_as_an_id(shared_world: World, route: tuple[str, str]) -> None:
    assert send(shared_world, "owner", route, shared_world.mine, by_name=True).status_code == TABLE[route].ok
