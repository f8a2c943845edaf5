"""Searches over the REST API, on the dashboard and in a terminal: quotes, refusals with pointers, trials."""

from __future__ import annotations

import html
import io
import json
import re
from functools import partial
from math import sqrt
from typing import Any

import pytest
from rich.console import Console
from sqlalchemy import func, select

from app.admission import standing
from app.admission.choices import closed
from app.admission.lookup import dataset_facts
from app.admission.study import check_study
from app.db.database import Database
from app.db.models import Job, LedgerEntry
from app.db.trip import round_trip
from app.hpo.strategies import Study
from app.hpo.strategies import runs_of as runs_at
from app.lifecycle.study_states import run_spec
from core.contracts.job_spec import JobSpec
from core.privacy.gdp import mu_from_epsilon
from core.privacy.shares import run_mechanism
from scrimp.cli import show
from scrimp.models import Trials
from tests.by_night import but
from tests.conftest import Api
from tests.dashboard.conftest import Browser
from tests.dashboard.scene import Key
from tests.factories import add_dataset, job_spec
from tests.hpo.conftest import play, price_once, runs_of, study_spec
from tests.worker.optimizing import OPTIMIZERS
from worker.messages import JobDescription, Shape
from worker.training.plan import build_plan

mu_of = partial(mu_from_epsilon, delta=1e-5)
POISSON = {"kind": "poisson", "expected_batch_size": 400}
REFUSED: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({"levels": [0.2, 0.1]}, {}, "/hpo"),
    ({"levels": [0.1, 0.1 + 1e-9]}, {}, "/hpo/levels"),
    ({"levels": [0.1, 0.1005]}, {}, "/hpo/levels"),
    ({"runs_per_level": 0}, {}, "/hpo/runs_per_level"),
    ({"strategy": "magic"}, {}, "/hpo"),
    ({"strategy": "random", "runs_per_level": 3}, {}, "/hpo/runs_per_level"),
    ({"space": {"learning_rate": [10.0, 0.1]}}, {}, "/hpo/space"),
    ({"levels": [0.4, 0.8]}, {}, "/privacy/target_epsilon"),
    ({}, {"privacy": {"noise_multiplier": 10.0}}, "/privacy/noise_multiplier"),
    ({}, {"privacy": None}, "/privacy"),
    ({"space": {"learning_rate": [0.1, 1.0]}}, {"sampling": POISSON}, "/sampling"),  # its filter is `gdp`
    ({}, {"sampling": POISSON}, "/hpo/space/steps"),
    ({"strategy": "grid_oracle"}, {}, "/hpo/strategy"),
    ({"score": {"kind": "private_ranking"}}, {}, "/hpo/score/kind"),
    ({"score": {"kind": "public"}}, {}, "/hpo/score/kind"),
    ({"score": {"kind": "private_count", "noise_mu": 0}}, {}, "/hpo/score/noise_mu"),
    ({"strategy": "random_k"}, {}, "/hpo/strategy"),
    ({"space": {"learning_rate": [0.1, 10.0], "steps": [5, 10_000_000]}, "levels": [1e-3, 2e-3]}, {}, "/hpo/levels/0"),
    ({}, {"evaluation": {"on": "holdout", "points": 8}}, "/evaluation/points"),  # T may be 5
    ({}, {"optimizer": {"kind": "dp_sgd", "learning_rate": 1.0, "weight_decay": 0.5}}, "/hpo/space"),
]


@pytest.mark.parametrize(("hpo", "changes", "pointer"), REFUSED, ids=lambda value: str(value)[:60])
def test_a_bad_search_is_refused_with_a_pointer_and_costs_nothing(
    api: Api, db: Database, hpo: dict[str, Any], changes: dict[str, Any], pointer: str
) -> None:
    body = study_spec(add_dataset(db), **hpo) | changes
    answer = api.client.post("/v1/jobs", json=body, headers=api.headers("analyst", **{"Idempotency-Key": "x"}))
    assert answer.status_code == 422, answer.text
    assert [each["pointer"] for each in answer.json()["errors"]][:1] == [pointer], answer.text
    with db.read() as session:
        assert session.scalar(select(func.count()).select_from(Job)) == 0
        assert session.scalar(select(func.count()).where(LedgerEntry.kind == "hold")) == 0


