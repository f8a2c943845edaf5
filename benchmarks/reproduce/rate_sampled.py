"""Tries the linear models' rule under Poisson sampling and with an intercept, which no calibration had.

    python -m benchmarks.reproduce.rate_sampled

The grid was fixed before any run: the rule's own rate times powers of 2. Every run is kept in
benchmarks/reports/reproduce/rate_sampled.json.gz.
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass
from functools import cache
from itertools import product
from typing import Any

import torch

from app.admission.job_rules import check
from app.hpo.rates import PublicNumbers, rate_of
from benchmarks.reproduce.rate_data import data, length
from benchmarks.reproduce.runs import REPORTS, Kept
from core.contracts.job_spec import JobSpec
from core.contracts.optimizers import DpSgd
from core.privacy.pricing import price

DELTA, EPSILONS, SEEDS = 1e-5, (1.0, 3.0), (0, 1)
SETS = ("small digits", "credit", "mnist", "reuters")
POWERS = tuple(range(-3, 4))
STEPS, FULL_STEPS = 100, 30
kept = Kept(REPORTS / "rate_sampled.json.gz")


@dataclass(frozen=True)
class Cell:
    """A data set, the share q of its records in a step, an intercept or none, and ε. β = 0.9 and C = 1."""

    name: str
    share: float
    bias: bool
    epsilon: float

    def __str__(self) -> str:
        sampling = "full batch" if self.share == 1.0 else f"q = {self.share:g}"
        return f"{self.name}, {sampling}, {'with' if self.bias else 'no'} intercept, ε = {self.epsilon:g}"

    @property
    def steps(self) -> int:
        return FULL_STEPS if self.share == 1.0 else STEPS

    @property
    def batch(self) -> int:
        return round(self.share * len(data(self.name).train))


CELLS = (
    *(Cell(*each) for each in product(SETS, (0.05, 0.2), (False,), EPSILONS)),
    *(Cell(*each) for each in product(SETS, (1.0,), (True,), EPSILONS)),
)


def job(cell: Cell, learning_rate: float) -> dict[str, Any]:
    sampled = {"kind": "poisson", "expected_batch_size": cell.batch}
    return {
        "model": {"kind": "linear", "bias": cell.bias},
        "optimizer": {"kind": "dp_sgd", "momentum": 0.9, "learning_rate": float(f"{learning_rate:.4g}")},
        "clipping": {"kind": "flat", "max_grad_norm": 1.0},
        "sampling": {"kind": "full_batch"} if cell.share == 1.0 else sampled,
        "length": {"steps": cell.steps},
        "privacy": {"target_epsilon": cell.epsilon, "target_delta": DELTA},
        "evaluation": {"points": 1},
    }


def sigma(cell: Cell) -> float:
    """σ, as the service prices it."""

    def priced() -> dict[str, float]:
        request = check(JobSpec.model_validate(job(cell, 1.0) | {"dataset": "ds_0"}), data(cell.name).facts()).pricing
        mechanism = price(request).mechanism if request else None
        if mechanism is None:
            raise TypeError("the experiment's jobs are private")
        return {"sigma": mechanism.training.noise_multiplier}

    return float(kept.get({"sigma of": str(cell)}, priced)["sigma"])


@cache
def rule(cell: Cell) -> float:
    """The rate of `learning_rate: auto`."""
    them = data(cell.name)
    numbers = PublicNumbers(
        steps=cell.steps,
        expected_batch_size=cell.batch,
        noise_multiplier=sigma(cell),
        max_grad_norm=1.0,
        length=math.hypot(length(cell.name), 1.0) if cell.bias else length(cell.name),
        outputs=them.outputs,
        is_sparse=them.sparse,
    )
    return rate_of(DpSgd(momentum=0.9), numbers).value


def accuracy(cell: Cell, learning_rate: float, seed: int) -> float:
    """The share of held-out records that one run classifies correctly."""
    return kept.accuracy(cell, lambda: data(cell.name), job(cell, learning_rate), seed)


def curve(cell: Cell) -> list[float]:
    """The mean accuracy at each rate of the grid."""
    rates = [rule(cell) * 2.0**power for power in POWERS]
    return [sum(accuracy(cell, rate, seed) for seed in SEEDS) / len(SEEDS) for rate in rates]


def regret(cell: Cell) -> float:
    """What the rule loses against the grid's best, in points of accuracy."""
    means = curve(cell)
    return 100.0 * (max(means) - means[POWERS.index(0)])


def main() -> None:
    torch.set_num_threads(1)
    for cell in CELLS:
        shown = " ".join(f"{100 * each:.1f}" for each in curve(cell))
        print(f"{cell}: {rule(cell):g}: {shown}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
