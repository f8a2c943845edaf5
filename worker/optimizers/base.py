"""An optimizer is a set of pure functions of noised gradients. It never sees anything else that depends on the data.

All state is named tensors that depend only on noised gradients and public numbers. So a checkpoint, a digest or the
returned model is post-processing of what was charged.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from torch import Tensor

from worker.models.base import Parameters
from worker.noise.gaussian import NoisedGradient

State = dict[str, Tensor]


@dataclass(frozen=True)
class StepInfo:
    """A step's public properties.

    Attributes:
        step: t, from 1.
        noise_variance: Φ = (σC/L)², of each coordinate of g̃; 0 without noise.
        second: the noised gradient of the step's second query, if the mechanism has one.
    """

    step: int
    noise_variance: float
    second: NoisedGradient | None = None


class Optimizer(Protocol):
    """One algorithm. Implementations are frozen: everything that changes is in the state."""

    def init(self, parameters: Parameters) -> State:
        """The state before the first step."""
        ...

    def update(
        self, noised: NoisedGradient, state: State, parameters: Parameters, at: StepInfo
    ) -> tuple[Parameters, State]:
        """One step, in place: changes `parameters` and `state` and returns them, so that no second copy is needed.

        Args:
            noised: g̃, in the names and shapes of `parameters`; not changed.
            at: the step.
        """
        ...

    def finish(self, state: State, parameters: Parameters, steps: int) -> Parameters:
        """Changes the parameters after the last step, at no privacy cost. Often returns them unchanged.

        Args:
            steps: how many there were.
        """
        ...


@runtime_checkable
class Preconditioned(Protocol):
    """An optimizer whose gradients are divided before clipping."""

    def divisors(self, state: State, step: int, query: int) -> Mapping[str, Tensor] | None:
        """A query's D > 0, in the names and shapes of the parameters; None: nothing is divided.

        D is a function of the state before the step, hence of noised gradients of earlier steps, so the division costs
        nothing.
        """
        ...


@runtime_checkable
class Observing(Protocol):
    """An optimizer that uses public side information."""

    def observe(self, public_gradient: dict[str, Tensor], state: State) -> State:
        """The state after it has seen the mean gradient of public records, at a step's parameters, before the step.

        May change `state` in place. What it keeps of that gradient is public.
        """
        ...


def named(slot: str, tensors: dict[str, Tensor]) -> State:
    """The tensors of one state slot, one per parameter: `m/weight`."""
    return {f"{slot}/{name}": value for name, value in tensors.items()}


def slot_of(state: State, slot: str) -> dict[str, Tensor]:
    """The tensors of one state slot, by parameter name."""
    begin = f"{slot}/"
    return {name.removeprefix(begin): value for name, value in state.items() if name.startswith(begin)}
