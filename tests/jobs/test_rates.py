"""`learning_rate: auto` over HTTP: a number and a reason at admission, or a refusal that costs nothing."""

from __future__ import annotations

from typing import Any

import pytest

from app.admission.choices import rule_of
from app.db.database import Database
from app.db.models import Job
from core.contracts.job_spec import JobSpec
from tests.conftest import Api
from tests.factories import add_dataset, job_spec
from tests.jobs.test_api import RDP, get, post
from tests.jobs.test_stored import facts_of

SQLITE = pytest.mark.parametrize("backing", ["sqlite"])
FULL = {"sensitivity": "private", "records": 10_000, "cap": {"epsilon": 4.0, "delta": 1e-5}, "filter": "gdp"}
MLP = {"kind": "mlp", "hidden": [16]}
AUTO = {"kind": "dp_sgd", "momentum": 0.9, "free_step": True}


def test_auto_is_the_default_and_becomes_a_number(api: Api, db: Database) -> None:
    spec = job_spec(add_dataset(db), optimizer=AUTO)
    quote = post(api, "/v1/quotes", spec, key=None).json()
    job = post(api, "/v1/jobs", spec).json()
    assert job["quote"]["resolved"] == quote["resolved"]
    assert job["spec"]["optimizer"]["learning_rate"] == quote["resolved"]["learning_rate"] > 0.0
    assert "κ" in quote["resolved"]["because"] or "settle" in quote["resolved"]["because"]
    # Said twice it is one job, and asked for with the number it is the same plan.
    assert post(api, "/v1/jobs", spec).json()["id"] == job["id"]
    named = post(api, "/v1/quotes", job["spec"], key=None).json()
    assert named["resolved"] is None
    assert named["charge"] == quote["charge"]
    with db.read() as session:
        assert session.get_one(Job, job["id"]).spec["optimizer"]["learning_rate"] == quote["resolved"]["learning_rate"]


@SQLITE
def test_more_noise_means_a_smaller_rate(api: Api, db: Database) -> None:
    dataset = add_dataset(db)
    found = [
        post(api, "/v1/quotes", job_spec(dataset, optimizer=AUTO, privacy={"target_epsilon": each}), key=None).json()
        for each in (0.25, 0.5)
    ]
    small, large = (each["resolved"]["learning_rate"] for each in found)
    # A constant κ makes η fall with σ, and the noise nearly halves.
    assert large / small == pytest.approx(found[0]["noise_multiplier"] / found[1]["noise_multiplier"], rel=0.01)


AGE = {"name": "age", "kind": "number", "range": [0, 110], "bins": 16, "missing": "own"}
SEX = {"name": "sex", "kind": "category", "values": ["f", "m"]}
TABLE = {"kind": "table", "columns": [AGE, SEX]}


@SQLITE
def test_a_data_set_and_epsilon_tell_steps_norm_and_rate(api: Api, db: Database) -> None:
    spec = job_spec(add_dataset(db, features=TABLE), optimizer=AUTO, clipping=None)
    del spec["length"], spec["clipping"]
    job = post(api, "/v1/jobs", spec).json()
    resolved = job["quote"]["resolved"]
    assert job["spec"]["length"]["steps"] == job["quote"]["steps"] == resolved["steps"]["value"] >= 100
    # 0.4 of a fresh gradient, √(1 − 1/K) ‖x‖: both columns always have length 1.
    assert job["spec"]["clipping"]["max_grad_norm"] == resolved["max_grad_norm"]["value"] == 0.4
    assert all("eleven public tables" in resolved[each]["because"] for each in ("steps", "max_grad_norm"))
    assert "eleven public tables" in resolved["because"]
    named = post(api, "/v1/quotes", job["spec"], key=None).json()
    assert named["resolved"] is None and named["charge"] == job["quote"]["charge"]


