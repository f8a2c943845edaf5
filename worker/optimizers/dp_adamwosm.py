"""DP-Adam without its second moment, which the noise's standard deviation replaces."""

from __future__ import annotations

import math
from dataclasses import dataclass

from worker.models.base import Parameters
from worker.noise.gaussian import NoisedGradient
from worker.optimizers.base import State, StepInfo, named, slot_of
from worker.optimizers.descent import Descent
from worker.optimizers.dp_adam import corrected
from worker.optimizers.pieces import pieces, zeros


@dataclass(frozen=True)
class DpAdamWosm:
    """m ← βm + (1−β)g̃;   θ ← θ − η m̂ / (σC/L + γ),   m̂ = m/(1−βᵗ).

    Where noise dominates, the √v̂ of DP-Adam converges to σC/L, a public number. Put in its place, it leaves DP-SGD with
    momentum at the rate η(1−β)/((1−βᵗ)(σC/L + γ)): nothing adapts to a coordinate. Where C moves between steps, a step
    is divided by its own σC/L.

    Attributes:
        descent: η and weight decay.
        beta: β in [0, 1).
        eps: γ.

    Source: Mohapatra, Sasy, He, Kamath & Thakkar 2022, "The role of adaptive optimizers for honest private
    hyperparameter selection" (DPAdamWOSM).
    """

    descent: Descent
    beta: float = 0.9
    eps: float = 1e-8

    def init(self, parameters: Parameters) -> State:
        """m = 0."""
        return named("m", zeros(parameters))

    def update(
        self, noised: NoisedGradient, state: State, parameters: Parameters, at: StepInfo
    ) -> tuple[Parameters, State]:
        """One step of DPAdamWOSM.

        Raises:
            ValueError: the step has no noise to divide by.
        """
        if not at.noise_variance > 0.0:
            raise ValueError("without noise DPAdamWOSM has nothing to divide by")
        divisor = math.sqrt(at.noise_variance) + self.eps
        for g, p, m in pieces([noised], [parameters, slot_of(state, "m")]):
            m.mul_(self.beta).add_((1.0 - self.beta) * self.descent.gradient(g, p))
            self.descent.move(p, corrected(m, self.beta, at.step).div_(divisor), at.step)
        return parameters, state

    def finish(self, state: State, parameters: Parameters, steps: int) -> Parameters:
        """The parameters unchanged."""
        return parameters
