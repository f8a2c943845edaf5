"""Residuals of a linear model's pass: computed, measured, clipped and scaled, each operation rounded once.

Compiled (core/native/linear.c), or by the same operations here: the bits are the same on any machine. A row's numbers
depend on that row alone.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from worker.clipping.engine import AUTOMATIC_GAMMA, ClippingKind, clip_factors
from worker.data.lengths import one_by_one
from worker.data.norms import exact_root_bound, product_bound
from worker.native.linear_steps import LINEAR, ClipNumbers

TAYLOR = [1.0 / math.factorial(degree) for degree in range(13, -1, -1)]
LOWEST = -708.0  # e^x below counts as e^LOWEST
LN2_HIGH, LN2_LOW = float.fromhex("0x1.62e42feep-1"), float.fromhex("0x1.a39ef35793c76p-33")
SHIFT = 1.5 * 2.0**52  # leaves the nearest integer in the lowest bits
SHIFT_BITS = int(torch.tensor(SHIFT, dtype=torch.float64).view(torch.int64))


@dataclass(frozen=True)
class Query:
    """How residuals are clipped; public.

    Attributes:
        kind: None: nothing is clipped.
        norm: C of a record.
        bias: the model has one.
        longest: a longer record counts as not finite.
    """

    kind: ClippingKind | None
    norm: float = 1.0
    bias: bool = False
    longest: float = math.inf


def clipped_residuals(
    outputs: Tensor, labels: Tensor, lengths: Tensor, present: Tensor, query: Query
) -> tuple[Tensor, Tensor]:
    """The residuals, scaled so that residual ⊗ (x, 1) is clipped; and upper bounds of the norms before.

    A residual is softmax(f) − e_y for K > 1 outputs, and f − y for one. Rows that are not `present` become 0, as do
    gradients that are not finite. Where nothing is clipped, empty rows alone become 0, and norms are 0.

    Args:
        outputs: f, (K, P), float32 or float64.
        labels: (P,).
        lengths: upper bounds of ‖x‖, float64 (P,).
        present: bool (P,).

    Returns:
        float64 (K, P), row after row in memory, and (P,).
    """
    out = torch.empty(outputs.T.shape, dtype=torch.float64)
    norms = torch.zeros(len(out), dtype=torch.float64)
    kind = 0.0 if query.kind is None else 2.0 if query.kind == "automatic" else 1.0
    numbers = ClipNumbers(kind, query.norm, AUTOMATIC_GAMMA, float(query.bias), query.longest)
    if LINEAR is not None and LINEAR.clip(out, norms, outputs, labels, lengths, present, numbers):
        return out.T, norms
    residuals, norms = _clipped(outputs, labels, lengths, present, query)
    return out.copy_(residuals.T).T, norms


def _clipped(outputs: Tensor, labels: Tensor, lengths: Tensor, present: Tensor, query: Query) -> tuple[Tensor, Tensor]:
    f = outputs.double()
    residuals = f - labels if len(f) == 1 else _of_classes(f, labels)
    weights = present.double()
    if query.kind is None:
        return residuals * weights, torch.zeros(f.shape[1], dtype=torch.float64)
    lengths = lengths.masked_fill(lengths > query.longest, torch.inf)
    if query.bias:
        lengths = exact_root_bound(lengths * lengths + 1.0, 2)
    norms = product_bound(exact_root_bound(one_by_one(each * each for each in residuals), len(residuals)), lengths)
    factors = clip_factors(norms, query.kind, query.norm) * weights
    # A factor 0 is not enough: 0 · NaN is NaN.
    return torch.where(factors > 0.0, residuals * factors, 0.0), norms


def _of_classes(f: Tensor, labels: Tensor) -> Tensor:
    highest = f[0]
    for column in f[1:]:
        highest = torch.where(column > highest, column, highest)
    powers = exponential(f - highest)
    shares = powers / one_by_one(powers)
    return shares.scatter_add_(0, labels[None], torch.full_like(highest, -1.0)[None])


def exponential(x: Tensor) -> Tensor:
    """eˣ for x ≤ 0, within a few roundings; at least e^LOWEST. NaN stays NaN."""
    x = torch.where(x < LOWEST, LOWEST, x)
    shifted = x * math.log2(math.e) + SHIFT
    n = shifted - SHIFT
    remainder = (x - n * LN2_HIGH) - n * LN2_LOW
    total = torch.full_like(x, TAYLOR[0])
    for coefficient in TAYLOR[1:]:
        total = total * remainder + coefficient
    power = ((shifted.view(torch.int64) - SHIFT_BITS + 1023) << 52).view(torch.float64)
    return total * power
