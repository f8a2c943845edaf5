"""The noise step: the only place where a private gradient sum becomes a NoisedGradient. Optimizers see nothing else."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NewType, Protocol

import torch
from torch import Tensor

from app.errors import PrivacyError
from worker.noise.ahead import StepNoise
from worker.noise.generator import TENSORS, GaussianGenerator
from worker.noise.on_device import add_noise_flat
from worker.noise.release import Address, noised_mean, takes_words
from worker.noise.rounding import add_noise

# Created only in this module. Functions of it and of public numbers are post-processing and cost nothing.
NoisedGradient = NewType("NoisedGradient", dict[str, Tensor])
NoisedCount = NewType("NoisedCount", float)
COUNT_STREAM = TENSORS - 1  # no model has this many tensors

# At most this many numbers of a step are made in advance (512 MiB); the rest are made when needed.
LOOK_AHEAD = 2**26


class GradientRelease(Protocol):
    """Turns one step's private sum into the gradient that the optimizer may see."""

    def noise_variance(self, max_grad_norm: float) -> float:
        """Φ = (s/L)² of a query with this C; 0 without noise. Public."""
        ...

    def prepare(self, parameters: Mapping[str, Tensor], step: int, query: int = 0) -> None:
        """Announces that a query has begun, and its gradient's names and shapes. Noise may be made in the meantime."""
        ...

    def release(
        self, private_sum: dict[str, Tensor], step: int, query: int = 0, max_grad_norm: float | None = None
    ) -> NoisedGradient:
        """The query's noised mean gradient."""
        ...


class GaussianRelease:
    """g̃ = R / L,   R = Σ clip_C(g_i) + N(0, s² I), correctly rounded (worker.noise.rounding),   s ≥ σC · slack.

    Guarantee: if one record changes the sum by at most C · slack, in the ℓ₂ norm over all tensors together, then a step
    is post-processing of one Gaussian mechanism with noise multiplier σ, floating point included. The divisor is the
    public L, never the realized batch. Each step's noise is used once. The same or an earlier step is refused, so
    physical batches are summed first, and another state needs another key. A step may hold several queries, each with
    its own noise: query k of m tensors uses the streams k·m … k·m + m − 1.

    Args:
        key: 32 secret bytes of the job's segment.
        noise_multiplier: σ, the noise's std over the sensitivity.
        max_grad_norm: C, for queries that do not give another.
        expected_batch_size: L.
        sensitivity_slack: a record changes the computed sum by at most this times C (app.privacy.numerics). The noise
            grows by it, so that σ stays the noise's std over the sensitivity.

    Raises:
        PrivacyError: no key, σ or C not positive and finite, L < 1, or a slack below 1.

    Source: Abadi et al. 2016, Algorithm 1, with the expected batch size as divisor.
    """

    def __init__(
        self,
        key: bytes | None,
        *,
        noise_multiplier: float,
        max_grad_norm: float,
        expected_batch_size: int,
        sensitivity_slack: float = 1.0,
    ) -> None:
        if expected_batch_size < 1 or not sensitivity_slack >= 1.0:
            raise PrivacyError("the divisor L and the sensitivity slack must be at least 1")
        self._generator = GaussianGenerator(key)
        self._noise_multiplier, self._max_grad_norm = noise_multiplier * sensitivity_slack, max_grad_norm
        noise_std(self._noise_multiplier, max_grad_norm)
        self._divisor = expected_batch_size
        self._last = (0, 0)
        self._ahead: StepNoise | None = None

    def noise_variance(self, max_grad_norm: float) -> float:
        """Φ = (s/L)² of a query with this C."""
        return (noise_std(self._noise_multiplier, max_grad_norm) / self._divisor) ** 2

    def prepare(self, parameters: Mapping[str, Tensor], step: int, query: int = 0) -> None:
        """Starts another thread on the query's noise. Changes no bit of any release.

        Args:
            parameters: the names, shapes and device that the private sum will have.
            step: the step that has begun.
            query: the number of the query within the step.

        Raises:
            PrivacyError: this query's noise was already used.
        """
        self._check(step, query)
        on_gpu = any(value.is_cuda for value in parameters.values())  # words wait in memory that no step needs
        if on_gpu or sum(value.numel() for value in parameters.values()) <= LOOK_AHEAD:
            ahead = self._noise(parameters, step, query)
            ahead.begin()
            self._ahead = ahead

    def release(
        self, private_sum: dict[str, Tensor], step: int, query: int = 0, max_grad_norm: float | None = None
    ) -> NoisedGradient:
        """The query's noised mean gradient.

        Args:
            private_sum: float64 tensors; their order, the model's own, numbers the noise streams.
            step: the logical step.
            query: the number of the query within the step; (step, query) must increase from call to call.
            max_grad_norm: C of this query, if it differs.

        Raises:
            PrivacyError: this query's noise was already used, or a sum is not float64 or not finite.
        """
        self._check(step, query)
        std = noise_std(self._noise_multiplier, self._max_grad_norm if max_grad_norm is None else max_grad_norm)
        if any(value.dtype != torch.float64 for value in private_sum.values()):
            raise PrivacyError("clipped gradients must be summed in float64")
        self._last = (step, query)
        noise = self._noise(private_sum, step, query)
        if noise.address[3].type != "cpu":
            return self._on_device(private_sum, noise, std)
        noised: dict[str, Tensor] = {}
        for index, ((name, value), each) in enumerate(zip(private_sum.items(), noise.take(), strict=True)):
            address = Address(self._generator.stream, step, query * len(private_sum) + index)
            noised[name] = noised_mean(value, each, std, self._divisor, address)
        return NoisedGradient(noised)

    def _on_device(self, private_sum: dict[str, Tensor], noise: StepNoise, std: float) -> NoisedGradient:
        """The same release on a GPU, of one flat array: it waits for the GPU once."""
        step, first, sizes, _ = noise.address
        values = torch.cat([each.reshape(-1) for each in private_sum.values()])
        z = torch.cat(noise.take())
        parts = add_noise_flat(values, z, std, self._generator.stream, step, first, sizes).div_(self._divisor)
        named = zip(private_sum.items(), parts.split(list(sizes)), strict=True)
        return NoisedGradient({name: part.view_as(value) for (name, value), part in named})

    def _check(self, step: int, query: int) -> None:
        if (step, query) <= self._last or step < 1 or query < 0:
            raise PrivacyError("this step's noise was already used: it covers one gradient only")

    def _noise(self, like: Mapping[str, Tensor], step: int, query: int) -> StepNoise:
        """The noise that was begun for this very step and these shapes, or new noise."""
        device = next((value.device for value in like.values()), torch.device("cpu"))
        sizes, first = tuple(value.numel() for value in like.values()), query * len(like)
        wanted = (step, first, sizes, device)
        ahead, self._ahead = self._ahead, None
        if ahead is not None and ahead.address == wanted:
            return ahead
        if ahead is not None:
            ahead.drop()
        return StepNoise(self._generator, step, sizes, device, first, takes_words(device))


