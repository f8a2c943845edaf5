"""How a direction moves the parameters: learning rate, schedule, weight decay. Shared by all optimizers."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from worker.models.base import Parameters
from worker.noise.gaussian import NoisedGradient
from worker.optimizers.schedules import CONSTANT, Schedule


@dataclass(frozen=True)
class Descent:
    """θ ← (1 − η_t λ) θ − η_t u;   with `coupled` θ ← θ − η_t u, where u was made of g̃ + λ θ in place of g̃.

    Attributes:
        learning_rate: η.
        schedule: η_t / η.
        weight_decay: λ.
        coupled: λ θ enters whatever the optimizer makes of gradients, as in torch.optim.Adam; not so in AdamW.

    Source of decoupling: Loshchilov & Hutter 2019, "Decoupled weight decay regularization".
    """

    learning_rate: float
    schedule: Schedule = CONSTANT
    weight_decay: float = 0.0
    coupled: bool = False

    def rate(self, step: int) -> float:
        """η_t."""
        return self.learning_rate * self.schedule.factor(step)

    def gradient(self, noised: NoisedGradient, parameters: Parameters) -> dict[str, Tensor]:
        """g̃, or g̃ + λ θ."""
        if not self.coupled or self.weight_decay == 0.0:
            return noised
        return {name: noised[name] + self.weight_decay * value for name, value in parameters.items()}

    def move(self, parameters: Parameters, direction: dict[str, Tensor], step: int) -> Parameters:
        """The parameters after a step along −u."""
        rate = self.rate(step)
        keep = 1.0 if self.coupled else 1.0 - rate * self.weight_decay
        return {name: keep * value - rate * direction[name] for name, value in parameters.items()}
