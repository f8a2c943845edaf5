"""GET /v1/optimizers, and what is refused at admission because it is undefined, with the reason."""

from __future__ import annotations

from typing import Any, get_args

import pytest
from sqlalchemy import delete

from app.catalogue.optimizer_kinds import CATALOGUE
from app.db.database import Database
from app.db.models import Grant
from core.contracts.optimizers import Optimizer
from tests.conftest import Api
from tests.factories import add_dataset, job_spec
from tests.worker.optimizing import OPTIMIZERS
from worker.optimizers.averaging import SLOT

ADAMBC = {"kind": "dp_adambc", "learning_rate": 0.1}
DP2 = {
    "kind": "dp2_rmsprop",
    "learning_rate": 1.0,
    "learning_rate_adaptive": 0.1,
    "max_grad_norm_adaptive": 3.0,
    "delay": 5,
}
ZO = {"kind": "dp_zo", "learning_rate": 0.1}
PUBLIC = {"privacy": None, "clipping": None}


def test_the_catalogue_holds_every_kind_of_optimizer(api: Api) -> None:
    answer = api.client.get("/v1/optimizers", headers=api.headers("analyst"))
    assert answer.status_code == 200 and answer.json()["next"] is None
    items = {each["kind"]: each for each in answer.json()["items"]}
    assert {kind.model_fields["kind"].default for kind in get_args(Optimizer)} == set(items) == set(CATALOGUE)
    assert {name.split()[0] for name in OPTIMIZERS} == set(items)  # each has its cases in the contract's suite
    for each in items.values():
        assert all(each[name] for name in ("summary", "update", "state", "cost", "when_to_prefer", "source"))
        assert each["schema"]["properties"]["kind"]["const"] == each["kind"]
        assert each["schema"]["additionalProperties"] is False and "schedule" in each["schema"]["properties"]
    assert api.client.get("/v1/optimizers").status_code == 401


def test_what_a_state_holds_is_what_the_catalogue_says() -> None:
    from tests.worker.optimizing import parameters

    for name, make in OPTIMIZERS.items():
        slots = {key.split("/")[0] for key in make().init(parameters()) if key not in parameters()}
        assert slots - {SLOT} <= set(CATALOGUE[name.split()[0]].state), name  # any optimizer may have an average


def quoted(api: Api, body: dict[str, Any]) -> Any:
    return api.client.post("/v1/quotes", json=body, headers=api.headers("analyst"))


def test_an_optimizer_that_is_post_processing_changes_no_price(api: Api, db: Database) -> None:
    dataset = add_dataset(db)
    asked: list[dict[str, Any]] = [
        {"kind": "dp_sgd", "learning_rate": 1.0},
        {"kind": "dp_adam", "learning_rate": 0.1, "weight_decay": 0.1, "schedule": {"kind": "cosine"}},
        ADAMBC | {"weight_decay": 30.0, "decay": "coupled"},
        {"kind": "dp_adamwosm", "learning_rate": 0.1, "beta": 0.5},
        {"kind": "dp_zo", "learning_rate": 0.1, "phi": 0.01},
        {"kind": "dp_rmsprop", "learning_rate": 0.1, "schedule": {"kind": "warmup_linear", "warmup": 0.2}},
        {"kind": "dp_adagrad", "learning_rate": 0.1},
        {"kind": "dp_adagrad", "learning_rate": 0.1, "averaging": {"kind": "tail"}},
        DP2,
        DP2 | {"kind": "dp2_adagrad", "debias": True, "max_grad_norm_adaptive": 100.0},
        DP2 | {"kind": "dp2_yogi", "variant": "noise_first"},
        {"kind": "scale_then_privatize", "learning_rate": 0.1, "base": "rmsprop"},
    ]
    answers = [quoted(api, job_spec(dataset, optimizer=each)) for each in asked]
    assert all(each.status_code == 200 for each in answers), [each.text for each in answers]
    prices = [(each.json()["charge"]["train"], each.json()["noise_multiplier"]) for each in answers]
    assert len(set(prices)) == 1


def test_a_second_query_is_charged_for(api: Api, db: Database) -> None:
    """50 steps, all but ten with two queries: 90 plain steps' price, exactly, under full batch."""
    dataset = add_dataset(db)
    sigma = {"noise_multiplier": 40.0}
    plain, extra = (
        quoted(api, job_spec(dataset, optimizer=each, privacy=sigma)).json()
        for each in (DP2, DP2 | {"variant": "extra_query"})
    )
    assert extra["charge"]["train"] == pytest.approx(90 / 50 * plain["charge"]["train"], abs=2)
    assert extra["epsilon"]["value"] > plain["epsilon"]["value"]
    events = extra["mechanism"]["train"]["events"][0]["events"]
    assert [(each["count"], round(each["event"]["noise_multiplier"], 3)) for each in events] == [
        (10, 40.0),
        (40, 28.284),
    ]


