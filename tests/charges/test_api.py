"""/v1/charges over HTTP: other systems' mechanisms on the same ledger as jobs."""

from __future__ import annotations

import hashlib
import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from app.charges import charge_cost, service
from app.charges.schemas import ChargeRequest
from app.db.database import Database
from app.db.models import ApiKey, Dataset, Grant
from app.ledger.transparency.heads import Heads
from app.ledger.verification import verify
from app.settings import Settings
from core.ids import new_id, now
from tests.conftest import Api
from tests.factories import add_dataset, job_spec

LAPLACE = {"kind": "laplace", "scale": 20.0}
HALF = {"kind": "gdp", "mu": 0.5}


def asked(dataset: str, mechanism: Any = HALF, **changes: Any) -> dict[str, Any]:
    body = {"dataset": dataset, "mechanism": mechanism, "unit": "example", "attested": "a histogram by OpenDP"}
    return body | changes


def reserve(api: Api, body: dict[str, Any], *, role: str = "admin", once: str | None = None) -> Any:
    headers = api.headers(role, **{"Idempotency-Key": once or new_id("once")})
    return api.client.post("/v1/charges", json=body, headers=headers)


def settle(api: Api, charge: str, how: str, role: str = "admin") -> Any:
    body = {"reason": "the query failed before it read anything"} if how == "void" else None
    return api.client.post(f"/v1/charges/{charge}/{how}", json=body, headers=api.headers(role))


def ledger(api: Api, dataset: str) -> Any:
    return api.client.get(f"/v1/datasets/{dataset}/ledger", headers=api.headers("admin")).json()


def grant(db: Database, dataset: str, key: str, access: str) -> None:
    with db.write() as session:
        session.merge(Grant(dataset_id=dataset, key_id=key, access=access, created_at=now(), created_by="test"))


def test_a_charge_is_held_then_posted(api: Api, db: Database, settings: Settings) -> None:
    dataset = add_dataset(db)
    made = reserve(api, asked(dataset))
    assert made.status_code == 201, made.text
    charge = made.json()
    assert charge["status"] == "held" and charge["train"] == charge["holdout"] == 250_000_000_001
    assert made.headers["location"] == f"/v1/charges/{charge['id']}"
    held = ledger(api, dataset)
    assert held["accounts"]["train"]["held"] == charge["train"] and held["accounts"]["train"]["spent"] == 0
    recorded = Heads.of(settings).read(dataset)
    assert recorded is not None and recorded.train.held == charge["train"]  # before the other system answers
    posted = settle(api, charge["id"], "post").json()
    assert posted["status"] == "posted" and posted["settled_at"] is not None
    spent = ledger(api, dataset)
    assert spent["accounts"]["holdout"]["spent"] == charge["holdout"] and spent["accounts"]["train"]["held"] == 0
    assert spent["epsilon_spent"] == spent["epsilon_filter"] and spent["comparison"] is None
    with db.read() as session:
        assert verify(session, dataset).valid
    assert settle(api, charge["id"], "post").json() == posted
    refused = settle(api, charge["id"], "void")
    assert refused.status_code == 409 and refused.json()["type"] == "/problems/wrong-state"


def test_the_entry_says_who_attests_what(api: Api, db: Database) -> None:
    dataset = add_dataset(db)
    charge = reserve(api, asked(dataset, LAPLACE, account="train")).json()
    entries = api.client.get(f"/v1/datasets/{dataset}/ledger/entries", headers=api.headers("admin")).json()["items"]
    last = entries[-1]
    assert (last["kind"], last["job_id"], last["actor"]) == ("hold", charge["id"], api.key_ids["admin"])
    assert last["holdout"] == 0 and last["train"] == charge["train"]
    claim = {"account": "train", "mechanism": LAPLACE | {"count": 1}, "attested": "a histogram by OpenDP"}
    assert last["memo"]["charge"] == claim


def test_a_charge_that_answered_nothing_is_given_back(api: Api, db: Database) -> None:
    dataset = add_dataset(db)
    before = ledger(api, dataset)["accounts"]
    charge = reserve(api, asked(dataset)).json()["id"]
    voided = settle(api, charge, "void").json()
    assert voided["status"] == "voided" and voided["reason"].startswith("the query failed")
    assert ledger(api, dataset)["accounts"] == before
    assert settle(api, charge, "post").status_code == 409


