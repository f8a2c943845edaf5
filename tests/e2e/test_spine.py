"""From POST to certificate over the real service, and through kills at awkward moments."""

from __future__ import annotations

import ast
import hashlib
import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from scrimp import recompute
from scrimp.signatures import is_authentic
from tests.by_night import but
from tests.conftest import BACKINGS
from tests.e2e.conftest import SERVED_ON_POSTGRES, Service, all_gone, csv_spec, job_of, seed_of, until, write_csv

SCRIPT = Path(__file__).resolve().parents[2] / "scrimp" / "recompute.py"


def register(service: Service, name: str, tmp: Path, **privacy: Any) -> str:
    path = write_csv(tmp / f"{name}.csv", seed=seed_of(name))
    with service.client() as client:
        return client.create_dataset(csv_spec(name, **privacy), path).id


def submit(service: Service, spec: dict[str, Any]) -> str:
    with service.client() as client:
        return client.submit(spec).id


def finished(service: Service, job: str, timeout_s: float = 600.0) -> dict[str, Any]:
    def look() -> dict[str, Any] | None:
        found: dict[str, Any] = service.get(f"/v1/jobs/{job}")
        return found if found["status"] in ("succeeded", "failed", "cancelled") else None

    return until(look, timeout_s) or {}


def worker_attempt(service: Service) -> psutil.Process | None:
    for child in service.descendants():
        try:
            if child.name() == "scrimp-attempt" and child.status() != psutil.STATUS_ZOMBIE:
                return child
        except psutil.Error:
            continue
    return None


# The attempt's process knows no database: what it trains is looked at on one backing.
ON_SQLITE = pytest.mark.parametrize("service", ["sqlite"], indirect=True)
ON_SQLITE_BY_DAY = pytest.mark.parametrize("service", but(BACKINGS, lambda backing: backing == "sqlite"), indirect=True)


def assert_no_credentials(service: Service) -> None:
    """The running attempt's process has none in its environment."""

    def environment() -> dict[str, str] | None:
        with suppress(psutil.Error):  # an earlier attempt that ended meanwhile
            child = worker_attempt(service)
            return None if child is None else child.environ()
        return None

    told = {"SCRIMP_ATTEMPT", "SCRIMP_LOG_LEVEL", "SCRIMP_LOG_FORMAT"}
    assert {name for name in until(environment) or () if name.startswith("SCRIMP_")} <= told


@pytest.mark.parametrize("service", [*BACKINGS, SERVED_ON_POSTGRES], indirect=True)
def test_the_whole_path(service: Service, tmp_path: Path) -> None:
    dataset = register(service, "whole-path", tmp_path)
    job = finished(service, submit(service, job_of(dataset)))
    assert job["status"] == "succeeded", job
    assert job["progress"]["step"] == 30
    supervisor = job["attempts"][-1]["worker"].rpartition(":")[2]
    assert "libtorch" not in Path(f"/proc/{supervisor}/maps").read_text(), "the attempt's own process loads it"
    assert job["metrics"]["accuracy"]["value"] > 0.8
    assert job["metrics"]["accuracy"]["std"] < 3 / 0.2 / 380
    # Two classes: all of it follows from one histogram.
    assert (job["spec"]["evaluation"]["metrics"], job["metrics"]["auc"]["released_by"]) == (["auc"], "noisy_count")
    assert job["metrics"]["auc"]["value"] > 0.8 and job["metrics"]["accuracy"]["released_by"] == "post_processing"
    metrics = service.get(f"/v1/jobs/{job['id']}/metrics")["items"]
    histograms = {each["step"]: each.get("histogram") for each in metrics if each["name"] == "auc"}
    assert list(histograms) == [10, 20, 30] and (histograms[10], histograms[20]) == (None, None)  # the last is kept
    assert histograms[30]["noise_std"] == 5.0
    lines = [json.loads(line) for line in (service.home / "heads" / f"{job['id']}.mark").read_text().splitlines()]
    released = [each["step"] for line in lines for each in line["released"] if each["name"] == "auc"]
    assert (max(line["steps_started"] for line in lines), released) == (30, [10, 20, 30])

    ledger = service.get(f"/v1/datasets/{dataset}/ledger")
    charge = job["quote"]["charge"]
    assert ledger["accounts"]["train"]["spent"] == charge["train"]
    assert ledger["accounts"]["holdout"]["spent"] == charge["holdout"]
    assert ledger["accounts"]["train"]["held"] == 0
    assert service.verification(dataset)["valid"] is True
    entries = service.get(f"/v1/datasets/{dataset}/ledger/entries")["items"]
    assert [entry["kind"] for entry in entries] == ["open", "hold", "post"]

    with service.client() as client:
        for artifact in job["artifacts"]:
            content = client._http.get(f"/v1/jobs/{job['id']}/artifacts/{artifact['name']}").content
            assert hashlib.sha256(content).hexdigest() == artifact["sha256"]
            if artifact["name"] == "model.json":
                said = json.loads(content)["privacy"]
    assert {each["name"] for each in job["artifacts"]} == {"model.safetensors", "model.json", "README.md"}
    assert (said["epsilon"], said["certificate"]) == (job["quote"]["epsilon"]["value"], job["id"])
    assert [each["value"] for each in said["scores"]] == [each["value"] for each in job["metrics"].values()]

    document = until(lambda: _certificate(service, job["id"]))
    path = tmp_path / "certificate.json"
    path.write_text(json.dumps(document))
    key = document["public_key"]  # of the service that this test runs
    line = [sys.executable, str(SCRIPT), str(path), "--public-key", key]
    recomputed = subprocess.run(line, capture_output=True, text=True, check=False)
    assert recomputed.returncode == 0, recomputed.stdout + recomputed.stderr
    body = document["certificate"]
    assert [each["entry"] for each in body["ledger"]["proofs"]] == [2, 3] and is_authentic(document, key)
    assert body["certificate_id"] == job["id"] and body["charge"]["train"] == charge["train"]
    model = next(each for each in job["artifacts"] if each["name"] == "model.safetensors")
    assert body["model_sha256"] == model["sha256"]


