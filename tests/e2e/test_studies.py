"""Private searches over real APIs, relays and workers: a worker that is killed in a pilot, a cancel, every strategy."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import BACKINGS
from tests.e2e.cluster import Cluster
from tests.e2e.conftest import environment_of, job_of, until

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "recompute_certificate.py"


@pytest.fixture(scope="module", params=BACKINGS)
def cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    home = tmp_path_factory.mktemp("cluster") / "home"
    made = Cluster(home, environment_of(str(request.param), request)).start(apis=1, relays=1, workers=2)
    yield made
    made.stop()


def search_of(dataset: str, steps: int, **hpo: Any) -> dict[str, Any]:
    block = {"runs_per_level": 1, "space": {"learning_rate": [0.1, 10.0], "steps": [steps, steps]}} | hpo
    return job_of(dataset, evaluation={"on": "holdout", "noise_mu": 0.1}, hpo=block)


def trials(cluster: Cluster, study: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = cluster.get(f"/v1/jobs/{study}/trials")["items"]
    return found


def test_a_cancel_stops_every_run(cluster: Cluster) -> None:
    dataset = cluster.register("study-cancel")
    with cluster.client() as client:
        study = client.submit(search_of(dataset, 5000, runs_per_level=2)).id
        until(lambda: any(each["status"] == "running" for each in trials(cluster, study)))
        job = trials(cluster, study)[0]["job"]
        answer = client._http.post(f"/v1/jobs/{job}/cancel")
        assert (answer.status_code, answer.json()["study"]) == (409, study)
        client.cancel(study)
    ended = until(lambda: (found := cluster.get(f"/v1/jobs/{study}"))["status"] == "cancelled" and found)
    assert {each["status"] for each in trials(cluster, study)} <= {"cancelled", "succeeded"}
    account = cluster.get(f"/v1/datasets/{dataset}/ledger")["accounts"]["train"]
    assert account["held"] == 0
    assert account["spent"] < ended["quote"]["charge"]["train"] / 10
    assert cluster.get(f"/v1/datasets/{dataset}/ledger/verify")["valid"] is True


def test_a_worker_that_is_killed_in_a_pilot_costs_nothing(cluster: Cluster, tmp_path: Path) -> None:
    """From here on there is one worker: the tests below need no second."""
    dataset = cluster.register("study-kill")
    with cluster.client() as client:
        study = client.submit(search_of(dataset, 3000)).id
    pilots = [each["job"] for each in trials(cluster, study)]
    killed = until(
        lambda: next((job for job in pilots if cluster.get(f"/v1/jobs/{job}")["progress"]["step"] > 0), None)
    )
    worker = cluster.get(f"/v1/jobs/{killed}")["attempts"][0]["worker"]
    process = next(each for each in cluster.processes["worker"] if worker.endswith(f":{each.pid}"))
    process.kill()
    process.wait()
    (ended,) = cluster.finished([study], 300)
    assert ended["status"] == "succeeded", ended
    found = trials(cluster, study)
    assert [(each["role"], each["status"], each["chosen"]) for each in found] == [
        ("pilot", "succeeded", False),
        ("pilot", "succeeded", False),
        ("final", "succeeded", True),
    ]
    assert [each["status"] for each in cluster.get(f"/v1/jobs/{killed}")["attempts"]] == ["lost", "succeeded"]
    # One bill, paid in full: no run was repeated or lost, and nothing of a pilot is there but its score.
    cluster.assert_charged(dataset, [ended])
    for pilot in found[:2]:
        job = cluster.get(f"/v1/jobs/{pilot['job']}")
        assert (job["artifacts"], list(job["metrics"]), job["parent"]) == ([], ["accuracy"], study)
        assert pilot["score"]["on"] == "train"
    assert {each["name"] for each in ended["artifacts"]} == {"model.safetensors", "model.json"}
    assert ended["metrics"]["accuracy"]["value"] > 0.8
    assert [each["id"] for each in cluster.get(f"/v1/jobs?dataset={dataset}")["items"]] == [study]
    recomputed(cluster, study, tmp_path)


def recomputed(cluster: Cluster, study: str, folder: Path) -> None:
    document = cluster.get(f"/v1/jobs/{study}/certificate")
    path = folder / "certificate.json"
    path.write_text(json.dumps(document))
    ran = subprocess.run([sys.executable, str(SCRIPT), str(path)], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    body = document["certificate"]
    assert len(body["study"]["runs"]) == 3
    assert [run["released"]["weights"] for run in body["study"]["runs"]] == [False, False, True]
    assert body["released"]["weights"] is True
    assert body["study"]["procedure_epsilon"]["value"] == pytest.approx(2.0, abs=1e-6)
    assert body["study"]["final_run_epsilon"]["value"] < 2.0


@pytest.mark.parametrize("cluster", ["sqlite"], indirect=True)
@pytest.mark.parametrize(
    "changes",
    [
        {"strategy": "random_k", "runs": 2, "score": {"kind": "private_count", "on": "holdout", "noise_mu": 0.1}},
        {"strategy": "random"},
    ],
    ids=lambda changes: str(changes["strategy"]),
)
def test_the_other_strategies(cluster: Cluster, changes: dict[str, Any]) -> None:
    dataset = cluster.register(f"study-{changes['strategy']}")
    space = {"learning_rate": [0.3, 3.0], "steps": [20, 30]}
    with cluster.client() as client:
        spec = job_of(dataset, evaluation=None, hpo={"space": space, **changes})
        study = client.submit(spec).id
    (ended,) = cluster.finished([study])
    assert ended["status"] == "succeeded", ended
    cluster.assert_charged(dataset, [ended])
    assert len(ended["artifacts"]) == 2
    for run in trials(cluster, study):
        assert cluster.get(f"/v1/jobs/{run['job']}")["artifacts"] == []
        assert until(lambda run=run: not (cluster.home / "storage" / "jobs" / run["job"]).exists() or run["chosen"])


@pytest.mark.parametrize("cluster", ["sqlite"], indirect=True)
def test_under_poisson_sampling(cluster: Cluster) -> None:
    from tests.e2e.conftest import csv_spec, seed_of, write_csv

    path = write_csv(cluster.home.parent / "study-poisson.csv", seed=seed_of("study-poisson"))
    with cluster.client() as client:
        dataset = client.create_dataset(csv_spec("study-poisson", filter="rdp"), path).id
        hpo = {"levels": [0.3, 0.6], "runs_per_level": 1, "space": {"learning_rate": [0.3, 3.0]}}
        sampling = {"kind": "poisson", "expected_batch_size": 150}
        study = client.submit(job_of(dataset, evaluation=None, hpo=hpo, sampling=sampling)).id
    (ended,) = cluster.finished([study])
    assert ended["status"] == "succeeded", ended
    cluster.assert_charged(dataset, [ended])
    runs = [cluster.get(f"/v1/jobs/{each['job']}") for each in trials(cluster, study)]
    assert [run["progress"]["steps"] for run in runs] == [30] * 3
    assert runs[-1]["quote"]["noise_multiplier"] == ended["quote"]["noise_multiplier"]


@pytest.mark.parametrize("cluster", ["sqlite"], indirect=True)
def test_an_oracle_on_public_data(cluster: Cluster) -> None:
    from tests.e2e.conftest import csv_spec, seed_of, write_csv

    path = write_csv(cluster.home.parent / "study-oracle.csv", seed=seed_of("study-oracle"))
    spec = csv_spec("study-oracle") | {"privacy": {"sensitivity": "public"}}
    with cluster.client() as client:
        dataset = client.create_dataset(spec, path).id
        points = {"learning_rate": 2, "steps": 1}
        hpo = {"strategy": "grid_oracle", "space": {"learning_rate": [0.3, 3.0], "points": points}}
        study = client.submit(job_of(dataset, evaluation=None, hpo=hpo, seed=1)).id
    ended = until(lambda: (found := cluster.get(f"/v1/jobs/{study}"))["finished_at"] and found)
    assert ended["status"] == "succeeded", ended
    scores = [each["score"] for each in trials(cluster, study)]
    assert [score["std"] for score in scores] == [0.0, 0.0]
    assert ended["metrics"]["accuracy"]["value"] == max(score["value"] for score in scores)
