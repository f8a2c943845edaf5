"""What takes an optimizer's place in the analysis: another Φ, or momentum with the rate that DP-Adam implies."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from worker.models.base import Parameters
from worker.noise.gaussian import NoisedGradient
from worker.optimizers.base import Optimizer, State, StepInfo
from worker.optimizers.descent import Descent
from worker.optimizers.dp_adam import DpAdam
from worker.optimizers.dp_sgd import DpSgd


@dataclass(frozen=True)
class WithFakePhi:
    """An optimizer that is told `factor` · Φ in place of Φ."""

    base: Optimizer
    factor: float

    def init(self, parameters: Parameters) -> State:
        return self.base.init(parameters)

    def update(
        self, noised: NoisedGradient, state: State, parameters: Parameters, at: StepInfo
    ) -> tuple[Parameters, State]:
        told = replace(at, noise_variance=self.factor * at.noise_variance)
        return self.base.update(noised, state, parameters, told)

    def finish(self, state: State, parameters: Parameters, steps: int) -> Parameters:
        return self.base.finish(state, parameters, steps)


@dataclass(frozen=True)
class ImpliedMomentum:
    """DP-SGDM with the learning rate η(1−β₁)/((1−β₁ᵗ)√Φ) of a DP-Adam whose v̂ is Φ."""

    adam: DpAdam

    def init(self, parameters: Parameters) -> State:
        return self._momentum(1.0).init(parameters)

    def update(
        self, noised: NoisedGradient, state: State, parameters: Parameters, at: StepInfo
    ) -> tuple[Parameters, State]:
        rate = implied_rate(self.adam.descent.learning_rate, self.adam.betas[0], at.noise_variance, at.step)
        return self._momentum(rate).update(noised, state, parameters, at)

    def finish(self, state: State, parameters: Parameters, steps: int) -> Parameters:
        return parameters

    def _momentum(self, rate: float) -> DpSgd:
        return DpSgd(Descent(rate), self.adam.betas[0])


def implied_rate(rate: float, beta: float, phi: float, step: int) -> float:
    return rate * (1.0 - beta) / ((1.0 - beta**step) * math.sqrt(phi))


def implied_momentum(optimizer: Optimizer) -> Optimizer:
    if not isinstance(optimizer, DpAdam):
        raise TypeError("only DP-Adam implies one")
    return ImpliedMomentum(optimizer)


Variant = Callable[[Optimizer], Optimizer]
VARIANTS: dict[str, Variant | None] = {
    "as shipped": None,
    "Φ × 4": lambda optimizer: WithFakePhi(optimizer, 4.0),
    "Φ ÷ 25": lambda optimizer: WithFakePhi(optimizer, 1 / 25),
    "implied momentum": implied_momentum,
}
