"""The best of a secret number of runs over `scrimp serve`: REST to certificate, ledger and recomputation."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest

from scrimp import recompute
from scrimp.client import Client
from tests.e2e.conftest import Service, csv_spec, job_of, seed_of, until, write_csv

ROOT = Path(__file__).resolve().parents[2]
HPO: dict[str, Any] = {
    "strategy": "random_size",
    "distribution": {"kind": "negative_binomial", "eta": 0.0, "gamma": 0.1},
    "most_runs": 6,
    "duration_s": 2,
    "space": {"learning_rate": [0.1, 10.0]},
}
SCORED: dict[str, Any] = {"on": "holdout", "noise_mu": 0.2, "metrics": ["accuracy"]}


@pytest.fixture
def service(served: Callable[[str], Service]) -> Service:
    return served("sqlite")


def registered(client: Client, name: str, folder: Path, **privacy: Any) -> str:
    path = write_csv(folder / f"{name}.csv", seed=seed_of(name))
    return client.create_dataset(csv_spec(name, **privacy), path).id


def selection_of(dataset: str, **changes: Any) -> dict[str, Any]:
    return job_of(dataset, evaluation=SCORED, hpo=HPO) | changes


def test_one_job_one_line_and_a_certificate_that_recomputes(service: Service, tmp_path: Path) -> None:
    with service.client() as client:
        dataset = registered(client, "selection-rdp", tmp_path, filter="rdp", order=8.0)
        job = client.submit(selection_of(dataset)).id
        until(lambda: service.get(f"/v1/jobs/{job}")["status"] in ("succeeded", "failed"))
    ended: dict[str, Any] = service.get(f"/v1/jobs/{job}")
    assert ended["status"] == "succeeded", ended
    assert [(line["what"], line["account"]) for line in ended["quote"]["lines"]] == [
        ("selection", "train"),
        ("selection", "holdout"),
    ]
    assert set(ended["metrics"]) == {"accuracy", "learning_rate"}
    assert 0.1 <= ended["metrics"]["learning_rate"]["value"] <= 10.0
    assert service.get(f"/v1/jobs?dataset={dataset}")["items"][0]["id"] == job
    steps = [
        each["data"]["step"]
        for each in service.get(f"/v1/jobs/{job}/events?limit=200")["items"]
        if each["type"] == "progress"
    ]
    assert set(steps) <= {0, 30}
    account = service.get(f"/v1/datasets/{dataset}/ledger")["accounts"]["train"]
    assert (account["held"], account["spent"]) == (0, ended["quote"]["charge"]["train"])
    document = certified(service, job)
    body = document["certificate"]
    assert len(body["mechanism"]["selection"]["weights"]) == 6
    assert body["epsilon"]["accountant"] == "rdp" and body["epsilon"]["value"] <= 2.0
    path = tmp_path / "certificate.json"
    path.write_text(json.dumps(document))
    assert recompute.recompute(document, document["public_key"], str(path)) == 0
    lowered = json.loads(path.read_text())
    lowered["certificate"]["mechanism"]["selection"]["weights"][5] *= 3
    assert recompute.recompute(lowered, None, str(path)) == 1
    summary = service.get(f"/v1/datasets/{dataset}/ledger")
    assert summary["comparison"] is None or summary["comparison"]["rdp_best_order"]["value"] > 0.0


def test_a_gdp_ledger_refuses_and_a_mixed_one_moves(service: Service, tmp_path: Path) -> None:
    with service.client() as client:
        gaussian = registered(client, "selection-gdp", tmp_path)
        answer = quoted(client, selection_of(gaussian))
        assert answer.status_code == 422 and "no Gaussian bound is known" in answer.text
        spec = csv_spec("selection-mixed", plan="mixed")
        del spec["privacy"]["filter"]
        mixed = client.create_dataset(spec, write_csv(tmp_path / "mixed.csv", seed=seed_of("mixed"))).id
        assert quoted(client, selection_of(mixed)).status_code == 200


@pytest.mark.parametrize(
    ("changes", "pointer"),
    [
        ({"sampling": {"kind": "poisson", "expected_batch_size": 100}}, "/sampling/kind"),
        ({"evaluation": SCORED | {"points": 2}}, "/evaluation/points"),
        ({"clipping": {"kind": "adaptive", "max_grad_norm": 1.0}}, "/clipping/kind"),
        ({"model": {"kind": "linear", "center": {"max_norm": 4.0}}}, "/model"),
        ({"runtime": {"processes": 2}}, "/runtime"),
        ({"runtime": {"max_duration_s": 2.0}}, "/runtime/max_duration_s"),  # it would spend its hold on nothing
        ({"optimizer": {"kind": "dp_sgd", "learning_rate": 1.0, "weight_decay": 0.5}}, "/hpo/space"),  # at 10 it flips
        ({"hpo": HPO | {"space": {"learning_rate": [0.1, 1.0], "steps": [5, 10]}}}, "/hpo"),
    ],
)
def test_what_has_no_price_is_refused_with_a_pointer(
    service: Service, tmp_path: Path, changes: dict[str, Any], pointer: str
) -> None:
    with service.client() as client:
        name = f"selection-{seed_of(str(changes))}"
        dataset = registered(client, name, tmp_path, filter="rdp", order=8.0)
        answer = quoted(client, selection_of(dataset) | changes)
        assert answer.status_code == 422
        assert any(each["pointer"].startswith(pointer) for each in answer.json()["errors"]), answer.text


def quoted(client: Client, spec: dict[str, Any]) -> httpx.Response:
    return client._http.post("/v1/quotes", json=spec)


def test_pause_and_cancel_charge_nothing_less_and_nothing_twice(service: Service, tmp_path: Path) -> None:
    """Its public length is long enough that both come while nothing has left yet."""
    with service.client() as client:
        dataset = registered(client, "selection-ended", tmp_path, filter="rdp", order=8.0)
        job = client.submit(selection_of(dataset, hpo=HPO | {"duration_s": 3600})).id
        charge = service.get(f"/v1/jobs/{job}")["quote"]["charge"]
        until(lambda: has_begun(service, job, 1))
        client.pause(job)
        until(lambda: service.get(f"/v1/jobs/{job}")["status"] == "paused")
        assert balances(service, dataset) == {name: (charge[name], 0) for name in ("train", "holdout")}
        client.resume(job)
        until(lambda: has_begun(service, job, 2))
        client.cancel(job)
        until(lambda: service.get(f"/v1/jobs/{job}")["status"] == "cancelled")
    ended: dict[str, Any] = service.get(f"/v1/jobs/{job}")
    assert (ended["metrics"], ended["artifacts"], ended["warnings"]) == ({}, [], [])
    assert balances(service, dataset) == {name: (0, charge[name]) for name in ("train", "holdout")}
    document = certified(service, job)
    path = tmp_path / "certificate.json"
    path.write_text(json.dumps(document))
    assert recompute.recompute(document, document["public_key"], str(path)) == 0
    assert document["certificate"]["released"] == {"weights": False, "metrics": []}


def has_begun(service: Service, job: str, attempt: int) -> bool:
    """True once this attempt runs and the selection's steps are charged, of which no answer tells before its end."""
    started = "SELECT steps_started, attempt FROM jobs WHERE id = ? AND status = 'running'"
    with closing(sqlite3.connect(service.home / "scrimp.db")) as database:
        row: tuple[int, int] | None = database.execute(started, (job,)).fetchone()
    return row == (30, attempt)


