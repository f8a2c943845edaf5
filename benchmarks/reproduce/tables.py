"""Fits what `steps`, `max_grad_norm` and `learning_rate` are by "auto" for linear models of tables.

    python -m benchmarks.reproduce.tables --fit        # the grid on the fitted tables; resumable
    python -m benchmarks.reproduce.tables --declared   # a second grid, in lengths that the declaration alone tells
    python -m benchmarks.reproduce.tables --untouched  # once, after the constants are frozen

Full batches, momentum 0.9, δ = 1e-5. The grid trains all rates, norms and ε of a T at once, as columns of one matrix:
the update is that of the service's linear model of two classes with DP-SGD, and `--check` compares the two. Choices are
made on a validation split; what is told is of the test split. Kept in benchmarks/reports/reproduce/tables.json.gz.
"""

from __future__ import annotations

import argparse
import itertools
import math
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.stats import rankdata
from torch import Tensor

from app.hpo.rates import settled
from benchmarks.reproduce.runs import REPORTS, read_archive, run, write_archive
from benchmarks.reproduce.tables_data import FITTED, MAPS, Split, as_data, table
from core.privacy.gdp import mu_from_epsilon
from worker.models.linear import Linear

DELTA, MOMENTUM = 1e-5, 0.9
EPSILONS = (0.5, 1.0, 4.0)
STEPS = (25, 50, 100, 200, 400, 800)
CLIPS = (0.1, 0.2, 0.4, 0.8)  # C, as a part of a fresh gradient's length
KAPPAS = (0.12, 0.25, 0.5, 1.0, 2.0)  # the noise that the whole job leaves in a logit, if nothing pulls it back
SEEDS = (0, 1)
# The second grid: the first one's best κ of numbers on linear scales was its largest.
DECLARED_STEPS = (100, 200, 400, 800)
DECLARED_CLIPS = (0.25, 0.4, 0.7)
DECLARED_KAPPAS = (0.25, 0.35, 0.5, 0.7, 1.0, 1.4, 2.0, 2.8, 4.0, 5.6, 8.0)
KEPT, KEPT_DECLARED = REPORTS / "tables.json.gz", REPORTS / "tables_declared.json.gz"


