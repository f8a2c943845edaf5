"""A used data set is declared anew: no stored charge, split or stored record changes its meaning."""

from __future__ import annotations

import json
from typing import Any

import pytest
from sqlalchemy import select

from app.admission import standing
from app.admission.lookup import dataset_facts
from app.datasets import declaring
from app.db.declared_version import declared
from app.db.models import Account, Dataset, Declaration, Job
from app.hpo.stored_study import StoredStudy
from app.lifecycle import study_states
from core.contracts.dataset_spec import DatasetSpec
from core.contracts.job_spec import JobSpec
from core.contracts.stored_documents import Shape
from core.errors import PrivacyError
from core.privacy.derive import check_agreement
from core.privacy.mechanism import MechanismConfig
from tests.chaos.tamper import unprotected
from tests.datasets.conftest import CSV, PUBLIC, Api, private, spec
from tests.datasets.test_refusals import REORDERED
from tests.datasets.test_retire import submit


def declare(api: Api, dataset: str, who: str = "owner", **changes: Any) -> Any:
    return api.client.post(f"/v1/datasets/{dataset}/declarations", json=changes, headers=api.headers(who))


def row(api: Api, job_id: str) -> Job:
    with api.db.read() as session:
        return session.get_one(Job, job_id)


def test_records_are_declared_anew(api: Api) -> None:
    made = api.upload(spec(**private(records=100))).json()
    answer = declare(api, made["id"], records=50)
    assert answer.status_code == 201, answer.text
    found = answer.json()
    assert (found["declaration"], found["shape"]["records_train"], found["shape"]["records_holdout"]) == (2, 40, 10)
    assert found["read"]["units"] == 60 and found["suggested_records"] == 60
    assert "50 declared" in found["warnings"][0]
    assert found["ledger"]["head"] == made["ledger"]["head"], "nothing was charged, and no budget moved"
    assert found["privacy"]["cap"] == made["privacy"]["cap"], "δ stays, whatever the count"
    quote = api.client.post("/v1/quotes", json=submitted(made["id"]), headers=api.headers("owner")).json()
    assert (quote["declaration"], quote["expected_batch_size"]) == (2, 40)


def submitted(dataset: str) -> dict[str, Any]:
    from tests.factories import job_spec

    return job_spec(dataset)


def test_a_job_keeps_the_version_of_its_price(api: Api) -> None:
    """With another count its divisor, its rate and its noise would not be those that were charged."""
    made = api.upload(spec(**private(records=100))).json()
    poisson = {"sampling": {"kind": "full_batch"}}
    job = submit(api, made["id"], **poisson).json()
    held = api.get(f"/v1/datasets/{made['id']}/ledger").json()["accounts"]
    declare(api, made["id"], records=50, classes=[0, 1, 2])
    assert api.get(f"/v1/jobs/{job['id']}").json()["declaration"] == 1
    assert api.get(f"/v1/datasets/{made['id']}/ledger").json()["accounts"] == held
    with api.db.read() as session:
        stored = session.get_one(Job, job["id"])
        said, dataset = declared(session, stored), session.get_one(Dataset, made["id"])
        facts = dataset_facts(session, dataset).public
    assert said.version == 1 and said.shape == Shape(**made["shape"]) and said.spec.task.outputs == 2
    spec_of, mechanism = JobSpec.model_validate(stored.spec), MechanismConfig.model_validate(stored.mechanism)
    with pytest.raises(PrivacyError):
        check_agreement(spec_of, facts, mechanism)
    assert row(api, submit(api, made["id"], "later").json()["id"]).declaration == 2


def test_a_version_that_is_missing_runs_nothing(api: Api) -> None:
    made = api.upload(spec()).json()
    job = submit(api, made["id"]).json()["id"]
    declare(api, made["id"], classes=[0, 1, 2])
    with api.db.write() as session:
        session.delete(session.get_one(Declaration, (made["id"], 1)))
    with api.db.read() as session, pytest.raises(LookupError):
        found = session.get(Declaration, (made["id"], 1))
        if found is None:
            raise LookupError
    with api.db.read() as session, pytest.raises(Exception, match="No row was found"):
        declared(session, session.get_one(Job, job))


def test_trials_that_start_later_keep_the_studys_version(api: Api) -> None:
    made = api.upload(spec(**private(records=100))).json()
    study = submit(
        api,
        made["id"],
        hpo={"levels": [0.1, 0.2], "runs_per_level": 3, "space": {"learning_rate": [1e-2, 1e2], "steps": [5, 100]}},
    )
    assert study.status_code == 201, study.text
    declare(api, made["id"], records=50)
    with api.db.write() as session:
        held = session.get_one(Job, study.json()["id"])
        runs = study_states.runs_of(study_states.study_of(held), {})
        stored = StoredStudy.read(held.study)
        later = study_states._row(held, stored, study_states._new(stored, runs[0]))
        trials = session.scalars(select(Job.declaration).where(Job.parent_id == held.id)).all()
    assert later["declaration"] == 1 and set(trials) == {1}


