"""The settings of DP-AdamBC's analysis: what is the same in all runs, and what was tried."""

from __future__ import annotations

from typing import Any

# An optimizer of a JobSpec, `clip`: max_grad_norm, and for DP-AdamBC `floor`: γ′ / Φ.
Setting = dict[str, Any]

BATCH, EPOCHS, CLIP = 512, 25, 0.5
# σ for ε = 1, 3 and 7 at δ = 1e-5 by PLD, with q = 512/6532 and 318 steps.
SIGMAS = {1.0: 5.3477, 3.0: 2.14065, 7.0: 1.20326}
EPSILONS = tuple(SIGMAS)
TUNING_SEED = 100
FAKES = ("Φ × 4", "Φ ÷ 25")

_ADAM = {"clip": CLIP, "betas": [0.9, 0.999]}
FLOORS_AND_RATES = {
    0.1: (0.01, 0.03, 0.06, 0.1),
    0.5: (0.03, 0.06, 0.1, 0.2),
    1.0: (0.06, 0.1, 0.2),
    3.0: (0.06, 0.1, 0.17, 0.3),  # nearly without a correction: v̂ − Φ rarely reaches so high
}
GRID: dict[str, list[Setting]] = {
    "DP-SGD": [
        {"kind": "dp_sgd", "clip": CLIP, "learning_rate": rate} for rate in (3.0, 10.0, 17.0, 30.0, 60.0, 100.0, 300.0)
    ],
    "DP-Adam": [{"kind": "dp_adam", **_ADAM, "learning_rate": rate} for rate in (0.03, 0.06, 0.1, 0.17, 0.3)],
    "DP-AdamBC": [
        {"kind": "dp_adambc", **_ADAM, "learning_rate": rate, "floor": floor}
        for floor, rates in FLOORS_AND_RATES.items()
        for rate in rates
    ],
    "scale then privatize": [
        {"kind": "scale_then_privatize", "clip": clip, "learning_rate": rate, "eps_scale": 1e-3}
        for clip, rate in ((100.0, 0.03), (100.0, 0.06), (100.0, 0.1), (100.0, 0.17), (100.0, 0.3), (30.0, 0.1))
    ],
}
SHOWN: Setting = {"kind": "dp_adambc", **_ADAM, "learning_rate": 0.03, "floor": 0.1}  # where the correction acts
FLOORS = (0.001, 0.01, 0.03, 0.1, 0.3, 1.0)
GAMMAS = (1e-8, 1e-4, 1e-3, 1e-2)


def phi(setting: Setting, epsilon: float) -> float:
    """Φ = (σC/L)²."""
    std: float = SIGMAS[epsilon] * setting["clip"] / BATCH
    return std**2


def job(setting: Setting, epsilon: float) -> dict[str, Any]:
    """A JobSpec, as the service takes it, but for its data set and seed."""
    optimizer = {name: value for name, value in setting.items() if name not in {"clip", "floor"}}
    if "floor" in setting:
        optimizer["eps_root"] = setting["floor"] * phi(setting, epsilon)
    return {
        "optimizer": optimizer,
        "privacy": {"noise_multiplier": SIGMAS[epsilon], "target_delta": 1e-5},
        "clipping": {"kind": "flat", "max_grad_norm": setting["clip"]},
        "sampling": {"kind": "poisson", "expected_batch_size": BATCH},
        "length": {"epochs": EPOCHS},
        "evaluation": {"points": 10, "by_frequency": True},
    }
