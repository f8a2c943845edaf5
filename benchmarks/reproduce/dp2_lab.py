"""One run of the DP² experiment, and the settings: what was tried, on how many epochs, and what was chosen."""

from __future__ import annotations

import math
from typing import Any

from app.admission.job_rules import check
from benchmarks.reproduce.runs import Data, Kept, run
from core.contracts.job_spec import JobSpec
from core.privacy.pricing import price

# An optimizer of a JobSpec, `clip`: max_grad_norm, and `epochs` that its rates are for, where not those of the tuning.
Setting = dict[str, Any]

BATCH, TUNING_SEED = 64, 100
PRIVATE, RATED = "reviews", "ratings"
TUNING_EPOCHS = {PRIVATE: 5, RATED: 1}

MODELS = {
    PRIVATE: {"kind": "linear", "bias": True},
    RATED: {"kind": "matrix_factorization", "dim": 8},
}
SIGMA = {PRIVATE: 1.0, RATED: 0.5}
METRIC = {PRIVATE: "accuracy", RATED: "loss"}


def job(setting: Setting, *, epochs: float, sigma: float, task: str = PRIVATE, points: int = 20) -> dict[str, Any]:
    """A JobSpec, as the service takes it, but for its data set and seed."""
    ours = ("clip", "epochs")
    optimizer = {name: value for name, value in lengthened(setting, epochs, task).items() if name not in ours}
    return {
        "model": MODELS[task],
        "optimizer": optimizer,
        "privacy": {"noise_multiplier": sigma, "target_delta": 1e-5},
        "clipping": {"kind": "flat", "max_grad_norm": setting["clip"]},
        "sampling": {"kind": "poisson", "expected_batch_size": BATCH},
        "length": {"epochs": epochs},
        "evaluation": {"points": points, "loss_bound": 16.0},
    }


def lengthened(setting: Setting, epochs: float, task: str) -> Setting:
    """For a run of another length than its rates are for: they are divided by the root of how much longer it is.

    The best constant rate of noisy gradient descent falls so. AdaGrad's own divisor grows like that already.
    """
    factor = math.sqrt(setting.get("epochs", TUNING_EPOCHS[task]) / epochs)
    if setting["kind"] == "dp_adagrad" or factor == 1.0:
        return setting
    return setting | {name: factor * value for name, value in setting.items() if name.startswith("learning_rate")}


def answer(
    kept: Kept,
    data: Data,
    setting: Setting,
    *,
    epochs: float,
    seed: int,
    scored: str,
    task: str = PRIVATE,
    sigma: float | None = None,
) -> dict[str, Any]:
    """The metrics of a run, from the file where it was made before.

    Args:
        data: as `scored` says.
        scored: what the metrics are of: "holdout", "training" or, of zeros and ones, "holdout, raw" (buckets) and
            "holdout, words".
    """
    noise = SIGMA[task] if sigma is None else sigma
    question = {"task": task, "scored": scored, "setting": setting, "epochs": epochs, "sigma": noise, "seed": seed}

    def fresh() -> dict[str, Any]:
        result = run(data, job(setting, epochs=epochs, sigma=noise, task=task), seed=seed)
        whole = result.kept()
        metric = result.metrics[METRIC[task]]
        print(f"{metric[-1][1]:.4f} after {result.steps} steps, {result.seconds:.0f} s: {question}", flush=True)
        return whole | {"metrics": {METRIC[task]: metric}}

    return kept.get(question, fresh)


def rdp_epsilon(data: Data, setting: Setting, epochs: float) -> float:
    """ε of a run on the reviews by Rényi accounting, as the service's price names it for comparison."""
    sigma = SIGMA[PRIVATE]
    spec = JobSpec.model_validate(job(setting, epochs=epochs, sigma=sigma) | {"dataset": "ds_0", "seed": 0})
    asked = check(spec, data.facts()).pricing
    if asked is None:
        raise ValueError("a private job has a price")
    found = price(asked).comparison
    if found is None:
        raise ValueError("a private job has a price")
    return found.rdp


def delayed(kind: str, rates: tuple[float, float], clips: tuple[float, float], eps: float, delay: int) -> Setting:
    return {
        "kind": kind,
        "learning_rate": rates[0],
        "clip": clips[0],
        "learning_rate_adaptive": rates[1],
        "max_grad_norm_adaptive": clips[1],
        "eps": eps,
        "delay": delay,
    }
