"""What is spent and what still fits: shares, forecasts that are exact, and ε's spent so far."""

from __future__ import annotations

from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from app.db.database import Database
from app.db.models import Job, Worker
from app.jobs.schemas import ChargedView
from app.ledger import accounts
from core.ids import now
from core.privacy import gdp
from core.privacy.prices import Units
from tests.conftest import Api
from tests.factories import add_dataset, job_spec

DELTA = 1e-5
POISSON = {"sampling": {"kind": "poisson", "expected_batch_size": 400}, "evaluation": None}
CHEAP = {"privacy": {"target_epsilon": 0.9}}
TERMS: list[tuple[str, float | None, dict[str, Any]]] = [
    ("gdp", None, CHEAP),
    (
        "gdp",
        None,
        {"privacy": {"noise_multiplier": 60.0}, "evaluation": {"on": "holdout", "noise_mu": 0.3}},
    ),  # the hold-out's account binds
    ("rdp", 6.0, CHEAP),
    ("rdp", 6.0, CHEAP | POISSON),
]


def privacy(kind: str, epsilon: float = 2.0) -> dict[str, Any]:
    return {"sensitivity": "private", "records": 10_000, "cap": {"epsilon": epsilon, "delta": DELTA}, "filter": kind}


def post(api: Api, path: str, body: Any, key: str | None = None, role: str = "analyst") -> Any:
    more = {"Idempotency-Key": key} if key else {}
    return api.client.post(path, json=body, headers=api.headers(role, **more))


def get(api: Api, path: str) -> Any:
    answer = api.client.get(path, headers=api.headers("analyst"))
    assert answer.status_code == 200, answer.text
    return answer.json()


def forecast(api: Api, dataset: str, spec: dict[str, Any]) -> Any:
    answer = post(api, f"/v1/datasets/{dataset}/ledger/forecast", spec)
    assert answer.status_code == 200, answer.text
    return answer.json()


def settled(api: Api, db: Database, dataset: str, number: int, share: float = 1.0, **changes: Any) -> str:
    """A job that posted this share of its hold."""
    answer = post(api, "/v1/jobs", job_spec(dataset, **changes), f"settled-{number}")
    assert answer.status_code == 201, answer.text
    job: dict[str, Any] = answer.json()
    charge = {name: int(share * job["quote"]["charge"][name]) for name in ("train", "holdout")}
    with db.write() as session:
        accounts.post(session, dataset_id=dataset, job_id=job["id"], **charge, actor="test")
        session.get_one(Job, job["id"]).status = "cancelled" if share < 1.0 else "succeeded"
    return str(job["id"])


@pytest.mark.parametrize(("kind", "order", "changes"), TERMS)
def test_as_many_jobs_as_the_forecast_says_are_admitted_and_not_one_more(
    api: Api, db: Database, kind: str, order: float | None, changes: dict[str, Any]
) -> None:
    """Claim: as many jobs as a forecast says are admitted, and not one more
    Now: exact, for `gdp` and `rdp`, full batch and Poisson
    """
    dataset = add_dataset(db, privacy=privacy(kind), order=order)
    spec = job_spec(dataset, **changes)
    found = forecast(api, dataset, spec)
    quote = post(api, "/v1/quotes", spec).json()
    assert found["jobs_that_fit"] == quote["jobs_that_fit"] >= 1
    assert found["per_job"] == {name: quote["charge"][name] for name in ("train", "holdout")}
    budget = get(api, f"/v1/datasets/{dataset}/ledger")["accounts"]["train"]["budget"]
    assert found["share_per_job"] == max(found["per_job"].values()) / budget
    for number in range(found["jobs_that_fit"]):
        assert post(api, "/v1/jobs", spec, f"k{number}").status_code == 201
    assert post(api, "/v1/jobs", spec, "one more").status_code == 409
    assert forecast(api, dataset, spec)["jobs_that_fit"] == post(api, "/v1/quotes", spec).json()["jobs_that_fit"] == 0
    account = get(api, f"/v1/datasets/{dataset}/ledger")["accounts"]["train"]
    assert (account["share_spent"], account["share_held"]) == (0.0, account["held"] / account["budget"])