REFUSED: list[tuple[dict[str, Any], str, str]] = [
    ({"optimizer": ADAMBC | {"weight_decay": 11.0}}, "/optimizer", "flip and grow"),
    ({"optimizer": ADAMBC | {"betas": [0.9, 1.0]}}, "/optimizer/betas/1", "less than 1"),
    ({"optimizer": ADAMBC | {"eps": 1e-8}}, "/optimizer/eps", "not permitted"),  # the code that ignored it helped none
    ({"optimizer": ADAMBC | {"eps_root": 0.0}}, "/optimizer/eps_root", "greater"),
    ({"optimizer": DP2 | {"delay": 1, "variant": "extra_query"}}, "/optimizer/delay", "at least 2"),
    ({"optimizer": ZO | {"phi": 1e-9}}, "/optimizer/phi", "greater"),
    ({"optimizer": ZO | {"phi": 10.0}}, "/optimizer/phi", "less"),
    ({"optimizer": ZO, "clipping": {"kind": "per_layer"}}, "", "`flat` or `automatic`"),
    ({"optimizer": ZO, "clipping": {"kind": "adaptive"}}, "", "`flat` or `automatic`"),
    ({"optimizer": ZO, "clipping": {"engine": "opacus"}}, "", "no gradient is clipped"),
    ({"optimizer": ZO, "runtime": {"processes": 2, "shard": "optimizer"}}, "", "nothing is kept"),
    ({"optimizer": ZO, "audit": {"canaries": 100}}, "", "added to gradients"),
    (
        {
            "optimizer": ZO,
            "sampling": {"kind": "cyclic", "batches": 20},
            "noise": {"kind": "correlated", "decay": 0.75},
        },
        "",
        "another direction",
    ),
    ({"optimizer": {"kind": "dp_zo"}}, "/optimizer/learning_rate", "no rule for `auto`"),
    ({"optimizer": ADAMBC | {"schedule": {"kind": "step"}}}, "/optimizer/schedule", "expected tags"),
    ({"optimizer": ADAMBC | {"schedule": {"kind": "warmup_linear", "warmup": 1.0}}}, "/optimizer/schedule/warmup", "1"),
    (
        {"optimizer": ADAMBC | {"schedule": {"kind": "warmup_linear", "warmup": 0.999}}},
        "/optimizer/schedule/warmup",
        "would leave none",
    ),
    (
        {"optimizer": {"kind": "dp_sgd", "learning_rate": 1.0, "weight_decay": 2.0, "decay": "coupled"}},
        "/optimizer",
        "",
    ),
]


@pytest.mark.parametrize(("change", "pointer", "reason"), REFUSED)
def test_what_is_undefined_is_refused_with_the_reason(
    change: dict[str, Any], pointer: str, reason: str, api: Api, db: Database
) -> None:
    answer = quoted(api, job_spec(add_dataset(db), **change))
    assert answer.status_code == 422, answer.text
    (error,) = answer.json()["errors"]
    assert error["pointer"] == pointer and reason in error["detail"]


def test_without_noise_adambc_has_no_phi_to_take_its_floor_from(api: Api, db: Database) -> None:
    dataset = add_dataset(db, privacy={"sensitivity": "public"})
    refused = quoted(api, job_spec(dataset, optimizer=ADAMBC, **PUBLIC))
    assert refused.status_code == 422 and refused.json()["errors"][0]["pointer"] == "/optimizer/eps_root"
    assert quoted(api, job_spec(dataset, optimizer=ADAMBC | {"eps_root": 1e-8}, **PUBLIC)).status_code == 200


def test_without_noise_wosm_has_nothing_to_divide_by(api: Api, db: Database) -> None:
    dataset = add_dataset(db, privacy={"sensitivity": "public"})
    asked = {"kind": "dp_adamwosm", "learning_rate": 0.1}
    refused = quoted(api, job_spec(dataset, optimizer=asked, **PUBLIC))
    assert refused.status_code == 422 and refused.json()["errors"][0]["pointer"] == "/optimizer/kind"
    assert quoted(api, job_spec(dataset, optimizer=asked, clipping=None)).status_code == 200


# --- Public side information ---

ADA_DPS = {"kind": "ada_dps", "learning_rate": 0.1}


