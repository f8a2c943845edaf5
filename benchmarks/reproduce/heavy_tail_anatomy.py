"""What Adam's second moment sees of the heavy tail: squared gradients beside the noise, and the steps that follow."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from benchmarks.reproduce.four import Setting
from benchmarks.reproduce.heavy_tail_problem import Problem, job
from benchmarks.reproduce.runs import run
from worker.models.base import Parameters
from worker.optimizers.base import State
from worker.optimizers.dp_adam import corrected


def anatomy(problem: Problem, setting: Setting, seed: int) -> dict[str, Any]:
    """One run of DP-Adam or DP-AdamBC, looked into at four steps. The data are public: bare gradients are seen.

    Returns:
        `steps`; for each step and group of classes, largest classes first, `signal`, the mean over coordinates of
        ḡ²/Φ with the clipped mean gradient ḡ; and `factor`, √Φ over the mean divisor of m̂, which is what a step is
        multiplied with beside momentum's. `blur`: the deviation of a coordinate's v̂/Φ where there is noise alone.
    """
    steps = [1, problem.steps // 16, problem.steps // 4, problem.steps]
    signal: list[list[float]] = []
    factor: list[list[float]] = []

    def look(step: int, parameters: Parameters, state: State) -> None:
        if step in steps:
            gradient = _clipped_gradient(problem, parameters["weight"])
            signal.append(_by_group(problem, gradient.square() / problem.noise_deviation**2))
            divisors = _by_group(problem, _divisor(problem, setting, state, step))
            factor.append([problem.noise_deviation / each for each in divisors])

    run(problem.data, job(problem, setting, 1), seed=seed, watch=look)
    beta = 1.0 - problem.forgetting
    blur = [math.sqrt(2.0 * (1.0 - beta) / (1.0 + beta) * (1.0 + beta**step) / (1.0 - beta**step)) for step in steps]
    return {"steps": steps, "signal": signal, "factor": factor, "blur": blur}


def _clipped_gradient(problem: Problem, weight: Tensor) -> Tensor:
    """ḡ (K, d), without noise."""
    records = problem.data.train
    inputs = records.dense(torch.float64)  # type: ignore[attr-defined]
    residuals = torch.softmax(inputs @ weight.T, dim=1)
    residuals[torch.arange(len(records)), records.labels] -= 1.0
    norms = residuals.norm(dim=1) * inputs.norm(dim=1)
    return (residuals * (problem.clip / norms).clamp(max=1.0)[:, None]).T @ inputs / len(records)


def _divisor(problem: Problem, setting: Setting, state: State, step: int) -> Tensor:
    v_hat = corrected(state["v/weight"], 1.0 - problem.forgetting, step)
    deviation = problem.noise_deviation
    if setting.optimizer == "DP-Adam":
        return v_hat.sqrt() + setting.guard * deviation
    return (v_hat - deviation**2).clamp(min=setting.guard * deviation**2).sqrt()


def _by_group(problem: Problem, values: Tensor) -> list[float]:
    """The mean over all coordinates of the classes of each group."""
    return [float(values[2**k - 1 : 2 ** (k + 1) - 1].mean()) for k in range(len(problem.class_sizes))]