def test_a_forecast_needs_the_same_data_set_and_a_ledger(api: Api, db: Database) -> None:
    dataset, other = add_dataset(db), add_dataset(db)
    public = add_dataset(db, privacy={"sensitivity": "public"})
    wrong = post(api, f"/v1/datasets/{other}/ledger/forecast", job_spec(dataset))
    assert (wrong.status_code, wrong.json()["errors"][0]["pointer"]) == (422, "/dataset")
    none = post(api, f"/v1/datasets/{public}/ledger/forecast", job_spec(public, privacy=None, evaluation=None))
    assert none.status_code == 404
    free = post(api, "/v1/quotes", job_spec(public, privacy=None, evaluation=None)).json()
    assert (free["jobs_that_fit"], free["fits"]) == (None, True)


@pytest.mark.parametrize(("changes", "accountant"), [({}, "gdp"), (POISSON, "pld")])
def test_one_job_is_shown_at_its_own_epsilon_under_any_filter(
    api: Api, db: Database, changes: dict[str, Any], accountant: str
) -> None:
    """The filter's conversion of one ε = 1 job is 1.5 to 2 here.

    Claim: one ε = 1 job is shown as ε = 1 under any filter
    Now: its own ε
    """
    dataset = add_dataset(db, privacy=privacy("rdp", 4.0), order=8.0)
    settled(api, db, dataset, 1, **changes)
    for shown in (
        get(api, f"/v1/datasets/{dataset}/ledger"),
        get(api, f"/v1/datasets/{dataset}")["ledger"],
        next(each for each in get(api, "/v1/datasets")["items"] if each["id"] == dataset)["ledger"],
    ):
        assert shown["epsilon_spent"]["value"] == pytest.approx(1.0, abs=1e-3)
        assert (shown["epsilon_spent"]["delta"], shown["epsilon_spent"]["accountant"]) == (DELTA, accountant)
        assert shown["epsilon_spent_and_held"] == shown["epsilon_spent"]
        assert shown["epsilon_filter"]["value"] > 1.4


def test_after_two_jobs_it_is_their_sum_at_half_of_delta_each(api: Api, db: Database) -> None:
    dataset = add_dataset(db, privacy=privacy("rdp", 20.0), order=2.0)
    for number in (1, 2):
        settled(api, db, dataset, number, evaluation=None)
    shown = get(api, f"/v1/datasets/{dataset}/ledger")
    at_half = 2.0 * gdp.epsilon_from_mu(gdp.mu_from_epsilon(1.0, DELTA), DELTA / 2.0)
    assert at_half == pytest.approx(2.09, abs=5e-3)
    assert shown["epsilon_spent"]["value"] == pytest.approx(at_half, rel=1e-6)
    assert shown["comparison"]["basic"]["value"] == shown["epsilon_spent"]["value"]
    assert shown["epsilon_filter"]["value"] > 8.0
    post(api, "/v1/jobs", job_spec(dataset, evaluation=None), "held")
    after = get(api, f"/v1/datasets/{dataset}")["ledger"]
    assert after["epsilon_spent"] == shown["epsilon_spent"]
    assert 3.0 < after["epsilon_spent_and_held"]["value"] < 3.3


def test_where_the_filter_knows_better_its_figure_is_shown(api: Api, db: Database) -> None:
    dataset = add_dataset(db, privacy=privacy("gdp", 4.0))
    for number in range(4):
        settled(api, db, dataset, number, evaluation=None)
    shown = get(api, f"/v1/datasets/{dataset}/ledger")
    assert shown["epsilon_spent"] == shown["epsilon_filter"]
    assert shown["epsilon_spent"]["value"] < 2.3
    assert shown["comparison"]["basic"]["value"] > 4.0


def test_no_epsilon_is_computed_at_a_stopping_time(api: Api, db: Database) -> None:
    """A job that stopped early counts with its planned ε, where its ε counts."""
    dataset = add_dataset(db, privacy=privacy("rdp", 20.0), order=2.0)
    settled(api, db, dataset, 1, share=0.25, evaluation=None)
    shown = get(api, f"/v1/datasets/{dataset}/ledger")
    assert shown["comparison"]["basic"]["value"] == pytest.approx(1.0, abs=1e-6)
    assert shown["accounts"]["train"]["share_spent"] < 0.25


