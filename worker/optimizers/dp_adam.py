"""DP-Adam: Adam on noised gradients. Its second moment contains the noise's variance."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from worker.models.base import Parameters
from worker.native.flat_steps import STEPS, AdamStep
from worker.noise.gaussian import NoisedGradient
from worker.optimizers.base import State, StepInfo, named, slot_of
from worker.optimizers.descent import Descent
from worker.optimizers.pieces import pieces, root_, zeros


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
        return named("m", zeros(parameters)) | named("v", zeros(parameters))

    def update(
        self, noised: NoisedGradient, state: State, parameters: Parameters, at: StepInfo
    ) -> tuple[Parameters, State]:
        """One step of DP-Adam."""
        numbers = self._numbers(at.step)
        for g, p, m, v in pieces([noised], [parameters, slot_of(state, "m"), slot_of(state, "v")]):
            if STEPS is not None and STEPS.adam(g, p, m, v, numbers):
                continue
            average(m, v, self.descent.gradient(g, p), self.betas)
            root = root_(corrected(v, self.betas[1], at.step)).add_(self.eps)
            self.descent.move(p, corrected(m, self.betas[0], at.step).div_(root), at.step)
        return parameters, state

    def _numbers(self, step: int) -> AdamStep:
        """This update's public numbers, for the compiled form."""
        descent, (keep1, keep2) = self.descent, self.betas
        decay, rate = descent.weight_decay, descent.rate(step)
        return AdamStep(
            coupled=decay if descent.coupled else 0.0,
            keep1=keep1,
            take1=1.0 - keep1,
            keep2=keep2,
            take2=1.0 - keep2,
            weight1=1.0 - keep1**step,
            weight2=1.0 - keep2**step,
            eps=self.eps,
            rate=rate,
            shrink=1.0 if descent.coupled else 1.0 - rate * decay,
        )

    def finish(self, state: State, parameters: Parameters, steps: int) -> Parameters:
        """The parameters unchanged."""
        return parameters


def average(m: Tensor, v: Tensor, gradient: Tensor, betas: tuple[float, float]) -> None:
    """Adds a gradient to a piece of m and v, in place."""
    m.mul_(betas[0]).add_((1.0 - betas[0]) * gradient)
    v.mul_(betas[1]).add_(gradient.square().mul_(1.0 - betas[1]))


def corrected(average: Tensor, beta: float, step: int) -> Tensor:
    """An average that started at 0, divided by its total weight: /(1 − βᵗ)."""
    return average / (1.0 - beta**step)
