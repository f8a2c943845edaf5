"""Governance: declared by the owner, required of jobs, kept with the version of a price, and signed."""

from __future__ import annotations

from typing import Any

from app.contracts.dataset_spec import DatasetSpec
from app.db.declared import declared
from app.db.models import Job
from tests.datasets.conftest import Api, private, spec
from tests.datasets.test_declarations import declare
from tests.factories import job_spec

RULES: dict[str, Any] = {
    "controller": "Example General Hospital",
    "purposes": ["care research", "quality reports"],
    "legal_basis": "a statute",
    "region": "one country",
    "retention": "ten years",
    "contact": "dpo@hospital.example.org",
    "requires": ["purpose", "permit"],
}
USE = {"purpose": "care research", "permit": "17/2026"}


def posted(api: Api, dataset: str, where: str = "quotes", **changes: Any) -> Any:
    body = job_spec(dataset, **changes)
    return api.client.post(f"/v1/{where}", json=body, headers=api.headers("owner") | {"Idempotency-Key": str(changes)})


def refusal(answer: Any) -> tuple[str, str]:
    assert answer.status_code == 422, answer.text
    (error,) = answer.json()["errors"]
    return error["pointer"], error["detail"]


def test_a_job_says_what_its_owner_requires(api: Api) -> None:
    made = api.upload(spec(governance=RULES, **private(records=100))).json()
    assert made["governance"] == RULES
    missing = "the data set's owner requires a purpose of every job: one of care research; quality reports"
    for where in ("quotes", "jobs"):
        assert refusal(posted(api, made["id"], where)) == ("/use/purpose", missing)
    assert refusal(posted(api, made["id"], use={"purpose": "care research"}))[0] == "/use/permit"
    other = refusal(posted(api, made["id"], use=USE | {"purpose": "care reserch"}))
    assert other[0] == "/use/purpose" and other[1].endswith("did you mean 'care research'?")
    assert api.get(f"/v1/datasets/{made['id']}/ledger").json()["entries"] == 1, "refusals cost nothing"
    assert posted(api, made["id"], use=USE).status_code == 200
    job = posted(api, made["id"], "jobs", use=USE)
    assert job.status_code == 201 and job.json()["spec"]["use"] == USE


def test_a_job_keeps_the_rules_of_its_price(api: Api) -> None:
    made = api.upload(spec(governance=RULES, **private(records=100))).json()
    job = posted(api, made["id"], "jobs", use=USE).json()
    later = {"controller": "Another hospital", "purposes": ["planning"], "requires": ["purpose"]}
    answer = declare(api, made["id"], governance=later)
    assert answer.status_code == 201 and answer.json()["declaration"] == 2, answer.text
    assert answer.json()["governance"]["controller"] == "Another hospital"
    assert refusal(posted(api, made["id"], use=USE)) == ("/use/purpose", "the data set's owner allows: planning")
    with api.db.read() as session:
        kept = declared(session, session.get_one(Job, job["id"])).spec.governance
    assert kept == DatasetSpec.model_validate(spec(governance=RULES, **private(records=100))).governance


def test_no_rules_no_requirement(api: Api) -> None:
    made = api.upload(spec(**private(records=100))).json()
    assert posted(api, made["id"]).status_code == 200
    assert posted(api, made["id"], use={"purpose": "anything"}).status_code == 200
