"""Norms that are never too small: a clipped record must weigh at most C in exact arithmetic too."""

from __future__ import annotations

import torch
from torch import Tensor

TINY = torch.finfo(torch.float64).tiny  # the most that squares may lose by underflow
ROUNDING = 2.0**-52


def norm_bound(vectors: Tensor, dim: int) -> Tensor:
    """Upper bounds of ℓ₂ norms along a dimension of size m, within a relative (m + 8)·2⁻⁵² of the true norms.

    The squares and their sum, in any order, lose at most m + 1 roundings of 2⁻⁵³ each; the root halves that and adds
    one. The smallest normal number covers underflow. Squares that overflow give ∞, which counts as not finite.

    Args:
        vectors: float64 (n, m) or (m, n).
        dim: the dimension to sum over.

    Returns:
        float64 (n,); NaN or ∞ where a vector is not finite.
    """
    return root_bound((vectors * vectors).sum(dim=dim), vectors.shape[dim])


def root_bound(square_sums: Tensor, terms: int) -> Tensor:
    """√(sum of squares), rounded up for a float64 sum of this many terms."""
    return (square_sums + TINY).sqrt_().mul_(1.0 + (terms + 8) * ROUNDING)


def product_bound(left: Tensor, right: Tensor) -> Tensor:
    """An upper bound of the product of two bounds."""
    return (left * right).mul_(1.0 + 4 * ROUNDING)