@SQLITE
def test_more_epsilon_gives_more_steps_and_a_named_number_stays(api: Api, db: Database) -> None:
    dataset = add_dataset(db, features=TABLE)
    asked = [
        job_spec(dataset, optimizer=AUTO, length={"steps": "auto"}, privacy={"target_epsilon": each}, **more)
        for each, more in ((0.5, {}), (3.0, {}), (0.5, {"clipping": {"max_grad_norm": 2.0}}))
    ]
    few, many, named = (post(api, "/v1/quotes", each, key=None).json() for each in asked)
    assert few["steps"] < many["steps"]
    assert "max_grad_norm" not in named["resolved"]
    rate = post(api, "/v1/quotes", asked[0] | {"optimizer": AUTO | {"learning_rate": 1.0}}, key=None).json()["resolved"]
    assert rate["learning_rate"] is None and rate["steps"]["value"] == few["steps"]


UNKNOWN: list[tuple[dict[str, Any], str]] = [
    ({"model": MLP}, "for a `mlp` model"),
    ({"optimizer": {"kind": "dp_adambc", "learning_rate": 0.1}}, "for the optimizer `dp_adambc`"),
    ({"privacy": {"noise_multiplier": 30.0}}, "where each step costs ε"),
]


@SQLITE
@pytest.mark.parametrize(("changes", "why"), UNKNOWN)
def test_where_no_experiment_tells_numbers_are_the_usual_ones(
    api: Api, db: Database, changes: dict[str, Any], why: str
) -> None:
    spec = job_spec(add_dataset(db), optimizer=AUTO, length={"steps": "auto"}) | changes
    steps = post(api, "/v1/quotes", spec, key=None).json()["resolved"]["steps"]
    assert steps["value"] == 50 and steps["because"].startswith("the usual number") and why in steps["because"]


NEAREST: list[tuple[dict[str, Any], str]] = [
    ({"optimizer": {"kind": "dp_adambc"}}, "optimizer `dp_adambc`"),
    ({"optimizer": {"kind": "scale_then_privatize"}}, "optimizer `scale_then_privatize`"),
    (
        {
            "optimizer": {
                "kind": "dp2_rmsprop",
                "learning_rate_adaptive": 0.1,
                "max_grad_norm_adaptive": 1.0,
                "delay": 5,
            }
        },
        "optimizer `dp2_rmsprop`",
    ),
    ({"optimizer": AUTO, "clipping": {"kind": "automatic"}}, "`automatic` clipping"),
    ({"optimizer": AUTO, "clipping": {"kind": "adaptive"}}, "`adaptive` clipping"),
    ({"optimizer": AUTO, "model": MLP, "clipping": {"kind": "per_layer"}}, "`per_layer` clipping"),
    ({"optimizer": {"kind": "dp_rmsprop"}, "model": MLP}, "`dp_rmsprop`"),
    ({"optimizer": AUTO, "sampling": {"kind": "cyclic", "batches": 5}}, "`cyclic` batches"),
    ({"optimizer": AUTO, "noise": {"kind": "correlated", "decay": 0.5}}, "correlated noise"),
]
EPSILON = {"privacy": {"target_epsilon": 1.0}}


@SQLITE
@pytest.mark.parametrize(("changes", "why"), NEAREST)
def test_where_nothing_was_measured_the_nearest_rule_says_so(
    api: Api, db: Database, changes: dict[str, Any], why: str
) -> None:
    quote = post(api, "/v1/jobs", job_spec(add_dataset(db), **changes)).json()["quote"]
    assert 0.0 < quote["resolved"]["learning_rate"] < 1e6 and "not measured" in quote["resolved"]["because"]
    assert any("nearest rule" in each and why in each for each in quote["warnings"]), quote["warnings"]


@SQLITE
def test_a_rate_that_does_not_go_with_its_decay_is_refused(api: Api, db: Database) -> None:
    dataset = add_dataset(db)
    answer = post(api, "/v1/jobs", job_spec(dataset, optimizer=AUTO | {"weight_decay": 1e6}))
    assert answer.status_code == 422
    (error,) = answer.json()["errors"]
    assert error["pointer"] == "/optimizer/learning_rate" and "weight_decay is above 1" in error["detail"]
    assert get(api, f"/v1/datasets/{dataset}/ledger").json()["accounts"]["train"]["held"] == 0


