"""What an optimizer is: pure functions of noised gradients. It never sees anything else of the data.

All state is named tensors that depend on noised gradients and public numbers only, so a checkpoint, a digest or the
returned model is post-processing of what was charged.
"""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from worker.models.base import Parameters
from worker.noise.gaussian import NoisedGradient

State = dict[str, Tensor]


class Optimizer(Protocol):
    """One algorithm. Implementations are frozen: everything that changes is in the state."""

    def init(self, parameters: Parameters) -> State:
        """The state before the first step."""
        ...

    def update(self, noised: NoisedGradient, state: State, parameters: Parameters) -> tuple[Parameters, State]:
        """One step. New parameters and state; its arguments stay as they are.

        Args:
            noised: g̃, in the names and shapes of `parameters`.
        """
        ...

    def finish(self, state: State, parameters: Parameters) -> Parameters:
        """What is done to the parameters after the last step, at no privacy cost. Often nothing."""
        ...