def test_a_declaration_between_price_and_hold(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    """The job is stored with the version that its price used, not with the one that is there at its commit."""
    made = api.upload(spec(**private(records=100))).json()
    read = standing.behind.read_recorded

    def declared_meanwhile(*asked: Any) -> Any:
        monkeypatch.setattr(standing.behind, "read_recorded", read)
        assert declare(api, made["id"], records=50).status_code == 201
        return read(*asked)

    monkeypatch.setattr(standing.behind, "read_recorded", declared_meanwhile)
    stored = row(api, submit(api, made["id"]).json()["id"])
    assert stored.declaration == 1 and stored.mechanism is not None
    assert stored.mechanism["training"]["expected_batch_size"] == 80


def test_two_at_once(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both began at version 1: the second would overwrite the first, and its version be one of two."""
    made = api.upload(spec(**private(records=100))).json()
    read = declaring.behind.read_recorded

    def first(*asked: Any) -> Any:
        monkeypatch.setattr(declaring.behind, "read_recorded", read)
        assert declare(api, made["id"], records=70).status_code == 201
        return read(*asked)

    monkeypatch.setattr(declaring.behind, "read_recorded", first)
    assert declare(api, made["id"], records=50).json()["type"] == "/problems/wrong-state"
    assert api.get(f"/v1/datasets/{made['id']}").json()["privacy"]["records"] == 70


def test_an_exact_count_becomes_public(api: Api) -> None:
    made = api.upload(spec(**private(records=70)), CSV + "99,1,1\n").json()
    found = declare(api, made["id"], records=61, dry_run=True).json()
    assert "61 is the exact number" in found["warnings"][0] and found["suggested_records"] == 60
    assert found["declaration"] == 1 and found["privacy"]["records"] == 70, "nothing changed"
    assert declare(api, made["id"], dry_run=True).json()["suggested_records"] == 60
    with api.db.read() as session:
        assert session.scalars(select(Declaration)).all() == []


@pytest.mark.parametrize(
    "change",
    [
        {"classes": [1, 0]},
        {"classes": [0, 2]},
        {"classes": [1, 2]},
        {"classes": ["0", "1", "2"]},
        {"classes": [0, 1, 1]},
        {"classes": [0, 1]},
        {"scale": [1, 5]},
        {"records": 60},
        {"records": 1},
        {"records": True},
        {},
        *(
            {name: value}
            for name, value in {
                "unit": "user",
                "user_column": "a",
                "max_records_per_user": 2,
                "filter": "rdp",
                "order": 4.0,
                "cap": {"epsilon": 9.0},
                "holdout": {"kind": "split", "fraction": 0.5},
                "sensitivity": "public",
                "privacy": {},
                "task": {"kind": "regression", "label": "y"},
            }.items()
        ),
    ],
    ids=json.dumps,
)
def test_what_never_changes(refusing: tuple[Api, str], change: dict[str, Any]) -> None:
    api, dataset = refusing
    before = api.get(f"/v1/datasets/{dataset}").json()
    refused = declare(api, dataset, **change)
    assert refused.status_code == 422, refused.text
    assert api.get(f"/v1/datasets/{dataset}").json() == before


@pytest.fixture(scope="module")
def refusing(tmp_path_factory: pytest.TempPathFactory, migrated_database: Any) -> Any:
    from tests.datasets.conftest import new_api

    api = new_api(tmp_path_factory.mktemp("declaring") / "home", migrated_database)
    yield api, api.upload(spec()).json()["id"]
    api.close()


def test_further_classes_move_no_label_and_no_record(api: Api) -> None:
    made = api.upload(spec()).json()
    with api.db.read() as session:
        parts = session.get_one(Dataset, made["id"]).parts
    assert declare(api, made["id"], classes=[0, 1, 2]).json()["shape"]["outputs"] == 3
    with api.db.read() as session:
        assert session.get_one(Dataset, made["id"]).parts == parts
    for number, file in enumerate((CSV, REORDERED)):
        again = api.upload(spec(f"n{number}", task=made["task"] | {"classes": [0, 1, 2]}), file)
        assert again.json()["type"] == "/problems/duplicate-content"


def test_a_closed_ledger_or_deleted_content_stays_so(api: Api) -> None:
    made = api.upload(spec()).json()["id"]
    with unprotected(api.db) as session:
        session.get_one(Account, made).joined_into = "ds_other"
    assert declare(api, made, records=50).json()["type"] == "/problems/wrong-state"
    with unprotected(api.db) as session:
        session.get_one(Account, made).joined_into = None
    api.client.delete(f"/v1/datasets/{made}/content", headers=api.headers("owner"))
    assert declare(api, made, records=50).json()["type"] == "/problems/content-deleted"


def test_public_data_have_their_actual_number(api: Api) -> None:
    made = api.upload(spec(**PUBLIC)).json()["id"]
    assert declare(api, made, records=50).json()["errors"][0]["pointer"] == "/records"
    assert declare(api, made, classes=[0, 1, 5]).json()["shape"]["outputs"] == 3


def test_who_may(api: Api) -> None:
    made = api.upload(spec()).json()["id"]
    assert declare(api, made, "other-owner", records=50).status_code == 404
    api.share(made)
    assert declare(api, made, "analyst", records=50).status_code == 403


def test_users_are_counted_where_users_are_protected(api: Api) -> None:
    rows = "u,a,b,y\n" + "".join(f"p{i % 20},{i},{i * i % 7},{i % 2}\n" for i in range(60))
    privacy = private(unit="user", user_column="u", max_records_per_user=2, records=30)["privacy"]
    made = api.upload(spec() | {"privacy": privacy}, rows).json()
    found = declare(api, made["id"], records=20).json()
    assert found["read"]["units"] == 20 and found["warnings"] == []
    stored = DatasetSpec.model_validate({**spec(), "privacy": found["privacy"]})
    assert stored.privacy.max_records_per_user == 2 and stored.privacy.unit == "user"


def test_further_classes_drop_the_declared_shares(api: Api) -> None:
    made = api.upload(spec(task=spec()["task"] | {"shares": [0.5, 0.5]})).json()
    assert made["task"]["shares"] == [0.5, 0.5]
    assert "shares" not in declare(api, made["id"], classes=[0, 1, 2]).json()["task"]
