"""/v1/datasets/{id}/budgets over HTTP, and what jobs, quotes and charges are told under a budget."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import select

from app.db.database import Database
from app.db.models import AuditEntry
from app.ledger.verification import verify
from core.ids import new_id
from tests.conftest import Api
from tests.factories import add_dataset, job_spec


@pytest.fixture
def dataset(api: Api, db: Database) -> str:
    """A private data set of the key `owner`; the key `analyst` may train on it."""
    return add_dataset(db, owner=api.key_ids["owner"])


def put(api: Api, dataset: str, name: str, body: dict[str, Any], *, role: str = "owner", **headers: str) -> Any:
    sent = api.headers(role, **headers)
    return api.client.put(f"/v1/datasets/{dataset}/budgets/{name}", json=body, headers=sent)


def listed(api: Api, dataset: str, role: str) -> list[Any]:
    found = api.client.get(f"/v1/datasets/{dataset}/budgets", headers=api.headers(role))
    assert found.status_code == 200, found.text
    return list(found.json()["items"])


def submit(api: Api, dataset: str, epsilon: float, role: str = "analyst") -> Any:
    spec = job_spec(dataset, privacy={"target_epsilon": epsilon}, evaluation=None)
    return api.client.post("/v1/jobs", json=spec, headers=api.headers(role, **{"Idempotency-Key": new_id("once")}))


def quote(api: Api, dataset: str, epsilon: float, role: str = "analyst") -> Any:
    spec = job_spec(dataset, privacy={"target_epsilon": epsilon}, evaluation=None)
    return api.client.post("/v1/quotes", json=spec, headers=api.headers(role)).json()


def test_a_job_beyond_its_key_s_budget_is_refused_with_what_fits(api: Api, db: Database, dataset: str) -> None:
    analyst = api.key_ids["analyst"]
    made = put(api, dataset, analyst, {"epsilon": 1.0})
    assert made.status_code == 200, made.text
    assert made.json()["keys"] == [analyst] and made.headers["etag"] == '"1"'
    refused = submit(api, dataset, 2.0)
    said = refused.json()
    assert refused.status_code == 409 and said["type"] == "/problems/budget-exceeded" and said["budget"] == analyst
    largest = said["largest_epsilon_that_fits"]
    assert 0.99 < largest <= 1.0 and quote(api, dataset, 2.0)["largest_epsilon_that_fits"] == largest
    assert quote(api, dataset, 2.0)["fits"] is False and quote(api, dataset, 2.0, "owner")["fits"] is True
    assert any("budget" in each for each in quote(api, dataset, 2.0)["warnings"])
    assert submit(api, dataset, 0.9).status_code == 201
    mine = listed(api, dataset, "analyst")[0]
    assert mine["keys"] is None and mine["accounts"]["train"]["share_held"] > 0.5
    assert mine["collusion"] == "The cap holds even if all keys share what they learn."
    forecast = api.client.post(
        f"/v1/datasets/{dataset}/ledger/forecast",
        json=job_spec(dataset, privacy={"target_epsilon": 0.5}, evaluation=None),
        headers=api.headers("analyst"),
    )
    assert forecast.json()["jobs_that_fit"] == 0
    assert submit(api, dataset, 2.0, "owner").status_code == 201  # the owner's jobs are not bounded by it
    with db.read() as session:
        assert verify(session, dataset).valid


def test_a_cancelled_job_s_hold_goes_back_to_the_budget(api: Api, dataset: str) -> None:
    put(api, dataset, api.key_ids["analyst"], {"epsilon": 1.0})
    job = submit(api, dataset, 0.9).json()["id"]
    assert submit(api, dataset, 0.9).status_code == 409
    assert api.client.post(f"/v1/jobs/{job}/cancel", headers=api.headers("analyst")).status_code == 202
    assert listed(api, dataset, "analyst")[0]["accounts"]["train"]["held"] == 0
    assert submit(api, dataset, 0.9).status_code == 201


def test_a_charge_of_another_system_uses_the_same_budget(api: Api, dataset: str) -> None:
    api.client.put(
        f"/v1/datasets/{dataset}/grants/{api.key_ids['analyst']}",
        json={"access": "charge"},
        headers=api.headers("owner"),
    )
    put(api, dataset, api.key_ids["analyst"], {"epsilon": 1.0})
    body = {"dataset": dataset, "unit": "example", "attested": "a histogram", "mechanism": {"kind": "gdp", "mu": 0.2}}

    def charge() -> Any:
        headers = api.headers("analyst", **{"Idempotency-Key": new_id("once")})
        return api.client.post("/v1/charges", json=body, headers=headers)

    first = charge().json()
    assert charge().json()["budget"] == api.key_ids["analyst"]
    reason = {"reason": "the query failed"}
    api.client.post(f"/v1/charges/{first['id']}/void", json=reason, headers=api.headers("analyst"))
    again = charge().json()
    api.client.post(f"/v1/charges/{again['id']}/post", headers=api.headers("analyst"))
    parts = listed(api, dataset, "analyst")[0]["accounts"]
    assert parts["train"]["spent"] == again["train"] and parts["train"]["held"] == 0


def test_a_change_names_the_version_that_it_is_for(api: Api, dataset: str) -> None:
    name = api.key_ids["analyst"]
    assert put(api, dataset, "team", {"epsilon": 1.0, "keys": [name]}, **{"If-Match": '"1"'}).status_code == 412
    first = put(api, dataset, "team", {"epsilon": 1.0, "keys": [name]}).headers["etag"]
    missing = put(api, dataset, "team", {"epsilon": 2.0})
    assert missing.status_code == 428 and missing.json()["type"] == "/problems/precondition-required"
    second = put(api, dataset, "team", {"epsilon": 2.0}, **{"If-Match": first})
    assert second.status_code == 200 and second.headers["etag"] != first
    lost = put(api, dataset, "team", {"epsilon": 3.0}, **{"If-Match": first})
    assert lost.status_code == 412 and lost.json()["type"] == "/problems/precondition-failed"
    assert submit(api, dataset, 0.2).status_code == 201  # spending changes no version
    address = f"/v1/datasets/{dataset}/budgets/team"
    assert api.client.get(address, headers=api.headers("owner")).headers["etag"] == second.headers["etag"]
    assert api.client.delete(address, headers=api.headers("owner")).status_code == 428
    ended = api.client.delete(address, headers=api.headers("owner", **{"If-Match": second.headers["etag"]}))
    assert ended.status_code == 204
    shown = listed(api, dataset, "owner")[0]
    assert shown["closed"] and shown["keys"] == [] and shown["accounts"]["train"]["held"] > 0


def test_a_cap_is_changed_for_the_version_that_was_seen(api: Api, dataset: str) -> None:
    address, body = f"/v1/datasets/{dataset}/ledger", {"epsilon": 5.0, "reason": "more studies"}
    seen = api.client.get(address, headers=api.headers("owner"))
    assert seen.headers["etag"] == f'"{seen.json()["cap_version"]}"'
    assert submit(api, dataset, 0.2).status_code == 201
    missing = api.client.post(f"{address}/cap", json=body, headers=api.headers("owner"))
    assert missing.status_code == 428
    tagged = api.headers("owner", **{"If-Match": seen.headers["etag"]})
    assert api.client.post(f"{address}/cap", json=body, headers=tagged).status_code == 200
    again = api.client.post(f"{address}/cap", json=body, headers=tagged)
    assert again.status_code == 412


@pytest.mark.parametrize(
    ("body", "status", "pointer"),
    [
        ({"epsilon": 4.5}, 422, "/epsilon"),  # above the cap
        ({"epsilon": 1.0, "keys": ["key_nobody"]}, 422, "/keys"),
        ({"epsilon": 1.0, "keys": []}, 422, "/keys"),
        ({"epsilon": 0}, 422, "/epsilon"),
    ],
)
def test_what_cannot_be_a_budget_is_refused(
    api: Api, dataset: str, body: dict[str, Any], status: int, pointer: str
) -> None:
    refused = put(api, dataset, api.key_ids["analyst"], body)
    assert refused.status_code == status and refused.json()["errors"][0]["pointer"] == pointer
    assert listed(api, dataset, "owner") == []


def test_a_new_team_must_name_its_keys(api: Api, dataset: str) -> None:
    refused = put(api, dataset, "team", {"epsilon": 1.0})
    assert refused.status_code == 422 and "'team'" in refused.json()["errors"][0]["detail"]


def test_a_key_spends_within_one_budget(api: Api, dataset: str) -> None:
    name = api.key_ids["analyst"]
    put(api, dataset, "team", {"epsilon": 1.0, "keys": [name]})
    refused = put(api, dataset, name, {"epsilon": 1.0})
    assert refused.status_code == 409 and refused.json()["type"] == "/problems/wrong-state"


def test_a_budget_does_not_go_below_what_it_spent(api: Api, dataset: str) -> None:
    name = api.key_ids["analyst"]
    put(api, dataset, name, {"epsilon": 1.0})
    submit(api, dataset, 0.9)
    refused = put(api, dataset, name, {"epsilon": 0.5}, **{"If-Match": "*"})
    said = refused.json()
    assert refused.status_code == 409 and said["type"] == "/problems/budget-too-low"
    assert 0.9 <= said["smallest_epsilon"] < 0.91


def test_an_rdp_filter_says_from_which_epsilon_it_has_units(api: Api, db: Database) -> None:
    private = {
        "sensitivity": "private",
        "records": 10_000,
        "cap": {"epsilon": 4.0, "delta": 1e-5},
        "filter": "rdp",
    }
    dataset = add_dataset(db, owner=api.key_ids["owner"], order=8.0, privacy=private)
    refused = put(api, dataset, api.key_ids["analyst"], {"epsilon": 1.0})
    assert refused.status_code == 422 and "only above ε = 1.2" in refused.json()["errors"][0]["detail"]
    assert put(api, dataset, api.key_ids["analyst"], {"epsilon": 2.0}).status_code == 200


def test_only_the_owner_sets_budgets_and_sees_all_of_them(api: Api, dataset: str) -> None:
    assert put(api, dataset, api.key_ids["analyst"], {"epsilon": 1.0}, role="analyst").status_code == 403
    put(api, dataset, "team", {"epsilon": 1.0, "keys": [api.key_ids["owner"]]})
    assert listed(api, dataset, "analyst") == []
    for name, owner in (("team", 200), ("nothing", 404)):
        address = f"/v1/datasets/{dataset}/budgets/{name}"
        assert api.client.get(address, headers=api.headers("analyst")).status_code == 403
        assert api.client.get(address, headers=api.headers("owner")).status_code == owner
    assert [each["name"] for each in listed(api, dataset, "owner")] == ["team"]


def test_a_budget_named_after_a_key_is_that_key_s_alone(api: Api, dataset: str) -> None:
    analyst, admin = api.key_ids["analyst"], api.key_ids["admin"]
    for keys in ([analyst, admin], [admin]):
        refused = put(api, dataset, analyst, {"epsilon": 1.0, "keys": keys})
        assert refused.status_code == 422 and refused.json()["errors"][0]["pointer"] == "/keys"
    assert put(api, dataset, analyst, {"epsilon": 1.0, "keys": [analyst]}).status_code == 200


def test_the_audit_log_says_who_joined_a_budget_and_who_left(api: Api, db: Database, dataset: str) -> None:
    analyst, owner = api.key_ids["analyst"], api.key_ids["owner"]
    put(api, dataset, "team", {"epsilon": 1.0, "keys": [analyst]})
    put(api, dataset, "team", {"epsilon": 1.0, "keys": [owner]}, **{"If-Match": '"1"'})
    address = f"/v1/datasets/{dataset}/budgets/team"
    api.client.delete(address, headers=api.headers("owner", **{"If-Match": '"2"'}))
    with db.read() as session:
        said = select(AuditEntry.details).where(AuditEntry.action.in_(("budget.set", "budget.closed")))
        found = [(each.get("joined"), each["left"]) for each in session.scalars(said.order_by(AuditEntry.id))]
    assert found == [([analyst], []), ([owner], [analyst]), (None, [owner])]


def test_entries_do_not_name_a_budget(api: Api, dataset: str) -> None:
    made = put(api, dataset, "new-team", {"epsilon": 1.0, "keys": [api.key_ids["owner"]]}).json()
    assert submit(api, dataset, 0.5, "owner").status_code == 201
    entries = api.client.get(f"/v1/datasets/{dataset}/ledger/entries", headers=api.headers("analyst"))
    assert entries.json()["items"][-1]["memo"]["budget"] == made["id"] and "new-team" not in entries.text