def balances(service: Service, dataset: str) -> dict[str, tuple[int, int]]:
    """What is held and spent on both accounts."""
    accounts = service.get(f"/v1/datasets/{dataset}/ledger")["accounts"]
    return {name: (accounts[name]["held"], accounts[name]["spent"]) for name in ("train", "holdout")}


def certified(service: Service, job: str) -> dict[str, Any]:
    """The job's signed certificate, once it is issued: until then the answer is a problem."""
    until(lambda: "certificate" in service.get(f"/v1/jobs/{job}/certificate"))
    document: dict[str, Any] = service.get(f"/v1/jobs/{job}/certificate")
    return document


def test_the_example_of_three_methods_runs_as_it_says(service: Service) -> None:
    url, key = f"http://127.0.0.1:{service.port}", (service.home / "admin.key").read_text().strip()
    public_key = (service.home / "signing_key.pub").read_text().strip()
    line = [sys.executable, str(ROOT / "examples" / "methods.py"), url, key, public_key]
    first, again = (subprocess.run(line, capture_output=True, text=True, check=False) for _ in range(2))
    assert (first.returncode, again.returncode) == (0, 0), first.stdout + first.stderr + again.stdout + again.stderr
    for method in ("DP-ZO", "DPAdamWOSM", "best of a secret number of runs"):
        assert f"{method}: accuracy " in first.stdout
    assert again.stdout.splitlines() == ["five-columns is registered already", *first.stdout.splitlines()[1:]]