def test_what_does_not_fit_is_refused_and_costs_nothing(api: Api, db: Database) -> None:
    dataset = add_dataset(db)
    before = ledger(api, dataset)
    refused = reserve(api, asked(dataset, {"kind": "gdp", "mu": 10.0}))
    assert refused.json()["type"] == "/problems/budget-exceeded" and refused.json()["detail"].startswith("it needs")
    assert ledger(api, dataset) == before


def test_jobs_and_charges_share_the_budget(api: Api, db: Database) -> None:
    """A job that fitted no longer fits, and the largest charge leaves nothing for the next."""
    dataset = add_dataset(db)
    left = ledger(api, dataset)["accounts"]["train"]["remaining"]
    mu = (left * 1e-12) ** 0.5 * (1 - 1e-9)
    assert reserve(api, asked(dataset, {"kind": "gdp", "mu": mu})).status_code == 201
    spec = job_spec(dataset, privacy={"target_epsilon": 0.5}, evaluation=None)
    job = api.client.post("/v1/jobs", json=spec, headers=api.headers("admin", **{"Idempotency-Key": new_id("once")}))
    assert job.json()["type"] == "/problems/budget-exceeded"
    assert reserve(api, asked(dataset, LAPLACE)).json()["type"] == "/problems/budget-exceeded"


def test_a_held_charge_is_in_the_epsilon_that_is_spent_and_held(api: Api, db: Database) -> None:
    """Other accountants know jobs alone, so that their smaller sums must not be shown."""
    cap = {"epsilon": 4.0, "delta": 1e-5}
    private = {"sensitivity": "private", "records": 10_000, "cap": cap, "filter": "rdp"}
    dataset = add_dataset(db, order=8.0, privacy=private)
    reserve(api, asked(dataset, {"kind": "zcdp", "rho": 0.05}))
    found = ledger(api, dataset)
    assert found["epsilon_spent_and_held"]["value"] > 0.5 > found["epsilon_spent"]["value"] == 0.0


def test_the_same_key_makes_one_charge(api: Api, db: Database) -> None:
    dataset = add_dataset(db)
    first, second = (reserve(api, asked(dataset), once="once") for _ in range(2))
    assert first.json() == second.json() and second.headers["idempotent-replayed"] == "true"
    assert "idempotent-replayed" not in first.headers
    other = reserve(api, asked(dataset, LAPLACE), once="once")
    assert other.status_code == 409 and other.json()["type"] == "/problems/idempotency-key-reused"


def test_a_settled_charge_answers_nothing_again(api: Api, db: Database) -> None:
    """A program that is run twice with one key would answer twice for one charge, or after the owner's void."""
    dataset = add_dataset(db)
    for how in ("post", "void"):
        charge = reserve(api, asked(dataset, LAPLACE), once=how).json()["id"]
        assert settle(api, charge, how).status_code == 200
        again = reserve(api, asked(dataset, LAPLACE), once=how)
        assert again.status_code == 409 and again.json()["type"] == "/problems/wrong-state"


@pytest.mark.parametrize(
    "mechanism",
    [
        {"kind": "gdp", "mu": 1e6},
        {"kind": "laplace", "scale": 0.01, "count": 10_000_000},
        {"kind": "pure", "epsilon": 100.0},
    ],
)
def test_the_largest_claims_do_not_fit(api: Api, db: Database, mechanism: Any) -> None:
    refused = reserve(api, asked(add_dataset(db), mechanism))
    assert refused.json()["type"] == "/problems/budget-exceeded", refused.text


def test_the_smallest_claim_costs_one_unit(api: Api, db: Database) -> None:
    assert reserve(api, asked(add_dataset(db), {"kind": "gdp", "mu": 1e-200})).json()["train"] == 1


