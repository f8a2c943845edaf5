"""The drill of jobs on several machines: three of Ray's nodes and the service on this machine, one job on one, two and
three of them, and a node that is killed under way. Prints a table; ends with 1 if any model differs.

`python -m scripts.ray_drill`, with `pip install 'scrimp[ray]'`. It takes some minutes, and leaves nothing behind. Ray's
own connections ask for a token and are encrypted, as docs/production.md has it.
"""

from __future__ import annotations

import csv
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np

from scrimp.client import Client
from scripts.ray_machines import PATIENCE_S, Machines

T = TypeVar("T")
STEPS = 120


@dataclass(frozen=True)
class Run:
    """How one job ended."""

    name: str
    attempts: str
    model: str
    seconds: float


def main() -> int:
    """Runs the drill. Returns the exit status."""
    with tempfile.TemporaryDirectory(prefix="scrimp-drill-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        with closing(Machines(3, folder, {"SCRIMP_HOME": str(folder / "home")})) as machines:
            runs = list(_runs(machines, folder))
    print(f"\n{'job':34} {'attempts':16} {'model (SHA-256)':20} {'s':>5}")
    for run in runs:
        print(f"{run.name:34} {run.attempts:16} {run.model[:16]:20} {run.seconds:5.0f}")
    same = len({run.model for run in runs}) == 1
    print(f"\n{len(runs)} models, {'all with the same bits' if same else 'NOT THE SAME'}")
    return 0 if same else 1


def _runs(machines: Machines, folder: Path) -> Iterator[Run]:
    with _service(folder, {}) as client:
        dataset = _dataset(client, folder)
        yield _run(client, dataset, 1, "one process, without Ray")
    with _service(folder, machines.environment | {"SCRIMP_RAY_ADDRESS": machines.address}) as client:
        for size in (1, 2, 3):
            yield _run(client, dataset, size, f"{size} of Ray's nodes")
        yield _run(client, dataset, 3, "3 nodes, one killed under way", lambda: machines.ask("kill 2"))


def _run(client: Client, dataset: str, processes: int, name: str, strike: Callable[[], object] | None = None) -> Run:
    print(f"{name} …", flush=True)
    began = time.monotonic()
    job = client.submit(
        {
            "dataset": dataset,
            "model": {"kind": "mlp", "hidden": [16]},
            "seed": 5,
            "optimizer": {"kind": "dp_sgd", "learning_rate": 1.0, "momentum": 0.9, "free_step": True},
            "privacy": {"noise_multiplier": 30.0},
            "sampling": {"kind": "full_batch"},
            "length": {"steps": STEPS},
            "evaluation": {"on": "holdout", "noise_mu": 0.2, "points": 3},
            "runtime": {"physical_batch_size": 240, "threads": 1, "processes": processes},
        }
    ).id
    if strike is not None:
        _until(lambda: client.job(job).progress.step > 5)
        strike()
    ended = client.wait_for(job, PATIENCE_S)
    if ended.status != "succeeded":
        raise RuntimeError(f"{name}: {ended.status}")
    model = next(each.sha256 for each in ended.artifacts if each.name == "model.safetensors")
    attempts = ", ".join(str(each["status"]) for each in ended.attempts)
    return Run(name, attempts, model, time.monotonic() - began)


def _dataset(client: Client, folder: Path) -> str:
    draws = np.random.default_rng(0)
    path = folder / "drill.csv"
    with path.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow([*(f"x{i}" for i in range(5)), "y"])
        for _ in range(2000):
            x = draws.normal(size=5)
            rows.writerow([*(f"{value:.6f}" for value in x), int(x @ np.arange(1, 6) > 0)])
    spec = {
        "name": "drill",
        "format": "csv",
        "task": {"kind": "classification", "label": "y", "classes": [0, 1]},
        "features": {"kind": "columns", "columns": [f"x{i}" for i in range(5)]},
        "privacy": {"sensitivity": "public"},
        "holdout": {"kind": "split", "fraction": 0.25},
    }
    return client.create_dataset(spec, path).id


@contextmanager
def _service(folder: Path, settings: dict[str, str]) -> Iterator[Client]:
    """`scrimp serve` over the drill's home."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    home = folder / "home"
    command = [sys.executable, "-m", "scrimp.cli", "serve", "--home", str(home), "--port", str(port)]
    environment = os.environ | settings | {"SCRIMP_CHECKPOINT_S": "1", "SCRIMP_NOTIFY_AGAIN_S": "1"}
    with (folder / "serve.log").open("a") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=environment)
    try:
        key = home / "admin.key"
        _until(lambda: process.poll() is not None or (key.exists() and _answers(port)))
        with Client(f"http://127.0.0.1:{port}", key.read_text().strip(), timeout_s=PATIENCE_S) as client:
            yield client
    finally:
        process.terminate()
        try:
            process.wait(PATIENCE_S)
        finally:
            process.kill()


def _answers(port: int) -> bool:
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1.0):
        return True
    return False


def _until(look: Callable[[], T | None]) -> T:
    deadline = time.monotonic() + PATIENCE_S
    while not (answer := look()):
        if time.monotonic() > deadline:
            raise TimeoutError("it did not happen in time")
        time.sleep(0.2)
    return answer


if __name__ == "__main__":
    raise SystemExit(main())
