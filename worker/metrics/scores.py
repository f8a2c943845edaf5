"""Scores of a model: exact on public data, noisy sums on private data."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from app.errors import PrivacyError
from app.privacy.mechanism import NoisySum
from worker.data.records import Records
from worker.models.base import Model, Parameters
from worker.noise.generator import GaussianGenerator
from worker.noise.rounding import add_noise


@dataclass(frozen=True)
class Score:
    """A number that may leave the attempt.

    Attributes:
        std: of the noise on `value`, 0 where it is exact. A function of what was released.
        noise_std: of the noise on the sums behind it, which is what was charged.
    """

    name: str
    value: float
    std: float
    noise_std: float = 0.0


def public_scores(model: Model, parameters: Parameters, records: Records) -> list[Score]:
    """Exact means over public records: accuracy and cross-entropy, or the squared error. None of no records."""
    if len(records) == 0:
        return []
    outputs = model.forward(parameters, records)
    if not model.classification:
        return [Score("loss", float(model.squared_errors(outputs, records.labels).mean()), 0.0)]
    accuracy = float(model.correct(outputs, records.labels).double().mean())
    return [Score("accuracy", accuracy, 0.0), Score("loss", float(model.losses(outputs, records.labels).mean()), 0.0)]


def public_training_loss(model: Model, parameters: Parameters, batches: Sequence[Records]) -> Score:
    """The exact mean loss over public training records."""
    total = sum(float(model.losses(model.forward(parameters, each), each.labels).sum()) for each in batches)
    return Score("training_loss", total / max(1, sum(len(each) for each in batches)), 0.0)


def noisy_score(
    release: NoisySum, key: bytes, step: int, index: int, model: Model, parameters: Parameters, records: Records
) -> Score:
    """A mean over private records, from two noisy sums: a = S̃ / (S̃ + M̃), times Δ.

    Each record adds s ∈ [0, Δ] to S and what is missing, Δ − s, to M. accuracy: s counts correct predictions, Δ = 1.
    loss: s is the squared error clipped to [0, Δ], Δ = `sensitivity`; an error that is not a number counts as Δ.
    S̃ and M̃ get independent noise N(0, (kΔ/μ)²), where a unit has at most k records.

    Guarantee: one record changes (S, M) by (s, Δ − s), whose ℓ₂ norm is at most Δ, so that both sums together are one
    Gaussian mechanism, μ-GDP: the second one costs nothing. A user's k records change it by kΔ, and the
    noise is k times as large. Dividing by a public count instead would be off by what
    the hash split happens to hold out (5,000 ± 63 of 25,000), more than the noise. Decision record 5.

    Args:
        release: what the mechanism declares: what, Δ, μ.
        key: the release key of the segment, 32 bytes.
        step: the step after which this is measured.
        index: which of the mechanism's releases this is; (step, index) is used for one pair of values only.
        records: the private hold-out.

    Returns:
        the score, clamped to [0, Δ], and the std of the noise on it, Δ/μ · √(a² + (1−a)²) · Δ / (S̃ + M̃).

    Raises:
        PrivacyError: the declared sensitivity is not that of what is measured.
    """
    bound, noise_std = release.sensitivity, release.noise_std
    if not (1e-100 < bound < 1e100 and 1e-100 < noise_std < 1e100):
        raise PrivacyError("a noisy sum needs a sensitivity and a noise that floats resolve")
    private_sum, private_rest = _private_sums(release, model, parameters, records)
    sums = torch.tensor([private_sum, private_rest], dtype=torch.float64)
    generator = GaussianGenerator(key)
    noise = generator.noise(step, index, 2)
    noisy_sum, noisy_rest = add_noise(sums, noise, noise_std, generator.stream, step, index).tolist()
    total = max(noisy_sum + noisy_rest, noise_std)  # a hold-out smaller than its noise says nothing, loudly
    share = min(max(noisy_sum / total, 0.0), 1.0)
    std = noise_std * math.hypot(share, 1.0 - share) / total
    return Score(release.what, share * bound, std * bound, noise_std)


def _private_sums(release: NoisySum, model: Model, parameters: Parameters, records: Records) -> tuple[float, float]:
    """Σ s and Σ (Δ − s)."""
    outputs = model.forward(parameters, records)
    if release.what == "accuracy":
        if not model.classification or release.sensitivity != 1.0:
            raise PrivacyError("a count of correct predictions has sensitivity 1 and needs classes")
        parts = model.correct(outputs, records.labels).double()
    elif model.classification:
        raise PrivacyError("the noisy loss is that of a regression")
    else:
        parts = _clipped(model.squared_errors(outputs, records.labels), release.sensitivity)
    return float(parts.sum()), float((release.sensitivity - parts).sum())


def _clipped(errors: Tensor, bound: float) -> Tensor:
    return torch.nan_to_num(errors, nan=bound, posinf=bound).clamp_(min=0.0, max=bound)
