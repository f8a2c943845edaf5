"""R² and RMSE of a regression whose target has a declared range, from sums that bound what a record adds."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

GRID = 2**30  # a score's bound is divided into this many parts


def fit_cells(outputs: Tensor, labels: Tensor) -> Tensor:
    """Each record's cells (e, 1 − e, u², u − u², 1 − u), int64 (n, 5), in parts of GRID.

    e is ((f − y)/2)² with f and y clipped to [−1, 1], and u is (y + 1)/2. A record whose prediction is not a number has
    e = 1.

    Guarantee: (e, 1 − e) and the other three are non-negative and add up to 1 each, so their ℓ₂ norm is at most √2; and
    a record's cells depend on its own output and label alone.
    """
    target = torch.nan_to_num(labels.double(), nan=0.0).clamp(-1.0, 1.0)
    error = (torch.nan_to_num(outputs[0].double(), nan=torch.inf).clamp(-1.0, 1.0) - target) / 2.0
    e = torch.where(torch.isnan(outputs[0]), 1.0, error.square())
    u = (target + 1.0) / 2.0
    parts = [(each * GRID).floor().clamp(0.0, GRID).to(torch.int64) for each in (e, u.square(), u)]
    error_part, square, share = parts
    return torch.stack([error_part, GRID - error_part, square, share - square, GRID - share], dim=1)


@dataclass(frozen=True)
class Fit:
    """R² and RMSE with the std of the noise on each, to first order. RMSE is in the target's unit."""

    r_squared: float
    r_squared_std: float
    rmse: float
    rmse_std: float

    @classmethod
    def of(cls, sums: list[float], noise_std: float, ends: tuple[float, float]) -> Fit:
        """From the sums of all cells, with noise of this std each; 0: exact.

        R² = 1 − E/V with E the mean of e and V = m₂ − m₁² the variance of u, each from its own sums. E is at least 0,
        and V at least what the noise hides.
        """
        errors, remaining, square, between, below = sums
        floor = max(noise_std, 1e-9)
        total, other = max(square + between + below, floor), max(errors + remaining, floor)
        mean_error = min(max(errors / other, 0.0), 1.0)
        second, first = square / total, (square + between) / total
        variance = max(second - first**2, floor / total, 1e-12)
        slopes = (1 - second - 2 * first * (1 - first), -second - 2 * first * (1 - first), -second + 2 * first**2)
        error_std = noise_std * math.hypot(mean_error, 1.0 - mean_error) / other
        variance_std = noise_std * math.hypot(*slopes) / total
        ratio = mean_error / variance
        width, root = ends[1] - ends[0], math.sqrt(mean_error)
        return cls(
            r_squared=1.0 - ratio,
            r_squared_std=math.hypot(error_std, ratio * variance_std) / variance,
            rmse=width * root,
            rmse_std=width * error_std / (2.0 * root) if root > 0.0 else width * math.sqrt(error_std),
        )