class Runs:
    """Scores by cell in a compressed JSON file, so that a cut-off grid goes on where it was."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.cells = read_archive(path)

    def fill(self, cells: Iterable[tuple[int, str, str, int]], *, declared: bool) -> None:
        """Runs the cells, each a seed, a table, a map and a T, that are not kept yet."""
        began = time.perf_counter()
        for seed, name, kind, steps in cells:
            cell = f"{name}/{kind}/T={steps}/seed={seed}"
            if cell not in self.cells:
                self.cells[cell] = grid(name, kind, steps, seed, declared=declared)
                write_archive(self.path, self.cells)
                print(f"{time.perf_counter() - began:6.0f} s  {cell}", file=sys.stderr, flush=True)


def length_of(train: Split) -> float:
    """The root mean square ‖x‖."""
    return float(np.sqrt(np.mean(np.sum(train.x.astype(np.float64) ** 2, axis=1))))


def rate_at(kappa: float, steps: int, epsilon: float, norm: float, length: float, records: int) -> float:
    """η of a κ in full batch: see app.hpo.rates."""
    sigma = math.sqrt(steps) / mu_from_epsilon(epsilon, DELTA)
    noise = math.sqrt(steps) * sigma * norm * length * settled(MOMENTUM, steps)
    return kappa * (1.0 - MOMENTUM) * records / noise


def trained(train: Split, steps: int, norms: Tensor, sigmas: Tensor, rates: Tensor, seed: int) -> Tensor:
    """The difference of the two classes' weights after T steps, (d, runs): each column a job.

    A record's gradient is (a, −a) ⊗ x with a = p − y, of length √2 |a| ‖x‖; the difference moves by 2 a x, and has the
    noise of two coordinates.
    """
    torch.manual_seed(seed)
    x, y = torch.from_numpy(train.x), torch.from_numpy(train.y).float()[:, None]
    lengths = x.norm(dim=1, keepdim=True) * math.sqrt(2.0)
    weights = torch.zeros(x.shape[1], len(rates))
    velocity = torch.zeros_like(weights)
    for _ in range(steps):
        residuals = torch.sigmoid(x @ weights) - y
        residuals *= (norms / (residuals.abs() * lengths).clamp_(min=1e-12)).clamp_(max=1.0)
        noise = torch.randn_like(weights) * (math.sqrt(2.0) * sigmas * norms)
        velocity = MOMENTUM * velocity + (2.0 * (x.T @ residuals) + noise) / len(x)
        weights -= rates * velocity
    return weights


def auc(logits: NDArray[Any], y: NDArray[Any]) -> NDArray[np.float64]:
    """The area under the ROC curve of each column; one half where a logit is not finite."""
    logits = np.where(np.isfinite(logits).all(axis=0), logits, 0.0)
    ranks, positive = rankdata(logits, axis=0), int(y.sum())
    above: NDArray[np.float64] = ranks[y == 1].sum(axis=0) - positive * (positive + 1) / 2
    return above / (positive * (len(y) - positive))


def grid(name: str, kind: str, steps: int, seed: int, *, declared: bool = False) -> list[list[float]]:
    """[AUC on the validation split, on the test split] for each ε, norm and κ in the order of the product.

    Args:
        declared: lengths are the declaration's, not the records'.
    """
    features, (train, valid, test) = table(name, kind)
    length = features.length(features.width) if declared else length_of(train)
    clips, kappas = (DECLARED_CLIPS, DECLARED_KAPPAS) if declared else (CLIPS, KAPPAS)
    asked = [
        (epsilon, clip * length / math.sqrt(2.0), kappa)
        for epsilon, clip, kappa in itertools.product(EPSILONS, clips, kappas)
    ]
    norms = torch.tensor([norm for _, norm, _ in asked])
    sigmas = torch.tensor([math.sqrt(steps) / mu_from_epsilon(epsilon, DELTA) for epsilon, _, _ in asked])
    rates = torch.tensor([rate_at(kappa, steps, eps, norm, length, len(train.x)) for eps, norm, kappa in asked])
    weights = trained(train, steps, norms, sigmas, rates, seed).numpy()
    scores = [auc(part.x @ weights, part.y) for part in (valid, test)]
    return [[round(float(each), 4) for each in pair] for pair in zip(*scores, strict=True)]


def check() -> None:
    """Prints AUC by the grid's update and by the service's own code, for one job on one table."""
    name, kind, steps, kappa, seeds = "chains", "bins", 100, 0.5, range(5)
    _, (train, _, test) = table(name, kind)
    length, sigma = length_of(train), math.sqrt(steps) / mu_from_epsilon(1.0, DELTA)
    norm = 0.4 * length / math.sqrt(2.0)
    rate = rate_at(kappa, steps, 1.0, norm, length, len(train.x))
    job = {
        "model": {"kind": "linear", "bias": False},
        "optimizer": {"kind": "dp_sgd", "momentum": MOMENTUM, "free_step": False, "learning_rate": rate},
        "clipping": {"max_grad_norm": norm},
        "length": {"steps": steps},
        "privacy": {"noise_multiplier": sigma, "target_delta": DELTA},
    }
    ours, theirs, data = [], [], as_data(name, kind)
    for seed in seeds:
        settings = [torch.tensor([each]) for each in (norm, sigma, rate)]
        weights = trained(train, steps, settings[0], settings[1], settings[2], seed)
        ours.append(float(auc(test.x @ weights.numpy(), test.y)[0]))
        done = run(data, job, seed=seed)
        outputs = Linear(data.features_count, 2).forward(done.parameters, data.holdout).numpy()
        theirs.append(float(auc((outputs[1] - outputs[0])[:, None], test.y)[0]))
    for who, scores in (("grid", ours), ("service", theirs)):
        print(f"{who}: {np.mean(scores):.4f} ± {np.std(scores):.4f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for each in ("fit", "declared", "untouched", "check"):
        parser.add_argument(f"--{each}", action="store_true")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    if asked.check:
        check()
    if asked.fit:
        Runs(KEPT).fill(itertools.product(SEEDS, FITTED, MAPS, STEPS), declared=False)
    if asked.declared:
        Runs(KEPT_DECLARED).fill(itertools.product(SEEDS, FITTED, MAPS, DECLARED_STEPS), declared=True)


if __name__ == "__main__":
    main()
