"""From POST to certificate over the real service, and through kills at awkward moments."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from tests.e2e.conftest import Service, csv_spec, environment_of, job_of, until, write_csv

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "recompute_certificate.py"


def raw(service: Service, path: str) -> Any:
    """The JSON itself, whatever the client's models make of it."""
    with service.client() as client:
        return client._http.get(path).json()


def register(service: Service, name: str, tmp: Path, seed: int = 0, **privacy: Any) -> str:
    with service.client() as client:
        return client.create_dataset(csv_spec(name, **privacy), write_csv(tmp / f"{name}.csv", seed=seed)).id


def submit(service: Service, spec: dict[str, Any]) -> str:
    with service.client() as client:
        return client.submit(spec).id


def finished(service: Service, job: str, timeout_s: float = 90.0) -> dict[str, Any]:
    def look() -> dict[str, Any] | None:
        found: dict[str, Any] = raw(service, f"/v1/jobs/{job}")
        return found if found["status"] in ("succeeded", "failed", "cancelled") else None

    return until(look, timeout_s) or {}


def worker_attempt(service: Service) -> psutil.Process | None:
    assert service.process is not None
    for child in psutil.Process(service.process.pid).children(recursive=True):
        try:
            if "worker.attempt.child" in child.cmdline():
                return child
        except psutil.Error:
            continue
    return None


def test_the_whole_path(service: Service, tmp_path: Path) -> None:
    dataset = register(service, "whole-path", tmp_path)
    job = finished(service, submit(service, job_of(dataset)))
    assert job["status"] == "succeeded", job
    assert job["progress"]["step"] == 30
    assert job["metrics"]["accuracy"]["value"] > 0.8
    assert job["metrics"]["accuracy"]["std"] < 1 / 0.2 / 380
    assert job["metrics"]["accuracy"]["released_by"] == "noisy_count"
    metrics = raw(service, f"/v1/jobs/{job['id']}/metrics")["items"]
    assert [each["step"] for each in metrics] == [10, 20, 30]

    ledger = raw(service, f"/v1/datasets/{dataset}/ledger")
    charge = job["quote"]["charge"]
    assert ledger["accounts"]["train"]["spent"] == charge["train"]
    assert ledger["accounts"]["holdout"]["spent"] == charge["holdout"]
    assert ledger["accounts"]["train"]["held"] == 0
    assert raw(service, f"/v1/datasets/{dataset}/ledger/verify")["valid"] is True
    entries = raw(service, f"/v1/datasets/{dataset}/ledger/entries")["items"]
    assert [entry["kind"] for entry in entries] == ["open", "hold", "post"]

    with service.client() as client:
        for artifact in job["artifacts"]:
            content = client._http.get(f"/v1/jobs/{job['id']}/artifacts/{artifact['name']}").content
            assert hashlib.sha256(content).hexdigest() == artifact["sha256"]
    assert {each["name"] for each in job["artifacts"]} >= {"model.safetensors", "model.json"}

    document = until(lambda: _certificate(service, job["id"]))
    path = tmp_path / "certificate.json"
    path.write_text(json.dumps(document))
    recomputed = subprocess.run([sys.executable, str(SCRIPT), str(path)], capture_output=True, text=True, check=False)
    assert recomputed.returncode == 0, recomputed.stdout + recomputed.stderr
    body = document["certificate"]
    assert body["charge"]["train"] == charge["train"]
    model = next(each for each in job["artifacts"] if each["name"] == "model.safetensors")
    assert body["model_sha256"] == model["sha256"]


def _certificate(service: Service, job: str) -> dict[str, Any] | None:
    found: dict[str, Any] = raw(service, f"/v1/jobs/{job}/certificate")
    return found if "certificate" in found else None


def test_poisson_under_the_rdp_filter(service: Service, tmp_path: Path) -> None:
    dataset = register(service, "poisson", tmp_path, seed=1, filter="rdp")
    spec = job_of(dataset, sampling={"kind": "poisson", "expected_batch_size": 64}, length={"epochs": 4})
    job = finished(service, submit(service, spec))
    assert job["status"] == "succeeded", job
    assert job["quote"]["epsilon"]["accountant"] == "pld"
    assert (
        raw(service, f"/v1/datasets/{dataset}/ledger")["accounts"]["train"]["spent"] == job["quote"]["charge"]["train"]
    )


