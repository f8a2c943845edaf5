"""What each part of the recipe is worth: one changed at a time, as the paper's Table 1 and Figure 11 have them."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from scipy import optimize

from benchmarks.reproduce.linear_scaling_grid import SEEDS, Point
from benchmarks.reproduce.linear_scaling_runs import DELTA, mu, trial
from core.privacy import events, rdp

EPSILON = 1.0
THIRD = 1.0 / math.sqrt(10.0)


@dataclass(frozen=True)
class Change:
    """One change of the recipe.

    Attributes:
        paper: what the paper's recipe gains over it on CIFAR100 at ε = 0.1, in points; None where it gives no number.
        scale: of η beforehand: what the change does to the size of a step, undone.
    """

    name: str
    what: dict[str, Any] = field(default_factory=dict)
    paper: float | None = None
    scale: float = 1.0


POISSON = {
    "sampling": {"kind": "poisson", "expected_batch_size": 4096},
    "privacy": {"noise_multiplier": None, "target_epsilon": EPSILON},
}
RDP = "noise by the RDP accountant"


def changes(r: float) -> list[Change]:
    """Args: r: that of the recipe; weight decays are measured by it, as λ r is how much of the weights it takes."""
    return [
        Change("none: the recipe"),
        Change("with a bias", {"model": {"bias": True}}, 0.36),
        Change("random (He) initialization", {"init": "he"}, 6.81),
        Change("batches of 4,096, Poisson", POISSON, 1.46),
        Change("no momentum", {"optimizer": {"momentum": 0.0}}, 2.09, scale=10.0 * THIRD),
        Change("no free step", {"optimizer": {"free_step": False}}),
        Change(RDP, {}, 3.23),
        Change("C = 0.1", {"clipping": {"max_grad_norm": 0.1}}, 0.46, scale=10.0),
        *(Change(f"weight decay {part:g}/r", {"optimizer": {"weight_decay": part / r}}) for part in (0.1, 1.0)),
    ]


def ablation(name: str, change: Change, best: Point) -> tuple[float, list[float]]:
    """The change with its own best η of three, and its test accuracy with every seed."""
    rate, steps = best
    level = _rdp_mu(steps) if change.name == RDP else mu(EPSILON)

    def test(rate: float, seed: int) -> float:
        return float(trial(name, rate, steps, level, seed, change.what)["test"])

    rates = [rate * change.scale * factor for factor in (THIRD, 1.0, 1.0 / THIRD)]
    chosen = max(rates, key=lambda each: test(each, 0))
    return chosen, [test(chosen, seed) for seed in SEEDS]


def _rdp_mu(steps: int) -> float:
    """√T/σ of the σ at which the RDP bound reaches ε: less than the exact μ, so more noise."""

    def excess(log_sigma: float) -> float:
        tree = events.noisy_sums(1.0, math.exp(log_sigma), steps)
        return rdp.epsilon(tree, DELTA)[0] - EPSILON

    exact = math.log(math.sqrt(steps) / mu(EPSILON))
    return math.sqrt(steps) / math.exp(optimize.brentq(excess, exact - 0.1, exact + 1.0))