@ON_SQLITE
@pytest.mark.parametrize("kind", but(["ada_dps", "pda_dpmd"], lambda kind: kind == "ada_dps"))
def test_a_job_with_public_side_information(service: Service, tmp_path: Path, kind: str) -> None:
    dataset = register(service, f"{kind}-private", tmp_path)
    public = csv_spec(f"{kind}-public")
    public["privacy"] = {"sensitivity": "public"}
    with service.client() as client:
        side = client.create_dataset(public, write_csv(tmp_path / "public.csv", 300, seed=seed_of(public["name"]))).id
    optimizer = {"kind": kind, "learning_rate": 0.3, "public_dataset": public["name"]}
    job = finished(service, submit(service, job_of(dataset, optimizer=optimizer)))
    assert job["status"] == "succeeded", job
    assert job["spec"]["optimizer"]["public_dataset"] == side
    assert job["metrics"]["accuracy"]["value"] > 0.8
    # What it cost is what it costs without: the public records are in nobody's account.
    with service.client() as client:
        plain = client.quote(job_of(dataset))
    ledger = service.get(f"/v1/datasets/{dataset}/ledger")
    assert plain.charge is not None and ledger["accounts"]["train"]["spent"] == plain.charge["train"]
    certificate = until(lambda: service.get(f"/v1/jobs/{job['id']}/certificate").get("certificate"))
    assert certificate["side_information"]["id"] == side


def _certificate(service: Service, job: str) -> dict[str, Any] | None:
    found: dict[str, Any] = service.get(f"/v1/jobs/{job}/certificate")
    return found if "certificate" in found else None


@ON_SQLITE
def test_poisson_under_the_rdp_filter(service: Service, tmp_path: Path) -> None:
    dataset = register(service, "poisson", tmp_path, filter="rdp")
    spec = job_of(dataset, sampling={"kind": "poisson", "expected_batch_size": 64}, length={"epochs": 4})
    job = finished(service, submit(service, spec))
    assert job["status"] == "succeeded", job
    assert job["quote"]["epsilon"]["accountant"] == "pld"
    assert (
        service.get(f"/v1/datasets/{dataset}/ledger")["accounts"]["train"]["spent"] == job["quote"]["charge"]["train"]
    )


