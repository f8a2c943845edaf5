"""/v1/budget-requests: a key asks, the owner answers, both are told."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import select, update

from app.db.database import Database
from app.db.models import Account, AuditEntry, BudgetRequest, Webhook, WebhookDelivery
from core.ids import new_id, now
from tests.budgets.test_api import listed, put, submit
from tests.chaos.tamper import unprotected
from tests.conftest import Api
from tests.factories import add_dataset


@pytest.fixture
def dataset(api: Api, db: Database) -> str:
    return add_dataset(db, owner=api.key_ids["owner"])


def ask(api: Api, dataset: str, epsilon: float = 1.0, *, role: str = "analyst", **more: Any) -> Any:
    body = {"dataset": dataset, "epsilon": epsilon, "reason": "two more models"} | more
    return api.client.post("/v1/budget-requests", json=body, headers=api.headers(role))


def decide(api: Api, request: str, how: str, *, role: str = "owner", tag: str | None = None, **body: Any) -> Any:
    headers = api.headers(role) | ({} if tag is None else {"If-Match": tag})
    return api.client.post(f"/v1/budget-requests/{request}/{how}", json=body, headers=headers)


def listen(db: Database, key: str) -> str:
    with db.write() as session:
        fields: dict[str, Any] = {"url": "https://example.org", "description": "", "enabled": True, "secret": "none"}
        events = ["budget.requested", "budget.approved", "budget.denied"]
        hook = Webhook(id=new_id("wh"), key_id=key, dataset_id=None, events=events, created_at=now(), **fields)
        session.add(hook)
        return hook.id


def messages(db: Database, webhook: str) -> list[str]:
    with db.read() as session:
        mine = select(WebhookDelivery.type).where(WebhookDelivery.webhook_id == webhook)
        return sorted(session.scalars(mine))


def test_an_approved_request_is_a_budget(api: Api, db: Database, dataset: str) -> None:
    hooks = {role: listen(db, api.key_ids[role]) for role in ("owner", "analyst")}
    made = ask(api, dataset)
    assert made.status_code == 201, made.text
    request = made.json()
    assert (request["status"], request["budget"], request["budget_version"]) == ("open", api.key_ids["analyst"], 0)
    seen = api.client.get(f"/v1/budget-requests/{request['id']}", headers=api.headers("owner"))
    assert seen.json() == request and seen.headers["etag"] == f'"{api.key_ids["analyst"]}.0"'
    assert decide(api, request["id"], "approve").status_code == 428
    approved = decide(api, request["id"], "approve", tag=seen.headers["etag"], answer="until March")
    assert approved.status_code == 200, approved.text
    assert approved.json()["status"] == "approved" and approved.json()["answer"] == "until March"
    assert listed(api, dataset, "analyst")[0]["epsilon"]["value"] == 1.0
    assert submit(api, dataset, 2.0).json()["budget"] == api.key_ids["analyst"]
    assert decide(api, request["id"], "deny").json()["type"] == "/problems/wrong-state"
    with db.read() as session:
        told = select(AuditEntry.action).where(AuditEntry.target == request["id"]).order_by(AuditEntry.id)
        assert list(session.scalars(told)) == ["budget.requested", "budget.approved"]
    assert messages(db, hooks["owner"]) == messages(db, hooks["analyst"]) == ["budget.approved", "budget.requested"]


def test_another_key_hears_nothing(api: Api, db: Database, dataset: str) -> None:
    hook = listen(db, api.key_ids["analyst"])
    request = ask(api, dataset, role="owner").json()["id"]
    assert messages(db, hook) == []
    assert api.client.get(f"/v1/budget-requests/{request}", headers=api.headers("analyst")).status_code == 404
    found = api.client.get("/v1/budget-requests", headers=api.headers("analyst")).json()["items"]
    assert found == []


def test_a_denied_request_changes_nothing(api: Api, dataset: str) -> None:
    request = ask(api, dataset).json()["id"]
    denied = decide(api, request, "deny", answer="the study has ended").json()
    assert denied["status"] == "denied" and listed(api, dataset, "owner") == []
    assert ask(api, dataset).status_code == 201  # a new one may follow


def test_an_approval_is_for_the_budget_that_the_owner_saw(api: Api, dataset: str) -> None:
    put(api, dataset, "team", {"epsilon": 1.0, "keys": [api.key_ids["analyst"]]})
    request = ask(api, dataset, 2.0).json()
    assert (request["budget"], request["budget_version"]) == ("team", 1)
    put(api, dataset, "team", {"epsilon": 3.0}, **{"If-Match": '"1"'})
    assert decide(api, request["id"], "approve", tag='"team.1"').status_code == 412
    assert decide(api, request["id"], "approve", tag='"team.2"').status_code == 200
    assert listed(api, dataset, "owner")[0]["epsilon"]["value"] == 3.0  # never less than it is


def test_an_expired_request_cannot_be_approved(api: Api, db: Database, dataset: str) -> None:
    request = ask(api, dataset).json()["id"]
    assert ask(api, dataset).json()["type"] == "/problems/wrong-state"  # one at a time
    with db.write() as session:
        session.execute(update(BudgetRequest).values(expires_at=now() - timedelta(seconds=1)))
    refused = decide(api, request, "approve", tag="*")
    assert refused.status_code == 409 and "expired" in refused.json()["detail"]
    for status, count in (("expired", 1), ("open", 0)):
        found = api.client.get(f"/v1/budget-requests?status={status}", headers=api.headers("analyst")).json()
        assert len(found["items"]) == count
    assert ask(api, dataset).status_code == 201


def test_only_the_owner_decides(api: Api, dataset: str) -> None:
    request = ask(api, dataset).json()["id"]
    assert decide(api, request, "approve", role="analyst", tag="*").status_code == 403
    listed_by_owner = api.client.get(f"/v1/budget-requests?dataset={dataset}", headers=api.headers("owner")).json()
    assert [each["id"] for each in listed_by_owner["items"]] == [request]


@pytest.mark.parametrize("ends", [timedelta(seconds=-1), timedelta(days=400)])
def test_a_request_ends_in_the_future_within_a_year(api: Api, dataset: str, ends: timedelta) -> None:
    refused = ask(api, dataset, expires_at=(now() + ends).isoformat())
    assert refused.status_code == 422 and refused.json()["errors"][0]["pointer"] == "/expires_at"


def test_what_no_budget_can_be_made_from_is_not_asked(api: Api, dataset: str) -> None:
    refused = ask(api, dataset, 4.5)  # the cap is 4
    assert refused.status_code == 422 and refused.json()["errors"][0]["pointer"] == "/epsilon"


def test_a_key_that_may_only_look_cannot_ask(api: Api, dataset: str) -> None:
    address = f"/v1/datasets/{dataset}/grants/{api.key_ids['analyst']}"
    api.client.put(address, json={"access": "view"}, headers=api.headers("owner"))
    assert ask(api, dataset).status_code == 403


def test_a_key_withdraws_its_own_request(api: Api, dataset: str) -> None:
    request = ask(api, dataset).json()["id"]
    withdrawn = decide(api, request, "deny", role="analyst").json()
    assert (withdrawn["status"], withdrawn["decided_by"]) == ("denied", api.key_ids["analyst"])
    assert ask(api, dataset).status_code == 201


def test_an_approval_is_for_no_other_budget_of_the_same_version(api: Api, dataset: str) -> None:
    analyst, owner, admin = (api.key_ids[role] for role in ("analyst", "owner", "admin"))
    put(api, dataset, "first", {"epsilon": 1.0, "keys": [analyst]})
    request = ask(api, dataset, 2.0).json()
    put(api, dataset, "first", {"epsilon": 1.0, "keys": [owner]}, **{"If-Match": '"1"'})
    put(api, dataset, "second", {"epsilon": 0.5, "keys": [analyst, admin]})
    assert decide(api, request["id"], "approve", tag='"first.1"').status_code == 412
    assert [each["epsilon"]["value"] for each in listed(api, dataset, "owner")] == [1.0, 0.5]


def test_a_closed_budget_of_the_key_is_the_one_that_the_owner_sees(api: Api, dataset: str) -> None:
    """It is not new: an approval for "nothing yet" would make it anew, with what it was."""
    analyst = api.key_ids["analyst"]
    put(api, dataset, analyst, {"epsilon": 3.0})
    address = f"/v1/datasets/{dataset}/budgets/{analyst}"
    assert api.client.delete(address, headers=api.headers("owner", **{"If-Match": '"1"'})).status_code == 204
    request = ask(api, dataset, 1.0).json()
    assert (request["budget"], request["budget_version"]) == (analyst, 2)
    assert decide(api, request["id"], "approve", tag=f'"{analyst}.0"').status_code == 412
    assert decide(api, request["id"], "approve", tag=f'"{analyst}.2"').status_code == 200
    (found,) = listed(api, dataset, "owner")
    assert (found["epsilon"]["value"], found["keys"], found["version"]) == (3.0, [analyst], 3)  # never less than it is


def test_a_budget_above_a_lowered_cap_needs_no_change_for_less(api: Api, dataset: str) -> None:
    analyst = api.key_ids["analyst"]
    put(api, dataset, analyst, {"epsilon": 3.0})
    ledger = f"/v1/datasets/{dataset}/ledger"
    tag = api.client.get(ledger, headers=api.headers("owner")).headers["etag"]
    lower = {"epsilon": 1.0, "reason": "fewer studies"}
    assert api.client.post(f"{ledger}/cap", json=lower, headers=api.headers("owner", **{"If-Match": tag})).is_success
    request = ask(api, dataset, 0.8).json()
    assert decide(api, request["id"], "approve", tag="*").status_code == 200
    (found,) = listed(api, dataset, "owner")
    assert (found["epsilon"]["value"], found["version"]) == (3.0, 1)


def test_no_budget_is_asked_of_a_closed_ledger(api: Api, db: Database, dataset: str) -> None:
    with unprotected(db) as session:
        session.execute(update(Account).where(Account.dataset_id == dataset).values(joined_into="ds_other"))
    refused = ask(api, dataset)
    assert refused.status_code == 409 and refused.json()["type"] == "/problems/wrong-state"
