"""`auto` is settled at admission by the workers that live, and is a word of the plan from there on."""

from __future__ import annotations

from typing import Any

import pytest
from fastapi.testclient import TestClient

from app.dashboard.job_draft import of_job
from app.db.database import Database
from app.db.models import Job
from app.hpo.rates import Resolved
from app.lifecycle.queue.fair import claim_next
from app.lifecycle.queue.presence import Presence
from app.lifecycle.queue.room import Room
from app.main import create_app
from app.settings import Settings
from core.contracts.devices import Device
from tests.conftest import Api
from tests.factories import NO_HEADS, add_dataset, job_spec
from tests.jobs.test_api import get, post

SQLITE = pytest.mark.parametrize("backing", ["sqlite"])
GPU = Device(kind="cuda", index=0, name="A GPU", memory_bytes=2**34, capability="9.0")
FOUR = GPU.model_copy(update={"gpus": 4})
PROCESSOR = Device(kind="cpu", index=0, name="A processor", processes=4)
SHARDED = {"processes": 2, "shard": "optimizer"}
COUNT = {"kind": "statistics", "queries": [{"kind": "count"}], "privacy": {"target_epsilon": 0.1}}


def beat(db: Database, *devices: Device, **traits: Any) -> list[Presence]:
    """Workers that report themselves now."""
    workers = [Presence(db, "host", place, 5.0, devices=[device]) for place, device in enumerate(devices)]
    for each in workers:
        for name, value in traits.items():
            setattr(each, name, value)
        each.beat()
    return workers


def chosen(quote: dict[str, Any]) -> tuple[str, str]:
    """The kind of device that a quote names, and why."""
    (part,) = [each for each in quote["resolved"]["parts"] if each["name"] == "device"]
    return part["value"], part["because"]


@pytest.mark.parametrize(
    ("devices", "runtime", "kind", "because"),
    [
        ([], {}, "cpu", "no worker that lives now has a GPU"),
        ([PROCESSOR], {}, "cpu", "no worker that lives now has a GPU"),
        ([PROCESSOR, GPU], {}, "cuda", "a worker that lives now has a GPU"),
        ([GPU], {"processes": 4}, "cpu", "no worker that lives now has 4 GPUs for one job"),
        ([FOUR], {"processes": "auto"}, "cuda", "a worker that lives now has a GPU"),
        ([FOUR.model_copy(update={"gpus": 0})], {}, "cpu", "no worker that lives now has a GPU"),
        ([FOUR], SHARDED, "cpu", "shards are of processors"),
    ],
)
def test_auto_is_what_a_living_worker_has(
    api: Api, db: Database, devices: list[Device], runtime: dict[str, Any], kind: str, because: str
) -> None:
    beat(db, *devices)
    asked = job_spec(add_dataset(db), runtime=runtime, model={"kind": "mlp", "hidden": [8]})
    assert chosen(post(api, "/v1/quotes", asked, key=None).json()) == (kind, because)
    job = post(api, "/v1/jobs", asked).json()
    assert chosen(job["quote"]) == (kind, because)
    assert job["spec"]["runtime"]["device"] == kind
    assert post(api, "/v1/jobs", asked).json()["id"] == job["id"], "the same request, whoever lives now"


@SQLITE
@pytest.mark.parametrize(("address", "kind"), [("", "cpu"), ("head:6379", "cuda")], ids=["alone", "cluster"])
def test_several_gpus_are_chosen_where_they_may_be_named(
    api: Api, db: Database, settings: Settings, address: str, kind: str
) -> None:
    """Else what `auto` became would be refused when somebody asks for the same job again."""
    beat(db, GPU, FOUR)
    asked = job_spec(add_dataset(db), runtime={"processes": 4}, model={"kind": "mlp", "hidden": [8]})
    with TestClient(create_app(settings.model_copy(update={"ray_address": address}))) as client:
        here = Api(client, api.tokens, api.key_ids)
        planned = post(here, "/v1/jobs", asked).json()["spec"]["runtime"]
        assert (planned["device"], planned["processes"]) == (kind, 4)
        assert post(here, "/v1/jobs", asked | {"runtime": planned}, key="again").status_code == 201


@SQLITE
@pytest.mark.parametrize("traits", [{"finishes": True}, {"volume": "vol_1"}], ids=["finishes", "ingest"])
def test_a_worker_that_takes_no_new_job_settles_nothing(api: Api, db: Database, traits: dict[str, Any]) -> None:
    beat(db, GPU, **traits)
    assert chosen(post(api, "/v1/quotes", job_spec(add_dataset(db)), key=None).json())[0] == "cpu"


@SQLITE
def test_a_named_device_is_no_choice(api: Api, db: Database) -> None:
    beat(db, GPU)
    quote = post(api, "/v1/quotes", job_spec(add_dataset(db), runtime={"device": "cpu"}), key=None).json()
    assert "device" not in [each["name"] for each in (quote["resolved"] or {}).get("parts", [])]


@SQLITE
def test_statistics_are_planned_for_a_processor(api: Api, db: Database) -> None:
    beat(db, GPU)
    answer = post(api, "/v1/jobs", {"dataset": add_dataset(db)} | COUNT)
    assert answer.status_code == 201, answer.text
    assert chosen(answer.json()["quote"]) == ("cpu", "such a release adds integers on a processor")


@SQLITE
def test_a_pass_has_the_size_of_its_device(api: Api, db: Database) -> None:
    asked = job_spec(add_dataset(db), model={"kind": "mlp", "hidden": [1000] * 16}, evaluation=None)
    on_processor = post(api, "/v1/quotes", asked, key=None).json()["numerics"]["rows_per_pass"]
    beat(db, GPU)
    on_gpu = post(api, "/v1/quotes", asked, key=None).json()["numerics"]["rows_per_pass"]
    named = post(api, "/v1/quotes", asked | {"runtime": {"device": "cuda"}}, key=None).json()
    assert on_gpu == named["numerics"]["rows_per_pass"] > on_processor


def test_a_claim_reads_the_plan_alone(api: Api, db: Database) -> None:
    """The GPU's worker leaves: the job says what it waits for, and is submitted again as `auto`."""
    workers = beat(db, GPU)
    job = post(api, "/v1/jobs", job_spec(add_dataset(db))).json()
    workers[0]._leave()
    beat(db, PROCESSOR)
    assert get(api, f"/v1/jobs/{job['id']}").json()["waiting_for"] == "cuda"
    assert claim_next(db, NO_HEADS, "w", 30.0, Room(4)) is None
    again = of_job(job["spec"], Resolved.model_validate(job["quote"]["resolved"])).document
    assert "device" not in again.get("runtime", {})
    assert chosen(post(api, "/v1/quotes", again, key=None).json())[0] == "cpu"
    held = claim_next(db, NO_HEADS, "w", 30.0, Room(0, 1))
    assert held is not None and held.job_id == job["id"]


def test_a_plan_of_an_earlier_release_that_says_auto_is_a_processor_s(api: Api, db: Database) -> None:
    job = post(api, "/v1/jobs", job_spec(add_dataset(db))).json()["id"]
    with db.write() as session:
        row = session.get_one(Job, job)
        row.spec = row.spec | {"runtime": row.spec["runtime"] | {"device": "auto"}}
    assert get(api, f"/v1/jobs/{job}").json()["waiting_for"] == "worker"
    assert claim_next(db, NO_HEADS, "w", 30.0, Room(0, 1)) is None
    held = claim_next(db, NO_HEADS, "w", 30.0, Room(1))
    assert held is not None and held.job_id == job
