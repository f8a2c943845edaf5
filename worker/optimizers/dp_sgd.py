"""DP-SGD, with momentum (DP-GDM, DP-SGDM) and the free step."""

from __future__ import annotations

from dataclasses import dataclass

from worker.models.base import Parameters
from worker.noise.gaussian import NoisedGradient
from worker.optimizers.base import State, StepInfo
from worker.optimizers.descent import Descent
from worker.optimizers.pieces import pieces, zeros


@dataclass(frozen=True)
class DpSgd:
    """b ← μ b + g̃;   θ ← θ − η b;   after the last step, with `free_step`, once more θ ← θ − η b.

    b starts at 0, so the first step equals plain SGD's, as in torch.optim.SGD.

    Attributes:
        descent: η and weight decay.
        momentum: μ in [0, 1).
        free_step: moves once more along b, which is post-processing and costs nothing.

    Source: Abadi et al. 2016, Algorithm 1; the free step: Panda et al. 2024, "A new linear scaling rule for private
    adaptive hyperparameter optimization", Appendix B.2.
    """

    descent: Descent
    momentum: float = 0.0
    free_step: bool = False

    def init(self, parameters: Parameters) -> State:
        """b = 0; empty if nothing needs b."""
        if self.momentum == 0.0 and not self.free_step:
            return {}
        return zeros(parameters)

    def update(
        self, noised: NoisedGradient, state: State, parameters: Parameters, at: StepInfo
    ) -> tuple[Parameters, State]:
        """One step of DP-SGD."""
        for g, p, *b in pieces([noised], [parameters, state] if state else [parameters]):
            gradient = self.descent.gradient(g, p)
            self.descent.move(p, b[0].mul_(self.momentum).add_(gradient) if b else gradient, at.step)
        return parameters, state

    def finish(self, state: State, parameters: Parameters, steps: int) -> Parameters:
        """The parameters after the free step, if requested."""
        if not self.free_step:
            return parameters
        rate = self.descent.rate(max(steps, 1))
        return {name: value - rate * state[name] for name, value in parameters.items()}