def test_a_job_that_settled_says_what_it_was_charged(api: Api, db: Database) -> None:
    dataset = add_dataset(db)
    job_id = settled(api, db, dataset, 1, share=0.25, evaluation=None)
    job = get(api, f"/v1/jobs/{job_id}")
    held = job["quote"]["charge"]["train"]
    assert job["charged"] == {"train": held // 4, "holdout": 0, "share": (held // 4) / held}
    assert next(each for each in get(api, "/v1/jobs")["items"] if each["id"] == job_id)["charged"] == job["charged"]
    queued = post(api, "/v1/jobs", job_spec(dataset), "queued").json()
    assert queued["charged"] is None


def test_a_study_was_charged_what_its_trials_drew_too() -> None:
    """Its own settlement covers what they left of its hold."""
    study, held = SimpleNamespace(study={}), Units(train=100, holdout=0)
    own = SimpleNamespace(train=0, holdout=0, train_released=60, holdout_released=0)
    assert ChargedView.of(study, held, [own]) == ChargedView(train=40, holdout=0, share=0.4)
    assert ChargedView.of(study, held, []) is None


def test_a_quote_tells_when_the_job_would_start(api: Api, db: Database) -> None:
    """By durations that the key sees: those of jobs on another data set do not tell it how long they took."""
    dataset, hidden = add_dataset(db, privacy=privacy("gdp")), add_dataset(db, shared=False)

    def quoted(role: str = "analyst", **changes: Any) -> Any:
        answer = post(api, "/v1/quotes", job_spec(dataset, **CHEAP, **changes), role=role)
        assert answer.status_code == 200, answer.text
        return answer.json()["start"]

    assert quoted() is None, "no worker is alive"
    with db.write() as session:
        devices = [{"kind": "cpu", "index": 0, "name": "cpu", "memory_bytes": 1}]
        session.add(Worker(name="w", host="h", pid=1, started_at=now(), seen_at=now(), devices=devices))
    assert quoted() == {"claims_before": 0, "at_least": False, "in_s": 0.0}
    first, ended = (
        post(api, "/v1/jobs", job_spec(each, **CHEAP), f"key-{each}", role="admin").json()["id"]
        for each in (dataset, hidden)
    )
    with db.write() as session:
        session.get_one(Job, first).status = "running"
        found = session.get_one(Job, ended)
        found.status, found.started_at, found.finished_at = "succeeded", now() - timedelta(seconds=60), now()
    assert quoted() == {"claims_before": 0, "at_least": False, "in_s": None}
    assert 59 <= quoted("admin")["in_s"] <= 61
    for number, priority in enumerate((2, 0, -1)):
        assert post(api, "/v1/jobs", job_spec(dataset, **CHEAP, priority=priority), f"mine-{number}").status_code == 201
    assert [quoted(priority=each)["claims_before"] for each in (3, 0, -2)] == [0, 2, 3]


def test_a_fresh_set_that_refuses_a_job_below_its_cap_says_why_and_what_to_declare(api: Api, db: Database) -> None:
    """At order 2 one full-batch job of ε = 8 reads as 13."""
    dataset = add_dataset(db, privacy=privacy("rdp", 12.0), order=2.0)
    job = job_spec(dataset, privacy={"target_epsilon": 8.0}, evaluation=None)
    quote = post(api, "/v1/quotes", job).json()
    (told,) = [each for each in quote["warnings"] if "order" in each]
    assert not quote["fits"] and "own ε is 8," in told and "reads as ε = 13" in told and "cap of 12" in told
    order = float(told.partition("For jobs like it α = ")[2].partition(" ")[0])
    assert order > 2.0 and "`typical_job`" in told and "retired and registered anew" in told
    refused = post(api, "/v1/jobs", job, "refused")
    assert refused.status_code == 409 and "reads as ε = 13" in refused.json()["detail"]
    better = add_dataset(db, name="better", privacy=privacy("rdp", 12.0), order=order)
    assert post(api, "/v1/quotes", job | {"dataset": better}).json()["fits"]
    above = post(api, "/v1/quotes", job | {"privacy": {"target_epsilon": 20.0}}).json()
    assert not above["fits"] and not any("order" in each for each in above["warnings"])


def test_a_job_s_time_is_that_of_jobs_on_its_kind_of_device(api: Api, db: Database) -> None:
    dataset = add_dataset(db)
    asked = {kind: job_spec(dataset, runtime={"device": kind}) for kind in ("cpu", "cuda")}
    job = post(api, "/v1/jobs", asked["cpu"], "once").json()["id"]
    with db.write() as session:
        row = session.get_one(Job, job)
        row.status, row.attempt, row.finished_at = "succeeded", 1, now()
        row.started_at = row.finished_at - timedelta(seconds=row.steps)
    said = {kind: post(api, "/v1/quotes", spec).json()["estimated_duration_s"] for kind, spec in asked.items()}
    assert said == {"cpu": row.steps, "cuda": None}
