"""DP-RMSProp: RMSProp on noised gradients."""

from __future__ import annotations

from dataclasses import dataclass

from worker.models.base import Parameters
from worker.noise.gaussian import NoisedGradient
from worker.optimizers.base import State, StepInfo
from worker.optimizers.descent import Descent
from worker.optimizers.pieces import pieces, root_, zeros


@dataclass(frozen=True)
class DpRmsProp:
    """v ← βv + (1−β)g̃²;   θ ← θ − η g̃ / (√v + ε). v starts at 0 without bias correction.

    Attributes:
        descent: η and weight decay.
        beta: β in [0, 1).
        eps: ε, outside the root.

    Source: Tieleman & Hinton 2012; on noised gradients: Li et al. 2023, "Differentially private adaptive optimization
    with delayed preconditioners", as a baseline.
    """

    descent: Descent
    beta: float = 0.9
    eps: float = 1e-8

    def init(self, parameters: Parameters) -> State:
        """v = 0."""
        return zeros(parameters)

    def update(
        self, noised: NoisedGradient, state: State, parameters: Parameters, at: StepInfo
    ) -> tuple[Parameters, State]:
        """One step of DP-RMSProp."""
        for g, p, v in pieces([noised], [parameters, state]):
            gradient = self.descent.gradient(g, p)
            v.mul_(self.beta).add_(gradient.square().mul_(1.0 - self.beta))
            self.descent.move(p, gradient / root_(v.clone()).add_(self.eps), at.step)
        return parameters, state

    def finish(self, state: State, parameters: Parameters, steps: int) -> Parameters:
        """The parameters unchanged."""
        return parameters