@ON_SQLITE
def test_a_job_without_gradients(service: Service, tmp_path: Path) -> None:
    """DP-ZO: quoted and charged as `dp_sgd`, and its certificate's numbers are found again."""
    dataset = register(service, "slopes", tmp_path)
    asked = job_of(dataset, optimizer={"kind": "dp_zo", "phi": 1e-3, "learning_rate": 0.1}, length={"steps": 200})
    plain = job_of(dataset, length={"steps": 200})
    with service.client() as client:
        quotes = [client.quote(each) for each in (asked, plain)]
    assert quotes[0].charge == quotes[1].charge and quotes[0].noise_multiplier == quotes[1].noise_multiplier
    job = finished(service, submit(service, asked))
    assert job["status"] == "succeeded", job
    assert (
        service.get(f"/v1/datasets/{dataset}/ledger")["accounts"]["train"]["spent"] == job["quote"]["charge"]["train"]
    )
    document = until(lambda: _certificate(service, job["id"]))
    path = tmp_path / "certificate.json"
    path.write_text(json.dumps(document))
    line = [sys.executable, str(SCRIPT), str(path), "--public-key", document["public_key"]]
    recomputed = subprocess.run(line, capture_output=True, text=True, check=False)
    assert recomputed.returncode == 0, recomputed.stdout + recomputed.stderr


MECHANISMS: dict[str, tuple[str, dict[str, Any]]] = {
    "correlated": (
        "gdp",
        {
            "sampling": {"kind": "cyclic", "batches": 20},
            "noise": {"kind": "correlated", "decay": 0.75},
            "length": {"steps": 2000},
        },
    ),
    "truncated": (
        "rdp",
        {
            "sampling": {"kind": "poisson", "expected_batch_size": 64, "largest_batch": 256},
            "length": {"steps": 2000},
        },
    ),
}


@pytest.mark.nightly  # by day tests/worker/test_correlated.py and test_checkpoints.py; a kill of all, below
@pytest.mark.parametrize("name", but(MECHANISMS, lambda name: name == "correlated"))
@ON_SQLITE
def test_a_killed_attempt_of_another_mechanism(service: Service, tmp_path: Path, name: str) -> None:
    """Killed while it trains, it is replayed free; certificate and card say what was done, and the numbers hold."""
    kind, changes = MECHANISMS[name]
    dataset = register(service, name, tmp_path, filter=kind)
    job = submit(service, job_of(dataset, **changes))
    until(lambda: service.get(f"/v1/jobs/{job}")["progress"]["step"] > 0)
    victim = until(lambda: worker_attempt(service))
    assert victim is not None
    os.kill(victim.pid, signal.SIGKILL)
    ended = finished(service, job)
    assert ended["status"] == "succeeded", ended
    assert [attempt["status"] for attempt in ended["attempts"]] == ["lost", "succeeded"]
    assert "replay_mismatch" not in [each["type"] for each in service.get(f"/v1/jobs/{job}/events")["items"]]
    train = service.get(f"/v1/datasets/{dataset}/ledger")["accounts"]["train"]
    assert (train["spent"], train["held"]) == (ended["quote"]["charge"]["train"], 0)
    certificate = until(lambda: _certificate(service, job))
    assert certificate is not None and recompute.check_body(certificate["certificate"]) == []
    with service.client() as client:
        card = client.download(job, "README.md", tmp_path / "README.md").read_text()
    assert ("Correlated noise: each step took back 0.75" in card) is (name == "correlated")


@ON_SQLITE_BY_DAY
def test_public_data_without_privacy(service: Service, tmp_path: Path) -> None:
    spec = csv_spec("public-data") | {"privacy": {"sensitivity": "public"}}
    with service.client() as client:
        dataset = client.create_dataset(spec, write_csv(tmp_path / "public.csv", seed=seed_of("public"))).id
    job = finished(service, submit(service, job_of(dataset, privacy=None, seed=3, evaluation={"points": 2})))
    assert job["status"] == "succeeded", job
    assert job["epsilon_spent"] is None
    assert job["metrics"]["accuracy"]["std"] == 0
    assert job["metrics"]["accuracy"]["value"] > 0.9


@ON_SQLITE_BY_DAY
def test_cancelling_a_running_job_posts_what_was_started(service: Service, tmp_path: Path) -> None:
    dataset = register(service, "cancelled", tmp_path)
    job = submit(service, job_of(dataset, length={"steps": 200_000}))
    until(lambda: service.get(f"/v1/jobs/{job}")["progress"]["step"] > 0)
    assert_no_credentials(service)
    with service.client() as client:
        client.cancel(job)
    ended = finished(service, job)
    assert ended["status"] == "cancelled"
    train = service.get(f"/v1/datasets/{dataset}/ledger")["accounts"]["train"]
    assert train["held"] == 0
    assert 0 < train["spent"] < ended["quote"]["charge"]["train"]
    assert service.verification(dataset)["valid"] is True
    assert worker_attempt(service) is None


