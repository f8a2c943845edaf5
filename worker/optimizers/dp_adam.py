"""DP-Adam: Adam on noised gradients. Its second moment contains the noise's variance."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from worker.models.base import Parameters
from worker.noise.gaussian import NoisedGradient
from worker.optimizers.base import State, StepInfo, named, slot_of
from worker.optimizers.descent import Descent


@dataclass(frozen=True)
class DpAdam:
    """m ← β₁m + (1−β₁)g̃;  v ← β₂v + (1−β₂)g̃²;  θ ← θ − η m̂ / (√v̂ + γ),  m̂ = m/(1−β₁ᵗ), v̂ = v/(1−β₂ᵗ).

    If Φ = (σC/L)² dominates v̂, this is momentum with the learning rate η(1−β₁)/((1−β₁ᵗ)√Φ): it does not adapt.

    Attributes:
        descent: η and weight decay.
        betas: β₁, β₂ in [0, 1).
        eps: γ.

    Source: Kingma & Ba 2015, Algorithm 1; on noised gradients: Zhou et al. 2020, Tang et al. 2024.
    """

    descent: Descent
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8

    def init(self, parameters: Parameters) -> State:
        """m = v = 0."""
        zeros = {name: torch.zeros_like(value) for name, value in parameters.items()}
        return named("m", zeros) | named("v", zeros)

    def update(
        self, noised: NoisedGradient, state: State, parameters: Parameters, at: StepInfo
    ) -> tuple[Parameters, State]:
        """One step of DP-Adam."""
        first, second = moments(self.descent.gradient(noised, parameters), state, self.betas)
        m_hat, v_hat = corrected(first, self.betas[0], at.step), corrected(second, self.betas[1], at.step)
        direction = {name: m_hat[name] / (v_hat[name].sqrt() + self.eps) for name in parameters}
        return self.descent.move(parameters, direction, at.step), named("m", first) | named("v", second)

    def finish(self, state: State, parameters: Parameters, steps: int) -> Parameters:
        """The parameters unchanged."""
        return parameters


def moments(
    gradient: dict[str, Tensor], state: State, betas: tuple[float, float]
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """m and v after a gradient."""
    (beta1, beta2), m, v = betas, slot_of(state, "m"), slot_of(state, "v")
    first = {name: beta1 * m[name] + (1.0 - beta1) * g for name, g in gradient.items()}
    second = {name: beta2 * v[name] + (1.0 - beta2) * g.square() for name, g in gradient.items()}
    return first, second


def corrected(averages: dict[str, Tensor], beta: float, step: int) -> dict[str, Tensor]:
    """Averages that started at 0, divided by their total weight: /(1 − βᵗ)."""
    return {name: value / (1.0 - beta**step) for name, value in averages.items()}
