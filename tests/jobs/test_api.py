"""/v1/quotes and /v1/jobs over HTTP, with the real pricing process behind them."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from app.db.database import Database
from tests.conftest import Api
from tests.factories import add_dataset, job_spec

PUBLIC = {"sensitivity": "public"}
RDP = {"sensitivity": "private", "records": 10_000, "cap": {"epsilon": 4.0, "delta": 1e-5}, "filter": "rdp"}


def post(api: Api, path: str, body: Any, role: str = "analyst", key: str | None = "k1") -> Any:
    more = {"Idempotency-Key": key} if key else {}
    return api.client.post(path, json=body, headers=api.headers(role, **more))


def get(api: Api, path: str, role: str = "analyst") -> Any:
    return api.client.get(path, headers=api.headers(role))


def test_a_quote_writes_nothing_and_says_everything(api: Api, db: Database) -> None:
    dataset = add_dataset(db)
    answer = post(api, "/v1/quotes", job_spec(dataset), key=None)
    assert answer.status_code == 200, answer.text
    quote = answer.json()
    assert quote["steps"] == 50
    assert quote["expected_batch_size"] == 8000
    # √50 / 0.268051: the golden μ of ε = 1 at δ = 1e-5.
    assert quote["noise_multiplier"] == pytest.approx(50**0.5 / 0.268051, rel=1e-5)
    assert quote["epsilon"]["value"] <= 1.0
    assert quote["epsilon"]["accountant"] == "gdp"
    assert quote["comparison"]["rdp"] > quote["comparison"]["gdp"]
    assert quote["mechanism"]["holdout"]["events"]
    assert quote["charge"]["holdout"] == 2_500_000_001
    assert quote["fits"] is True
    assert 3.9 < quote["largest_epsilon_that_fits"] <= 4.0
    assert {line["what"] for line in quote["lines"]} == {"training", "evaluation"}
    assert get(api, f"/v1/jobs?dataset={dataset}").json()["items"] == []
    assert get(api, f"/v1/datasets/{dataset}/ledger").json()["accounts"]["train"]["held"] == 0


def test_a_job_is_admitted_with_its_hold(api: Api, db: Database) -> None:
    dataset = add_dataset(db)
    answer = post(api, "/v1/jobs", job_spec(dataset, name="first"))
    assert answer.status_code == 201, answer.text
    job = answer.json()
    assert answer.headers["Location"] == f"/v1/jobs/{job['id']}"
    assert (job["status"], job["name"], job["dataset"]) == ("queued", "first", dataset)
    assert job["epsilon_spent"]["value"] == 0.0
    assert job["progress"] == {"step": 0, "steps": 50, "elapsed_s": None, "remaining_s": None}
    ledger = get(api, f"/v1/datasets/{dataset}/ledger").json()
    assert ledger["accounts"]["train"]["held"] == job["quote"]["charge"]["train"]
    events = get(api, f"/v1/jobs/{job['id']}/events").json()
    assert [each["type"] for each in events["items"]] == ["queued"]
    for part in ("metrics", "events"):
        assert get(api, f"/v1/jobs/{job['id']}/{part}").status_code == 200


@pytest.mark.parametrize("filter_kind", ["gdp", "rdp"])
def test_a_score_that_the_hold_out_cannot_pay_is_told_the_noise_that_it_can(
    api: Api, db: Database, filter_kind: str
) -> None:
    dataset = add_dataset(db, order=None if filter_kind == "gdp" else 8.0, privacy=RDP | {"filter": filter_kind})
    job = job_spec(dataset, privacy={"noise_multiplier": 100.0}, evaluation={"noise_mu": 1.5})
    refused = post(api, "/v1/jobs", job)
    problem = refused.json()
    assert (refused.status_code, problem.get("account")) == (409, "holdout"), problem
    most = problem["largest_noise_mu_that_fits"]
    assert problem["detail"].endswith(f"the score must have more noise: evaluation.noise_mu at most {most:g}")
    assert post(api, "/v1/jobs", job | {"evaluation": {"noise_mu": 1.01 * most}}, key="k2").status_code == 409
    fits = post(api, "/v1/jobs", job | {"evaluation": {"noise_mu": most}}, key="k3")
    assert fits.status_code == 201, fits.text


def test_a_score_above_the_target_is_told_the_noise_that_fits(api: Api, db: Database) -> None:
    dataset = add_dataset(db)
    job = job_spec(dataset, privacy={"target_epsilon": 0.2}, evaluation={"noise_mu": 0.5})
    refused = post(api, "/v1/quotes", job)
    (fault,) = refused.json()["errors"]
    assert (refused.status_code, fault["pointer"]) == (422, "/evaluation/noise_mu")
    most = float(fault["detail"].split("noise_mu at most ")[1].split(" ")[0])
    assert post(api, "/v1/quotes", job | {"evaluation": {"noise_mu": most}}).status_code == 200
    assert post(api, "/v1/quotes", job | {"evaluation": {"noise_mu": 1.01 * most}}).status_code == 422


def test_what_does_not_fit_is_refused_and_consumes_nothing(api: Api, db: Database) -> None:
    dataset = add_dataset(db)
    assert post(api, "/v1/jobs", job_spec(dataset, privacy={"target_epsilon": 3.0})).status_code == 201
    before = get(api, f"/v1/datasets/{dataset}/ledger").json()["accounts"]
    refused = post(api, "/v1/jobs", job_spec(dataset, privacy={"target_epsilon": 3.0}), key="k2")
    assert refused.status_code == 409
    assert refused.headers["content-type"] == "application/problem+json"
    problem = refused.json()
    assert problem["type"] == "/problems/budget-exceeded"
    assert problem["account"] == "train"
    assert problem["requested"]["train"] > problem["remaining"]["train"]
    assert get(api, f"/v1/datasets/{dataset}/ledger").json()["accounts"] == before
    assert problem["detail"].startswith("it needs 60.5 % of the train account, and 39.5 % is left; the largest")
    # What it says would fit does fit, under the same Idempotency-Key: a refusal is not kept.
    largest = problem["largest_epsilon_that_fits"]
    fitting = post(api, "/v1/jobs", job_spec(dataset, privacy={"target_epsilon": largest}), key="k2")
    assert fitting.status_code == 201, fitting.text


def test_the_same_idempotency_key_gives_the_same_job(api: Api, db: Database) -> None:
    """Attack (Doors): One Idempotency-Key twice
    Now: `Idempotent-Replayed: true`
    """
    dataset = add_dataset(db)
    first = post(api, "/v1/jobs", job_spec(dataset))
    again = post(api, "/v1/jobs", job_spec(dataset))
    assert again.status_code == 201
    assert again.json()["id"] == first.json()["id"]
    assert again.headers["Idempotent-Replayed"] == "true"
    other = post(api, "/v1/jobs", job_spec(dataset, length={"steps": 51}))
    assert (other.status_code, other.json()["type"]) == (409, "/problems/idempotency-key-reused")
    # Another API key has a name space of its own.
    assert post(api, "/v1/jobs", job_spec(dataset), role="owner").json()["id"] != first.json()["id"]


def test_one_idempotency_key_at_once_makes_one_job_and_one_hold(api: Api, db: Database) -> None:
    dataset = add_dataset(db)
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: post(api, "/v1/jobs", job_spec(dataset)), range(8)))
    assert {answer.status_code for answer in answers} == {201}
    ids = {answer.json()["id"] for answer in answers}
    assert len(ids) == 1
    charge = answers[0].json()["quote"]["charge"]["train"]
    assert get(api, f"/v1/datasets/{dataset}/ledger").json()["accounts"]["train"]["held"] == charge


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"privacy": {"target_epsilon": 0}}, "/privacy/target_epsilon"),
    ({"privacy": {"target_epsilon": -1.0}}, "/privacy/target_epsilon"),
    ({"privacy": {"target_epsilon": 101}}, "/privacy/target_epsilon"),
    ({"privacy": {"noise_multiplier": 0.05}}, "/privacy/noise_multiplier"),
    ({"privacy": {"target_epsilon": 1.0, "target_delta": 0.5}}, "/privacy/target_delta"),
    ({"privacy": {"target_epsilon": 1.0, "noise_multiplier": 1.0}}, "/privacy"),
    ({"length": {"steps": 0}}, "/length/steps"),
    ({"length": {"steps": 10_000_001}}, "/length/steps"),
    ({"length": {}}, "/length"),
    ({"optimizer": {"kind": "sgd", "learning_rate": 1.0}}, "/optimizer"),
    ({"optimizer": {"kind": "dp_sgd", "learning_rate": 0}}, "/optimizer/learning_rate"),
    ({"model": {"kind": "resnet"}}, "/model"),
    ({"sampling": {"kind": "shuffled"}}, "/sampling"),
    ({"clipping": {"kind": "flat", "max_grad_norm": -1}}, "/clipping/max_grad_norm"),
    # Subnormal numbers: the noise would underflow to nothing, and weight decay of 1e6 would blow up what is left.
    ({"clipping": {"kind": "flat", "max_grad_norm": 5e-324}}, "/clipping/max_grad_norm"),
    ({"evaluation": {"on": "holdout", "loss_bound": 5e-324}}, "/evaluation/loss_bound"),
    ({"optimizer": {"kind": "dp_sgd", "learning_rate": 1e6, "weight_decay": 1e6}}, "/optimizer"),
    ({"seed": 3}, "/seed"),
    ({"no_such_member": 1}, "/no_such_member"),
    ({"evaluation": {"on": "holdout", "noise_mu": 5.0}}, "/evaluation/noise_mu"),
]


SQLITE = pytest.mark.parametrize("backing", ["sqlite"])  # refused before a database is asked: no need for both


@SQLITE
@pytest.mark.parametrize(("change", "pointer"), REFUSED, ids=[each[1] + str(i) for i, each in enumerate(REFUSED)])
def test_bad_specs_are_refused_with_a_pointer(api: Api, db: Database, change: dict[str, Any], pointer: str) -> None:
    for path in ("/v1/quotes", "/v1/jobs"):
        refused = post(api, path, job_spec(add_dataset(db), **change))
        assert refused.status_code == 422, refused.text
        assert refused.json()["type"] == "/problems/invalid-request"
        assert pointer in [error["pointer"] for error in refused.json()["errors"]]


@SQLITE
@pytest.mark.parametrize(
    "text", ["{", "NaN", '{"length": NaN}', '{"privacy": {"target_epsilon": Infinity}}', "[" * 9_000]
)
def test_what_is_not_json_is_refused(api: Api, text: str) -> None:
    headers = api.headers("analyst", **{"Content-Type": "application/json", "Idempotency-Key": "k"})
    answer = api.client.post("/v1/jobs", content=text, headers=headers)
    assert answer.status_code == 422, answer.text
    assert answer.json()["type"] == "/problems/invalid-request"


@SQLITE
def test_a_body_too_large_is_refused(api: Api) -> None:
    answer = api.client.post("/v1/quotes", content=b"x" * 1_100_000, headers=api.headers("analyst"))
    assert (answer.status_code, answer.json()["type"]) == (413, "/problems/too-large")


def test_a_missing_idempotency_key_or_data_set_is_said(api: Api, db: Database) -> None:
    assert post(api, "/v1/jobs", job_spec(add_dataset(db)), key=None).status_code == 422
    assert post(api, "/v1/jobs", job_spec("ds_unknown")).status_code == 404


def test_a_queued_job_is_cancelled_at_once_and_voided(api: Api, db: Database) -> None:
    dataset = add_dataset(db)
    job = post(api, "/v1/jobs", job_spec(dataset), role="analyst").json()
    cancelled = post(api, f"/v1/jobs/{job['id']}/cancel", None)
    assert (cancelled.status_code, cancelled.json()["status"]) == (202, "cancelled")
    account = get(api, f"/v1/datasets/{dataset}/ledger").json()["accounts"]["train"]
    assert (account["held"], account["spent"]) == (0, 0)
    again = post(api, f"/v1/jobs/{job['id']}/cancel", None)
    assert (again.status_code, again.json()["type"]) == (409, "/problems/wrong-state")
    assert get(api, f"/v1/jobs/{job['id']}/certificate").status_code == 404


def test_only_who_submitted_it_or_owns_the_data_may_cancel(api: Api, db: Database) -> None:
    job = post(api, "/v1/jobs", job_spec(add_dataset(db)), role="owner").json()
    assert post(api, f"/v1/jobs/{job['id']}/cancel", None, role="analyst").status_code == 403
    assert post(api, f"/v1/jobs/{job['id']}/cancel", None, role="admin").status_code == 202


def test_lists_are_paged_newest_first(api: Api, db: Database) -> None:
    dataset = add_dataset(db, privacy=PUBLIC, holdout=None)
    spec = job_spec(dataset, privacy=None, evaluation=None)
    made = [post(api, "/v1/jobs", spec, key=f"k{i}").json()["id"] for i in range(5)]
    seen: list[str] = []
    cursor = ""
    while True:
        page = get(api, f"/v1/jobs?dataset={dataset}&limit=2{cursor}").json()
        seen += [job["id"] for job in page["items"]]
        if page["next"] is None:
            break
        cursor = f"&after={page['next']}"
    assert seen == made[::-1]
    assert get(api, "/v1/jobs?status=succeeded").json()["items"] == []
    assert get(api, "/v1/jobs?after=nonsense").status_code == 422
    assert get(api, "/v1/jobs?limit=0").status_code == 422
    assert get(api, "/v1/jobs?status=odd").status_code == 422


def test_poisson_is_priced_by_pld_and_charged_in_nano_rdp(api: Api, db: Database) -> None:
    dataset = add_dataset(db, privacy=RDP, order=8.0)
    spec = job_spec(dataset, sampling={"kind": "poisson", "expected_batch_size": 64}, length={"epochs": 5})
    quote = post(api, "/v1/quotes", spec, key=None).json()
    assert quote["epsilon"]["accountant"] == "pld"
    assert 0.99 < quote["epsilon"]["value"] <= 1.0
    assert quote["comparison"]["gdp"] is None
    assert quote["comparison"]["pld"] <= quote["comparison"]["rdp"]
    assert quote["charge"]["unit"].startswith("rdp")
    assert quote["steps"] == 625


def test_every_route_but_health_and_readiness_needs_a_key(api: Api) -> None:
    assert api.client.get("/healthz").status_code == 200
    assert set(api.client.get("/readyz").json()) == {"status", "checks"}
    for method, path in (
        ("GET", "/metrics"),
        ("GET", "/openapi.json"),
        ("GET", "/v1/jobs"),
        ("POST", "/v1/jobs"),
        ("POST", "/v1/quotes"),
        ("GET", "/v1/datasets"),
        ("GET", "/v1/keys"),
        ("GET", "/v1/jobs/job_x/events"),
        ("GET", "/v1/datasets/ds_x/ledger"),
    ):
        for headers in ({}, {"Authorization": "Bearer scrimp_key_x_y"}, {"Authorization": "Basic eDp5"}):
            answer = api.client.request(method, path, headers=headers)
            assert (answer.status_code, answer.json()["type"]) == (401, "/problems/unauthenticated"), path


def test_the_key_comes_before_the_query(api: Api) -> None:
    for path in ("/v1/jobs?limit=abc", "/v1/datasets?limit=abc"):
        assert api.client.get(path, headers={"Authorization": ""}).status_code == 401, path


def test_a_revoked_key_stops_at_once(api: Api) -> None:
    made = post(api, "/v1/keys", {"name": "temp", "role": "analyst"}, role="admin").json()
    headers = {"Authorization": f"Bearer {made['token']}"}
    assert api.client.get("/v1/jobs", headers=headers).status_code == 200
    api.client.delete(f"/v1/keys/{made['key']['id']}", headers=api.headers("admin"))
    assert api.client.get("/v1/jobs", headers=headers).status_code == 401
    assert get(api, "/v1/keys", role="analyst").status_code == 403


def test_a_foreign_host_header_is_refused(api: Api) -> None:
    assert api.client.get("/healthz", headers={"Host": "evil.example"}).status_code == 400


def test_readiness_and_metrics(api: Api, db: Database) -> None:
    assert post(api, "/v1/quotes", job_spec(add_dataset(db))).status_code == 200  # pricing has started
    ready = get(api, "/readyz")
    assert ready.status_code == 200, ready.text
    parts = ("database", "migrations", "storage", "broker", "clock", "ledger", "pricing")
    assert ready.json() == {"status": "ready", "checks": dict.fromkeys(parts, "ok")}
    text = get(api, "/metrics", role="admin").text
    assert "scrimp_ledger_units" in text
    assert 'route="/readyz"' in text
