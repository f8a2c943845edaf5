"""AdaDPS: before clipping, gradients are divided by a second moment from public data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from worker.models.base import Parameters
from worker.noise.gaussian import NoisedGradient
from worker.optimizers.base import State, StepInfo, named, slot_of
from worker.optimizers.descent import Descent
from worker.optimizers.pieces import pieces, root_, zeros


@dataclass(frozen=True)
class AdaDps:
    """A ← βA + (1−β) (∇L_public)²;   D = √A + ε;   g̃ = (1/L)(Σ clip_C(g_i / D) + N(0, σ²C²I));   θ ← θ − η g̃.

    A starts at 0 without bias correction, and includes the public gradient at the step's own parameters.

    Attributes:
        descent: η and weight decay.
        beta: β in [0, 1).
        eps: ε.

    Source: Li, Zaheer, Reddi & Smith 2022, "Private adaptive optimization with side information", with RMSProp.
    """

    descent: Descent
    beta: float
    eps: float

    def init(self, parameters: Parameters) -> State:
        """A = 0."""
        return named("A", zeros(parameters))

    def observe(self, public_gradient: dict[str, Tensor], state: State) -> State:
        """Updates A."""
        for public, averages in pieces([public_gradient], [slot_of(state, "A")]):
            averages.mul_(self.beta).add_(public.square().mul_(1.0 - self.beta))
        return state

    def divisors(self, state: State, step: int, query: int) -> Mapping[str, Tensor]:
        """D."""
        return {name: root_(value.clone()).add_(self.eps) for name, value in slot_of(state, "A").items()}

    def update(
        self, noised: NoisedGradient, state: State, parameters: Parameters, at: StepInfo
    ) -> tuple[Parameters, State]:
        """Moves along g̃."""
        for g, p in pieces([noised], [parameters]):
            self.descent.move(p, g, at.step)
        return parameters, state

    def finish(self, state: State, parameters: Parameters, steps: int) -> Parameters:
        """The parameters unchanged."""
        return parameters
