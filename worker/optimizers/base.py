"""What an optimizer is: pure functions of noised gradients. It never sees anything else of the data.

All state is named tensors that depend on noised gradients and public numbers only, so a checkpoint, a digest or the
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
    """What is public of a step.

    Attributes:
        step: t, from 1.
        noise_variance: Φ = (σC/L)², of each coordinate of g̃; 0 without noise.
        second: the noised gradient of the step's second query, where the mechanism has one.
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
        """One step. New parameters and state; its arguments stay as they are.

        Args:
            noised: g̃, in the names and shapes of `parameters`.
            at: which step it is.
        """
        ...

    def finish(self, state: State, parameters: Parameters, steps: int) -> Parameters:
        """What is done to the parameters after the last step, at no privacy cost. Often nothing.

        Args:
            steps: how many there were.
        """
        ...


@runtime_checkable
class Preconditioned(Protocol):
    """An optimizer that has gradients divided before they are clipped."""

    def divisors(self, state: State, step: int, query: int) -> Mapping[str, Tensor] | None:
        """D > 0 of a query, in the names and shapes of the parameters; None: nothing is divided.

        A function of the state before the step, and so of noised gradients of earlier steps: the division is no part of
        what is charged.
        """
        ...


@runtime_checkable
class Observing(Protocol):
    """An optimizer with public side information."""

    def observe(self, public_gradient: dict[str, Tensor], state: State) -> State:
        """The state once it has seen the mean gradient of public records at the parameters of a step, before the step.

        What it keeps of it is public.
        """
        ...


def named(slot: str, tensors: dict[str, Tensor]) -> State:
    """The tensors of one slot of the state, one for each parameter: `m/weight`."""
    return {f"{slot}/{name}": value for name, value in tensors.items()}


def slot_of(state: State, slot: str) -> dict[str, Tensor]:
    """The tensors of one slot, by the parameters' names."""
    begin = f"{slot}/"
    return {name.removeprefix(begin): value for name, value in state.items() if name.startswith(begin)}