def test_public_data_without_privacy(service: Service, tmp_path: Path) -> None:
    spec = csv_spec("public-data") | {"privacy": {"sensitivity": "public"}}
    with service.client() as client:
        dataset = client.create_dataset(spec, write_csv(tmp_path / "public.csv", seed=2)).id
    job = finished(service, submit(service, job_of(dataset, privacy=None, seed=3, evaluation={"points": 2})))
    assert job["status"] == "succeeded", job
    assert job["epsilon_spent"] is None
    assert job["metrics"]["accuracy"]["std"] == 0
    assert job["metrics"]["accuracy"]["value"] > 0.9


def test_cancelling_a_running_job_posts_what_was_started(service: Service, tmp_path: Path) -> None:
    dataset = register(service, "cancelled", tmp_path, seed=3)
    job = submit(service, job_of(dataset, length={"steps": 200_000}))
    until(lambda: raw(service, f"/v1/jobs/{job}")["progress"]["step"] > 0)
    with service.client() as client:
        client.cancel(job)
    ended = finished(service, job)
    assert ended["status"] == "cancelled"
    train = raw(service, f"/v1/datasets/{dataset}/ledger")["accounts"]["train"]
    assert train["held"] == 0
    assert 0 < train["spent"] < ended["quote"]["charge"]["train"]
    assert raw(service, f"/v1/datasets/{dataset}/ledger/verify")["valid"] is True
    assert worker_attempt(service) is None


def test_an_attempt_that_is_killed_is_replayed_free(service: Service, tmp_path: Path) -> None:
    dataset = register(service, "killed-attempt", tmp_path, seed=4)
    job = submit(service, job_of(dataset, length={"steps": 8000}))
    until(lambda: raw(service, f"/v1/jobs/{job}")["progress"]["step"] > 0)
    victim = until(lambda: worker_attempt(service))
    assert victim is not None
    os.kill(victim.pid, signal.SIGKILL)
    ended = finished(service, job)
    assert ended["status"] == "succeeded", ended
    assert [attempt["status"] for attempt in ended["attempts"]] == ["lost", "succeeded"]
    events = [each["type"] for each in raw(service, f"/v1/jobs/{job}/events")["items"]]
    assert "replay_mismatch" not in events
    train = raw(service, f"/v1/datasets/{dataset}/ledger")["accounts"]["train"]
    assert (train["spent"], train["held"]) == (ended["quote"]["charge"]["train"], 0)


def test_the_attempts_process_has_no_credentials(service: Service, tmp_path: Path) -> None:
    dataset = register(service, "environment", tmp_path, seed=5)
    job = submit(service, job_of(dataset, length={"steps": 20_000}))
    child = until(lambda: worker_attempt(service))
    assert child is not None
    assert not [name for name in child.environ() if name.startswith("SCRIMP_") and name != "SCRIMP_ATTEMPT"]
    with service.client() as client:
        client.cancel(job)
    finished(service, job)


EMBEDDED = ["queued", "starting", "training", "finishing"]


@pytest.mark.parametrize(
    ("backing", "moment"),
    [("sqlite", moment) for moment in EMBEDDED] + [("postgres", "queued"), ("postgres", "training")],
)
def test_killing_the_service_loses_no_job_and_no_charge(
    request: pytest.FixtureRequest, tmp_path: Path, backing: str, moment: str
) -> None:
    service = Service(tmp_path / "home", environment_of(backing, request)).start()
    try:
        dataset = register(service, "killed", tmp_path)
        job = submit(service, job_of(dataset, length={"steps": 4000}))
        look = {
            "queued": lambda: True,
            "starting": lambda: raw(service, f"/v1/jobs/{job}")["status"] == "running",
            "training": lambda: raw(service, f"/v1/jobs/{job}")["progress"]["step"] > 0,
            "finishing": lambda: raw(service, f"/v1/jobs/{job}")["progress"]["step"] > 3500,
        }[moment]
        until(look)
        service.kill()
        service.start()
        ended = finished(service, job)
        assert ended["status"] == "succeeded", ended
        train = raw(service, f"/v1/datasets/{dataset}/ledger")["accounts"]["train"]
        assert (train["spent"], train["held"]) == (ended["quote"]["charge"]["train"], 0)
        assert raw(service, f"/v1/datasets/{dataset}/ledger/verify")["valid"] is True
        assert until(lambda: _certificate(service, job))
    finally:
        assert service.stop() == 0


