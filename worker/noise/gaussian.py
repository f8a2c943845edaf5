"""The noise step: the one place where a private sum of gradients becomes a NoisedGradient, all that optimizers see."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NewType, Protocol

import torch
from torch import Tensor

from app.errors import PrivacyError
from worker.noise.ahead import StepNoise
from worker.noise.generator import GaussianGenerator
from worker.noise.rounding import add_noise

# Made here only. A function of it and of public numbers is post-processing and costs nothing.
NoisedGradient = NewType("NoisedGradient", dict[str, Tensor])

# Numbers of a step that are made ahead at most (512 MiB); more are made when they are needed.
LOOK_AHEAD = 2**26


class GradientRelease(Protocol):
    """Turns one step's private sum into what the optimizer may see."""

    def prepare(self, parameters: Mapping[str, Tensor], step: int) -> None:
        """Says that the step has begun, and what its gradient will look like: noise may be made in the meantime."""
        ...

    def release(self, private_sum: dict[str, Tensor], step: int) -> NoisedGradient: ...


class GaussianRelease:
    """g̃ = R / L,   R = Σ clip_C(g_i) + N(0, s² I), correctly rounded (worker.noise.rounding),   s ≥ σC.

    Guarantee: where one record changes the sum by at most C in the ℓ₂ norm over all tensors together, a step is
    post-processing of one Gaussian mechanism with noise multiplier σ, floating point included. The divisor is the
    public L, never the realized batch. Each step's noise is used once: the same or an earlier step is refused, so
    physical batches are summed first, and another state needs another key.

    Args:
        key: 32 secret bytes of the job's segment.
        noise_multiplier: σ, the noise's std over the sensitivity C.
        max_grad_norm: C.
        expected_batch_size: L.

    Raises:
        PrivacyError: no key, σ or C that is not positive and finite, L < 1.

    Source: Abadi et al. 2016, Algorithm 1, with the expected batch size as divisor.
    """

    def __init__(
        self, key: bytes | None, *, noise_multiplier: float, max_grad_norm: float, expected_batch_size: int
    ) -> None:
        std = math.nextafter(noise_multiplier * max_grad_norm, math.inf)  # a product may have been rounded down
        # Far inside the range of normal floats: near its ends a product rounds to nothing, and the noise with it.
        if not (1e-100 < max_grad_norm < 1e100 and 1e-100 < std < 1e100 and expected_batch_size >= 1):
            raise PrivacyError("noise needs σ > 0 and C > 0 that floats resolve, and L ≥ 1")
        self._generator = GaussianGenerator(key)
        self._std = std
        self._divisor = expected_batch_size
        self._last_step = 0
        self._ahead: StepNoise | None = None

    def prepare(self, parameters: Mapping[str, Tensor], step: int) -> None:
        """Has another thread make the step's noise from now on. Changes no bit of any release.

        Args:
            parameters: in names, shapes and device as the private sum will be.
            step: the step that has begun.

        Raises:
            PrivacyError: noise of this step was already used.
        """
        self._check(step)
        if sum(value.numel() for value in parameters.values()) <= LOOK_AHEAD:
            ahead = self._noise(parameters, step)
            ahead.begin()
            self._ahead = ahead

    def release(self, private_sum: dict[str, Tensor], step: int) -> NoisedGradient:
        """The step's noised mean gradient.

        Args:
            private_sum: float64 tensors; their order, the model's own, numbers the noise streams.
            step: the logical step, larger than every one before.

        Raises:
            PrivacyError: noise of this step was already used, or a sum is not in float64, or not finite.
        """
        self._check(step)
        if any(value.dtype != torch.float64 for value in private_sum.values()):
            raise PrivacyError("clipped gradients are summed in float64")
        self._last_step = step
        noise = self._noise(private_sum, step)
        noised: dict[str, Tensor] = {}
        for index, ((name, value), z) in enumerate(zip(private_sum.items(), noise.take(), strict=True)):
            total = add_noise(value, z, self._std, self._generator.stream, step, index)
            noised[name] = total.div_(self._divisor)
        return NoisedGradient(noised)

    def _check(self, step: int) -> None:
        if step <= self._last_step:
            raise PrivacyError("the noise of a step covers one gradient only")

    def _noise(self, like: Mapping[str, Tensor], step: int) -> StepNoise:
        """What was begun for this very step and these shapes, or a new one."""
        device = next((value.device for value in like.values()), torch.device("cpu"))
        wanted = (step, tuple(value.numel() for value in like.values()), device)
        ahead, self._ahead = self._ahead, None
        if ahead is not None and ahead.address == wanted:
            return ahead
        if ahead is not None:
            ahead.drop()
        return StepNoise(self._generator, step, wanted[1], device)


class PublicRelease:
    """g = Σ g_i / L without noise: for data declared public, where no privacy is claimed. Built by the plan alone."""

    def __init__(self, expected_batch_size: int) -> None:
        self._divisor = expected_batch_size

    def prepare(self, parameters: Mapping[str, Tensor], step: int) -> None:
        pass

    def release(self, private_sum: dict[str, Tensor], step: int) -> NoisedGradient:
        return NoisedGradient({name: value / self._divisor for name, value in private_sum.items()})
