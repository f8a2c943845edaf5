"""The noise step: the only place where a private gradient sum becomes a NoisedGradient. Optimizers see nothing else."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NewType, Protocol

import torch
from torch import Tensor

from core.errors import PrivacyError
from worker.data.placed import device_of
from worker.data.shards import Shards, Span
from worker.noise.correlated import correlated_mean
from worker.noise.generator import TENSORS, GaussianGenerator
from worker.noise.noise_prefetch import StepNoise
from worker.noise.on_device import noised_on_device
from worker.noise.release import Address, noised_in_place, noised_means, takes_words
from worker.noise.rounding import add_noise

# Created only in this module. Functions of it and of public numbers are post-processing and cost nothing.
NoisedGradient = NewType("NoisedGradient", dict[str, Tensor])
NoisedCount = NewType("NoisedCount", float)
COUNT_STREAM = TENSORS - 1  # no model has this many tensors

# The noise of at most this many numbers of a step is made in advance, in memory of its own (64 MiB). More is made piece
# by piece as it is added: a large model's step leaves no core idle meanwhile, and needs the memory.
LOOK_AHEAD = 2**23


class GradientRelease(Protocol):
    """Turns one step's private sum into the gradient that the optimizer may see."""

    def noise_variance(self, max_grad_norm: float) -> float:
        """Φ = (s/L)² of a query with this C; 0 without noise. Public."""
        ...

    def prepare(
        self, parameters: Mapping[str, Tensor], step: int, query: int = 0, shards: Shards | None = None
    ) -> None:
        """Announces that a query has begun, and its gradient's names and shapes. Noise may be made in the meantime."""
        ...

    def release(
        self,
        private_sum: dict[str, Tensor],
        step: int,
        query: int = 0,
        max_grad_norm: float | None = None,
        shards: Shards | None = None,
    ) -> NoisedGradient:
        """The query's noised mean gradient; with shards, of what this rank owns, which is all that its sum has."""
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
        sensitivity_slack: a record changes the computed sum by at most this times C (core.privacy.numerics). The noise
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

    def prepare(
        self, parameters: Mapping[str, Tensor], step: int, query: int = 0, shards: Shards | None = None
    ) -> None:
        """Starts another thread on the query's noise; a GPU makes it with the release. Changes no bit of any release.

        Args:
            parameters: the model's tensors: their names, shapes and device.
            step: the step that has begun.
            query: the number of the query within the step.
            shards: what this rank owns of them; None: all.

        Raises:
            PrivacyError: this query's noise was already used.
        """
        self._check(step, query)
        spans = _spans(parameters, query, shards)
        if device_of(parameters).type == "cpu" and sum(span.count for span in spans) <= LOOK_AHEAD:
            self._begun(spans, step)  # drops what another query left
            self._ahead = self._noise(spans, step)
            self._ahead.begin()

    def release(
        self,
        private_sum: dict[str, Tensor],
        step: int,
        query: int = 0,
        max_grad_norm: float | None = None,
        shards: Shards | None = None,
    ) -> NoisedGradient:
        """The query's noised mean gradient.

        Args:
            private_sum: float64 tensors; the model's order numbers the noise streams. More than LOOK_AHEAD numbers, and
                those on a GPU, are overwritten: they become the result.
            step: the logical step.
            query: the number of the query within the step; (step, query) must increase from call to call.
            max_grad_norm: C of this query, if it differs.
            shards: of the model, if the sum is of what this rank owns; None: it is the whole.

        Raises:
            PrivacyError: this query's noise was already used, or a sum is not float64, not finite, or not what this
                rank owns.
        """
        self._check(step, query)
        std = noise_std(self._noise_multiplier, self._max_grad_norm if max_grad_norm is None else max_grad_norm)
        _check_sum(private_sum, shards)
        self._last = (step, query)
        spans = _spans(private_sum, query, shards)
        if [each.numel() for each in private_sum.values()] != [span.count for span in spans]:
            raise PrivacyError("a private sum has one word of noise for each number that this rank owns")
        noise = self._begun(spans, step)
        addresses = [Address(self._generator.stream, step, span.tensor, span.first) for span in spans]
        if device_of(private_sum).type != "cpu":
            means = noised_on_device(list(private_sum.values()), std, self._divisor, addresses)
            return NoisedGradient(dict(zip(private_sum, means, strict=True)))
        if noise is None and takes_words() and sum(span.count for span in spans) > LOOK_AHEAD:
            items = zip(private_sum.items(), addresses, strict=True)
            return NoisedGradient({n: noised_in_place(value, std, self._divisor, at) for (n, value), at in items})
        noise = noise or self._noise(spans, step)
        means = noised_means(list(private_sum.values()), noise.take(), std, self._divisor, addresses)
        return NoisedGradient(dict(zip(private_sum, means, strict=True)))

    def _check(self, step: int, query: int) -> None:
        if (step, query) <= self._last or step < 1 or query < 0:
            raise PrivacyError("this step's noise was already used: it covers one gradient only")

    def _begun(self, spans: tuple[Span, ...], step: int) -> StepNoise | None:
        """The noise that was begun for this very step and these numbers; other noise is dropped."""
        ahead, self._ahead = self._ahead, None
        if ahead is None or ahead.address == (step, spans):
            return ahead
        ahead.drop()
        return None

    def _noise(self, spans: tuple[Span, ...], step: int) -> StepNoise:
        return StepNoise(self._generator, step, spans, takes_words())


