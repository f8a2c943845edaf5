"""DP-AdamBC: DP-Adam without the noise's variance in its second moment."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from worker.models.base import Parameters
from worker.noise.gaussian import NoisedGradient
from worker.optimizers.base import State, StepInfo, named, slot_of
from worker.optimizers.descent import Descent
from worker.optimizers.dp_adam import average, corrected
from worker.optimizers.pieces import pieces, root_, zeros


@dataclass(frozen=True)
class DpAdamBc:
    """The moments of DP-Adam;  θ ← θ − η m̂ / √max(v̂ − Φ, γ′),   Φ = (σC/L)².

    v̂, after its correction for starting at 0, is too large by exactly Φ in expectation: each coordinate of g̃ has
    noise of that variance. If C changes between steps, Φ averages the steps' variances as v̂ averages squares: φ ← β₂φ
    + (1−β₂)Φ_t, Φ = φ/(1−β₂ᵗ).

    Attributes:
        descent: η and weight decay.
        betas: β₁, β₂ in [0, 1).
        eps_root: γ′, on the scale of v̂, not of its root; None: the standard deviation of the noise in v̂
            (`resolution`).

    Source: Tang, Shpilevskiy & Lécuyer 2024, "DP-AdamBC: your DP-Adam is actually DP-SGD (unless you apply bias
    correction)", Algorithm 1. Here no state ever holds an average without noise.
    """

    descent: Descent
    betas: tuple[float, float] = (0.9, 0.999)
    eps_root: float | None = None

    def init(self, parameters: Parameters) -> State:
        """m = v = φ = 0."""
        moments = named("m", zeros(parameters)) | named("v", zeros(parameters))
        return moments | {"phi": torch.zeros((), dtype=torch.float64)}

    def update(
        self, noised: NoisedGradient, state: State, parameters: Parameters, at: StepInfo
    ) -> tuple[Parameters, State]:
        """One step of DP-AdamBC."""
        beta1, beta2 = self.betas
        phi = state["phi"].mul_(beta2).add_((1.0 - beta2) * at.noise_variance)
        bias = float(phi) / (1.0 - beta2**at.step)
        floor = bias * resolution(beta2, at.step) if self.eps_root is None else self.eps_root
        for g, p, m, v in pieces([noised], [parameters, slot_of(state, "m"), slot_of(state, "v")]):
            average(m, v, self.descent.gradient(g, p), self.betas)
            root = root_(corrected(v, beta2, at.step).sub_(bias).clamp_(min=floor))
            self.descent.move(p, corrected(m, beta1, at.step).div_(root), at.step)
        return parameters, state

    def finish(self, state: State, parameters: Parameters, steps: int) -> Parameters:
        """The parameters unchanged."""
        return parameters


def resolution(beta2: float, step: int) -> float:
    """The standard deviation of noise alone in v̂, as a share of Φ: √(2 Σ_s w_s²).

    v̂ = Σ_s w_s z_s² with z_s ~ N(0, Φ) and w_s = (1−β₂)β₂ᵗ⁻ˢ/(1−β₂ᵗ), so that Σ w_s² = (1−β₂)(1+β₂ᵗ)/((1+β₂)(1−β₂ᵗ)).
    Values of v̂ − Φ below it are indistinguishable from zero; dividing by their root makes long steps of noise.
    """
    decay = beta2**step
    return math.sqrt(2.0 * (1.0 - beta2) * (1.0 + decay) / ((1.0 + beta2) * (1.0 - decay)))
