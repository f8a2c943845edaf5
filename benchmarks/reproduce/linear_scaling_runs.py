"""The runs of the linear scaling experiment: each one question, asked once and kept."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import cache
from typing import Any
from unittest import mock

import numpy as np
import torch

from benchmarks.reproduce.linear_scaling_data import DATA
from benchmarks.reproduce.runs import REPORTS, Data, Kept, run
from core.privacy.gdp import mu_from_epsilon
from worker.models.base import Parameters
from worker.models.linear import Linear

DELTA = 1e-5
NAMES = {"imdb": "IMDB", "pixels": "Fashion-MNIST, 14 × 14 pixels", "frozen": "Fashion-MNIST, frozen"}


@dataclass(frozen=True)
class Setting:
    """What is searched on a data set: bounds of η and T; and the T's of the oracle's grid, the middle one first."""

    learning_rate: tuple[float, float]
    steps: tuple[int, int]
    grid_steps: tuple[int, int, int]


SETTINGS = {
    "imdb": Setting((1.0, 1000.0), (5, 100), (30, 10, 90)),
    "pixels": Setting((0.03, 30.0), (5, 50), (20, 7, 50)),
    "frozen": Setting((0.003, 3.0), (5, 30), (15, 7, 30)),
}
RECIPE: dict[str, Any] = {
    "model": {"kind": "linear"},
    "optimizer": {"kind": "dp_sgd", "momentum": 0.9, "free_step": True},
    "clipping": {"kind": "flat", "max_grad_norm": 1.0},
}

kept = Kept(REPORTS / "linear_scaling.json.gz")


@cache
def data(name: str) -> Data:
    return DATA[name]()


@cache
def mu(epsilon: float) -> float:
    return mu_from_epsilon(epsilon, DELTA)


def trial(
    name: str, learning_rate: float, steps: int, mu: float, seed: int, change: dict[str, Any] | None = None
) -> dict[str, Any]:
    """One full-batch run that is μ-GDP. Its share of correct answers on the test and on the training records.

    Args:
        change: of the recipe; see `job`. {"init": "he"} begins with random weights.
    """
    learning_rate, mu = (float(f"{value:.6g}") for value in (learning_rate, mu))
    question: dict[str, Any] = {"data": name, "eta": learning_rate, "steps": steps, "mu": mu, "seed": seed}
    if change:
        question["change"] = change
    spec = job(learning_rate, steps, mu, change or {})
    return kept.get(question, lambda: _trial(name, spec, seed, "init" in (change or {})))


def job(learning_rate: float, steps: int, mu: float, change: dict[str, Any]) -> dict[str, Any]:
    """The JobSpec of a run. `change` replaces members of its parts: {"optimizer": {"momentum": 0.0}}."""
    made: dict[str, Any] = {part: {**value, **change.get(part, {})} for part, value in RECIPE.items()}
    made["optimizer"]["learning_rate"] = learning_rate
    made["privacy"] = {"noise_multiplier": math.sqrt(steps) / mu, "target_delta": DELTA} | change.get("privacy", {})
    made["length"] = {"steps": steps}
    return made | {part: change[part] for part in ("sampling",) if part in change}


def _trial(name: str, spec: dict[str, Any], seed: int, random_init: bool) -> dict[str, Any]:
    them = data(name)
    with _he_initialization(seed) if random_init else nullcontext():
        done = run(them, spec, seed=seed)
    model = Linear(them.features_count, them.outputs, spec["model"].get("bias", False))
    shares = {
        part: float(model.correct(model.forward(done.parameters, records), records.labels).double().mean())
        for part, records in (("test", them.holdout), ("train", them.train))
    }
    return {
        **shares,
        "epsilon": done.epsilon,
        "noise_multiplier": done.noise_multiplier,
        "seconds": round(done.seconds, 3),
    }


@contextmanager
def _he_initialization(seed: int) -> Iterator[None]:
    """Weights of variance 2/d in place of the linear model's zeros: an ablation, which no job can ask for."""

    def init(self: Linear, key: bytes | None = None) -> Parameters:
        generator = torch.Generator().manual_seed(seed)
        shape = (self.outputs, self.features)
        weight = torch.randn(shape, generator=generator, dtype=torch.float64)
        return {"weight": weight * math.sqrt(2.0 / self.features)}

    with mock.patch.object(Linear, "init", init):
        yield


def mean(values: list[float]) -> float:
    return float(np.mean(values))
