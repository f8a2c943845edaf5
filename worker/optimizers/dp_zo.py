"""DP-ZO: descent along public random directions, by one noised number a step."""

from __future__ import annotations

from dataclasses import dataclass

from worker.models.base import Parameters
from worker.noise.directions import ALONG, Directions
from worker.noise.gaussian import NoisedGradient
from worker.optimizers.base import State, StepInfo
from worker.optimizers.descent import Descent


@dataclass(frozen=True)
class DpZo:
    """θ ← θ − η s̃ z_t, where s̃ is the noised mean of the records' clipped slopes along the public direction z_t.

    Attributes:
        descent: η and weight decay.
        seed: of the directions, the same as the engine's.

    Source: Tang et al. 2024, Algorithm 1, with random signs as directions.
    """

    descent: Descent
    seed: int

    def init(self, parameters: Parameters) -> State:
        """Empty: a direction is made again, not kept."""
        return {}

    def update(
        self, noised: NoisedGradient, state: State, parameters: Parameters, at: StepInfo
    ) -> tuple[Parameters, State]:
        """One step of DP-ZO.

        Args:
            noised: {"along": s̃}.
        """
        slope, directions = noised[ALONG], Directions(self.seed)
        for number, value in enumerate(parameters.values()):
            flat = value.view(-1)
            for span, z in directions.signs(at.step, number, flat.numel(), flat.device):
                piece = flat[span]
                self.descent.move(piece, self.descent.gradient(z.mul_(slope), piece), at.step)
        return parameters, state

    def finish(self, state: State, parameters: Parameters, steps: int) -> Parameters:
        """The parameters unchanged."""
        return parameters
