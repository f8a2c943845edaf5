"""A cap that a plan divides: a `gdp` and an `rdp` ledger of the same records (decision 53)."""

from __future__ import annotations

import json
from typing import Any

import pytest
from sqlalchemy import select

from app.db.models import Account, Dataset, Job
from app.ledger import blocks, terms
from app.ledger.certificates import issue, profile
from app.ledger.evidence import of as evidence_of
from app.ledger.evidence import pieces
from app.ledger.second import ledgers_of
from app.ledger.transparency import checkpoints
from app.ledger.transparency.heads import Heads
from app.ledger.verify import verify
from app.lifecycle.settle import settle, settlement_of
from core.contracts.filters import PLANS, divided
from core.contracts.job_spec import JobSpec
from core.privacy.filters import GdpFilter, RdpFilter
from scrimp.statement import NotProven, Statement, checked
from scrimp.statement_words import told
from tests.datasets.conftest import Api, spec
from tests.datasets.test_block_jobs import account, exhaust, held, post, submit
from tests.datasets.test_blocks import append, grant, rows
from tests.ledger.issued import KEY
from tests.ledger.test_anchors import unheard

MIXED: dict[str, Any] = {"plan": "mixed"}
POISSON = {"sampling": {"kind": "poisson", "expected_batch_size": 16}, "length": {"steps": 40}, "evaluation": None}
ZCDP = {"kind": "zcdp", "rho": 0.001}
HALF = {"kind": "gdp", "mu": 0.1}


def planned(api: Api, plan: str = "mixed", **changes: Any) -> tuple[str, str]:
    """A data set with a divided cap of ε = 4 at δ = 1e-5, and its second ledger."""
    declared = spec(**changes)
    privacy = {name: value for name, value in declared["privacy"].items() if name != "filter"}
    made = api.upload(declared | {"privacy": privacy | {"plan": plan}})
    assert made.status_code == 201, made.text
    grant(api, made.json()["id"])
    with api.db.read() as session:
        first, second = ledgers_of(session, made.json()["id"])
    return first, second


def charge(api: Api, dataset: str, mechanism: dict[str, Any], once: str = "charge", **changes: Any) -> Any:
    body = {"dataset": dataset, "mechanism": mechanism, "unit": "example", "attested": "a histogram", **changes}
    return post(api, "/v1/charges", body, **{"Idempotency-Key": once})


def statement(api: Api, dataset: str) -> Any:
    checkpoints.sign_due(api.db, Heads.of(api.settings), KEY, unheard)
    terms.sign_due(api.db, KEY)
    with api.db.read() as session:
        found = evidence_of(session, session.get_one(Dataset, dataset))
    return json.loads("".join(pieces(api.db, found)))


def proven(document: Any) -> Statement:
    return checked(document, KEY.public_key().public_bytes_raw())


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 3.0, 7.3])
def test_parts_add_up_to_the_cap_exactly(epsilon: float) -> None:
    for plan in PLANS:
        parts = divided(plan, epsilon, 1e-6)
        if plan == "any mechanism":
            assert parts is None
            continue
        assert parts is not None and parts.gdp[0] + parts.rdp[0] == epsilon
        assert parts.gdp[1] + parts.rdp[1] == 1e-6 and min(*parts.gdp, *parts.rdp) > 0.0


def test_a_plan_opens_a_ledger_for_each_filter(api: Api) -> None:
    first, second = planned(api, "models mostly")
    gdp, rdp = account(api, first), account(api, second)
    assert (gdp.filter, gdp.cap_epsilon, gdp.cap_delta) == ("gdp", 3.0, 5e-6)
    assert (rdp.filter, rdp.cap_epsilon, rdp.cap_delta) == ("rdp", 1.0, 5e-6)
    assert gdp.train_budget == GdpFilter().budget(3.0, 5e-6)
    assert rdp.train_budget == RdpFilter(rdp.order or 0.0).budget(1.0, 5e-6)
    shown = api.get(f"/v1/datasets/{first}/ledger").json()
    assert (shown["cap"]["value"], shown["cap"]["delta"]) == (4.0, 1e-5) and shown["blocks"] is None
    assert [each["filter"] for each in shown["parts"]] == ["gdp", "rdp"]
    assert [each["ledger"] for each in shown["parts"]] == [first, second]
    assert [each["id"] for each in api.get("/v1/datasets").json()["items"]] == [first]
    assert api.get(f"/v1/datasets/{first}/blocks").json()["items"][0]["id"] == first


def test_one_ledger_is_enough_for_any_mechanism(api: Api) -> None:
    declared = spec()
    privacy = {name: value for name, value in declared["privacy"].items() if name != "filter"}
    made = api.upload(declared | {"privacy": privacy | {"plan": "any mechanism"}}).json()["id"]
    with api.db.read() as session:
        assert ledgers_of(session, made) == [made]
    assert account(api, made).filter == "rdp" and api.get(f"/v1/datasets/{made}/ledger").json()["parts"] is None


