"""Fits C and the rate of linear regression whose target has a declared range: the grid, before the constants.

    python -m benchmarks.reproduce.tables_numbers

As benchmarks.reproduce.tables, on four tables whose label is a number. The target is the range as [−1, 1]; a record's
gradient is its residual times x. Scores are R² in the target's unit on the validation and the test split, of targets
as they are, not clipped. Kept in benchmarks/reports/reproduce/tables_numbers.json.gz.
"""

from __future__ import annotations

import itertools
import math
import sys
import time
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from benchmarks.reproduce.runs import REPORTS, write_archive
from benchmarks.reproduce.tables import DELTA, EPSILONS, MOMENTUM, Runs, rate_at
from benchmarks.reproduce.tables_data import MAPS, NUMBERS, SOURCES, Split, table
from core.privacy.gdp import mu_from_epsilon

STEPS = (100, 200, 400, 800)
CLIPS = (0.03, 0.06, 0.12, 0.25, 0.5)  # C, as a part of the declared length
KAPPAS = (0.02, 0.04, 0.08, 0.16, 0.32, 0.64)
SEEDS = (0, 1)
KEPT = REPORTS / "tables_numbers.json.gz"


def trained(x: Tensor, y: Tensor, steps: int, norms: Tensor, sigmas: Tensor, rates: Tensor, seed: int) -> Tensor:
    """Weights after T steps, (d, runs): each column a job. y: (n, 1), in [−1, 1]."""
    torch.manual_seed(seed)
    lengths = x.norm(dim=1, keepdim=True)
    weights = torch.zeros(x.shape[1], len(rates))
    velocity = torch.zeros_like(weights)
    for _ in range(steps):
        residuals = x @ weights - y
        residuals *= (norms / (residuals.abs() * lengths).clamp_(min=1e-12)).clamp_(max=1.0)
        noise = torch.randn_like(weights) * (sigmas * norms)
        velocity = MOMENTUM * velocity + (x.T @ residuals + noise) / len(x)
        weights -= rates * velocity
    return weights


def r_squared(outputs: NDArray[Any], part: Split, ends: tuple[float, float]) -> NDArray[np.float64]:
    """R² of each column, in the target's unit; predictions are within the range."""
    low, high = ends
    predicted = low + (np.clip(np.nan_to_num(outputs), -1.0, 1.0) + 1.0) / 2.0 * (high - low)
    errors = ((predicted - part.y[:, None]) ** 2).mean(axis=0)
    return np.asarray(1.0 - errors / part.y.var())


def grid(name: str, kind: str, steps: int, seed: int) -> list[list[float]]:
    """[R² on the validation split, on the test split] for each ε, norm and κ in the order of the product."""
    features, (train, valid, test) = table(name, kind)
    low, high = ends = SOURCES[name].range
    length = features.length(features.width)
    asked = [(epsilon, clip * length, kappa) for epsilon, clip, kappa in itertools.product(EPSILONS, CLIPS, KAPPAS)]
    norms = torch.tensor([norm for _, norm, _ in asked])
    sigmas = torch.tensor([math.sqrt(steps) / mu_from_epsilon(epsilon, DELTA) for epsilon, _, _ in asked])
    rates = torch.tensor([rate_at(kappa, steps, eps, norm, length, len(train.x)) for eps, norm, kappa in asked])
    y = torch.from_numpy(2.0 * (np.clip(train.y, low, high) - low) / (high - low) - 1.0).float()[:, None]
    weights = trained(torch.from_numpy(train.x), y, steps, norms, sigmas, rates, seed).numpy()
    scores = [r_squared(part.x @ weights, part, ends) for part in (valid, test)]
    return [[round(float(each), 4) for each in pair] for pair in zip(*scores, strict=True)]


def main() -> None:
    torch.set_num_threads(1)
    runs, began = Runs(KEPT), time.perf_counter()
    for seed, name, kind, steps in itertools.product(SEEDS, NUMBERS, MAPS, STEPS):
        cell = f"{name}/{kind}/T={steps}/seed={seed}"
        if cell not in runs.cells:
            runs.cells[cell] = grid(name, kind, steps, seed)
            write_archive(runs.path, runs.cells)
            print(f"{time.perf_counter() - began:6.0f} s  {cell}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
