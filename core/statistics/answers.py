"""Answers of statistics, from released numbers alone: all of it is post-processing, and free."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from core.statistics.answer import Answer

NORMAL_95 = 1.959963984540054
LEAST_COUNT = 4.0  # a ratio's noisy count is at least so many of its own stds, or the ratio is withheld
Floats = NDArray[np.float64]


def answer(
    raw: float,
    error: float,
    *,
    of: str | None = None,
    cell: tuple[str, ...] = (),
    value: float | None = None,
    bounds: tuple[float, float] = (-math.inf, math.inf),
) -> Answer:
    """An answer with its interval.

    Args:
        raw: the noisy number.
        error: the std of its noise.
        value: after post-processing; None: `raw` within its bounds.
        bounds: what the number can be.
    """
    low, high = bounds
    interval = tuple(min(max(raw + sign * NORMAL_95 * error, low), high) for sign in (-1.0, 1.0))
    value_shown = min(max(raw if value is None else value, low), high)
    return Answer(
        of=of, cell=cell, value=value_shown, standard_error=error, interval=(interval[0], interval[1]), raw=raw
    )


def withheld(of: str | None, cell: tuple[str, ...] = ()) -> Answer:
    """An answer that too few records have for the noise."""
    return Answer(of=of, cell=cell, value=None, standard_error=None, interval=None, raw=None)


def nonnegative(raw: Floats) -> Floats:
    """The nearest non-negative table with the same total (0 if that is negative): margins stay the sums of cells.

    >>> nonnegative(np.array([5.0, -1.0, 2.0])).tolist()
    [4.5, 0.0, 1.5]
    """
    total = float(raw.sum())
    if total <= 0.0:
        return np.zeros_like(raw)
    ordered = np.sort(raw.ravel())[::-1]
    cuts = (np.cumsum(ordered) - total) / np.arange(1, ordered.size + 1)
    cut = cuts[np.flatnonzero(ordered > cuts)[-1]]
    values: Floats = np.maximum(raw - cut, 0.0)
    return values


def positive_semidefinite(matrix: Floats) -> Floats:
    """The nearest symmetric matrix without negative eigenvalues."""
    values, vectors = np.linalg.eigh((matrix + matrix.T) / 2.0)
    fixed: Floats = (vectors * np.maximum(values, 0.0)) @ vectors.T
    return fixed
