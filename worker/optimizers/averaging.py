"""Publishes an average of the iterates in place of the last one. Post-processing: it costs nothing.

An iterate moves with the noise of its last steps. Their mean has less of it. What training does is unchanged; only the
model that `finish` returns differs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from worker.models.base import Parameters
from worker.noise.gaussian import NoisedGradient
from worker.optimizers.base import Observing, Optimizer, Preconditioned, State, StepInfo, named, slot_of
from worker.optimizers.pieces import pieces, zeros

SLOT = "average"


class Weights(Protocol):
    """How an average follows the iterates: ā ← ā + w_t (θ_t − ā). The first weight above 0 is 1."""

    def at(self, step: int) -> float:
        """w_t in [0, 1], at t = 1 … T; 0 where the iterate does not count."""
        ...


@dataclass(frozen=True)
class Tail:
    """The mean of the last ⌈share · T⌉ iterates.

    Source: Rakhlin, Shamir & Sridharan 2012, "Making gradient descent optimal for strongly convex stochastic
    optimization" (suffix averaging); for private training, Shejwalkar et al. 2022, "Recycling scraps".

    >>> [round(Tail(steps=4, share=0.5).at(step), 2) for step in (1, 2, 3, 4)]
    [0.0, 0.0, 1.0, 0.5]
    """

    steps: int
    share: float

    def at(self, step: int) -> float:
        """1/k for the k-th iterate that counts."""
        first = self.steps - math.ceil(self.share * self.steps)
        return 1.0 / (step - first) if step > first else 0.0


@dataclass(frozen=True)
class Moving:
    """The mean of all iterates, weighted by decayᵀ⁻ᵗ: w_t = (1 − decay)/(1 − decayᵗ).

    Source: De, Berrada, Hayes, Smith & Balle 2022, "Unlocking high-accuracy differentially private image classification
    through scale", Section 3; normalized as Adam's averages are, so that θ₀ has no weight.

    >>> [round(Moving(decay=0.5).at(step), 2) for step in (1, 2, 3)]
    [1.0, 0.67, 0.57]
    """

    decay: float

    def at(self, step: int) -> float:
        """The iterate's weight after its step."""
        return (1.0 - self.decay) / (1.0 - self.decay**step)


@dataclass(frozen=True)
class Averaged:
    """An optimizer whose `finish` returns the average of its iterates.

    Attributes:
        inner: the optimizer that trains; it has no free step.
        weights: how the average follows.
    """

    inner: Optimizer
    weights: Weights

    def init(self, parameters: Parameters) -> State:
        """The inner state, and ā = 0, which the first iterate that counts replaces."""
        return {**self.inner.init(parameters), **named(SLOT, zeros(parameters))}

    def update(
        self, noised: NoisedGradient, state: State, parameters: Parameters, at: StepInfo
    ) -> tuple[Parameters, State]:
        """One step of the inner optimizer; the average follows."""
        average = slot_of(state, SLOT)
        parameters, inner = self.inner.update(noised, _inner(state), parameters, at)
        weight = self.weights.at(at.step)
        if weight > 0.0:
            for iterate, mean in pieces([parameters], [average]):
                mean.add_((iterate - mean).mul_(weight))
        return parameters, {**inner, **named(SLOT, average)}

    def finish(self, state: State, parameters: Parameters, steps: int) -> Parameters:
        """The average; if training ended before an iterate counted, what the inner optimizer returns."""
        if steps == 0 or self.weights.at(steps) == 0.0:
            return self.inner.finish(_inner(state), parameters, steps)
        return slot_of(state, SLOT)

    def divisors(self, state: State, step: int, query: int) -> Mapping[str, Tensor] | None:
        """The inner optimizer's; None if it divides nothing."""
        inner = self.inner
        return inner.divisors(_inner(state), step, query) if isinstance(inner, Preconditioned) else None


@dataclass(frozen=True)
class AveragedObserving(Averaged):
    """The same for an optimizer with public side information."""

    def observe(self, public_gradient: dict[str, Tensor], state: State) -> State:
        """The state after the inner optimizer has seen the public gradient."""
        if not isinstance(self.inner, Observing):
            return state
        return {**self.inner.observe(public_gradient, _inner(state)), **named(SLOT, slot_of(state, SLOT))}


def averaged(inner: Optimizer, weights: Weights) -> Averaged:
    """The optimizer with its average."""
    return AveragedObserving(inner, weights) if isinstance(inner, Observing) else Averaged(inner, weights)


def _inner(state: State) -> State:
    return {name: value for name, value in state.items() if not name.startswith(f"{SLOT}/")}