@pytest.mark.nightly  # by day: one of another mechanism, above
@pytest.mark.parametrize("service", BACKINGS, indirect=True)
def test_an_attempt_that_is_killed_is_replayed_free(service: Service, tmp_path: Path) -> None:
    dataset = register(service, "killed-attempt", tmp_path)
    job = submit(service, job_of(dataset, length={"steps": 2000}))
    until(lambda: service.get(f"/v1/jobs/{job}")["progress"]["step"] > 0)
    victim = until(lambda: worker_attempt(service))
    assert victim is not None
    os.kill(victim.pid, signal.SIGKILL)
    ended = finished(service, job)
    assert ended["status"] == "succeeded", ended
    assert [attempt["status"] for attempt in ended["attempts"]] == ["lost", "succeeded"]
    events = [each["type"] for each in service.get(f"/v1/jobs/{job}/events")["items"]]
    assert "replay_mismatch" not in events
    train = service.get(f"/v1/datasets/{dataset}/ledger")["accounts"]["train"]
    assert (train["spent"], train["held"]) == (ended["quote"]["charge"]["train"], 0)


def runs(job: dict[str, Any], attempt: int) -> bool:
    """True once an attempt of this number runs and steps were done."""
    return job["status"] == "running" and len(job["attempts"]) == attempt and job["progress"]["step"] > 0


@pytest.mark.nightly  # by day tests/lifecycle/test_checkpoints.py, in an attempt
@ON_SQLITE_BY_DAY
def test_a_paused_job_keeps_its_hold_and_goes_on_free(service: Service, tmp_path: Path) -> None:
    dataset = register(service, "paused", tmp_path)
    job = submit(service, job_of(dataset, length={"steps": 4000}))
    charge = service.get(f"/v1/jobs/{job}")["quote"]["charge"]["train"]
    with service.client() as client:
        for attempt in (1, 2):
            until(lambda number=attempt: runs(service.get(f"/v1/jobs/{job}"), number))
            client.pause(job)
            until(lambda: service.get(f"/v1/jobs/{job}")["status"] == "paused")
            assert worker_attempt(service) is None
            train = service.get(f"/v1/datasets/{dataset}/ledger")["accounts"]["train"]
            assert (train["spent"], train["held"]) == (0, charge)
            client.resume(job)
    ended = finished(service, job)
    assert ended["status"] == "succeeded", ended
    assert [attempt["status"] for attempt in ended["attempts"]] == ["paused", "paused", "succeeded"]
    events = [each["type"] for each in service.get(f"/v1/jobs/{job}/events?limit=200")["items"]]
    assert "replay_mismatch" not in events and events.count("paused") == events.count("resumed") == 2
    train = service.get(f"/v1/datasets/{dataset}/ledger")["accounts"]["train"]
    assert (train["spent"], train["held"]) == (charge, 0)
    assert service.verification(dataset)["valid"] is True


@ON_SQLITE_BY_DAY
def test_a_stopped_service_saves_its_job_s_state_and_goes_on_from_it(service: Service, tmp_path: Path) -> None:
    """SIGTERM through every process: the worker ends its block, saves the state and gives the job back."""
    job = submit(service, job_of(register(service, "stopped", tmp_path), length={"steps": 4000}))
    until(lambda: runs(service.get(f"/v1/jobs/{job}"), 1))
    assert service.stop() == 0
    state = service.home / "storage" / "checkpoints" / job / "state"
    assert state.stat().st_size > 0
    service.start()
    before = service.get(f"/v1/jobs/{job}")
    assert before["attempts"][0]["status"] == "lost"
    ended = finished(service, job)
    assert ended["status"] == "succeeded", ended
    assert [attempt["status"] for attempt in ended["attempts"]] == ["lost", "succeeded"]
    until(lambda: not state.exists())  # the relay removes it within a minute


KILLED_STEPS = 2000
MOMENTS: dict[str, Callable[[dict[str, Any]], bool]] = {
    "queued": lambda _job: True,
    "starting": lambda job: job["status"] == "running",
    "training": lambda job: job["progress"]["step"] > 0,
    "finishing": lambda job: job["progress"]["step"] > 0.8 * KILLED_STEPS,
}
KILLS = [(backing, moment) for backing in (*BACKINGS, "served-postgres") for moment in MOMENTS]
# On SQLite by night: a replay that differs, below, is one after a kill of the embedded service.
KILLED_HERE = [("postgres", "training")]