def test_a_quote_shows_the_split_before_anything_runs(api: Api, db: Database) -> None:
    body = study_spec(add_dataset(db))
    found = api.client.post("/v1/quotes", json=body, headers=api.headers("analyst")).json()
    assert found["hpo"]["final"]["value"] == pytest.approx(0.8790, abs=1e-4)
    assert found["hpo"]["procedure"]["value"] == pytest.approx(1.0, abs=1e-9)
    assert [(each["level"], each["runs"]) for each in found["hpo"]["pilots"]] == [(0, 3), (1, 3)]
    assert sum(line["charge"] for line in found["lines"]) == found["charge"]["train"]
    assert found["fits"] and found["largest_epsilon_that_fits"] > 3.9
    largest = study_spec(body["dataset"]) | {"privacy": {"target_epsilon": found["largest_epsilon_that_fits"]}}
    assert api.client.post("/v1/quotes", json=largest, headers=api.headers("analyst")).json()["fits"]


def test_levels_that_leave_less_than_a_pilot_has_are_warned_of(api: Api, db: Database) -> None:
    dataset = add_dataset(db)
    for levels, count in (([0.1, 0.2], 0), ([0.1, 0.52], 1)):
        body = study_spec(dataset, levels=levels)
        found = api.client.post("/v1/quotes", json=body, headers=api.headers("analyst")).json()
        assert len([each for each in found["warnings"] if "top level" in each]) == count, found["warnings"]


def test_warnings_are_in_the_order_of_the_runs(api: Api, db: Database) -> None:
    """What is said of pilots' scores, of the final run's evaluation, then of the search."""
    evaluation = {"on": "holdout", "noise_mu": 0.05, "metrics": ["loss"], "loss_bound": 0.6}
    body = study_spec(add_dataset(db), score={"kind": "private_loss", "loss_bound": 0.5}) | {"evaluation": evaluation}
    found = api.client.post("/v1/quotes", json=body, headers=api.headers("analyst")).json()
    *of_scores, of_search = found["warnings"]
    assert [each[: len("losses above loss_bound = 0.5")][-3:] for each in of_scores] == ["0.5", "0.6"]
    assert "not expected to gain" in of_search and "`strategy: auto`" in of_search


def test_a_search_without_a_rule_for_the_rate_is_not_called_needless(api: Api, db: Database) -> None:
    body = study_spec(add_dataset(db)) | {"optimizer": {"kind": "dp_adambc", "learning_rate": 0.1}}
    found = api.client.post("/v1/quotes", json=body, headers=api.headers("analyst")).json()
    assert not any("not expected to gain" in each for each in found["warnings"])


def test_a_bill_of_scores(api: Api, db: Database) -> None:
    evaluation = {"on": "holdout", "noise_mu": 0.05, "metrics": ["loss"], "loss_bound": 0.6}
    body = study_spec(add_dataset(db), score={"kind": "private_loss", "loss_bound": 0.5}) | {"evaluation": evaluation}
    found = api.client.post("/v1/quotes", json=body, headers=api.headers("analyst")).json()
    lines = [(line["what"], line["account"]) for line in found["lines"]]
    assert ("scores", "train") in lines and lines[-1] == ("evaluation", "holdout")


def queued(db: Database, key: str, dataset: str) -> int:
    """A key's queue, as an admission counts it."""
    with db.write() as session, round_trip(session.connection()) as trip:
        (reply,) = standing.ask(trip, key, {dataset: None}, 10)
    (row,) = reply.rows()
    return int(row.queued)