def test_after_a_kill_a_replay_that_differs_gets_fresh_noise_and_is_charged(tmp_path: Path) -> None:
    """A worker that comes back on another machine may compute other digits: here the record is what differs."""
    service = Service(tmp_path / "home").start()
    try:
        dataset = register(service, "differs", tmp_path)
        job = submit(service, job_of(dataset, length={"steps": 4000}))
        until(lambda: raw(service, f"/v1/jobs/{job}")["progress"]["step"] > 500)  # three blocks and more
        service.kill()
        with sqlite3.connect(service.home / "scrimp.db") as database:
            recorded = "SELECT last_step FROM blocks WHERE digest IS NOT NULL ORDER BY last_step LIMIT 1 OFFSET 2"
            (differs_at,) = database.execute(recorded).fetchone()
            database.execute("UPDATE blocks SET digest = ? WHERE last_step = ?", ("0" * 64, differs_at))
        database.close()
        service.start()
        ended = finished(service, job)
        assert ended["status"] == "succeeded", ended
        mismatch = [
            each for each in raw(service, f"/v1/jobs/{job}/events")["items"] if each["type"] == "replay_mismatch"
        ]
        assert len(mismatch) == 1
        matched = mismatch[0]["data"]["matched_step"]
        assert 0 <= matched < differs_at
        # Steps that ran under both salts are on the bill twice, out of the same hold: fewer are effective.
        with sqlite3.connect(service.home / "scrimp.db") as database:
            salts = dict(database.execute("SELECT salt, max(last_step) FROM blocks GROUP BY salt").fetchall())
        database.close()
        old, new = sorted(salts.values())
        certificate = (until(lambda: _certificate(service, job)) or {})["certificate"]
        assert certificate["steps"]["started"] == 4000
        assert certificate["steps"]["effective"] == ended["progress"]["step"] == new == 4000 - (old - matched) < 4000
        train = raw(service, f"/v1/datasets/{dataset}/ledger")["accounts"]["train"]
        assert (train["spent"], train["held"]) == (ended["quote"]["charge"]["train"], 0)
        assert raw(service, f"/v1/datasets/{dataset}/ledger/verify")["valid"] is True
    finally:
        assert service.stop() == 0


def test_a_network_on_images(service: Service, tmp_path: Path) -> None:
    """An NPZ of bytes, a convolutional network, per-layer clipping; the card's own snippet uses the result."""
    generator = np.random.default_rng(7)
    y = generator.integers(0, 2, 600)
    x = (generator.integers(0, 100, (600, 28, 28)) + 100 * y[:, None, None]).astype(np.uint8)
    np.savez(tmp_path / "images.npz", x=x, y=y)
    spec = csv_spec("images", records=600, filter="rdp") | {
        "format": "npz",
        "features": {"kind": "tensor", "array": "x"},
    }
    with service.client() as client:
        dataset = client.create_dataset(spec, tmp_path / "images.npz").id
    model = {"kind": "cnn", "preset": "conv2", "input_scale": 1 / 255}
    job = job_of(
        dataset,
        model=model,
        clipping={"kind": "per_layer", "max_grad_norm": 1.0},
        sampling={"kind": "poisson", "expected_batch_size": 64},
        length={"steps": 20},
        evaluation={"noise_mu": 0.2},
    )
    ended = finished(service, submit(service, job))
    assert ended["status"] == "succeeded", ended
    assert ended["quote"]["model"]["parameters"] == 16 * 65 + 32 * 257 + 32 * 513 + 2 * 33
    with service.client() as client:
        for name in ("model.json", "model.safetensors"):
            client.download(ended["id"], name, tmp_path / name)
    card = json.loads((tmp_path / "model.json").read_text())
    assert (card["kind"], card["model"]) == ("cnn", model | {"activation": "tanh", "channels": "first"})
    run = subprocess.run(
        [sys.executable, "-c", card["usage"]], capture_output=True, text=True, check=False, cwd=tmp_path
    )
    assert run.stdout.strip() in ("0", "1"), run.stderr
