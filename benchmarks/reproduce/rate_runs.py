"""The runs of the rate experiment: the grid, fixed before any of them, and each run asked once and kept."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from functools import cache
from typing import Any

from benchmarks.reproduce.rate_data import data, length
from benchmarks.reproduce.runs import REPORTS, Kept, run
from core.privacy.gdp import mu_from_epsilon
from worker.models.linear import Linear

DELTA = 1e-5
EPSILONS = (0.5, 1.0, 2.0, 4.0, 8.0)
# κ, the standard deviation that the noise of the whole job leaves in a logit: from far too careful to far too bold.
KAPPAS = tuple(round(0.04 * 1.6**k, 4) for k in range(12))
SEEDS = (0, 1)

kept = Kept(REPORTS / "rate.json.gz")


@dataclass(frozen=True)
class Setting:
    """What a job fixes beside its rate.

    Attributes:
        steps, momentum: T and β.
        clip: C, in units of the gradients' norm before the first step; None: C = 1.
        batch: the expected batch of Poisson sampling; None: full batch.
    """

    steps: int = 30
    momentum: float = 0.9
    clip: float | None = None
    batch: int | None = None

    def __str__(self) -> str:
        clip = "C = 1" if self.clip is None else f"C = {self.clip:g} of a first gradient"
        sampling = "full batch" if self.batch is None else f"Poisson, {self.batch}"
        return f"T = {self.steps}, β = {self.momentum:g}, {clip}, {sampling}"


PLAIN = Setting()
SETTINGS = (
    PLAIN,
    Setting(steps=10),
    Setting(steps=100),
    Setting(momentum=0.0),
    Setting(clip=0.1),
    Setting(clip=1.0),
    Setting(steps=100, batch=512),
)


def settled(momentum: float, updates: int) -> float:
    """m_T = √(mean of (1 − βᵏ)², k = 1 … updates): how far momentum has built up."""
    return math.sqrt(sum((1.0 - momentum**k) ** 2 for k in range(1, updates + 1)) / updates)


@cache
def first_norm(name: str) -> float:
    """‖softmax − e_y‖ ‖x‖ at W = 0, of the median record."""
    return math.sqrt(1.0 - 1.0 / data(name).outputs) * length(name)


def norm_of(name: str, setting: Setting) -> float:
    return 1.0 if setting.clip is None else float(f"{setting.clip * first_norm(name):.3g}")


def rate(name: str, setting: Setting, sigma: float, kappa: float) -> float:
    """η = κ (1 − β) L / (√T σ C ‖x‖ m_T)."""
    batch = setting.batch or len(data(name).train)
    noise = math.sqrt(setting.steps) * sigma * norm_of(name, setting) * length(name)
    return kappa * (1.0 - setting.momentum) * batch / (noise * settled(setting.momentum, setting.steps + 1))


def job(name: str, setting: Setting, epsilon: float, learning_rate: float = 1.0) -> dict[str, Any]:
    privacy = {"target_epsilon": epsilon, "target_delta": DELTA}
    if setting.batch is None:
        sigma = math.sqrt(setting.steps) / mu_from_epsilon(epsilon, DELTA)
        privacy = {"noise_multiplier": sigma, "target_delta": DELTA}
    return {
        "model": {"kind": "linear", "bias": False},
        "optimizer": {
            "kind": "dp_sgd",
            "momentum": setting.momentum,
            "free_step": True,
            "learning_rate": float(f"{learning_rate:.6g}"),
        },
        "clipping": {"kind": "flat", "max_grad_norm": norm_of(name, setting)},
        "sampling": {"kind": "full_batch"}
        if setting.batch is None
        else {"kind": "poisson", "expected_batch_size": setting.batch},
        "length": {"steps": setting.steps},
        "privacy": privacy,
    }


@cache
def sigma_of(name: str, setting: Setting, epsilon: float) -> float:
    """σ, as the service prices it."""
    if setting.batch is None:
        return math.sqrt(setting.steps) / mu_from_epsilon(epsilon, DELTA)
    question = {"sigma of": name, "setting": str(setting), "epsilon": epsilon}
    asked = job(name, setting, epsilon, 1e-6)
    found = kept.get(question, lambda: {"sigma": run(data(name), asked).noise_multiplier})
    return float(found["sigma"])


def accuracy(name: str, setting: Setting, epsilon: float, learning_rate: float, seed: int) -> float:
    """The share of held-out records that one run classifies correctly."""
    asked = job(name, setting, epsilon, learning_rate)
    question = {"data": name, "setting": str(setting), "epsilon": epsilon, "seed": seed}
    question["eta"] = asked["optimizer"]["learning_rate"]
    return float(kept.get(question, lambda: _trained(name, asked, seed))["accuracy"])


def _trained(name: str, asked: dict[str, Any], seed: int) -> dict[str, float]:
    them = data(name)
    done = run(them, asked, seed=seed)
    model = Linear(them.features_count, them.outputs)
    right = model.correct(model.forward(done.parameters, them.holdout), them.holdout.labels)
    return {"accuracy": round(float(right.double().mean()), 5), "seconds": round(done.seconds, 2)}


def curve(name: str, setting: Setting, epsilon: float) -> list[float]:
    """The mean accuracy at each κ of the grid: the oracle's curve."""
    sigma = sigma_of(name, setting, epsilon)
    means = []
    for kappa in KAPPAS:
        eta = rate(name, setting, sigma, kappa)
        means.append(sum(accuracy(name, setting, epsilon, eta, seed) for seed in SEEDS) / len(SEEDS))
    return means


def cells(names: tuple[str, ...], settings: tuple[Setting, ...]) -> list[tuple[str, Setting, float]]:
    """All cells: a data set, a setting and an ε. Poisson was planned on three sets, at three ε, and not run so far."""
    few = (names[0], names[4], names[-1]) if len(names) > 4 else names[:1]
    made = []
    for setting, name, epsilon in itertools.product(settings, names, EPSILONS):
        if setting.batch is not None and (name not in few or epsilon in (0.5, 4.0)):
            continue
        made.append((name, setting, epsilon))
    return made
