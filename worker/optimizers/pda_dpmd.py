"""PDA-DPMD in its practical form: a mix of the noised gradient and a public one."""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor

from worker.models.base import Parameters
from worker.noise.gaussian import NoisedGradient
from worker.optimizers.base import State, StepInfo, named, slot_of
from worker.optimizers.descent import Descent
from worker.optimizers.pieces import pieces, zeros


@dataclass(frozen=True)
class PdaDpmd:
    """θ ← θ − η (α_t g̃ + (1 − α_t) ∇L_public),   α_t = cos(π (t − 1) / (2K)),  t = 1 … T ≤ K.

    α starts at 1 and stays above 0, so every step uses the gradient that it paid for.

    Attributes:
        descent: η and weight decay.
        horizon: K.

    Source: Amid, Ganesh, Mathews, Ramaswamy, Song, Steinke, Suriyakumar, Thakkar & Thakurta 2022, "Public data-assisted
    mirror descent for private model training", the first-order approximation.
    """

    descent: Descent
    horizon: int

    def init(self, parameters: Parameters) -> State:
        """No public gradient yet."""
        return named("public", zeros(parameters))

    def observe(self, public_gradient: dict[str, Tensor], state: State) -> State:
        """Keeps the public gradient for this step."""
        return named("public", public_gradient)

    def update(
        self, noised: NoisedGradient, state: State, parameters: Parameters, at: StepInfo
    ) -> tuple[Parameters, State]:
        """Moves along the mix."""
        alpha = math.cos(math.pi * (at.step - 1) / (2 * self.horizon))
        for g, public, p in pieces([noised, slot_of(state, "public")], [parameters]):
            mixed = (alpha * g).add_((1.0 - alpha) * public)
            self.descent.move(p, self.descent.gradient(mixed, p), at.step)
        return parameters, state

    def finish(self, state: State, parameters: Parameters, steps: int) -> Parameters:
        """The parameters unchanged."""
        return parameters