@pytest.mark.parametrize(("service", "moment"), but(KILLS, KILLED_HERE.__contains__), indirect=["service"])
def test_killing_the_service_loses_no_job_and_no_charge(service: Service, tmp_path: Path, moment: str) -> None:
    """Of two jobs: behind the one whose moment it is, another one is queued."""
    dataset = register(service, f"killed-{moment}", tmp_path)
    small = {"privacy": {"target_epsilon": 0.5}, "evaluation": {"noise_mu": 0.1}}
    jobs = [submit(service, job_of(dataset, **small, length={"steps": steps})) for steps in (KILLED_STEPS, 5)]
    until(lambda: MOMENTS[moment](service.get(f"/v1/jobs/{jobs[0]}")))
    service.kill_and_start()
    ended = [finished(service, job) for job in jobs]
    assert [job["status"] for job in ended] == ["succeeded"] * 2, ended
    train = service.get(f"/v1/datasets/{dataset}/ledger")["accounts"]["train"]
    assert (train["spent"], train["held"]) == (sum(job["quote"]["charge"]["train"] for job in ended), 0)
    assert service.verification(dataset)["valid"] is True
    assert until(lambda: all(_certificate(service, job) for job in jobs))


@ON_SQLITE
def test_after_a_kill_a_replay_that_differs_gets_fresh_noise_and_is_charged(service: Service, tmp_path: Path) -> None:
    """A worker that comes back on another machine may compute other digits: here the record is what differs.

    Without the saved state: an attempt that goes on from it replays nothing before it.
    """
    dataset = register(service, "differs", tmp_path)
    job = submit(service, job_of(dataset, length={"steps": KILLED_STEPS}))
    until(lambda: service.get(f"/v1/jobs/{job}")["progress"]["step"] > 500)  # three blocks and more
    secret, family = (service.home / "admin.key").read_text(), service.descendants()
    service.kill()
    until(lambda: all_gone(family))
    with sqlite3.connect(service.home / "scrimp.db") as database:
        recorded = "SELECT salt, last_step FROM blocks WHERE job_id = ? AND digest IS NOT NULL ORDER BY last_step"
        first_salt, differs_at = database.execute(f"{recorded} LIMIT 1 OFFSET 2", (job,)).fetchone()
        changed = "UPDATE blocks SET digest = ? WHERE job_id = ? AND last_step = ?"
        database.execute(changed, ("0" * 64, job, differs_at))
    database.close()
    shutil.rmtree(service.home / "storage" / "checkpoints" / job, ignore_errors=True)
    service.start()
    assert (service.home / "admin.key").read_text() == secret
    ended = finished(service, job)
    assert ended["status"] == "succeeded", ended
    events = service.get(f"/v1/jobs/{job}/events")["items"]
    [mismatch] = [each for each in events if each["type"] == "replay_mismatch"]
    matched = mismatch["data"]["matched_step"]
    assert 0 <= matched < differs_at
    # Steps that ran under both salts are on the bill twice, out of the same hold: fewer are effective.
    with sqlite3.connect(service.home / "scrimp.db") as database:
        last = "SELECT salt, max(last_step) FROM blocks WHERE job_id = ? GROUP BY salt"
        salts = dict(database.execute(last, (job,)).fetchall())
    database.close()
    # A job whose every step had started before the kill has none left for its second salt.
    old, new = salts.pop(first_salt), max(salts.values(), default=matched)
    certificate = (until(lambda: _certificate(service, job)) or {})["certificate"]
    assert certificate["steps"]["started"] == KILLED_STEPS
    assert (
        certificate["steps"]["effective"]
        == ended["progress"]["step"]
        == new
        == KILLED_STEPS - (old - matched)
        < KILLED_STEPS
    )
    train = service.get(f"/v1/datasets/{dataset}/ledger")["accounts"]["train"]
    assert (train["spent"], train["held"]) == (ended["quote"]["charge"]["train"], 0)
    assert service.verification(dataset)["valid"] is True


@pytest.mark.nightly  # by day images are registered and trained on in test_probe.py
@ON_SQLITE
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
    defaults = {"activation": "tanh", "channels": "first", "image": None, "weight_standardization": False}
    assert (card["kind"], card["model"]) == ("cnn", model | defaults)
    run = subprocess.run(
        [sys.executable, "-c", card["usage"]], capture_output=True, text=True, check=False, cwd=tmp_path
    )
    assert run.returncode == 0 and ast.literal_eval(run.stdout)[0]["class"] in (0, 1), run.stderr
