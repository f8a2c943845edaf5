"""Deleting content and models: files go, what was spent stays, and the same content is no second budget."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import select

from app.datasets.repository import check_content, with_content
from app.db.database import Database
from app.db.models import Account, Artifact, AuditEntry, Dataset, DatasetContent, Job, Outbox, Prediction
from app.ledger.verification import verify
from app.lifecycle.claims import claim
from app.lifecycle.settle import settle, settlement_of
from app.lifecycle.states import get_job
from app.retention import service as retention
from app.settings import Settings
from core.contracts.stored_documents import PartFiles
from core.errors import Conflict
from core.ids import new_id, now
from tests.by_night import SQLITE_BY_DAY
from tests.conftest import BACKINGS
from tests.conftest import Api as Roles
from tests.factories import add_dataset, job_spec
from tests.lifecycle.conftest import submit as submit_fixture

submit = submit_fixture
Submit = Callable[..., str]
CHEAP: dict[str, Any] = {"privacy": {"target_epsilon": 0.05}, "evaluation": None}


@pytest.fixture(params=SQLITE_BY_DAY)
def backing(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def dataset(db: Database, settings: Settings, api: Roles) -> str:
    """A private data set of the owner's, with files and keyed hashes."""
    made = add_dataset(db, owner=api.key_ids["owner"], parts={"train": {"path": "x", "sha256": "0" * 64}})
    folder = settings.storage_root / "datasets" / made
    (folder / "features").mkdir(parents=True)
    (folder / "train.npz").write_bytes(b"private")
    (folder / "features" / "cached.npy").write_bytes(b"private too")
    with db.write() as session:
        session.get_one(Dataset, made).content_sha256 = "1" * 64
        session.add(
            DatasetContent(dataset_id=made, part="data", kind="file", hmac="a" * 64, owner_key=api.key_ids["owner"])
        )
    return made


def delete(api: Roles, dataset: str, role: str = "owner") -> Any:
    return api.client.delete(f"/v1/datasets/{dataset}/content", headers=api.headers(role))


def end(db: Database, job: str) -> None:
    with db.write() as session:
        settle(session, settlement_of(session, get_job(session, job, lock=True), "cancelled"))


def test_content_goes_and_the_ledger_stays(
    api: Roles, db: Database, settings: Settings, dataset: str, submit: Submit
) -> None:
    job = submit(dataset, **CHEAP)
    held = delete(api, dataset)
    assert (held.status_code, held.json()["type"]) == (409, "/problems/wrong-state")
    assert (settings.storage_root / "datasets" / dataset / "train.npz").exists()
    end(db, job)
    assert delete(api, dataset, "analyst").status_code == 403
    before = api.client.get(f"/v1/datasets/{dataset}/ledger/entries", headers=api.headers("owner")).json()["items"]
    answer = delete(api, dataset)
    assert answer.status_code == 200, answer.text
    view = answer.json()
    assert view["content_deleted_at"] is not None and view["content_sha256"] is None
    assert not (settings.storage_root / "datasets" / dataset).exists()
    after = api.client.get(f"/v1/datasets/{dataset}/ledger/entries", headers=api.headers("owner")).json()["items"]
    assert after == before and len(after) == 3
    with db.read() as session:
        assert session.get_one(Dataset, dataset).parts == PartFiles()
        assert session.scalars(select(DatasetContent.hmac).where(DatasetContent.dataset_id == dataset)).all() == [
            "a" * 64
        ]
        acts = select(AuditEntry.actor).where(AuditEntry.action == "dataset.content_deleted")
        assert session.scalars(acts).all() == [api.key_ids["owner"]]
    assert delete(api, dataset).json() == view, "once more changes nothing"


def test_nothing_is_trained_on_what_was_deleted(api: Roles, db: Database, dataset: str) -> None:
    assert delete(api, dataset).status_code == 200
    for path, more in (("/v1/quotes", {}), ("/v1/jobs", {"Idempotency-Key": "k"})):
        answer = api.client.post(path, json=job_spec(dataset, **CHEAP), headers=api.headers("owner", **more))
        assert (answer.status_code, answer.json()["type"]) == (409, "/problems/content-deleted"), path


