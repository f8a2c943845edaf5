"""Measures what synthetic records cost a model and what they show.

    python benchmarks/bench_planted.py [--seeds 3] [--report FILE]

Each row is attempts of the product. *Digits*: scikit-learn's 1,797 digits as images of 64 pixels, 1,437 to train on and
360 held out, DP-SGD with momentum, 50 full-batch steps, with the same keys as the unaudited job. *Forms*: 20 full-batch
steps of DP-SGD on the random data of tests/worker/test_planted.py, 600 records each, 500 canaries, with all of the
noise or with less of it than the claim says, as a faulty worker would add. Half of the canaries are in.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from unittest import mock

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT)]

import numpy as np  # noqa: E402
import safetensors.torch  # noqa: E402
import torch  # noqa: E402
from sklearn.datasets import load_digits  # noqa: E402

from core.parts.stored_records import StoredPart  # noqa: E402
from core.privacy import gdp  # noqa: E402
from core.privacy.canary_bound import Finding  # noqa: E402
from tests.worker.support import keys_of, plan_of, run_thread, spec, start_of  # noqa: E402
from tests.worker.test_joined import attempt  # noqa: E402
from tests.worker.test_planted import FORMS, shown, start_for  # noqa: E402
from worker.data.records import DenseRecords  # noqa: E402
from worker.messages import Finished  # noqa: E402
from worker.noise.gaussian import GaussianRelease  # noqa: E402

STEPS, DELTA, HELD = 50, 1e-5, 360
EPSILONS, CANARIES = (1.0, 3.0, 8.0), (0, 140, 700)
MODELS = {"linear": ({"kind": "linear"}, 2.0), "mlp": ({"kind": "mlp", "hidden": [32]}, 0.5)}
IMAGES = {"kind": "tensor", "array": "x", "image": {"height": 8, "width": 8, "channels": 1}}
CLAIMS, SHARES = (0.1, 1.0), (1.0, 0.8, 0.3, 0.001)
HONEST = GaussianRelease.__init__
TITLE = f"""# Audits by synthetic records

Made by `python benchmarks/bench_planted.py`.

{(__doc__ or "").split("FILE]")[1].strip()}
"""
COST = """
| digits, model | ε charged | canaries | accuracy, mean (each seed) | ε found, at least | right guesses |
|---|---|---|---|---|---|
"""
POWER = """
| form | μ charged | share of the noise | right guesses of 100 | ε found, at least | μ found, at least | exceeded |
|---|---|---|---|---|---|---|
"""
NOTES = """
"Exceeded" bounds fail once in a million, and hold however canaries depend on each other.
"""


def of_digits(folder: Path, model: str, epsilon: float, canaries: int, seed: int) -> tuple[float, Finding | None]:
    """The accuracy on the held-out digits, and what the canaries show."""
    x, y = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(y))
    x, y = (x[order] / 16.0).astype(np.float32), y[order].astype(np.int64)
    asked, rate = MODELS[model]
    job = spec(
        model=asked,
        optimizer={"kind": "dp_sgd", "learning_rate": rate, "momentum": 0.9},
        privacy={"noise_multiplier": STEPS**0.5 / gdp.mu_from_epsilon(epsilon, DELTA), "target_delta": DELTA},
        length={"steps": STEPS},
        evaluation=None,
        **({"audit": {"canaries": canaries, "kind": "records"}} if canaries else {}),
    )
    sizes = {"records_train": len(y) - HELD, "records_holdout": 0, "features": 64, "outputs": 10, "sparse": False}
    start = start_of(job, sizes) | {"features": IMAGES}
    supervisor = attempt(folder, start, [StoredPart(x[HELD:], y[HELD:])], [])
    supervisor.segments = [{"from_step": 1, **keys_of(f"seed {seed}"), "recorded": []}]
    assert isinstance(run_thread(supervisor).last, Finished)
    weights = {
        name: value.double() for name, value in safetensors.torch.load_file(folder / "model.safetensors").items()
    }
    held = DenseRecords(torch.from_numpy(x[:HELD]), torch.from_numpy(y[:HELD]))
    right = plan_of(start).model.forward(weights, held).argmax(dim=0).numpy() == y[:HELD]
    return float(right.mean()), shown(folder, start) if canaries else None


def of_form(folder: Path, form: str, mu: float, share: float) -> Finding:
    """What 500 canaries show of a worker that adds this share of the noise."""
    audit = {"canaries": 500, "kind": "records"}
    start, part = start_for(form, audit=audit, privacy={"noise_multiplier": 20**0.5 / mu})

    def init(self: GaussianRelease, key: bytes | None, *, noise_multiplier: float, **settings: object) -> None:
        HONEST(self, key, noise_multiplier=noise_multiplier * share, **settings)

    with mock.patch.object(GaussianRelease, "__init__", init):
        assert isinstance(run_thread(attempt(folder, start, [part], [])).last, Finished)
    return shown(folder, start)


def costs(folder: Path, seeds: int) -> list[str]:
    """The lines of the first table."""
    lines = []
    for model in MODELS:
        for epsilon in EPSILONS:
            for canaries in CANARIES:
                names = [folder / f"{model} {epsilon} {canaries} {seed}" for seed in range(seeds)]
                runs = [of_digits(name, model, epsilon, canaries, seed) for seed, name in enumerate(names)]
                each = ", ".join(f"{accuracy:.3f}" for accuracy, _ in runs)
                mean = np.mean([accuracy for accuracy, _ in runs])
                found = [finding for _, finding in runs if finding is not None]
                least = f"{np.mean([one.epsilon_at_least for one in found]):.2f}" if found else ""
                right = f"{np.mean([one.right for one in found]):.0f} of {found[0].guesses}" if found else ""
                assert not any(one.exceeded for one in found)
                lines.append(f"| {model} | {epsilon:g} | {canaries} | {mean:.3f} ({each}) | {least} | {right} |")
                print(lines[-1], flush=True)
    return lines


def powers(folder: Path) -> list[str]:
    """The lines of the second table."""
    lines = []
    for form in FORMS:
        for mu in CLAIMS:
            for share in SHARES:
                one = of_form(folder / f"{form} {mu} {share}", form, mu, share)
                assert share < 1.0 or not one.exceeded
                shows = f"{one.right} | {one.epsilon_at_least:.2f} | {one.mu_at_least or 0.0:.2f}"
                lines.append(f"| {form} | {mu:g} | {share:g} | {shows} | {'yes' if one.exceeded else 'no'} |")
                print(lines[-1], flush=True)
    return lines


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("--seeds", type=int, default=3)
    asked.add_argument("--report", type=Path)
    options = asked.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        power = powers(Path(folder))
        cost = costs(Path(folder), options.seeds)
    if options.report:
        tables = (COST + "\n".join(cost), POWER + "\n".join(power))
        options.report.write_text(TITLE + "\n".join(tables) + "\n" + NOTES)


if __name__ == "__main__":
    main()
