"""POST /v1/quotes/sweep: what other plans of a search would leave its final run."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import func, select

from app.db.database import Database
from app.db.models import Job, LedgerEntry
from tests.by_night import ON_SQLITE_BY_DAY
from tests.conftest import Api
from tests.factories import add_dataset, job_spec
from tests.jobs.test_api import PUBLIC, RDP, post

SPACE = {"learning_rate": [1.0, 100.0], "steps": [5, 100]}
SCORE = {"kind": "private_count", "noise_mu": 0.01}
SEARCH = {"strategy": "linear_scaling", "levels": [0.1, 0.2], "space": SPACE, "score": SCORE}
FREE = {**SEARCH, "score": SCORE | {"on": "holdout"}}
POISSON = {"sampling": {"kind": "poisson", "expected_batch_size": 800}, "length": {"steps": 20}}


def search(dataset: str, **changes: Any) -> dict[str, Any]:
    return job_spec(dataset, **{"evaluation": None, "hpo": FREE, **changes})


def swept(api: Api, body: dict[str, Any]) -> list[dict[str, Any]]:
    answer = post(api, "/v1/quotes/sweep", body, key=None)
    assert answer.status_code == 200, answer.text
    points: list[dict[str, Any]] = answer.json()["points"]
    return points


def counts(db: Database) -> list[int | None]:
    with db.read() as session:
        return [session.scalar(select(func.count()).select_from(table)) for table in (Job, LedgerEntry)]


def test_every_combination_is_told_and_nothing_is_written(api: Api, db: Database) -> None:
    dataset = add_dataset(db)
    before = counts(db)
    lists = {"total_epsilon": [0.2, 1.0], "levels": [[0.05, 0.1], [0.1, 0.2]], "runs_per_level": [1, 3]}
    points = swept(api, {"spec": search(dataset)} | lists)
    named = [(each["levels"], each["runs_per_level"], each["total_epsilon"]) for each in points]
    assert named == [(levels, n, total) for levels in lists["levels"] for n in (1, 3) for total in (0.2, 1.0)]
    golden = next(each for each in points if named[points.index(each)] == ([0.1, 0.2], 3, 1.0))
    assert golden["final"]["value"] == pytest.approx(0.8840, abs=1e-4)
    assert (golden["final"]["delta"], golden["final"]["accountant"], golden["runs"]) == (1e-5, "gdp", 7)
    refused = points[-2]
    assert refused["final"] is None and 0.4 < refused["smallest_total_epsilon"] < 0.5
    assert counts(db) == before


def test_what_is_left_out_is_the_specs_own_and_agrees_with_its_quote(api: Api, db: Database) -> None:
    spec = search(add_dataset(db), hpo=SEARCH)
    [point] = swept(api, {"spec": spec})
    assert point["final"] == post(api, "/v1/quotes", spec, key=None).json()["hpo"]["final"]
    assert point["final"]["value"] == pytest.approx(0.8790, abs=1e-4)  # its scores are of the training part


def test_a_length_that_is_left_out_is_the_quotes(api: Api, db: Database) -> None:
    spec = search(add_dataset(db), hpo=FREE | {"space": {"learning_rate": [1.0, 100.0]}})
    del spec["length"]
    [point] = swept(api, {"spec": spec})
    quoted = post(api, "/v1/quotes", spec, key=None).json()
    assert point["final"] == quoted["hpo"]["final"] and quoted["resolved"]["steps"]["value"] > 1


def test_poisson_plans_are_composed_by_privacy_loss_distributions(api: Api, db: Database) -> None:
    spec = search(add_dataset(db, privacy=RDP, order=8.0), hpo={"strategy": "linear_scaling"}, **POISSON)
    [small, large] = swept(api, {"spec": spec, "total_epsilon": [0.15, 2.0]})
    assert small["final"] is None and small["smallest_total_epsilon"] > 0.2
    assert large["final"]["accountant"] == "pld" and 1.5 < large["final"]["value"] < 2.0


@pytest.mark.parametrize(
    ("change", "more", "pointer"),
    [
        ({"hpo": None}, {}, "/spec/hpo"),
        ({"hpo": {"strategy": "random"}}, {}, "/spec/hpo"),
        ({"privacy": {"noise_multiplier": 1.0}}, {}, "/spec/privacy"),
        ({"privacy": {"noise_multiplier": 1.0}}, {"total_epsilon": [1.0]}, "/spec/privacy/noise_multiplier"),
        ({"hpo": {**SEARCH, "space": {"steps": [5, 1]}}}, {}, "/spec/hpo/space"),
        ({}, {"levels": [[0.1, 0.2], [0.2, 0.1]]}, "/levels/1"),
        ({}, {"levels": [[0.1]]}, "/levels/0"),
        ({}, {"total_epsilon": [0.0]}, "/total_epsilon/0"),
        ({}, {"runs_per_level": [3, 21]}, "/runs_per_level/1"),
        ({}, {"runs_per_level": []}, "/runs_per_level"),
        ({}, {"total_epsilon": [1.0] * 41, "runs_per_level": list(range(1, 11))}, ""),
        (POISSON | {"hpo": {"strategy": "linear_scaling"}}, {"total_epsilon": [1.0] * 13}, ""),
        (POISSON, {}, "/spec/hpo/space/steps"),
        ({}, {"more": 1}, "/more"),
    ],
)
@ON_SQLITE_BY_DAY
def test_bad_sweeps_are_refused_with_a_pointer(
    api: Api, db: Database, change: dict[str, Any], more: dict[str, Any], pointer: str
) -> None:
    answer = post(
        api, "/v1/quotes/sweep", {"spec": search(add_dataset(db, privacy=RDP, order=8.0), **change)} | more, key=None
    )
    assert answer.status_code == 422, answer.text
    assert [each["pointer"] for each in answer.json()["errors"]] == [pointer]


def test_public_data_without_privacy_have_nothing_to_divide(api: Api, db: Database) -> None:
    spec = search(add_dataset(db, privacy=PUBLIC), privacy=None)
    answer = post(api, "/v1/quotes/sweep", {"spec": spec, "total_epsilon": [1.0]}, key=None)
    assert answer.status_code == 422 and answer.json()["errors"][0]["pointer"] == "/spec/privacy"
