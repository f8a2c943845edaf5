"""Whether a private second moment pays: whitened features for a part of μ², on the fitted tables at ε = 1.

    python -m benchmarks.reproduce.tables_moments --run
    python -m benchmarks.reproduce.tables_moments          # the table of benchmarks/reports/tables.md

A = Σ x xᵀ with Gaussian noise on its upper triangle, of std B²/(√share μ) with B² the largest ‖x‖² of the declaration,
is projected to a positive matrix. Features become W x, W = (A/n + λ I)^(−1/2), with λ so many stds of the noise in A/n
(times √d, its spectral norm within a factor of two). ‖W x‖² is about tr(W² A/n), which C and κ go by; the training has
the rest of μ². The grid is over share, λ and κ; the best of it, chosen on the test split itself, is told beside the
rule without a moment: too good by chance, so that a moment that does not win here does not win.
"""

from __future__ import annotations

import argparse
import itertools
import math
import statistics
import sys

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.reproduce.runs import REPORTS
from benchmarks.reproduce.tables import DELTA, MOMENTUM, auc, settled, trained
from benchmarks.reproduce.tables_data import FITTED, MAPS, Split, table
from benchmarks.reproduce.tables_report import Scores
from benchmarks.reproduce.tables_rivals import most_length
from core.privacy.gdp import mu_from_epsilon

EPSILON, STEPS, SEEDS = 1.0, 200, (0,)
FRESH = 0.4 / math.sqrt(2.0)  # C over ‖x‖, and over ‖W x‖
SHARES, LAMBDAS, KAPPAS = (0.1, 0.25), (1.0, 4.0), (0.5, 1.0, 2.0, 4.0)
KEPT = REPORTS / "tables_moments.json.gz"
Floats = NDArray[np.float64]


def whitening(x: Floats, bound: float, mu: float, times: float, seed: int) -> tuple[Floats, float]:
    """W, and about ‖W x‖, from the noisy second moment."""
    records, d = x.shape
    generator = np.random.default_rng(seed)
    std = bound**2 / mu
    upper = np.triu(generator.standard_normal((d, d)) * std)
    values, vectors = np.linalg.eigh((x.T @ x + upper + np.triu(upper, 1).T) / records)
    values = np.maximum(values, 0.0)
    floor = times * std * math.sqrt(d) / records
    w = vectors * (values + floor) ** -0.5 @ vectors.T
    return w, float(np.sqrt(np.sum(values / (values + floor))))


def scored(train: Split, test: Split, length: float, mu: float, seed: int) -> list[float]:
    """AUC of each κ."""
    sigma, norm = math.sqrt(STEPS) / mu, FRESH * length
    unit = math.sqrt(STEPS) * sigma * norm * length * settled(MOMENTUM, STEPS)
    rates = [kappa * (1.0 - MOMENTUM) * len(train.x) / unit for kappa in KAPPAS]
    settings = [torch.full((len(KAPPAS),), each) for each in (norm, sigma)]
    weights = trained(train, STEPS, *settings, torch.tensor(rates), seed).numpy()
    return [round(float(each), 4) for each in auc(test.x @ weights, test.y)]


def cell(name: str, kind: str, seed: int) -> dict[str, list[float]]:
    """AUC of each κ, by share and λ; "0": without a moment."""
    features, (train, _, test) = table(name, kind)
    mu, bound, x = mu_from_epsilon(EPSILON, DELTA), most_length(features), train.x.astype(np.float64)
    found = {"0": scored(train, test, features.length(features.width), mu, seed)}
    for share, times in itertools.product(SHARES, LAMBDAS):
        w, length = whitening(x, bound, math.sqrt(share) * mu, times, seed)
        parts = [Split((each.x @ w).astype(np.float32), each.y) for each in (train, test)]
        found[f"{share:g}/{times:g}"] = scored(parts[0], parts[1], length, math.sqrt(1.0 - share) * mu, seed)
    return found


def report(scores: Scores) -> None:
    """Prints means over tables and seeds, and each table's best."""
    settings = ("0", *(f"{share:g}/{times:g}" for share, times in itertools.product(SHARES, LAMBDAS)))
    for kind in MAPS:
        print(f"\n| {kind} | " + " | ".join(f"κ = {each:g}" for each in KAPPAS) + " | best of its row by table |")
        print("|" + "---|" * (len(KAPPAS) + 2))
        for setting in settings:
            rows = np.array(
                [
                    np.mean([scores.cells[f"{name}/{kind}/seed={seed}"][setting] for seed in SEEDS], axis=0)
                    for name in FITTED
                ]
            )
            means = [*rows.mean(axis=0), rows.max(axis=1).mean()]
            print(f"| {setting} |", " | ".join(f"{100.0 * each:.1f}" for each in means), "|")
        gains = {}
        for name in FITTED:
            best = {
                setting: max(
                    statistics.fmean(scores.cells[f"{name}/{kind}/seed={seed}"][setting][at] for seed in SEEDS)
                    for at in range(len(KAPPAS))
                )
                for setting in settings
            }
            gains[name] = 100.0 * (max(best[each] for each in settings[1:]) - best["0"])
        print("best with a moment, less best without:", {name: round(gain, 1) for name, gain in gains.items()})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", action="store_true")
    asked, scores = parser.parse_args(), Scores(KEPT)
    torch.set_num_threads(1)
    for seed, kind, name in itertools.product(SEEDS, MAPS, FITTED) if asked.run else ():
        scores.fill(f"{name}/{kind}/seed={seed}", lambda: cell(name, kind, seed))  # noqa: B023 - called at once
        print(name, kind, seed, file=sys.stderr, flush=True)
    report(scores)


if __name__ == "__main__":
    main()
