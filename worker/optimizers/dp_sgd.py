"""DP-SGD, with momentum (DP-GDM, DP-SGDM) and the free step."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from worker.models.base import Parameters
from worker.noise.gaussian import NoisedGradient
from worker.optimizers.base import State


@dataclass(frozen=True)
class DpSgd:
    """b ← μ b + g̃;   θ ← θ − η (b + λ θ);   after the last step, with `free_step`, once more θ ← θ − η b.

    b starts at 0, so the first step is plain SGD's, as in torch.optim.SGD. Decoupled weight decay: λ never enters b.

    Attributes:
        learning_rate: η, constant.
        momentum: μ in [0, 1).
        free_step: moves once more along b, which is post-processing and costs nothing.
        weight_decay: λ.

    Source: Abadi et al. 2016, Algorithm 1; the free step: Panda et al. 2024, "A new linear scaling rule for private
    adaptive hyperparameter optimization", Appendix B.2.
    """

    learning_rate: float
    momentum: float = 0.0
    free_step: bool = False
    weight_decay: float = 0.0

    def init(self, parameters: Parameters) -> State:
        if self.momentum == 0.0 and not self.free_step:
            return {}
        return {name: torch.zeros_like(value) for name, value in parameters.items()}

    def update(self, noised: NoisedGradient, state: State, parameters: Parameters) -> tuple[Parameters, State]:
        momenta = {name: self.momentum * state[name] + noised[name] if state else noised[name] for name in parameters}
        decay = 1.0 - self.learning_rate * self.weight_decay
        updated = {name: decay * value - self.learning_rate * momenta[name] for name, value in parameters.items()}
        return updated, momenta if state else {}

    def finish(self, state: State, parameters: Parameters) -> Parameters:
        if not self.free_step:
            return parameters
        return {name: value - self.learning_rate * state[name] for name, value in parameters.items()}
