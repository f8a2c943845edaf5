"""DP-AdaGrad: AdaGrad on noised gradients."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from worker.models.base import Parameters
from worker.noise.gaussian import NoisedGradient
from worker.optimizers.base import State, StepInfo
from worker.optimizers.descent import Descent


@dataclass(frozen=True)
class DpAdaGrad:
    """v ← v + g̃²;   θ ← θ − η g̃ / (√v + ε).

    Attributes:
        descent: η and weight decay.
        eps: ε, outside the root.

    Source: Duchi, Hazan & Singer 2011, Figure 1 (diagonal); on noised gradients: Li et al. 2023, as a baseline.
    """

    descent: Descent
    eps: float = 1e-10

    def init(self, parameters: Parameters) -> State:
        """v = 0."""
        return {name: torch.zeros_like(value) for name, value in parameters.items()}

    def update(
        self, noised: NoisedGradient, state: State, parameters: Parameters, at: StepInfo
    ) -> tuple[Parameters, State]:
        """One step of DP-AdaGrad."""
        gradient = self.descent.gradient(noised, parameters)
        v = {name: state[name] + gradient[name].square() for name in parameters}
        direction = {name: gradient[name] / (v[name].sqrt() + self.eps) for name in parameters}
        return self.descent.move(parameters, direction, at.step), v

    def finish(self, state: State, parameters: Parameters, steps: int) -> Parameters:
        """The parameters unchanged."""
        return parameters
