"""Clip factors from the lengths of a pass's gradients, for groups of parameters."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from core.errors import PrivacyError
from worker.clipping.accumulators import LONGEST, Lengths, bounded
from worker.clipping.engine import AUTOMATIC_GAMMA, ClippingKind, clip_factors, half_count
from worker.data.norms import root_bound, root_growth
from worker.native import gpu_pass
from worker.native.flat_steps import STEPS, MeasuredNumbers

KINDS: dict[ClippingKind, float] = {"flat": 1.0, "per_layer": 1.0, "automatic": 2.0}  # as in steps.c


class Factors(NamedTuple):
    """A group's clip factors, 0 for empty rows and for records whose gradients are not finite.

    Attributes:
        wide: float64 (n,).
        narrow: the same, rounded to float32.
    """

    wide: Tensor
    narrow: Tensor


class PassFactors(NamedTuple):
    """What clips one pass.

    Attributes:
        of: each parameter's factors; a group's parameters share theirs.
        within: Σ_i (1[‖g_i‖ ≤ C] − ½), float64 (1,). Counting engines clip flat: all factors are the same.
    """

    of: dict[str, Factors]
    within: Tensor


def pass_factors(
    measured: Mapping[str, Lengths],
    trainable: Iterable[str],
    kind: ClippingKind,
    max_grad_norm: float,
    weights: Tensor,
) -> PassFactors:
    """The factors of a pass's records: 0 everywhere for a record whose gradient is not finite.

    Args:
        measured: the lengths of the parameters that have a gradient.
        trainable: the names of all parameters.
        kind: with "per_layer" each layer's parameters form a group; otherwise all parameters form one.
        max_grad_norm: C; each of m groups gets the share C/√m.
        weights: float64 (P,), 0 for an empty row.
    """
    layers = _layers(trainable) if kind == "per_layer" else {"": list(trainable)}
    groups = [present for names in layers.values() if (present := [name for name in names if name in measured])]
    share = max_grad_norm / math.sqrt(len(layers))
    lengths = [[measured[name] for name in names] for names in groups]
    if not groups:
        return PassFactors({}, weights.new_zeros(1))
    if weights.device.type == "cuda":
        factors, within = _on_gpu(lengths, kind, share, weights)
    else:
        factors, within = _compiled(lengths, kind, share, weights) or _by_torch(lengths, kind, share, weights)
    return PassFactors({name: factor for names, factor in zip(groups, factors, strict=True) for name in names}, within)


def _by_torch(
    groups: Sequence[Sequence[Lengths]], kind: ClippingKind, share: float, weights: Tensor
) -> tuple[list[Factors], Tensor]:
    bounds = [_norm_bound(each) for each in groups]
    finite = torch.stack([torch.isfinite(each) for each in bounds]).all(dim=0)
    weighted = [torch.where(finite, clip_factors(bound, kind, share), 0.0) * weights for bound in bounds]
    return [Factors(each, each.float()) for each in weighted], half_count(weighted[0])


def _on_gpu(
    groups: Sequence[Sequence[Lengths]], kind: ClippingKind, share: float, weights: Tensor
) -> tuple[list[Factors], Tensor]:
    if not _fit(groups, weights):
        raise PrivacyError("lengths do not fit the rows whose factors a GPU computes")
    growth = root_growth(max(map(len, groups)))
    wide, narrow, within = gpu_pass.clip_factors(_numbers(groups), weights, growth, _query(kind, share))
    return [Factors(*each) for each in zip(wide, narrow, strict=True)], within


def _compiled(
    groups: Sequence[Sequence[Lengths]], kind: ClippingKind, share: float, weights: Tensor
) -> tuple[list[Factors], Tensor] | None:
    """The bits of torch in two calls; None where it is not for these, as of one record, whose lengths torch adds as a
    vector."""
    is_here = weights.device.type == "cpu" and weights.shape[0] > 1
    if STEPS is None or not is_here or not _fit(groups, weights):
        return None
    wide, narrow, within = STEPS.clip_factors(_numbers(groups), weights, _query(kind, share))
    return [Factors(*each) for each in zip(wide, narrow, strict=True)], weights.new_full((1,), within)


def _query(kind: ClippingKind, share: float) -> tuple[float, float, float]:
    return KINDS[kind], share, AUTOMATIC_GAMMA


def _numbers(groups: Sequence[Sequence[Lengths]]) -> list[list[MeasuredNumbers]]:
    return [[_numbers_of(each) for each in group] for group in groups]


def _numbers_of(lengths: Lengths) -> MeasuredNumbers:
    """A share is of the squares; 1.0 where the slack is its own."""
    slacks = lengths.slack if isinstance(lengths.slack, Tensor) else None
    pointer, share = (None, lengths.slack) if slacks is None else (slacks.data_ptr(), 1.0)
    return MeasuredNumbers(lengths.numbers.data_ptr(), pointer, share, LONGEST**2 if lengths.narrow else math.inf)


def _fit(groups: Sequence[Sequence[Lengths]], weights: Tensor) -> bool:
    tensors = [each.numbers for group in groups for each in group]
    tensors += [each.slack for group in groups for each in group if isinstance(each.slack, Tensor)]
    return all(_fits(each, weights) for each in (weights, *tensors))


def _fits(numbers: Tensor, weights: Tensor) -> bool:
    is_whole = numbers.shape == weights.shape and numbers.is_contiguous()
    return is_whole and numbers.dtype == torch.float64 and numbers.device == weights.device


def _norm_bound(measured: Sequence[Lengths]) -> Tensor:
    """√(Σ squares + the rounding bound), never too small. Sums of squares that cancel are clamped at 0."""
    squares, slack = bounded(measured)
    return root_bound(squares.clamp_(min=0.0).add_(slack).sum(dim=0), len(measured))


def _layers(trainable: Iterable[str]) -> dict[str, list[str]]:
    """The parameters of each layer, by the name of the first module that holds them."""
    layers: dict[str, list[str]] = {}
    for name in trainable:
        layers.setdefault(name.rpartition(".")[0], []).append(name)
    return layers
