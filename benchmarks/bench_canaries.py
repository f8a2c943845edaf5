"""Measures what canaries cost a model and what they show, on scikit-learn's 1,797 digits.

    python benchmarks/bench_canaries.py [--seeds 3] [--report FILE]

Each row is attempts of the product with the same keys as the unaudited job of its ε: a linear model on 64 pixels, 1,437
records to train on and 360 held out, full batches, DP-SGD with momentum, 50 steps. "Same model" compares the published
files byte by byte. Half of the canaries are in. The bounds are those that the certificates print.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT)]

import numpy as np  # noqa: E402
import safetensors.numpy  # noqa: E402
from sklearn.datasets import load_digits  # noqa: E402

from core.contracts.audit import CANARIES_FILE, TENSOR  # noqa: E402
from core.contracts.base import Epsilon  # noqa: E402
from core.privacy import gdp  # noqa: E402
from core.privacy.canary_bound import Finding, found  # noqa: E402
from core.privacy.mechanism import MechanismConfig  # noqa: E402
from tests.worker.support import Supervisor, keys_of, parts_of, run_thread, spec, start_of, stored_part  # noqa: E402
from worker.messages import Finished  # noqa: E402

STEPS, DELTA, HELD = 50, 1e-5, 360
EPSILONS, CANARIES = (1.0, 3.0, 8.0), (0, 100, 1000, 10_000, 100_000)
TITLE = f"""# Audits by canaries

Made by `python benchmarks/bench_canaries.py`.

{(__doc__ or "").split("FILE]")[1].strip()}
"""
HEAD = """
| ε charged | canaries | accuracy, mean (each seed) | same model | ε found, at least | μ found, at least / charged |
|---|---|---|---|---|---|
"""
NOTES = """
Canaries cost no accuracy: their tensor lies beside the model's, and no record and no score has a part in it. What they
cost is time and memory for one and a half numbers each, like so many more parameters.

A bound grows with the number of canaries. "ε found" assumes nothing on the mechanism's form; "μ found" takes it for a
Gaussian one. Both are lower bounds at 95 %: the difference to what was charged is no slack to spend.
"""


def trained(folder: Path, epsilon: float, canaries: int, seed: int) -> tuple[float, bytes, Finding | None]:
    """The accuracy on the held-out digits, the model's file, and what the canaries show."""
    x, y = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(y))
    x, y = (x[order] / 16.0).astype(np.float32), y[order].astype(np.int64)
    mu = gdp.mu_from_epsilon(epsilon, DELTA)
    more = {"audit": {"canaries": canaries}} if canaries else {}
    job = spec(
        optimizer={"kind": "dp_sgd", "learning_rate": 2.0, "momentum": 0.9},
        privacy={"noise_multiplier": STEPS**0.5 / mu, "target_delta": DELTA},
        length={"steps": STEPS},
        evaluation=None,
        **more,
    )
    shape = {"records_train": len(y) - HELD, "records_holdout": 0, "features": 64, "outputs": 10, "sparse": False}
    folder.mkdir()
    start = start_of(job, shape, output_dir=folder) | {"job_id": f"job_{seed}"}
    start |= {"parts": parts_of({"train": stored_part(folder / "train", x[HELD:], y[HELD:])})}
    supervisor = Supervisor(start, segments=[{"from_step": 1, **keys_of(f"seed {seed}"), "recorded": []}])
    assert isinstance(run_thread(supervisor).last, Finished)
    model = (folder / "model.safetensors").read_bytes()
    weight = safetensors.numpy.load(model)["weight"]
    accuracy = float(((x[:HELD] @ weight.T).argmax(axis=1) == y[:HELD]).mean())
    if not canaries:
        return accuracy, model, None
    left = safetensors.numpy.load((folder / CANARIES_FILE).read_bytes())[TENSOR].astype(np.float64)
    event = MechanismConfig.model_validate(start["mechanism"]).training.event
    charged = Epsilon(value=epsilon, delta=DELTA, accountant="gdp")
    return accuracy, model, found(left, f"job_{seed}", canaries, event, charged)


def rows(folder: Path, seeds: int) -> list[str]:
    """The lines of the table."""
    lines = []
    for epsilon in EPSILONS:
        plain: list[bytes] = []
        for canaries in CANARIES:
            place = folder / f"{epsilon} {canaries}"
            place.mkdir()
            runs = [trained(place / str(seed), epsilon, canaries, seed) for seed in range(seeds)]
            models = [model for _, model, _ in runs]
            plain = plain or models
            each = ", ".join(f"{accuracy:.4f}" for accuracy, _, _ in runs)
            findings = [finding for _, _, finding in runs if finding is not None]
            shown = ("", "")
            if findings:
                mu = float(np.mean([finding.mu_at_least or 0.0 for finding in findings]))
                least = float(np.mean([finding.epsilon_at_least for finding in findings]))
                shown = (f"{least:.2f}", f"{mu:.3f} / {gdp.mu_from_epsilon(epsilon, DELTA):.3f}")
                assert not any(finding.exceeded for finding in findings)
            mean = np.mean([accuracy for accuracy, _, _ in runs])
            same = "yes" if models == plain else "no"
            lines.append(f"| {epsilon:g} | {canaries:,} | {mean:.4f} ({each}) | {same} | {shown[0]} | {shown[1]} |")
            print(lines[-1], flush=True)
    return lines


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("--seeds", type=int, default=3)
    asked.add_argument("--report", type=Path)
    options = asked.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        lines = rows(Path(folder), options.seeds)
    if options.report:
        options.report.write_text(TITLE + HEAD + "\n".join(lines) + "\n" + NOTES)


if __name__ == "__main__":
    main()
