"""Private searches over real APIs, relays and workers: a kill in a pilot, a cancel, every strategy.

On PostgreSQL several workers run a search's pilots side by side, and one is killed; the embedded service is killed as a
whole, and started again.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from scrimp import recompute
from scrimp.client import Client
from tests.conftest import BACKINGS
from tests.e2e.cluster import Cluster, Looks
from tests.e2e.conftest import Service, csv_spec, job_of, seed_of, until, write_csv

SCRIPT = Path(__file__).resolve().parents[2] / "scrimp" / "recompute.py"


class Embedded(Looks):
    """`scrimp serve` with its one worker, shared with other files."""

    def __init__(self, service: Service) -> None:
        self.service, self.home = service, service.home

    def get(self, path: str, /) -> Any:
        return self.service.get(path)

    def client(self) -> Client:
        return self.service.client()


@pytest.fixture(params=BACKINGS)
def place(request: pytest.FixtureRequest) -> Looks:
    if request.param == "sqlite":
        return Embedded(request.getfixturevalue("served")("sqlite"))
    found: Cluster = request.getfixturevalue("cluster")
    return found.at_least(workers=2)


ON_SQLITE = pytest.mark.parametrize("place", ["sqlite"], indirect=True)
# On SQLite by night: the one worker of a home comes back with it, which the spine's kills try too.
ON_POSTGRES = pytest.mark.parametrize(
    "place", [pytest.param("sqlite", marks=pytest.mark.nightly), "postgres"], indirect=True
)


def search_of(dataset: str, steps: int, **hpo: Any) -> dict[str, Any]:
    block = {"runs_per_level": 1, "space": {"learning_rate": [0.1, 10.0], "steps": [steps, steps]}} | hpo
    scored = {"on": "holdout", "noise_mu": 0.1, "metrics": ["accuracy"]}
    model = {"kind": "linear", "center": {"max_norm": 4.0}}  # the first run releases it, also over a kill
    return job_of(dataset, model=model, evaluation=scored, hpo=block)


def trials(place: Looks, study: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = place.get(f"/v1/jobs/{study}/trials")["items"]
    return found


@pytest.mark.nightly  # by day tests/hpo/test_studies.py cancels; a kill of all runs a study, below
@ON_POSTGRES
def test_a_cancel_stops_every_run(place: Looks) -> None:
    dataset = place.register("study-cancel")
    with place.client() as client:
        study = client.submit(search_of(dataset, 200_000, runs_per_level=2)).id
        until(lambda: any(each["status"] == "running" for each in trials(place, study)))
        job = trials(place, study)[0]["job"]
        answer = client._http.post(f"/v1/jobs/{job}/cancel")
        assert (answer.status_code, answer.json()["study"]) == (409, study)
        client.cancel(study)
    ended = until(lambda: (found := place.get(f"/v1/jobs/{study}"))["status"] == "cancelled" and found)
    assert {each["status"] for each in trials(place, study)} <= {"cancelled", "succeeded"}
    account = place.get(f"/v1/datasets/{dataset}/ledger")["accounts"]["train"]
    assert account["held"] == 0
    assert account["spent"] < ended["quote"]["charge"]["train"] / 10
    assert place.verification(dataset)["valid"] is True


def kill_worker_of(place: Looks, job: str) -> None:
    """The one that runs a job, with kill -9; the embedded service as a whole, which is started again."""
    if isinstance(place, Embedded):
        place.service.kill_and_start()
    elif isinstance(place, Cluster):
        process = place.worker_of(job)
        process.kill()
        process.wait()


@pytest.mark.nightly  # by day tests/hpo/test_machine.py crashes in pilots; a kill of all while training
@ON_POSTGRES
def test_a_worker_that_is_killed_in_a_pilot_costs_nothing(place: Looks, tmp_path: Path) -> None:
    dataset = place.register("study-kill")
    with place.client() as client:
        study = client.submit(search_of(dataset, 1500)).id
    pilots = [each["job"] for each in trials(place, study)]
    killed = until(lambda: next((job for job in pilots if place.get(f"/v1/jobs/{job}")["progress"]["step"] > 0), None))
    kill_worker_of(place, killed)
    (ended,) = place.finished([study])
    assert ended["status"] == "succeeded", ended
    found = trials(place, study)
    assert [(each["role"], each["status"], each["chosen"]) for each in found] == [
        ("pilot", "succeeded", False),
        ("pilot", "succeeded", False),
        ("final", "succeeded", True),
    ]
    assert [each["status"] for each in place.get(f"/v1/jobs/{killed}")["attempts"]] == ["lost", "succeeded"]
    # One bill, paid in full: no run was repeated or lost, and nothing of a pilot is there but its score.
    place.assert_charged(dataset, [ended])
    for pilot in found[:2]:
        job = place.get(f"/v1/jobs/{pilot['job']}")
        assert (job["artifacts"], list(job["metrics"]), job["parent"]) == ([], ["accuracy"], study)
        assert pilot["score"]["on"] == "train"
    assert {each["name"] for each in ended["artifacts"]} == {"model.safetensors", "model.json", "README.md"}
    assert ended["metrics"]["accuracy"]["released_by"] == "noisy_count"  # how good it is depends on what was drawn
    assert [each["id"] for each in place.get(f"/v1/jobs?dataset={dataset}")["items"]] == [study]
    recomputed(place, study, tmp_path)


def recomputed(place: Looks, study: str, folder: Path) -> None:
    document = place.get(f"/v1/jobs/{study}/certificate")
    path = folder / "certificate.json"
    path.write_text(json.dumps(document))
    key = document["public_key"]  # of the service that this test runs
    line = [sys.executable, str(SCRIPT), str(path), "--public-key", key]
    ran = subprocess.run(line, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    body = document["certificate"]
    assert len(body["study"]["runs"]) == 3
    assert [run["released"]["weights"] for run in body["study"]["runs"]] == [False, False, True]
    assert body["released"]["weights"] is True
    # One mean, of the run that was killed and replayed; the others centred by it.
    assert body["study"]["mean"] == {"run": body["study"]["runs"][0]["job"]}
    assert [run["mechanism"].get("mean") is not None for run in body["study"]["runs"]] == [True, False, False]
    assert body["study"]["procedure_epsilon"]["value"] == pytest.approx(2.0, abs=1e-6)
    assert body["study"]["final_run_epsilon"]["value"] < 2.0


@pytest.mark.nightly  # tests/hpo plays every strategy to its end
@ON_SQLITE
def test_the_other_strategy(place: Looks) -> None:
    dataset = place.register("study-random")
    space = {"learning_rate": [0.3, 3.0], "steps": [20, 30]}
    with place.client() as client:
        spec = job_of(dataset, evaluation=None, hpo={"space": space, "strategy": "random"})
        study = client.submit(spec).id
    (ended,) = place.finished([study])
    assert ended["status"] == "succeeded", ended
    place.assert_charged(dataset, [ended])
    assert len(ended["artifacts"]) == 3
    for run in trials(place, study):
        assert place.get(f"/v1/jobs/{run['job']}")["artifacts"] == []
        assert until(lambda run=run: not (place.home / "storage" / "jobs" / run["job"]).exists() or run["chosen"])


@pytest.mark.nightly  # tests/hpo plans, prices and plays such studies
@ON_SQLITE
def test_under_poisson_sampling(place: Looks) -> None:
    path = write_csv(place.home.parent / "study-poisson.csv", seed=seed_of("study-poisson"))
    with place.client() as client:
        dataset = client.create_dataset(csv_spec("study-poisson", filter="rdp"), path).id
        hpo = {"levels": [0.3, 0.6], "runs_per_level": 1, "space": {"learning_rate": [0.3, 3.0]}}
        sampling = {"kind": "poisson", "expected_batch_size": 150}
        study = client.submit(job_of(dataset, evaluation=None, hpo=hpo, sampling=sampling)).id
    (ended,) = place.finished([study])
    assert ended["status"] == "succeeded", ended
    place.assert_charged(dataset, [ended])
    runs = [place.get(f"/v1/jobs/{each['job']}") for each in trials(place, study)]
    assert [run["progress"]["steps"] for run in runs] == [30] * 3
    assert runs[-1]["quote"]["noise_multiplier"] == ended["quote"]["noise_multiplier"]


@ON_SQLITE
def test_a_newcomer_chooses_a_data_set_and_a_total(place: Looks) -> None:
    """`scrimp train DATASET --epsilon 2`: one run, a model, its score."""
    dataset = place.register("study-newcomer")
    with place.client() as client:
        job = client.train(dataset, epsilon=2.0).id
    (ended,) = place.finished([job])
    assert ended["status"] == "succeeded", ended
    place.assert_charged(dataset, [ended])
    assert ended["study"] is None and "calibrated on" in ended["quote"]["resolved"]["because"]
    assert ended["metrics"]["accuracy"]["value"] > 0.8
    body = place.get(f"/v1/jobs/{job}/certificate")["certificate"]
    assert body["resolved"]["learning_rate"] == ended["spec"]["optimizer"]["learning_rate"]
    assert recompute.check_body(body) == []


@pytest.mark.nightly  # seven trials; tests/hpo and tests/jobs close the choices, a kill above runs a study
@ON_SQLITE
def test_a_search_by_its_defaults(place: Looks) -> None:
    """All that is left out is a number by the time that anything runs."""
    dataset = place.register("study-defaults")
    with place.client() as client:
        study = client.submit(job_of(dataset, hpo={"space": {"steps": [15, 60]}})).id
    (ended,) = place.finished([study])
    assert ended["status"] == "succeeded", ended
    place.assert_charged(dataset, [ended])
    least, most = ended["spec"]["hpo"]["space"]["learning_rate"]
    found = trials(place, study)
    assert len(found) == 7 and all(least <= each["learning_rate"] <= most for each in found)