@pytest.mark.parametrize(
    "privacy", [{"filter": "rdp"}, {"sensitivity": "public", "records": None, "cap": None}], ids=["a filter", "public"]
)
def test_a_plan_chooses_the_filters(api: Api, privacy: dict[str, Any]) -> None:
    declared = spec()
    kept = {name: value for name, value in declared["privacy"].items() if name != "filter"}
    refused = api.upload(declared | {"privacy": kept | MIXED | privacy})
    assert refused.status_code == 422 and "plan" in refused.text


def test_what_a_job_does_decides_which_ledger_pays(api: Api) -> None:
    first, second = planned(api)
    full, sampled = submit(api, first), submit(api, first, "two", **POISSON)
    assert full.status_code == sampled.status_code == 201, sampled.text
    assert held(api, full.json()["id"]) == [first] and held(api, sampled.json()["id"]) == [second]
    assert full.json()["quote"]["charge"]["unit"].startswith("mu^2")
    assert sampled.json()["quote"]["charge"]["unit"].startswith("rdp")
    quoted = post(api, "/v1/quotes", {**JobSpec.model_validate(sampled.json()["spec"]).request()}).json()
    assert quoted["charge"] == sampled.json()["quote"]["charge"]
    with api.db.read() as session:
        job = session.get_one(Job, sampled.json()["id"])
        assert [each.id for each in blocks.read_by(session, job)] == [first]


def test_an_exhausted_part_refuses_and_names_itself(api: Api) -> None:
    first, second = planned(api)
    exhaust(api, second)
    refused = submit(api, first, **POISSON)
    assert refused.status_code == 409 and "account of the filter `rdp`" in refused.json()["detail"]
    assert submit(api, first, "two").status_code == 201  # nothing is carried from one part to the other


def test_charges_pay_where_a_theorem_bounds_them(api: Api) -> None:
    first, second = planned(api)
    exact, zcdp = charge(api, first, HALF).json(), charge(api, first, ZCDP, "two").json()
    assert held(api, exact["id"]) == [first] and held(api, zcdp["id"]) == [second]
    assert exact["unit"].startswith("mu^2") and zcdp["unit"].startswith("rdp")
    for each in (exact, zcdp):
        assert post(api, f"/v1/charges/{each['id']}/post", None).status_code == 200
    shown = api.get(f"/v1/datasets/{first}/ledger").json()
    spent = [each["epsilon_spent"]["value"] for each in shown["parts"]]
    assert min(spent) > 0.0 and shown["epsilon_spent"]["value"] == pytest.approx(sum(spent), rel=1e-12)
    assert shown["epsilon_spent"]["delta"] == 1e-5
    with api.db.read() as session:
        for ledger in (first, second):
            assert verify(session, ledger).valid


def test_a_cap_change_keeps_the_shares(api: Api) -> None:
    first, second = planned(api, "models mostly")
    body, path = {"epsilon": 6.0, "reason": "agreed"}, f"/v1/datasets/{first}/ledger/cap"
    changed = post(api, path, body, **{"If-Match": "*"})
    assert changed.status_code == 200, changed.text
    assert changed.json()["cap"]["value"] == 6.0
    assert (account(api, first).cap_epsilon, account(api, second).cap_epsilon) == (4.5, 1.5)
    exhaust(api, second)
    lowered = post(api, path, {"epsilon": 5.0, "reason": "less"}, **{"If-Match": "*"})
    assert (lowered.status_code, lowered.json()["type"]) == (409, "/problems/cap-too-low")
    assert account(api, first).cap_epsilon == 4.5, "both parts or none"


def test_a_budget_is_divided_like_the_cap(api: Api) -> None:
    first, second = planned(api)
    key = api.key_ids["owner"]
    path, body = f"/v1/datasets/{first}/budgets/{key}", {"epsilon": 3.0}
    made = api.client.put(path, json=body, headers=api.headers("owner"))
    assert made.status_code in (200, 201), made.text
    assert (made.json()["epsilon"]["value"], made.json()["epsilon"]["delta"]) == (3.0, 1e-5)
    big = charge(api, first, {"kind": "zcdp", "rho": 0.08})
    assert big.status_code == 409 and "the budget" in big.json()["detail"]
    small = charge(api, first, ZCDP, "two")
    assert small.status_code == 201 and held(api, small.json()["id"]) == [second]
    post(api, f"/v1/charges/{small.json()['id']}/post", None)
    (shown,) = api.get(f"/v1/datasets/{first}/budgets").json()["items"]
    assert shown["epsilon_spent"]["value"] > 0.0