def retire(api: Roles, dataset: str) -> Any:
    return api.client.post(f"/v1/datasets/{dataset}/retire", headers=api.headers("owner"))


@pytest.mark.parametrize("backing", BACKINGS)  # a race: on both by day
@pytest.mark.parametrize("remove", [delete, retire])
def test_of_a_deletion_and_an_admission_at_once_one_wins(
    api: Roles, db: Database, settings: Settings, dataset: str, remove: Callable[[Roles, str], Any]
) -> None:
    """Either the job is there and the content stays, or the content goes and there is no job. Where the data set is
    retired, nothing is held on the ledger that is closed."""
    spec = job_spec(dataset, **CHEAP)
    assert api.client.post("/v1/quotes", json=spec, headers=api.headers("owner")).status_code == 200  # prices it
    with ThreadPoolExecutor(8) as pool:
        asked = [
            pool.submit(
                api.client.post, "/v1/jobs", json=spec, headers=api.headers("owner", **{"Idempotency-Key": str(number)})
            )
            for number in range(6)
        ]
        deleted = pool.submit(remove, api, dataset)
        statuses = {each.result().status_code for each in asked}
    kept = (settings.storage_root / "datasets" / dataset / "train.npz").exists()
    with db.read() as session:
        jobs = session.scalars(select(Job.id).where(Job.dataset_id == dataset)).all()
    assert statuses <= {201, 409}
    assert (deleted.result().status_code == 200) == (not kept)
    assert kept == bool(jobs)
    if remove is retire:
        with db.read() as session:
            account = session.get_one(Account, dataset)
            assert (account.joined_into is None) == kept == (account.train_held > 0)
            assert verify(session, dataset).valid


def test_public_side_information_that_a_job_needs_stays(
    api: Roles, db: Database, settings: Settings, dataset: str, submit: Submit
) -> None:
    job = submit(**CHEAP)
    with db.write() as session:
        row = session.get_one(Job, job)
        row.spec = row.spec | {"optimizer": row.spec["optimizer"] | {"public_dataset": dataset}}
    assert delete(api, dataset).status_code == 409
    end(db, job)
    assert delete(api, dataset).status_code == 200


def test_the_same_content_is_no_second_budget(api: Roles, db: Database, dataset: str) -> None:
    """Attack (Doors): Content is deleted and registered anew
    Now: its keyed hash stays: no second budget
    Also: tests/retention/test_deletion.py::test_retention_settings_delete_what_is_old_and_idle
    """
    assert delete(api, dataset).status_code == 200
    with db.read() as session:
        assert [each.id for _part, each in with_content(session, api.key_ids["owner"], ["a" * 64])] == [dataset]


def test_a_deletion_that_was_cut_short_is_finished(
    api: Roles, db: Database, settings: Settings, dataset: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "rmtree", lambda *_arguments, **_options: None)
    assert delete(api, dataset).status_code == 200
    monkeypatch.undo()
    assert (settings.storage_root / "datasets" / dataset).exists()
    retention.sweep(db, settings)
    assert not (settings.storage_root / "datasets" / dataset).exists()
    with db.read() as session:
        assert session.get_one(Dataset, dataset).parts == PartFiles()


def finished(db: Database, settings: Settings, dataset: str, submit: Submit, parent: str | None = None) -> str:
    """A job that has ended, with a model."""
    job = submit(dataset, **CHEAP)
    folder = settings.storage_root / "jobs" / job / "attempt-1"
    folder.mkdir(parents=True)
    (folder / "model.safetensors").write_bytes(b"weights")
    with db.write() as session:
        claim(session, job, "w", 30.0)
        path = str((folder / "model.safetensors").relative_to(settings.storage_root))
        session.add(Artifact(job_id=job, name="model.safetensors", sha256="0" * 64, size_bytes=7, path=path))
        session.flush()
        settle(session, settlement_of(session, get_job(session, job, lock=True), "cancelled"))
        session.get_one(Job, job).parent_id = parent
    return job