def test_only_the_maker_knows_that_nothing_was_answered(api: Api, db: Database) -> None:
    """An owner who voids what is being answered would make it free."""
    owned = add_dataset(db, owner=api.key_ids["owner"], shared=False)
    grant(db, owned, api.key_ids["analyst"], "charge")
    charge = reserve(api, asked(owned, LAPLACE), role="analyst").json()["id"]
    assert settle(api, charge, "void", "owner").status_code == settle(api, charge, "void").status_code == 403
    with db.write() as session:
        session.get_one(ApiKey, api.key_ids["analyst"]).revoked_at = now()
    assert settle(api, charge, "void", "owner").json()["status"] == "voided"


def test_racing_charges_never_overspend(api: Api, db: Database) -> None:
    dataset = add_dataset(db)
    left = ledger(api, dataset)["accounts"]["train"]["remaining"]
    fifth = {"kind": "gdp", "mu": (left * 1e-12 / 5) ** 0.5 * (1 - 1e-9)}
    with ThreadPoolExecutor(4) as pool:
        codes = list(pool.map(lambda _: reserve(api, asked(dataset, fifth)).status_code, range(12)))
    assert codes.count(201) == 5
    assert ledger(api, dataset)["accounts"]["train"]["remaining"] >= 0


@pytest.mark.parametrize(
    ("changes", "pointer"),
    [
        ({"relation": "replace_one"}, "/relation"),
        ({"mechanism": {"kind": "approximate", "epsilon": 1.0, "delta": 1e-6}}, "/mechanism"),
        ({"mechanism": {"kind": "zcdp", "rho": 0.1}}, "/mechanism"),  # under `gdp`
        ({"mechanism": {"kind": "pure", "epsilon": "1"}}, "/mechanism/epsilon"),
        ({"account": "everything"}, "/account"),
        ({"attested": " "}, "/attested"),
    ],
)
def test_a_claim_without_a_theorem_is_refused(api: Api, db: Database, changes: Any, pointer: str) -> None:
    refused = reserve(api, asked(add_dataset(db), **changes))
    assert refused.status_code == 422
    assert [each["pointer"] for each in refused.json()["errors"]] == [pointer]


def test_units_must_fit(api: Api, db: Database) -> None:
    dataset = add_dataset(db)
    refused = reserve(api, asked(dataset, LAPLACE, unit="user"))
    assert refused.json()["errors"][0]["pointer"] == "/unit"
    with db.write() as session:
        of_users = session.get_one(Dataset, dataset)
        of_users.spec = of_users.spec | {"privacy": of_users.spec["privacy"] | {"unit": "user"}}
    refused = reserve(api, asked(dataset, LAPLACE))
    assert refused.json()["errors"][0]["pointer"] == "/unit"
    assert reserve(api, asked(dataset, LAPLACE, unit="user")).status_code == 201


def test_without_a_hold_out_there_is_one_account(api: Api, db: Database) -> None:
    dataset = add_dataset(db, holdout=None)
    charge = reserve(api, asked(dataset)).json()
    assert charge["holdout"] == 0 < charge["train"]
    refused = reserve(api, asked(dataset, account="holdout"))
    assert refused.json()["errors"][0]["pointer"] == "/account"


def test_owners_and_keys_with_a_grant_charge(api: Api, db: Database) -> None:
    owned = add_dataset(db, owner=api.key_ids["owner"], shared=False)
    assert reserve(api, asked(owned), role="owner").status_code == 201
    assert reserve(api, asked(owned), role="analyst").status_code == 404
    for access, expected in (("view", 403), ("train", 403), ("charge", 201)):
        grant(db, owned, api.key_ids["analyst"], access)
        answer = reserve(api, asked(owned, LAPLACE), role="analyst")
        assert answer.status_code == expected, answer.text
    charge = answer.json()["id"]
    spec = job_spec(owned, privacy={"target_epsilon": 0.1}, evaluation=None)
    assert api.client.post("/v1/quotes", json=spec, headers=api.headers("analyst")).status_code == 403
    grant(db, owned, api.key_ids["analyst"], "view")
    assert settle(api, charge, "post", "analyst").status_code == 403
    assert settle(api, charge, "post", "owner").status_code == 200