@SQLITE
@pytest.mark.parametrize(
    ("model", "optimizer", "evidence"),
    [
        ({"kind": "linear"}, AUTO, "calibrated on nine public data sets"),
        ({"kind": "linear"}, {"kind": "dp_adam"}, "calibrated on six public data sets"),
        ({"kind": "linear"}, {"kind": "dp_adamwosm"}, "with `dp_sgd`, which this is at such a rate"),
        (MLP, AUTO, "stated reasoning with one fitted constant, measured on 38 cells"),
        (MLP, {"kind": "dp_adam"}, "stated reasoning with one fitted constant, measured on 24 cells"),
    ],
)
def test_a_reason_says_what_stands_behind_the_rate(
    api: Api, db: Database, model: dict[str, Any], optimizer: dict[str, Any], evidence: str
) -> None:
    job = post(api, "/v1/jobs", job_spec(add_dataset(db), model=model, optimizer=optimizer)).json()
    because = job["quote"]["resolved"]["because"]
    assert evidence in because and (" J " in because) == (model == MLP)
    assert 1e-4 < job["spec"]["optimizer"]["learning_rate"] < 100.0


@SQLITE
@pytest.mark.parametrize(
    ("model", "optimizer", "said"),
    [
        ({"kind": "linear"}, {"averaging": {"kind": "tail"}}, "not measured with `averaging`"),
        (
            MLP | {"dropout": 0.2},
            {"schedule": {"kind": "cosine"}},
            "not measured with a `schedule` or with `dropout`",
        ),
    ],
)
def test_a_reason_says_what_was_not_measured(
    api: Api, db: Database, model: dict[str, Any], optimizer: dict[str, Any], said: str
) -> None:
    asked = job_spec(add_dataset(db), model=model, optimizer={"kind": "dp_sgd"} | optimizer)
    assert post(api, "/v1/jobs", asked).json()["quote"]["resolved"]["because"].endswith(said)


def test_networks_that_nothing_was_measured_on_have_no_rule() -> None:
    cases = [
        ({"model": {"kind": "cnn", "preset": "conv5"}}, "for the network `conv5`"),
        ({"model": MLP, "privacy": None}, "without privacy"),
        ({"model": {"kind": "matrix_factorization"}}, "`matrix_factorization`"),
        ({"model": {"kind": "gru_rec"}}, "`gru_rec`"),
    ]
    for changes, why in cases:
        spec = JobSpec.model_validate(job_spec("ds_x", optimizer=AUTO, evaluation=None) | changes)
        found = rule_of(spec, facts_of({"privacy": RDP}))
        assert isinstance(found, str) and why in found


@SQLITE
def test_regression_has_a_rule_once_its_range_is_declared(api: Api, db: Database) -> None:
    dollars = {"kind": "regression", "label": "y", "range": [0, 5e6]}
    spec = job_spec(add_dataset(db, task=dollars, features=TABLE), optimizer=AUTO, length={"steps": "auto"})
    spec["evaluation"] = {"on": "holdout", "metrics": ["r_squared"], "noise_mu": 0.05}
    quote = post(api, "/v1/quotes", spec, key=None).json()
    assert "resolved" in quote, quote
    resolved = quote["resolved"]
    assert all(
        "four public tables" in each
        for each in (resolved["because"], resolved["steps"]["because"], resolved["max_grad_norm"]["because"])
    )
    # A linear model of a number has an intercept unless it is asked not to.
    assert resolved["max_grad_norm"]["value"] == pytest.approx(0.12 * 3.0**0.5, rel=0.01)
    assert [each["name"] for each in quote["scores"]] == ["r_squared"]


@SQLITE
def test_r_squared_needs_a_declared_range(api: Api, db: Database) -> None:
    for task, why in (
        ({"kind": "regression", "label": "y"}, "`task.range`"),
        ({"kind": "classification", "label": "y", "classes": [0, 1]}, "task is `regression`"),
    ):
        spec = job_spec(add_dataset(db, name=task["kind"], task=task), evaluation={"metrics": ["r_squared"]})
        answer = post(api, "/v1/quotes", spec, key=None)
        assert answer.status_code == 422 and why in answer.json()["errors"][0]["detail"]


@SQLITE
def test_numbers_without_a_range_have_no_rule(api: Api, db: Database) -> None:
    dataset = add_dataset(db, name="numbers", task={"kind": "regression", "label": "y"}, privacy=FULL)
    answer = post(api, "/v1/quotes", job_spec(dataset, optimizer=AUTO, evaluation=None), key=None)
    assert answer.status_code == 422, answer.text
    assert "without the target's range" in answer.json()["errors"][0]["detail"]


