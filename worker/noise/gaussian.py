"""The noise step: the one place where a private sum of gradients becomes a NoisedGradient, all that optimizers see."""

from __future__ import annotations

from typing import NewType, Protocol

from torch import Tensor

from app.errors import PrivacyError
from worker.noise.generator import GaussianGenerator

# Made here only. A function of it and of public numbers is post-processing and costs nothing.
NoisedGradient = NewType("NoisedGradient", dict[str, Tensor])


class GradientRelease(Protocol):
    """Turns one step's private sum into what the optimizer may see."""

    def release(self, private_sum: dict[str, Tensor], step: int) -> NoisedGradient: ...


class GaussianRelease:
    """g̃ = (Σ clip_C(g_i) + z) / L,   z ~ N(0, σ²C² I).

    Guarantee: where one record changes the sum by at most C in the ℓ₂ norm over all tensors together, a step is one
    Gaussian mechanism with noise multiplier σ. The divisor is the public L, never the realized batch. Each step's
    noise is used once: the same or an earlier step is refused, so physical batches are summed first, and another state
    needs another key.

    Args:
        key: 32 secret bytes of the job's segment.
        noise_multiplier: σ, the noise's std over the sensitivity C.
        max_grad_norm: C.
        expected_batch_size: L.
        sum_of_four: see GaussianGenerator.

    Raises:
        PrivacyError: no key, σ or C that is not positive and finite, L < 1.

    Source: Abadi et al. 2016, Algorithm 1, with the expected batch size as divisor.
    """

    def __init__(
        self,
        key: bytes | None,
        *,
        noise_multiplier: float,
        max_grad_norm: float,
        expected_batch_size: int,
        sum_of_four: bool = True,
    ) -> None:
        std = noise_multiplier * max_grad_norm
        # Far inside the range of normal floats: near its ends a product rounds to nothing, and the noise with it.
        if not (1e-100 < max_grad_norm < 1e100 and 1e-100 < std < 1e100 and expected_batch_size >= 1):
            raise PrivacyError("noise needs σ > 0 and C > 0 that floats resolve, and L ≥ 1")
        self._generator = GaussianGenerator(key, sum_of_four=sum_of_four)
        self._std = std
        self._divisor = expected_batch_size
        self._last_step = 0

    def release(self, private_sum: dict[str, Tensor], step: int) -> NoisedGradient:
        """The step's noised mean gradient.

        Args:
            private_sum: float64 tensors; their order, the model's own, numbers the noise streams.
            step: the logical step, larger than every one before.

        Raises:
            PrivacyError: noise of this step was already used, or a sum is not in float64.
        """
        if step <= self._last_step:
            raise PrivacyError("the noise of a step covers one gradient only")
        self._last_step = step
        noised: dict[str, Tensor] = {}
        for index, (name, value) in enumerate(private_sum.items()):
            if value.dtype.itemsize != 8:
                raise PrivacyError("clipped gradients are summed in float64")
            noise = self._generator.noise(step, index, value.numel()).view_as(value)
            noised[name] = noise.mul_(self._std).add_(value).div_(self._divisor)
        return NoisedGradient(noised)


class PublicRelease:
    """g = Σ g_i / L without noise: for data declared public, where no privacy is claimed. Built by the plan alone."""

    def __init__(self, expected_batch_size: int) -> None:
        self._divisor = expected_batch_size

    def release(self, private_sum: dict[str, Tensor], step: int) -> NoisedGradient:
        return NoisedGradient({name: value / self._divisor for name, value in private_sum.items()})
