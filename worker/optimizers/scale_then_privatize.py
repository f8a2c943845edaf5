"""Scale, then privatize: gradients are divided by the second moment before clipping, and multiplied back afterwards."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from worker.models.base import Parameters
from worker.noise.gaussian import NoisedGradient
from worker.optimizers.base import State, StepInfo, named, slot_of
from worker.optimizers.descent import Descent
from worker.optimizers.dp_adam import average, corrected
from worker.optimizers.pieces import pieces, root_, zeros


@dataclass(frozen=True)
class ScaleThenPrivatize:
    """D_t = √v_{t−1} + ε_s;   g̃ = (1/L)(Σ clip_C(g_i / D_t) + N(0, σ²C²I));   ĝ = D_t g̃;   then the base's rule on ĝ.

        adam       m ← β₁m + (1−β₁)ĝ;  v ← β₂v + (1−β₂)ĝ²;  θ ← θ − η m̂ / (√(v̂ + ε_r) + ε)
        rmsprop    v ← β₂v + (1−β₂)ĝ²;  θ ← θ − η ĝ / (√(v + ε_r) + ε)

    Clip and noise are isotropic in the scaled space, so coordinates with small gradients get small noise. C is the norm
    of a *scaled* gradient, about √d times one coordinate's norm. v has no bias correction where it divides before the
    clip.

    Guarantee: D_t is a function of noised gradients of earlier steps.

    Attributes:
        descent: η and weight decay.
        base: the optimizer whose rule applies.
        betas: β₁ (0 for rmsprop), β₂.
        eps, eps_root: ε, ε_r of the base's rule.
        eps_scale: ε_s: a larger value makes the scaling rounder; at infinity only the base remains.

    Source: Ganesh, McMahan & Thakurta 2025, "On design principles for private adaptive optimizers", Algorithm 8.
    """

    descent: Descent
    base: Literal["adam", "rmsprop"]
    betas: tuple[float, float]
    eps: float
    eps_root: float
    eps_scale: float

    def init(self, parameters: Parameters) -> State:
        """m = v = 0."""
        return named("m", zeros(parameters)) | named("v", zeros(parameters))

    def divisors(self, state: State, step: int, query: int) -> Mapping[str, Tensor]:
        """D_t."""
        return {name: root_(value.clone()).add_(self.eps_scale) for name, value in slot_of(state, "v").items()}

    def update(
        self, noised: NoisedGradient, state: State, parameters: Parameters, at: StepInfo
    ) -> tuple[Parameters, State]:
        """One step of the base's rule with ĝ."""
        for g, p, m, v in pieces([noised], [parameters, slot_of(state, "m"), slot_of(state, "v")]):
            unscaled = root_(v.clone()).add_(self.eps_scale).mul_(g)
            average(m, v, self.descent.gradient(unscaled, p), self.betas)
            m_hat, v_hat = m, v
            if self.base == "adam":
                m_hat, v_hat = corrected(m, self.betas[0], at.step), corrected(v, self.betas[1], at.step)
            self.descent.move(p, m_hat / root_(v_hat + self.eps_root).add_(self.eps), at.step)
        return parameters, state

    def finish(self, state: State, parameters: Parameters, steps: int) -> Parameters:
        """The parameters unchanged."""
        return parameters