def test_a_study_with_queued_runs_is_in_the_queue(api: Api, db: Database) -> None:
    headers = api.headers("analyst", **{"Idempotency-Key": "x"})
    dataset = add_dataset(db)
    made = api.client.post("/v1/jobs", json=study_spec(dataset), headers=headers).json()
    with db.read() as session:
        key = session.get_one(Job, made["id"]).key_id
    assert queued(db, key, dataset) == 1
    play(db, runs_of(db, made["id"])[0])
    with db.read() as session:
        assert session.get_one(Job, made["id"]).status == "running"
    assert queued(db, key, dataset) == 1
    for _ in range(2):
        for run in runs_of(db, made["id"], "queued"):
            play(db, run)
    assert queued(db, key, dataset) == 0


def test_a_search_that_does_not_fit_is_refused_as_a_job_is(api: Api, db: Database) -> None:
    body = study_spec(add_dataset(db)) | {"privacy": {"target_epsilon": 4.5}}
    answer = api.client.post("/v1/jobs", json=body, headers=api.headers("analyst", **{"Idempotency-Key": "x"}))
    assert (answer.status_code, answer.json()["account"]) == (409, "train")
    assert 3.9 < answer.json()["largest_epsilon_that_fits"] < 4.0


def test_trials_are_told_to_clients_and_shown(api: Api, db: Database) -> None:
    body = study_spec(add_dataset(db), runs_per_level=1) | {"name": "searched"}
    headers = api.headers("analyst", **{"Idempotency-Key": "x"})
    made = api.client.post("/v1/jobs", json=body, headers=headers)
    assert made.status_code == 201, made.text
    study = made.json()["id"]
    assert api.client.post("/v1/jobs", json=body, headers=headers).json()["id"] == study
    for _ in range(2):
        for run in runs_of(db, study, "queued"):
            play(db, run, 0.7)
    get = lambda path: api.client.get(path, headers=api.headers("analyst")).json()  # noqa: E731
    found, job = get(f"/v1/jobs/{study}/trials"), get(f"/v1/jobs/{study}")
    assert [each["score"] and each["score"]["value"] for each in found["items"]] == [0.7, 0.7, None]
    assert len(found["study"]["seed"]) == 32
    assert found["study"] == job["study"] and job["study"]["fit"]["r_star"] > 0
    assert (job["status"], job["progress"]["step"], job["parent"]) == ("succeeded", 3, None)
    assert [each["id"] for each in get("/v1/jobs")["items"]] == [study]
    pilot = found["items"][0]["job"]
    assert get(f"/v1/jobs/{pilot}")["parent"] == study
    assert get(f"/v1/jobs/{pilot}/trials") == {"items": [], "next": None, "study": None}
    assert study in get(f"/v1/jobs/{pilot}/certificate")["detail"]
    console = Console(file=io.StringIO(), width=160)
    show.trials(console, Trials.model_validate(found))
    assert isinstance(console.file, io.StringIO)
    assert "procedure" in (told := console.file.getvalue()) and "0.7000 ± 0.0100" in told, told
    pages(api, study, pilot)


def test_a_studys_score_is_inside_its_chart(api: Api, db: Database) -> None:
    """The axis was the number of trials, and the score's step, T of the final trial, far right of it."""
    scored = {"on": "holdout", "noise_mu": 0.05, "metrics": ["accuracy"]}
    body = study_spec(add_dataset(db), runs_per_level=1) | {"evaluation": scored}
    made = api.client.post("/v1/jobs", json=body, headers=api.headers("analyst", **{"Idempotency-Key": "x"}))
    assert made.status_code == 201, made.text
    study = made.json()["id"]
    for _ in range(2):
        for run in runs_of(db, study, "queued"):
            play(db, run, 0.7)
    browser = Browser(api.client)
    api.client.follow_redirects = False
    browser.sign_in(Key("", api.tokens["analyst"], "analyst"))
    page = browser.get(f"/dashboard/jobs/{study}").text
    chart = page.split('id="metrics"')[1].split("</figure>")[0]
    drawn = json.loads(html.unescape(re.findall(r"data-chart='([^']*)'", chart)[0]))
    (point,) = drawn["lines"][0]["points"]
    assert 0.0 < point[0] <= drawn["x"]["high"] < 2 * point[0]