@SQLITE
def test_each_of_a_user_s_records_is_clipped_as_one_alone(api: Api, db: Database) -> None:
    """C/k of k records is C of one: the noise grows by k, and the rate falls by it."""
    users = {"unit": "user", "user_column": "u", "max_records_per_user": 5}
    one, many = (
        post(api, "/v1/quotes", {"dataset": add_dataset(db, name=name, privacy=FULL | unit)} | EPSILON, key=None).json()
        for name, unit in (("one", {}), ("many", users))
    )
    norms = [each["resolved"]["max_grad_norm"]["value"] for each in (one, many)]
    rates = [each["resolved"]["learning_rate"] for each in (one, many)]
    assert norms[1] == pytest.approx(5.0 * norms[0]) and rates[1] < rates[0]
    assert any("several records" in each for each in many["warnings"])


@SQLITE
@pytest.mark.parametrize(
    ("changes", "is_measured"),
    [
        ({"features": TABLE}, True),
        ({"features": TABLE, "task": {"kind": "regression", "label": "y", "range": [0, 9]}}, False),
        ({"features": {"kind": "text", "column": "t"}}, False),
        ({"features": TABLE, "task": {"kind": "classification", "label": "y", "classes": [0, 1, 2]}}, True),
    ],
)
def test_users_of_several_records_have_a_rule_or_the_nearest(
    api: Api, db: Database, changes: dict[str, Any], is_measured: bool
) -> None:
    users = {"unit": "user", "user_column": "u", "max_records_per_user": 5}
    dataset = add_dataset(db, privacy=FULL | users, **changes)
    for asked in (EPSILON, EPSILON | {"optimizer": AUTO, "hpo": {"strategy": "auto"}}):
        quote = post(api, "/v1/quotes", {"dataset": dataset} | asked, key=None).json()
        assert quote["resolved"]["learning_rate"] > 0.0 and quote["hpo"] is None
        assert any("several records" in each for each in quote["warnings"]) is not is_measured
        assert ("several records on four" in quote["resolved"]["because"]) is is_measured


@SQLITE
def test_a_study_of_two_rates_needs_the_first(api: Api, db: Database) -> None:
    dp2 = {"kind": "dp2_rmsprop", "learning_rate_adaptive": 0.1, "max_grad_norm_adaptive": 1.0, "delay": 5}
    spec = job_spec(add_dataset(db), optimizer=dp2, hpo={"strategy": "linear_scaling"})
    answer = post(api, "/v1/quotes", spec, key=None)
    assert answer.status_code == 422, answer.text
    pointers = {each["pointer"] for each in answer.json()["errors"]}
    assert pointers <= {"/optimizer/learning_rate", "/hpo/space/learning_rate"}
    once = post(api, "/v1/quotes", spec | {"hpo": {"strategy": "auto"}}, key=None).json()
    assert once["hpo"] is None and any("takes the nearest rule" in each for each in once["warnings"])


@SQLITE
def test_a_named_rate_is_kept_where_auto_does_not_search(api: Api, db: Database) -> None:
    named = AUTO | {"learning_rate": 5.0}
    answer = post(api, "/v1/jobs", job_spec(add_dataset(db), optimizer=named, hpo={"strategy": "auto"}))
    job = answer.json()
    assert (job["spec"]["optimizer"]["learning_rate"], job["quote"]["resolved"]["learning_rate"]) == (5.0, None)
    assert any("keeps the learning rate" in each for each in job["quote"]["warnings"])


@SQLITE
def test_the_most_steps_are_quoted_at_once(api: Api, db: Database) -> None:
    """A rate is a closed form: an analyst chooses T."""
    spec = job_spec(add_dataset(db), optimizer=AUTO, length={"steps": 10_000_000})
    assert post(api, "/v1/quotes", spec, key=None).json()["resolved"]["learning_rate"] > 0.0


@SQLITE
def test_a_misspelt_auto_is_found(api: Api, db: Database) -> None:
    answer = post(api, "/v1/quotes", job_spec(add_dataset(db), optimizer={"kind": "dp_sgd", "learning_rate": "atuo"}))
    assert {each["pointer"] for each in answer.json()["errors"]} == {"/optimizer/learning_rate"}
