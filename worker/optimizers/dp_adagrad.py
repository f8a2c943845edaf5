"""DP-AdaGrad: AdaGrad on noised gradients."""

from __future__ import annotations

from dataclasses import dataclass

from worker.models.base import Parameters
from worker.noise.gaussian import NoisedGradient
from worker.optimizers.base import State, StepInfo
from worker.optimizers.descent import Descent
from worker.optimizers.pieces import pieces, root_, zeros


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
        return zeros(parameters)

    def update(
        self, noised: NoisedGradient, state: State, parameters: Parameters, at: StepInfo
    ) -> tuple[Parameters, State]:
        """One step of DP-AdaGrad."""
        for g, p, v in pieces([noised], [parameters, state]):
            gradient = self.descent.gradient(g, p)
            v.add_(gradient.square())
            self.descent.move(p, gradient / root_(v.clone()).add_(self.eps), at.step)
        return parameters, state

    def finish(self, state: State, parameters: Parameters, steps: int) -> Parameters:
        """The parameters unchanged."""
        return parameters
