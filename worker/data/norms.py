"""Norms that are never too small: a clipped record must weigh at most C in truth, not only in floating point."""

from __future__ import annotations

import torch
from torch import Tensor

TINY = torch.finfo(torch.float64).tiny  # what squares may lose by underflow
ROUNDING = 2.0**-52


def norm_bound(vectors: Tensor, dim: int) -> Tensor:
    """Upper bounds of ℓ₂ norms along a dimension of size m, within a relative (m + 8)·2⁻⁵² of them.

    The squares and their sum, in any order, lose at most m + 1 roundings of 2⁻⁵³ each, the root halves that and adds
    one; underflow is covered by the smallest normal number. Squares that overflow give ∞, which counts as not finite.

    Args:
        vectors: float64 (n, m) or (m, n).
        dim: the dimension to add over.

    Returns:
        float64 (n,); NaN or ∞ where a vector is not finite.
    """
    return root_bound((vectors * vectors).sum(dim=dim), vectors.shape[dim])


def root_bound(square_sums: Tensor, terms: int) -> Tensor:
    """√(sum of squares), rounded up for a float64 sum of so many terms."""
    return (square_sums + TINY).sqrt_().mul_(1.0 + (terms + 8) * ROUNDING)


def product_bound(left: Tensor, right: Tensor) -> Tensor:
    """An upper bound of the product of two bounds."""
    return (left * right).mul_(1.0 + 4 * ROUNDING)