def pages(api: Api, study: str, pilot: str) -> None:
    """The pages of a search and of one of its runs."""
    browser = Browser(api.client)
    api.client.follow_redirects = False
    browser.sign_in(Key("", api.tokens["analyst"], "analyst"))
    page = browser.get(f"/dashboard/jobs/{study}").text
    assert '<h2 id="trials">Trials</h2>' in page and "data-chart=" in page and "No privacy is claimed" not in page
    assert "this study and its trials" in page
    page = browser.get(f"/dashboard/jobs/{pilot}").text
    assert f'href="/dashboard/jobs/{study}"' in page and "the model's weights" not in page


def test_a_search_by_auto_is_one_run_that_scores_its_model(api: Api, db: Database) -> None:
    body: dict[str, Any] = {
        "dataset": add_dataset(db),
        "privacy": {"target_epsilon": 1.0},
        "optimizer": {"kind": "dp_sgd", "momentum": 0.9, "free_step": True},
        "length": {"steps": "auto"},
        "evaluation": {"on": "train", "noise_mu": 0.01},
        "hpo": {"strategy": "auto"},
    }
    found = api.client.post("/v1/quotes", json=body, headers=api.headers("analyst"))
    assert found.status_code == 200, found.text
    # One run with everything but its own score.
    assert found.json()["hpo"] is None
    training = sqrt(found.json()["steps"]) / found.json()["noise_multiplier"]
    assert training == pytest.approx(sqrt(mu_of(1.0) ** 2 - 0.01**2), rel=1e-3)
    assert "A search is not expected to gain" in found.json()["resolved"]["because"]
    stds = [("auc", 6 / (0.01 * 8000)), ("accuracy", 2 / (0.01 * 8000))]
    assert found.json()["scores"] == [
        {"name": name, "std": pytest.approx(std), "threshold": None} for name, std in stds
    ]


def test_a_study_s_private_mean_is_a_line_of_the_quote(api: Api, db: Database) -> None:
    dataset = add_dataset(db, features={"kind": "columns", "columns": ["a", "b"]})
    body = study_spec(dataset) | {"model": {"kind": "linear", "center": {"max_norm": 2.0}}}
    body["evaluation"] = {"on": "holdout"}  # its own account pays for it
    found = api.client.post("/v1/quotes", json=body, headers=api.headers("analyst")).json()
    assert found["hpo"]["final"]["value"] == pytest.approx(0.8764, abs=1e-4)
    assert [(each["what"], each["count"]) for each in found["lines"] if each["what"] == "mean"] == [("mean", 1)]
    on_train = [line for line in found["lines"] if line["account"] == "train"]
    assert sum(line["charge"] for line in on_train) == found["charge"]["train"]


USERS = {"sensitivity": "private", "records": 10_000, "cap": {"epsilon": 4.0, "delta": 1e-5}, "filter": "gdp"}
USERS |= {"unit": "user", "user_column": "u", "max_records_per_user": 3}


@pytest.mark.parametrize(
    ("of", "changes"),
    [
        ({"features": {"kind": "hashed_text", "column": "t", "buckets": 64}}, {}),
        ({"privacy": USERS}, {}),
        ({}, {"optimizer": {"kind": "ada_dps", "learning_rate": 1.0, "public_dataset": "side"}}),
    ],
    ids=["sparse", "users", "side"],
)
def test_a_mean_where_there_is_none_is_refused(
    api: Api, db: Database, of: dict[str, Any], changes: dict[str, Any]
) -> None:
    add_dataset(db, privacy={"sensitivity": "public", "records": 500}, name="side")
    body = job_spec(add_dataset(db, **of), model={"kind": "linear", "center": {}}, evaluation=None) | changes
    found = api.client.post("/v1/quotes", json=body, headers=api.headers("analyst"))
    assert found.status_code == 422, found.text
    assert [each["pointer"] for each in found.json()["errors"]] == ["/model/center"], found.text


