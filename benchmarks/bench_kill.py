"""A job whose process is killed at 80 % of its steps, on the real service: how long after the kill it ends.

    python -m benchmarks.bench_kill [--steps 3000]

The same job runs undisturbed before.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.e2e.conftest import Service, job_of, until
from tests.e2e.test_spine import finished, register, submit, worker_attempt

AT = 0.8


def job(dataset: str, name: str, steps: int) -> dict[str, Any]:
    """An MLP with DP-Adam."""
    parts: dict[str, Any] = {
        "model": {"kind": "mlp", "hidden": [64]},
        "optimizer": {"kind": "dp_adam", "learning_rate": 0.01},
        "length": {"steps": steps},
        "privacy": {"target_epsilon": 1.0},
        "evaluation": None,
    }
    return job_of(dataset, name=name, **parts)


def main() -> None:
    """Prints both."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=3000)
    steps = parser.parse_args().steps
    with tempfile.TemporaryDirectory() as folder:
        service = Service(Path(folder) / "home").start()
        try:
            dataset = register(service, "timed", Path(folder))
            began = time.monotonic()
            finished(service, submit(service, job(dataset, "undisturbed", steps)))
            whole_s = time.monotonic() - began
            print(f"undisturbed: {whole_s:.1f} s", flush=True)
            killed = submit(service, job(dataset, "killed", steps))
            until(lambda: service.get(f"/v1/jobs/{killed}")["progress"]["step"] >= AT * steps, 900.0)
            attempt = worker_attempt(service)
            assert attempt is not None
            attempt.kill()
            at = time.monotonic()
            ended = finished(service, killed)
            left_s = time.monotonic() - at
            print(f"killed at 80 %: {ended['status']} {left_s:.1f} s later, {100 * left_s / whole_s:.0f} % of that")
        finally:
            service.stop()


if __name__ == "__main__":
    main()