def test_artifacts_go_when_nothing_needs_them(
    api: Roles, db: Database, settings: Settings, dataset: str, submit: Submit
) -> None:
    job = finished(db, settings, dataset, submit)
    path = f"/v1/jobs/{job}/artifacts"
    with db.write() as session:
        made = {"id": new_id("pred"), "job_id": job, "key_id": api.key_ids["owner"], "status": "queued"}
        session.add(
            Prediction(**made, records=[1], top=1, attempt=0, created_at=now(), expires_at=now() + timedelta(1))
        )
    assert api.client.delete(path, headers=api.headers("owner")).status_code == 409
    with db.write() as session:
        session.get_one(Prediction, made["id"]).status = "succeeded"
    assert api.client.delete(path, headers=api.headers("analyst")).status_code == 403, "it is another key's job"
    answer = api.client.delete(path, headers=api.headers("owner"))
    assert (answer.status_code, answer.json()["artifacts"]) == (200, [])
    assert api.client.get(f"{path}/model.safetensors", headers=api.headers("owner")).status_code == 404
    with db.read() as session:
        due = session.scalars(select(Outbox.job_id).where(Outbox.topic == "discard")).all()
        assert due == [job]
        assert session.get_one(Job, job).status == "cancelled"


def test_a_job_that_runs_keeps_its_files_and_a_run_its_study_s(
    api: Roles, db: Database, settings: Settings, dataset: str, submit: Submit
) -> None:
    job = submit(dataset, **CHEAP)
    assert api.client.delete(f"/v1/jobs/{job}/artifacts", headers=api.headers("owner")).status_code == 409
    run = finished(db, settings, dataset, submit, parent=job)
    assert api.client.delete(f"/v1/jobs/{run}/artifacts", headers=api.headers("owner")).status_code == 409
    end(db, job)
    assert api.client.delete(f"/v1/jobs/{job}/artifacts", headers=api.headers("owner")).status_code == 200
    with db.read() as session:
        assert session.scalars(select(Artifact)).all() == []
        due = session.scalars(select(Outbox.job_id).where(Outbox.topic == "discard")).all()
        assert set(due) == {job, run}


def test_retention_settings_delete_what_is_old_and_idle(
    db: Database, settings: Settings, dataset: str, submit: Submit
) -> None:
    job = finished(db, settings, dataset, submit)
    young, busy = add_dataset(db), add_dataset(db)
    waits = submit(busy, **CHEAP)
    long_ago = now() - timedelta(days=40)
    with db.write() as session:
        for each in (job, waits):
            session.get_one(Job, each).created_at = long_ago
        session.get_one(Job, job).finished_at = long_ago
        for name in (dataset, busy):
            session.get_one(Dataset, name).created_at = long_ago
    retention.sweep(db, settings)
    with db.read() as session:
        assert session.get_one(Dataset, dataset).content_deleted_at is None, "nothing is set"
    kept = settings.model_copy(update={"artifacts_kept_days": 30.0, "content_kept_days": 30.0})
    retention.sweep(db, kept)
    with db.read() as session:
        gone = {each: session.get_one(Dataset, each).content_deleted_at is not None for each in (dataset, young, busy)}
        assert gone == {dataset: True, young: False, busy: False}
        assert session.scalars(select(Artifact)).all() == []
        because = session.scalars(select(AuditEntry.details).where(AuditEntry.action == "artifacts.deleted")).all()
        assert because == [{"because": "retention"}]
    retention.sweep(db, kept)


def test_the_refusal_is_a_conflict(db: Database, dataset: str) -> None:
    with db.write() as session:
        session.get_one(Dataset, dataset).content_deleted_at = now()
        session.flush()
        with pytest.raises(Conflict, match="deleted"):
            check_content(session, [dataset])
