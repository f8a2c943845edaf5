"""Scores of a model: exact on public data, noisy sums on private data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from app.errors import PrivacyError
from app.privacy.mechanism import NoisySum
from worker.data.records import Records
from worker.models.base import Parameters
from worker.models.linear import Linear
from worker.noise.generator import GaussianGenerator


@dataclass(frozen=True)
class Score:
    """A number that may leave the attempt. `std`: of the noise on `value`, 0 where it is exact."""

    name: str
    value: float
    std: float


def public_scores(model: Linear, parameters: Parameters, records: Records) -> list[Score]:
    """Exact means over public records: accuracy and cross-entropy, or the squared error. None of no records."""
    if len(records) == 0:
        return []
    outputs = model.forward(parameters, records)
    if not model.classification:
        return [Score("loss", float(model.squared_errors(outputs, records.labels).mean()), 0.0)]
    accuracy = float(model.correct(outputs, records.labels).double().mean())
    return [Score("accuracy", accuracy, 0.0), Score("loss", float(model.losses(outputs, records.labels).mean()), 0.0)]


def public_training_loss(model: Linear, parameters: Parameters, batches: Sequence[Records]) -> Score:
    """The exact mean loss over public training records."""
    total = sum(float(model.losses(model.forward(parameters, each), each.labels).sum()) for each in batches)
    return Score("training_loss", total / max(1, sum(len(each) for each in batches)), 0.0)


def noisy_score(
    release: NoisySum, key: bytes, step: int, index: int, model: Linear, parameters: Parameters, records: Records
) -> Score:
    """A sum over private records, with noise: min(max(s + N(0, (Δ/μ)²), 0), n·Δ) / n.

    accuracy: s counts correct predictions, Δ = 1. loss: s adds squared errors clipped to [0, Δ], Δ = `sensitivity`; an
    error that is not a number counts as Δ.

    Guarantee: one record changes s by at most Δ, so this is a Gaussian mechanism, μ-GDP. n is the public count of the
    mechanism, never the records' own.

    Args:
        release: what the mechanism declares: what, Δ, μ, n.
        key: the release key of the segment, 32 bytes.
        step: the step after which this is measured.
        index: which of the mechanism's releases this is; (step, index) is used for one value only.
        records: the private hold-out.

    Returns:
        the score and the std of its noise, Δ / (μ n).

    Raises:
        PrivacyError: the declared sensitivity is not that of what is measured.
    """
    private_sum = _private_sum(release, model, parameters, records)
    std = release.sensitivity / release.noise_mu
    noise = float(GaussianGenerator(key).noise(step, index, 1)[0])
    noisy = min(max(private_sum + std * noise, 0.0), release.records * release.sensitivity)
    return Score(release.what, noisy / release.records, std / release.records)


def _private_sum(release: NoisySum, model: Linear, parameters: Parameters, records: Records) -> float:
    outputs = model.forward(parameters, records)
    if release.what == "accuracy":
        if not model.classification or release.sensitivity != 1.0:
            raise PrivacyError("a count of correct predictions has sensitivity 1 and needs classes")
        return float(model.correct(outputs, records.labels).sum())
    if model.classification:
        raise PrivacyError("the noisy loss is that of a regression")
    errors = model.squared_errors(outputs, records.labels)
    return float(_clipped(errors, release.sensitivity).sum())


def _clipped(errors: Tensor, bound: float) -> Tensor:
    return torch.nan_to_num(errors, nan=bound, posinf=bound).clamp_(min=0.0, max=bound)