def test_the_catalogue_of_strategies(api: Api) -> None:
    items = api.client.get("/v1/hpo-strategies", headers=api.headers("analyst")).json()["items"]
    assert [each["strategy"] for each in items] == ["auto", "linear_scaling", "random"]
    assert all(each["schema"]["properties"]["strategy"]["const"] == each["strategy"] for each in items)


SHAPE = Shape(records_train=8000, records_holdout=2000, features=2, outputs=2, sparse=False)
SETTINGS: dict[str, dict[str, Any]] = {
    "dp2_rmsprop": {"learning_rate_adaptive": 0.1, "max_grad_norm_adaptive": 3.0, "delay": 2},
    "dp2_adagrad": {"learning_rate_adaptive": 0.1, "max_grad_norm_adaptive": 3.0, "delay": 2},
    "dp2_yogi": {"learning_rate_adaptive": 0.1, "max_grad_norm_adaptive": 3.0, "delay": 2, "variant": "extra_query"},
    "ada_dps": {"public_dataset": "side"},
    "pda_dpmd": {"public_dataset": "side", "horizon": 100},
}


SEARCHES = [(kind, sampled) for kind in sorted({name.split()[0] for name in OPTIMIZERS}) for sampled in (False, True)]
# By day one optimizer of each kind of step under Poisson sampling: one query, two, and public side information.
SAMPLED_BY_DAY = ("ada_dps", "dp_adam", "dp2_yogi")


@pytest.mark.parametrize(("kind", "sampled"), but(SEARCHES, lambda case: not case[1] or case[0] in SAMPLED_BY_DAY))
def test_what_runs_of_a_search_is_what_is_charged(db: Database, kind: str, sampled: bool) -> None:
    sampling = POISSON if sampled else {"kind": "full_batch"}
    """Every optimizer: each run's specification and mechanism agree by the worker's own check."""
    rdp = {"sensitivity": "private", "records": 10_000, "cap": {"epsilon": 4.0, "delta": 1e-5}, "filter": "rdp"}
    dataset = add_dataset(db, privacy=rdp, order=6.0)
    side = add_dataset(db, privacy={"sensitivity": "public", "records": 500}, name="side")
    space: dict[str, Any] = {"learning_rate": [0.1, 10.0], "max_grad_norm": [0.1, 1.0]}
    if sampling["kind"] == "full_batch":
        space["steps"] = [5, 60]
    hpo = {"space": space, "levels": [0.2, 0.4], "runs_per_level": 1}
    optimizer = {"kind": kind, "learning_rate": 1.0, **SETTINGS.get(kind, {})}
    spec = JobSpec.model_validate(
        job_spec(dataset, hpo=hpo, optimizer=optimizer, sampling=sampling, length={"steps": 30})
        | {"privacy": {"target_epsilon": 2.0}}
    )
    from app.db.models import Dataset

    with db.read() as session:
        facts, other = (dataset_facts(session, session.get_one(Dataset, each)) for each in (dataset, side))
    planned = check_study(closed(spec, facts).spec, facts, other)
    assert planned.pricing is not None and planned.evaluation is not None
    priced = price_once(planned.pricing)
    search = Study(planned.hpo, planned.bounds, "s", (0.05, 0.1), 0.4)
    for run in runs_at(search, {0: 0.5, 1: 0.6}):
        priced_run = priced.runs[run.number]
        mechanism = run_mechanism(
            planned.pricing.common,
            number=run.number,
            share=priced_run.share,
            sigma=priced_run.noise_multiplier,
            scores=planned.pricing.runs[run.number].releases,
            steps=run.point.steps,
            max_grad_norm=run.point.max_grad_norm,
        )
        child = run_spec(planned.spec, run, mechanism, planned.evaluation, "s")
        task, features = facts.spec.task, facts.spec.features
        job = JobDescription(
            spec=child,
            mechanism=mechanism,
            shape=SHAPE,
            task=task,
            features=features,
            steps=run.point.steps,
            data_public=False,
            holdout_public=False,
        )
        built = build_plan(job)
        assert built.steps == run.point.steps and built.mechanism == mechanism