def test_blocks_have_both_ledgers(api: Api) -> None:
    first, second = planned(api)
    two = append(api, first, rows(range(60, 160)), "two", 100)
    assert two.status_code == 201, two.text
    with api.db.read() as session:
        third, fourth = ledgers_of(session, two.json()["id"])
    sampled = submit(api, first, **POISSON).json()
    assert held(api, sampled["id"]) == sorted((second, fourth)) and sorted(sampled["spec"]["blocks"]) == [
        "first",
        "two",
    ]
    assert held(api, submit(api, first, "two").json()["id"]) == sorted((first, third))
    exhaust(api, fourth)
    assert submit(api, first, "three", **POISSON).json()["spec"]["blocks"] == ["first"]
    refused = submit(api, first, "four", blocks=["two"], **POISSON)
    assert refused.status_code == 409 and refused.json()["block"] == "two"
    named = charge(api, first, ZCDP, blocks=["first"]).json()
    assert held(api, named["id"]) == [second]
    shown = api.get(f"/v1/datasets/{first}/ledger").json()
    assert {each["id"] for each in shown["blocks"]} == {first, second, third, fourth}
    assert shown["cap"]["value"] == 4.0 and len(shown["parts"]) == 2
    gone = api.client.post(f"/v1/datasets/{first}/blocks/two/retire", headers=api.headers("owner"))
    assert gone.status_code == 200, gone.text
    assert account(api, third).joined_into == account(api, fourth).joined_into == "retired"


def test_an_untouched_data_set_may_change_its_plan(api: Api) -> None:
    declared = spec()
    first, second = planned(api, name=declared["name"])
    gone = api.client.post(f"/v1/datasets/{first}/retire", headers=api.headers("owner"))
    assert gone.status_code == 200, gone.text
    assert account(api, first).joined_into == account(api, second).joined_into == "retired"
    again, beside = planned(api, "models mostly", name=declared["name"])
    assert account(api, beside).cap_epsilon == 1.0 and again != first


def test_one_that_was_used_may_not(api: Api) -> None:
    first, _second = planned(api)
    assert charge(api, first, ZCDP).status_code == 201
    assert api.client.post(f"/v1/datasets/{first}/retire", headers=api.headers("owner")).status_code == 409


def test_a_statement_adds_both_parts(api: Api) -> None:
    first, second = planned(api)
    for once, mechanism in enumerate((HALF, ZCDP)):
        made = charge(api, first, mechanism, str(once)).json()
        post(api, f"/v1/charges/{made['id']}/post", None)
    document = statement(api, first)
    found = proven(document)
    shown = api.get(f"/v1/datasets/{first}/ledger").json()["epsilon_spent"]
    assert found.epsilon_spent == pytest.approx(shown["value"], rel=1e-7) and found.delta == shown["delta"]
    words = dict(told(found))
    assert "both parts' ε's add up" in " ".join(words["What was spent"]) and len(words["Parts of the cap"]) == 2
    assert "ε ≤ 4 at δ = 1e-05" in words["Guarantee"][0] and "gdp" in words["Guarantee"][0]
    alone = proven(statement(api, second))
    assert "a part of the data set's cap alone" in " ".join(dict(told(alone))["What was spent"])
    hidden = document | {"ledgers": document["ledgers"][:1]}
    with pytest.raises(NotProven):
        proven(hidden)
    doubled = document | {"version": 2, "ledgers": [*document["ledgers"], *statement(api, second)["ledgers"]]}
    with pytest.raises(NotProven):
        proven(doubled)


def test_a_certificate_names_the_ledger_that_paid(api: Api) -> None:
    first, second = planned(api)
    made = submit(api, first, **POISSON).json()["id"]
    with api.db.write() as session:
        job = session.get_one(Job, made)
        job.status, job.steps_started = "running", job.steps
        settle(session, settlement_of(session, job, "succeeded"))
    with api.db.write() as session:
        assert issue(session, made, KEY, "test", profile(session, made))
    body = api.get(f"/v1/jobs/{made}/certificate").json()["certificate"]
    assert [(each["dataset"], each["block"]) for each in body["ledger"]] == [(second, "first, any mechanism")]
    assert body["dataset"]["id"] == first and body["filter"]["kind"] == "rdp" and body["cap"]["epsilon"] == 2.0
    assert any("part of the data set's: with all" in each and "ε ≤ 4" in each for each in body["composition"])


def test_content_stays_while_a_job_of_the_second_ledger_needs_it(api: Api) -> None:
    first, second = planned(api)
    made = submit(api, first, **POISSON).json()["id"]
    path = f"/v1/datasets/{first}/content"
    assert api.client.delete(path, headers=api.headers("owner")).status_code == 409
    with api.db.write() as session:
        settle(session, settlement_of(session, session.get_one(Job, made), "cancelled"))
    assert api.client.delete(path, headers=api.headers("owner")).status_code in (200, 204)
    assert submit(api, first, "two", **POISSON).status_code == 409
    with api.db.read() as session:
        there = select(Dataset.content_deleted_at).where(Dataset.id.in_((first, second)))
        assert None not in session.scalars(there).all()
        assert session.get_one(Account, second).train_held == 0


def test_amounts_of_two_units_are_not_added(api: Api) -> None:
    first, second = planned(api)
    for once, mechanism in enumerate((HALF, ZCDP)):
        made = charge(api, first, mechanism, str(once)).json()
        post(api, f"/v1/charges/{made['id']}/post", None)
    for ledger in (first, second):
        (item,) = api.get(f"/v1/datasets/{ledger}/spending").json()["items"]
        assert item["charges"] == 1 and item["train"]["amount"] == account(api, ledger).train_spent