def _check_sum(private_sum: dict[str, Tensor], shards: Shards | None) -> None:
    if any(value.dtype != torch.float64 for value in private_sum.values()):
        raise PrivacyError("clipped gradients must be summed in float64")
    if shards is not None and list(private_sum) != list(shards.own):
        raise PrivacyError("a rank may noise what it owns, and must noise all of it")


def _spans(like: Mapping[str, Tensor], query: int, shards: Shards | None) -> tuple[Span, ...]:
    """The noise of one query: of all numbers of these tensors, or of those that this rank owns. The streams of query k
    of m tensors begin at k·m."""
    if shards is None:
        return tuple(Span(query * len(like) + at, 0, each.numel()) for at, each in enumerate(like.values()))
    first = query * len(shards.shapes)
    return tuple(Span(first + span.tensor, span.first, span.count) for span in shards.own.values())


class CorrelatedRelease(GaussianRelease):
    """g̃_t = R_t / L,   R_t = Σ clip_C(g_i) + s (z_t − λ z_{t−1}), correctly rounded, with z = 0 before the first step.

    Guarantee: together, the steps under this key are post-processing of the mechanism that
    core.privacy.correlated_price prices, if `noise_multiplier` is σ times its stretch. z_{t−1} is made again of its
    words: nothing is kept between steps, and a step replays bit for bit.

    Args:
        decay: λ in (0, 1).
        first_step: the first step under this key.
        noise_multiplier: s / C. The others: see GaussianRelease.

    Source: Kalinin, McKenna, Pagh & Lampert 2026, DP-λCGD.
    """

    def __init__(
        self,
        key: bytes | None,
        *,
        decay: float,
        first_step: int,
        noise_multiplier: float,
        max_grad_norm: float,
        expected_batch_size: int,
        sensitivity_slack: float = 1.0,
    ) -> None:
        if not 0.0 < decay < 1.0 or first_step < 1:
            raise PrivacyError("correlated noise needs a decay between 0 and 1 and a first step")
        super().__init__(
            key,
            noise_multiplier=noise_multiplier,
            max_grad_norm=max_grad_norm,
            expected_batch_size=expected_batch_size,
            sensitivity_slack=sensitivity_slack,
        )
        self._decay, self._last, self._first = decay, (first_step - 1, 0), first_step

    def noise_variance(self, max_grad_norm: float) -> float:
        """Φ = (1 + λ²)(s/L)² of a step after the first."""
        return super().noise_variance(max_grad_norm) * (1.0 + self._decay**2)

    def prepare(
        self, parameters: Mapping[str, Tensor], step: int, query: int = 0, shards: Shards | None = None
    ) -> None:
        """Checks the step; the noise is made with the release."""
        self._check(step, query)

    def release(
        self,
        private_sum: dict[str, Tensor],
        step: int,
        query: int = 0,
        max_grad_norm: float | None = None,
        shards: Shards | None = None,
    ) -> NoisedGradient:
        """The step's noised mean gradient; see GaussianRelease.release.

        Raises:
            PrivacyError: also if a second query or another norm is asked for, which nothing prices.
        """
        self._check(step, query)
        if query != 0 or max_grad_norm not in (None, self._max_grad_norm):
            raise PrivacyError("correlated noise covers one query of a step, at one clipping norm")
        _check_sum(private_sum, shards)
        self._last = (step, query)
        std = noise_std(self._noise_multiplier, self._max_grad_norm)
        noised: dict[str, Tensor] = {}
        for (name, value), span in zip(private_sum.items(), _spans(private_sum, query, shards), strict=True):
            noised[name] = correlated_mean(
                value, self._generator, std, self._decay, self._divisor, step=step, span=span, first_step=self._first
            )
        return NoisedGradient(noised)


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

    def prepare(
        self, parameters: Mapping[str, Tensor], step: int, query: int = 0, shards: Shards | None = None
    ) -> None:
        """Nothing to prepare."""
        pass

    def release(
        self,
        private_sum: dict[str, Tensor],
        step: int,
        query: int = 0,
        max_grad_norm: float | None = None,
        shards: Shards | None = None,
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
