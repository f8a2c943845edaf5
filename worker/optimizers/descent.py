"""How a direction moves the parameters: learning rate, schedule, weight decay. All optimizers share it."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from worker.native.flat_steps import STEPS
from worker.optimizers.schedules import CONSTANT, Schedule


@dataclass(frozen=True)
class Descent:
    """θ ← (1 − η_t λ) θ − η_t u;   with `coupled` θ ← θ − η_t u, where u comes from g̃ + λ θ instead of g̃.

    Attributes:
        learning_rate: η.
        schedule: η_t / η.
        weight_decay: λ.
        coupled: adds λ θ to the gradient that the optimizer processes, as torch.optim.Adam does; AdamW does not.

    Source of decoupling: Loshchilov & Hutter 2019, "Decoupled weight decay regularization".
    """

    learning_rate: float
    schedule: Schedule = CONSTANT
    weight_decay: float = 0.0
    coupled: bool = False

    def rate(self, step: int) -> float:
        """η_t."""
        return self.learning_rate * self.schedule.factor(step)

    def gradient(self, noised: Tensor, parameters: Tensor) -> Tensor:
        """g̃ of a piece, or g̃ + λ θ if coupled."""
        if not self.coupled or self.weight_decay == 0.0:
            return noised
        return noised + self.weight_decay * parameters

    def move(self, parameters: Tensor, direction: Tensor, step: int) -> None:
        """Moves a piece of the parameters along −u, in place."""
        rate = self.rate(step)
        shrink = 1.0 if self.coupled else 1.0 - rate * self.weight_decay
        if STEPS is not None and STEPS.descend(parameters, direction, shrink, rate):
            return
        if shrink != 1.0:
            parameters.mul_(shrink)
        parameters.sub_(rate * direction)
