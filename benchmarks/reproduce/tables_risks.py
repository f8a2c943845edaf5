"""What clipping does to the probabilities of two classes by `auto`, and a public map that undoes it.

    python -m benchmarks.reproduce.tables_risks

C by `auto` cuts |p − y| to τ = 0.2. Training then stands still where π min(1 − p, τ) = (1 − π) min(p, τ), π being the
true share of the records with such features: π = min(p, τ) / (min(p, τ) + min(1 − p, τ)), from p and τ alone.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import expit

from app.hpo.rates import FRESH
from benchmarks.reproduce.runs import run
from benchmarks.reproduce.tables_data import FITTED, UNTOUCHED, as_data, table
from benchmarks.reproduce.tables_report import job
from worker.models.linear import Linear

CUT = FRESH / 2.0  # τ = C / (√2 ‖x‖), and C = FRESH √½ ‖x‖
EPSILONS, SEEDS = (1.0, 4.0), (0, 1)
Floats = NDArray[np.float64]


def mapped(p: Floats) -> Floats:
    """π of a p that was learned with |p − y| cut to τ.

    >>> [round(float(each), 3) for each in mapped(np.array([0.01, 0.1, 0.5, 0.9]))]
    [0.048, 0.333, 0.5, 0.667]
    """
    low, high = np.minimum(p, CUT), np.minimum(1.0 - p, CUT)
    return np.asarray(low / (low + high))


def loss(p: Floats, y: NDArray[Any]) -> float:
    """The mean log loss; probabilities within a millionth of 0 and 1."""
    p = np.clip(p, 1e-6, 1.0 - 1e-6)
    return float(-np.mean(np.where(y == 1, np.log(p), np.log(1.0 - p))))


def cell(name: str, epsilon: float) -> list[float]:
    """Positives; the mean p, and of mapped p; log losses of p, of mapped p, and of p shifted to the true share."""
    data, y, rows = as_data(name, "bins"), table(name, "bins")[1][2].y, []
    for seed in SEEDS:
        done = run(data, job("auto", name, "bins", epsilon), seed=seed)
        outputs = Linear(data.features_count, 2).forward(done.parameters, data.holdout).double().numpy()
        logit = outputs[1] - outputs[0]
        by = brentq(lambda more: float(expit(logit + more).mean() - y.mean()), -20.0, 20.0)  # noqa: B023 - called at once
        p = np.asarray(expit(logit))
        each = mapped(p)
        rows.append([y.mean(), p.mean(), each.mean(), loss(p, y), loss(each, y), loss(expit(logit + by), y)])
    return [float(each) for each in np.mean(rows, axis=0)]


def main() -> None:
    torch.set_num_threads(1)
    print("| table | ε | positive | mean p | mapped | log loss of p | mapped | shifted to the true share |")
    print("|" + "---|" * 8)
    for name, epsilon in itertools.product((*FITTED, *UNTOUCHED), EPSILONS):
        numbers = " | ".join(f"{each:.3f}" for each in cell(name, epsilon))
        print(f"| {name} | {epsilon:g} | {numbers} |", flush=True)


if __name__ == "__main__":
    main()
