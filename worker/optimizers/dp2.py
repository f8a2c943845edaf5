"""DP²: delayed preconditioners, with the rules of RMSProp, AdaGrad and Yogi; and the paper's two ablations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol, assert_never

import torch
from torch import Tensor

from core.errors import PrivacyError
from core.privacy.mechanism import DelayedMechanism
from worker.models.base import Parameters
from worker.noise.gaussian import NoisedGradient
from worker.optimizers.base import State, StepInfo, named, slot_of
from worker.optimizers.descent import Descent
from worker.optimizers.pieces import pieces, root_, zeros


class SecondMoment(Protocol):
    """A rule U that updates v."""

    def __call__(self, v: Tensor, squares: Tensor) -> Tensor:
        """U(v, ·) for the squared average gradient."""
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

    η and C are those of the phase. The division comes before the clip; the noise comes after it, unscaled. v starts at
    0 without bias correction. Gradients of adaptive steps never update it.

    Variants, the paper's ablations: `noise_first` clips and noises the gradient itself and divides the result.
    `extra_query` has one delay s and no phases. Each step's noised gradient feeds v, which steps 1, s+1, 2s+1 … update
    with the sum over s since the last update. Those steps move along it; the others move along a second query of the
    same batch, divided by D.

    Guarantee: D_t is a function of noised gradients of earlier steps.

    Attributes:
        descent, adaptive: η and weight decay of the phases.
        moment: U.
        phases: which steps are adaptive and after which v changes: the mechanism's own, with s₁, s₂ and the variant.
        eps: ε.
        debias: subtracts the noise's share, Φ/s₁, from ḡ², and clamps the result at 0.

    Source: Li, Zaheer, Liu, Reddi, McMahan & Smith 2023, "Differentially private adaptive optimization with delayed
    preconditioners", Algorithms 1 and 2, Appendix D.
    """

    descent: Descent
    adaptive: Descent
    moment: SecondMoment
    phases: DelayedMechanism
    eps: float
    debias: bool = False

    def init(self, parameters: Parameters) -> State:
        """v = 0 and an empty sum."""
        return named("v", zeros(parameters)) | named("sum", zeros(parameters))

    def divisors(self, state: State, step: int, query: int) -> Mapping[str, Tensor] | None:
        """D in an adaptive query, else None."""
        match self.phases.variant:
            case "delayed":
                divides = self.phases.is_adaptive(step)
            case "extra_query":
                divides = query == 1
            case "noise_first":
                divides = False
            case _:
                assert_never(self.phases.variant)
        return self._roots(state) if divides else None

    def update(
        self, noised: NoisedGradient, state: State, parameters: Parameters, at: StepInfo
    ) -> tuple[Parameters, State]:
        """One step of the current phase."""
        if not self.phases.is_adaptive(at.step):
            self._move(self.descent, parameters, noised, at.step)
            self._feed(noised, state, at)
            return parameters, state
        direction: dict[str, Tensor] = noised
        match self.phases.variant:
            case "delayed":
                pass  # already divided before the clip
            case "noise_first":
                direction = {name: noised[name] / root for name, root in self._roots(state).items()}
            case "extra_query":
                if at.second is None:
                    raise PrivacyError("this step needs a second query, which was not made")
                direction = at.second
                self._feed(noised, state, at)
            case _:
                assert_never(self.phases.variant)
        self._move(self.adaptive, parameters, direction, at.step)
        return parameters, state

    def finish(self, state: State, parameters: Parameters, steps: int) -> Parameters:
        """The parameters unchanged."""
        return parameters

    def _move(self, descent: Descent, parameters: Parameters, direction: dict[str, Tensor], step: int) -> None:
        for u, p in pieces([direction], [parameters]):
            descent.move(p, u, step)

    def _feed(self, noised: NoisedGradient, state: State, at: StepInfo) -> None:
        """Feeds the sum; once the delay is over, v is updated and the sum restarts."""
        delay = self.phases.delay_sgd
        bias = at.noise_variance / delay if self.debias else 0.0
        completes = self.phases.completes(at.step)
        for g, v, fed in pieces([noised], [slot_of(state, "v"), slot_of(state, "sum")]):
            fed.add_(g)
            if completes:
                v.copy_(self.moment(v, (fed / delay).square_().sub_(bias).clamp_(min=0.0)))
                fed.zero_()

    def _roots(self, state: State) -> dict[str, Tensor]:
        return {name: root_(value.clone()).add_(self.eps) for name, value in slot_of(state, "v").items()}