def test_lists_show_what_a_key_may_see(api: Api, db: Database) -> None:
    mine, foreign = (add_dataset(db, owner=owner, shared=False) for owner in (api.key_ids["owner"], None))
    made = [reserve(api, asked(each, LAPLACE)).json()["id"] for each in (mine, foreign, mine)]

    def listed(role: str, **query: Any) -> list[str]:
        found, after = [], None
        while True:
            asked_for = {"limit": 1} | query | ({"after": after} if after else {})
            page = api.client.get("/v1/charges", headers=api.headers(role), params=asked_for).json()
            found += [each["id"] for each in page["items"]]
            after = page["next"]
            if after is None:
                return found

    assert listed("owner") == [made[2], made[0]]
    assert listed("admin", dataset=foreign) == [made[1]]
    settle(api, made[0], "void")
    assert listed("owner", status="held") == [made[2]]
    assert api.client.get(f"/v1/charges/{made[1]}", headers=api.headers("owner")).status_code == 404
    assert api.client.get(f"/v1/charges/{made[2]}", headers=api.headers("owner")).json()["id"] == made[2]


def test_a_hold_that_is_not_recorded_is_not_answered(
    api: Api, db: Database, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk of the records is full: the other system must not answer yet. The same request later succeeds."""
    dataset = add_dataset(db)
    with monkeypatch.context() as patch:
        patch.setattr(Heads, "write", full)
        refused = reserve(api, asked(dataset), once="later")
    assert refused.status_code == 409 and refused.json()["type"] == "/problems/head-pending"
    made = reserve(api, asked(dataset), once="later")
    assert made.status_code == 201 and made.json()["id"] == refused.json()["charge"]
    recorded = Heads.of(settings).read(dataset)
    assert recorded is not None and recorded.train.held == made.json()["train"]


def full(*_: Any) -> None:
    raise OSError(28, "No space left on device")


def test_a_charge_says_what_it_is_for_where_the_owner_requires_that(api: Api, db: Database) -> None:
    """As a job does: another system's answers are a use of the data too."""
    rules = {"controller": "A hospital", "purposes": ["care research"], "requires": ["purpose", "permit"]}
    dataset = add_dataset(db, governance=rules)
    use = {"purpose": "care research", "permit": "2026/114"}
    for said, where in (
        (None, "purpose"),
        ({"purpose": "care research"}, "permit"),
        (use | {"purpose": "x"}, "purpose"),
    ):
        refused = reserve(api, asked(dataset, use=said))
        assert refused.status_code == 422 and f"/use/{where}" in refused.text, refused.text
    assert ledger(api, dataset)["accounts"]["train"]["held"] == 0
    made = reserve(api, asked(dataset, use=use), once="same")
    assert made.status_code == 201 and made.json()["use"] == use
    assert reserve(api, asked(dataset, use=use), once="same").json() == made.json()
    assert reserve(api, asked(dataset, use={**use, "permit": "other"}), once="same").status_code == 409
    entries = api.client.get(f"/v1/datasets/{dataset}/ledger/entries", headers=api.headers("admin")).json()["items"]
    assert entries[-1]["memo"]["charge"]["use"] == use


def test_rules_that_change_while_a_charge_is_priced_bind_it(
    api: Api, db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset, priced = add_dataset(db), charge_cost.amounts

    def changed(*given: Any) -> Any:
        with db.write() as session:
            row = session.get_one(Dataset, dataset)
            row.spec = row.spec | {"governance": {"controller": "A hospital", "requires": ["permit"]}}
        return priced(*given)

    monkeypatch.setattr(service, "amounts", changed)
    refused = reserve(api, asked(dataset))
    assert refused.status_code == 422 and "/use/permit" in refused.text, refused.text
    assert ledger(api, dataset)["accounts"]["train"]["held"] == 0


def test_a_charge_from_before_there_were_uses_is_the_same_request() -> None:
    body = asked("ds_a", account="both", relation="add_or_remove_one")
    known = ChargeRequest.model_validate(body).model_dump(mode="json")
    before = {name: each for name, each in known.items() if name not in ("blocks", "use")}
    text = json.dumps(before, separators=(",", ":"), ensure_ascii=False)
    assert ChargeRequest.model_validate(body).digest == hashlib.sha256(text.encode()).hexdigest()