class CountRelease:
    """N = Σ_i (1[‖g_i‖ ≤ C] − ½) + N(0, (σ_c/2)²), correctly rounded: a Gaussian mechanism with noise multiplier σ_c.

    Its noise has its own stream, separate from the step's gradient, and covers one count.

    Args:
        key: 32 secret bytes of the job's segment, the same as the gradient's.
        noise_multiplier: σ_c, the noise's std over the sensitivity ½.
    """

    def __init__(self, key: bytes | None, noise_multiplier: float) -> None:
        self._generator, self._std = GaussianGenerator(key), noise_std(noise_multiplier, 0.5)
        self._last_step = 0

    def release(self, private_count: Tensor, step: int) -> NoisedCount:
        """The noised count. Raises PrivacyError if this step's noise was already used."""
        if step <= self._last_step:
            raise PrivacyError("this step's noise was already used: it covers one count only")
        self._last_step = step
        z = self._generator.noise(step, COUNT_STREAM, 1)
        return NoisedCount(
            float(add_noise(private_count.cpu(), z, self._std, self._generator.stream, step, COUNT_STREAM))
        )


class PublicRelease:
    """g = Σ g_i / L without noise, for data declared public, where no privacy is claimed. Only the plan builds it."""

    def __init__(self, expected_batch_size: int) -> None:
        self._divisor = expected_batch_size

    def noise_variance(self, max_grad_norm: float) -> float:
        """0: there is no noise."""
        return 0.0

    def prepare(self, parameters: Mapping[str, Tensor], step: int, query: int = 0) -> None:
        """Nothing to prepare."""
        pass

    def release(
        self, private_sum: dict[str, Tensor], step: int, query: int = 0, max_grad_norm: float | None = None
    ) -> NoisedGradient:
        """The mean gradient, without noise."""
        return NoisedGradient({name: value / self._divisor for name, value in private_sum.items()})


def noise_std(noise_multiplier: float, max_grad_norm: float) -> float:
    """s ≥ σC, with C the sensitivity: a product may be rounded down.

    Raises:
        PrivacyError: σ or C is not positive and finite, or so near the limits of floating point that the noise would
            round to zero.
    """
    std = math.nextafter(noise_multiplier * max_grad_norm, math.inf)
    if not (1e-100 < max_grad_norm < 1e100 and 1e-100 < std < 1e100):
        raise PrivacyError("noise needs σ > 0 and C > 0 that floating point resolves")
    return std
