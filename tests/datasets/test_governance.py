"""Governance: declared by the owner, required of jobs, kept with the version of a price, and signed."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from sqlalchemy import update

from app.db.declared_version import declared
from app.db.models import Grant, Job
from core.contracts.dataset_spec import DatasetSpec
from core.ids import now
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


TERMS: dict[str, Any] = {"purpose": "care research", "permit": "17/2026", "persons": ["A. Analyst", "B. Analyst"]}


def granted(api: Api, dataset: str, **terms: Any) -> Any:
    key = api.key_ids["analyst"]
    return api.client.put(
        f"/v1/datasets/{dataset}/grants/{key}", json={"access": "train"} | terms, headers=api.headers("owner")
    )


def asked(api: Api, dataset: str, **changes: Any) -> Any:
    return api.client.post("/v1/quotes", json=job_spec(dataset, **changes), headers=api.headers("analyst"))


def test_jobs_have_the_use_of_their_grant(api: Api) -> None:
    """The analyst need not type it, and can name no other."""
    made = api.upload(spec(governance=RULES, **private(records=100))).json()["id"]
    given = granted(api, made, **TERMS)
    assert given.status_code == 200 and {name: given.json()[name] for name in TERMS} == TERMS
    job = api.client.post(
        "/v1/jobs", json=job_spec(made), headers=api.headers("analyst") | {"Idempotency-Key": "filled in"}
    )
    assert job.status_code == 201 and job.json()["spec"]["use"] == USE, job.text
    other = refusal(asked(api, made, use={"purpose": "quality reports"}))
    assert other == ("/use/purpose", "your grant on this data set is for: care research")
    assert refusal(asked(api, made, use={"permit": "1"}))[0] == "/use/permit"
    assert api.get(f"/v1/datasets/{made}/grants").json()["items"][0]["persons"] == TERMS["persons"]


def test_a_grant_ends_like_a_key(api: Api) -> None:
    made = api.upload(spec(**private(records=100))).json()["id"]
    past = granted(api, made, ends_at="2020-01-01T00:00:00Z")
    assert refusal(past)[0] == "/ends_at"
    assert granted(api, made, ends_at=(now() + timedelta(days=1)).isoformat()).status_code == 200
    assert asked(api, made).status_code == 200
    seen = api.client.get("/v1/datasets", headers=api.headers("analyst")).json()["items"]
    assert [each["id"] for each in seen] == [made]
    with api.db.write() as session:  # a day later
        session.execute(update(Grant).values(ends_at=now()))
    assert asked(api, made).status_code == 404, "as if there were none"
    assert api.client.get("/v1/datasets", headers=api.headers("analyst")).json()["items"] == []
    posted_late = api.client.post(
        "/v1/jobs", json=job_spec(made), headers=api.headers("analyst") | {"Idempotency-Key": "late"}
    )
    assert posted_late.status_code == 404


def test_a_grant_s_purpose_is_one_that_the_data_set_lists(api: Api) -> None:
    """Else no job could ever run under it."""
    made = api.upload(spec(governance=RULES, **private(records=100))).json()
    pointer, detail = refusal(granted(api, made["id"], purpose="care reserch"))
    assert pointer == "/purpose" and detail.endswith("did you mean 'care research'?")
    assert granted(api, made["id"], purpose="care research").status_code == 200


def test_a_purpose_and_a_permit_are_of_jobs(api: Api) -> None:
    """A grant to charge or to view binds nobody to them, so it says none."""
    made = api.upload(spec(**private(records=100))).json()
    for access in ("charge", "view"):
        for name in ("purpose", "permit"):
            assert refusal(granted(api, made["id"], access=access, **{name: "care research"}))[0] == f"/{name}"