def test_side_information_is_of_a_public_data_set_that_fits(api: Api, db: Database) -> None:
    private = add_dataset(db, name="private")
    public = add_dataset(db, name="public", privacy={"sensitivity": "public"})
    plain = quoted(api, job_spec(private, optimizer={"kind": "dp_sgd", "learning_rate": 0.1})).json()
    for kind in ("ada_dps", "pda_dpmd"):
        asked = quoted(api, job_spec(private, optimizer=ADA_DPS | {"kind": kind, "public_dataset": "public"}))
        assert asked.status_code == 200, asked.text
        assert asked.json()["charge"] == plain["charge"]  # it costs nothing
    posted = api.client.post(
        "/v1/jobs",
        json=job_spec(private, optimizer=ADA_DPS | {"public_dataset": "public"}),
        headers=api.headers("analyst") | {"Idempotency-Key": "side"},
    )
    assert posted.status_code == 201 and posted.json()["spec"]["optimizer"]["public_dataset"] == public


def test_side_information_that_does_not_fit_is_refused(api: Api, db: Database) -> None:
    private = add_dataset(db, name="private")
    add_dataset(db, name="other-private")
    classes = {"kind": "classification", "label": "y", "classes": ["no", "yes"]}
    add_dataset(db, name="other-classes", privacy={"sensitivity": "public"}, task=classes)
    columns = {"kind": "columns", "columns": ["b", "a"]}
    add_dataset(db, name="other-columns", privacy={"sensitivity": "public"}, features=columns)
    for name, reason in (
        ("other-private", "must be declared public"),
        ("other-classes", "its classes"),
        ("other-columns", "features"),
    ):
        answer = quoted(api, job_spec(private, optimizer=ADA_DPS | {"public_dataset": name}))
        assert answer.status_code == 422, (name, answer.text)
        (error,) = answer.json()["errors"]
        assert error["pointer"] == "/optimizer/public_dataset" and reason in error["detail"]
    assert quoted(api, job_spec(private, optimizer=ADA_DPS | {"public_dataset": "nowhere"})).status_code == 404
    assert quoted(api, job_spec(private, optimizer=ADA_DPS)).status_code == 422


def table(high: int, values: list[str]) -> dict[str, Any]:
    age = {"name": "age", "kind": "number", "range": [0, high]}
    return {"kind": "table", "columns": [age, {"name": "sex", "kind": "category", "values": values}]}


def test_side_information_of_tables_has_the_same_columns_and_values(api: Api, db: Database) -> None:
    """Its cells are made features by the job's declaration: other ranges do no harm, but values in another order do."""
    private = add_dataset(db, name="private", features=table(120, ["f", "m"]))
    public = {"privacy": {"sensitivity": "public"}}
    for name, features, status in (
        ("other-ranges", table(90, ["f", "m"]), 200),
        ("other-order", table(120, ["m", "f"]), 422),
    ):
        add_dataset(db, name=name, features=features, **public)
        answer = quoted(api, job_spec(private, optimizer=ADA_DPS | {"public_dataset": name}))
        assert answer.status_code == status, (name, answer.text)


def test_side_information_needs_the_right_to_train_on_it(api: Api, db: Database) -> None:
    private, public = add_dataset(db, name="private"), add_dataset(db, name="public", privacy={"sensitivity": "public"})
    with db.write() as session:
        session.execute(delete(Grant).where(Grant.dataset_id == public))
    asked = job_spec(private, optimizer=ADA_DPS | {"public_dataset": public})
    assert quoted(api, asked).status_code == 404  # as what does not exist
    assert api.client.post("/v1/quotes", json=asked, headers=api.headers("admin")).status_code == 200


def test_a_job_that_was_admitted_is_shown_again_when_its_side_information_may_not_be_seen_any_more(
    api: Api, db: Database
) -> None:
    private, public = add_dataset(db, name="private"), add_dataset(db, name="public", privacy={"sensitivity": "public"})
    asked = job_spec(private, optimizer=ADA_DPS | {"public_dataset": public})
    headers = api.headers("analyst") | {"Idempotency-Key": "once"}
    first = api.client.post("/v1/jobs", json=asked, headers=headers)
    assert first.status_code == 201, first.text
    with db.write() as session:
        session.execute(delete(Grant).where(Grant.dataset_id == public))
    again = api.client.post("/v1/jobs", json=asked, headers=headers)
    assert (again.status_code, again.json()["id"]) == (201, first.json()["id"])
    refused = api.client.post("/v1/jobs", json=asked, headers=headers | {"Idempotency-Key": "twice"})
    assert refused.status_code == 404


def test_a_share_that_would_turn_negative_is_refused(api: Api, db: Database) -> None:
    private = add_dataset(db, name="private")
    add_dataset(db, name="public", privacy={"sensitivity": "public"})
    settings = {"kind": "pda_dpmd", "learning_rate": 0.1, "public_dataset": "public"}
    refused = quoted(api, job_spec(private, optimizer=settings | {"horizon": 49}))
    assert refused.status_code == 422 and refused.json()["errors"][0]["pointer"] == "/optimizer/horizon"
    assert quoted(api, job_spec(private, optimizer=settings | {"horizon": 50})).status_code == 200
