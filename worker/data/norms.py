"""Norms that are never too small: a clipped record must weigh at most C in exact arithmetic too."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from worker.data.lengths import squared_lengths

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


def row_bounds(features: Tensor) -> Tensor:
    """Upper bounds of each row's norm, of float32 or float64 (n, m): float64 (n,); ∞ where a row is not finite.

    A row's bound is a function of that row alone: products, sums and roots are rounded correctly, and are taken in one
    order for every row. So records may be measured before they have a place.
    """
    return exact_root_bound(squared_lengths(features), features.shape[1]).nan_to_num_(nan=torch.inf, posinf=torch.inf)


def exact_root_bound(square_sums: Tensor, terms: int) -> Tensor:
    """As root_bound, on a processor: NumPy's root is rounded correctly on every machine."""
    roots = torch.from_numpy(np.sqrt((square_sums + TINY).numpy()))
    return roots.mul_(root_growth(terms))


def root_bound(square_sums: Tensor, terms: int) -> Tensor:
    """√(sum of squares), rounded up for a float64 sum of this many terms."""
    return (square_sums + TINY).sqrt_().mul_(root_growth(terms))


def root_growth(terms: int) -> float:
    """By how much the root of a float64 sum of this many terms grows to be an upper bound."""
    return 1.0 + (terms + 8) * ROUNDING


def product_bound(left: Tensor, right: Tensor) -> Tensor:
    """An upper bound of the product of two bounds."""
    return (left * right).mul_(1.0 + 4 * ROUNDING)
