"""DP²: delayed preconditioners, with RMSProp's, AdaGrad's and Yogi's rules; and the paper's two ablations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from torch import Tensor

from app.errors import PrivacyError
from worker.models.base import Parameters
from worker.noise.gaussian import NoisedGradient
from worker.optimizers.base import State, StepInfo, named, slot_of
from worker.optimizers.descent import Descent


class SecondMoment(Protocol):
    def __call__(self, v: Tensor, squares: Tensor) -> Tensor:
        """U(v, ·) of the squared average gradient."""
        ...


@dataclass(frozen=True)
class RmsPropMoment:
    """v ← βv + (1−β)ḡ²."""

    beta: float

    def __call__(self, v: Tensor, squares: Tensor) -> Tensor:
        return self.beta * v + (1.0 - self.beta) * squares


@dataclass(frozen=True)
class AdaGradMoment:
    """v ← v + ḡ²."""

    def __call__(self, v: Tensor, squares: Tensor) -> Tensor:
        return v + squares


@dataclass(frozen=True)
class YogiMoment:
    """v ← v + (1−β) sign(ḡ² − v) ḡ².

    Source: Zaheer, Reddi, Sachan, Kale & Kumar 2018, "Adaptive methods for nonconvex optimization". (The text of the
    DP² paper prints sign(ḡ − v²).)
    """

    beta: float

    def __call__(self, v: Tensor, squares: Tensor) -> Tensor:
        return v + (1.0 - self.beta) * torch.sign(squares - v) * squares


@dataclass(frozen=True)
class Dp2:
    """s₁ steps of DP-SGD, whose mean noised gradient ḡ then updates v; s₂ steps on gradients divided by D = √v + ε.

    With t from 1, step t is adaptive iff (t − 1) mod (s₁ + s₂) ≥ s₁:

        D_t = 1, or √v + ε in an adaptive step;   g̃ = (1/L)(Σ clip_C(g_i / D_t) + N(0, σ²C²I));   θ ← θ − η g̃

    η and C are those of the phase. The division comes before the clip, the noise after it and unscaled. v starts at 0
    and is not corrected for it; gradients of adaptive steps never feed it.

    Variants, the paper's ablations: `noise_first` clips and noises the gradient itself and divides what comes out.
    `extra_query` has one delay s and no phases: each step's noised gradient feeds v, which steps 1, s+1, 2s+1 … update
    with the sum over s since the last one; those move along it, the others along a second query of the same batch,
    divided by D.

    Guarantee: D_t is a function of noised gradients of earlier steps.

    Attributes:
        descent, adaptive: η and weight decay of the phases.
        moment: U.
        delay_sgd, delay_adaptive: s₁, s₂.
        eps: ε.
        debias: takes the noise's share, Φ/s₁, from ḡ², which is kept at 0 or above.

    Source: Li, Zaheer, Liu, Reddi, McMahan & Smith 2023, "Differentially private adaptive optimization with delayed
    preconditioners", Algorithms 1 and 2, Appendix D.
    """

    descent: Descent
    adaptive: Descent
    moment: SecondMoment
    delay_sgd: int
    delay_adaptive: int
    eps: float
    debias: bool = False
    variant: Literal["delayed", "extra_query", "noise_first"] = "delayed"

    def init(self, parameters: Parameters) -> State:
        zeros = {name: torch.zeros_like(value) for name, value in parameters.items()}
        return named("v", zeros) | named("sum", zeros)

    def divisors(self, state: State, step: int, query: int) -> Mapping[str, Tensor] | None:
        extra = self.variant == "extra_query" and query == 1
        return self._roots(state) if extra or (self.variant == "delayed" and self._is_adaptive(step)) else None

    def update(
        self, noised: NoisedGradient, state: State, parameters: Parameters, at: StepInfo
    ) -> tuple[Parameters, State]:
        if self.variant == "extra_query":
            return self._with_extra_query(noised, state, parameters, at)
        if not self._is_adaptive(at.step):
            last = (at.step - 1) % (self.delay_sgd + self.delay_adaptive) == self.delay_sgd - 1
            return self.descent.move(parameters, noised, at.step), self._fed(noised, state, at, update=last)
        direction: dict[str, Tensor] = noised
        if self.variant == "noise_first":
            direction = {name: noised[name] / root for name, root in self._roots(state).items()}
        return self.adaptive.move(parameters, direction, at.step), state

    def finish(self, state: State, parameters: Parameters, steps: int) -> Parameters:
        return parameters

    def _is_adaptive(self, step: int) -> bool:
        return (step - 1) % (self.delay_sgd + self.delay_adaptive) >= self.delay_sgd

    def _with_extra_query(
        self, noised: NoisedGradient, state: State, parameters: Parameters, at: StepInfo
    ) -> tuple[Parameters, State]:
        if (at.step - 1) % self.delay_sgd == 0:
            return self.descent.move(parameters, noised, at.step), self._fed(noised, state, at, update=True)
        if at.second is None:
            raise PrivacyError("this step moves along a second query, which was not made")
        return self.adaptive.move(parameters, at.second, at.step), self._fed(noised, state, at, update=False)

    def _fed(self, noised: NoisedGradient, state: State, at: StepInfo, *, update: bool) -> State:
        """The state with the sum fed; and, where the delay is over, v updated and the sum begun again."""
        v, sums = slot_of(state, "v"), slot_of(state, "sum")
        sums = {name: sums[name] + gradient for name, gradient in noised.items()}
        if not update:
            return named("v", v) | named("sum", sums)
        bias = at.noise_variance / self.delay_sgd if self.debias else 0.0
        squares = {name: (value / self.delay_sgd).square().sub_(bias).clamp_(min=0.0) for name, value in sums.items()}
        v = {name: self.moment(value, squares[name]) for name, value in v.items()}
        return named("v", v) | named("sum", {name: torch.zeros_like(value) for name, value in sums.items()})

    def _roots(self, state: State) -> dict[str, Tensor]:
        return {name: value.sqrt() + self.eps for name, value in slot_of(state, "v").items()}
