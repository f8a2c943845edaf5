"""The release of a query of categories: a noisy count of every value that a text can have, of which those are told that
reach a public threshold (docs/decisions/0077).

    R_x = g · ⌊(S_x + s·Z_x)/g⌉ for all x of the domain X        told: {(x, R_x) : R_x ≥ θ}

It is post-processing of one Gaussian mechanism over X: nothing is added to δ. X is too large to be drawn, so its noise
is drawn in another order: first which Z reach the threshold by themselves (worker.noise.exceedances), from public
numbers alone, then those of the values that records have. A value that no record has and whose noise is lower is not
told, so it need not be drawn.

The work is that of all slots, whatever the records: every row is sorted, compared, and gets noise.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from core.errors import PrivacyError
from core.statistics.plans import MOST_VALUES, CategoriesPlan
from core.statistics.statistics_columns import Floats, Integers
from worker.noise.exceedances import Tail, exceedances
from worker.noise.generator import GaussianGenerator
from worker.noise.rounding import add_noise, grid, settle_at
from worker.statistics.base import STEP

EXCEEDANCES = 2**20  # of the noise's address: queries have smaller numbers


def frequent_values(
    plan: CategoriesPlan, codes: Integers, std: float, key: bytes | None, index: int, *, rehearsal: bool = False
) -> Tensor:
    """The values that are told, from the most frequent one on: float64 (values, cells + 1), each with its noisy count
    last. Bit for bit the same for the same records, in any order, and key.

    Args:
        codes: (slots, cells), as stored; zeros where there is no record, or no value. Private.
        std: s; 0 on public data without privacy.
        key: 32 bytes of purpose "release"; None on public data without privacy.
        index: the query's place among those of its job.
        rehearsal: all values are told.
    """
    rows, exact, has_value = counted(codes)
    if key is None and std == 0.0:
        return told(*_largest(rows, exact, has_value))
    if key is None or std <= 0.0:
        raise PrivacyError("noise needs a key and a std")
    g = grid(std)
    threshold = math.ceil(plan.threshold(std) / g) * g
    generator = GaussianGenerator(key)
    noisy, noise = _noised(exact, std, generator, index), _noised(np.zeros_like(exact), std, generator, index)
    # A value's noise is a Gaussian below the threshold, unless it is among the exceedances.
    for place in np.flatnonzero(noise >= threshold).tolist():
        position = place
        while noise[place] >= threshold:
            position += len(exact)
            noise[place] = settle_at(0.0, std, generator.stream, STEP, index, position)
        noisy[place] = settle_at(float(exact[place]), std, generator.stream, STEP, index, position)
    column = plan.texts.declared
    tail = Tail(std, threshold - g / 2)
    further = list[tuple[float, ...]]()
    for number, exceedance in exceedances(column.domain, tail, generator.stream, STEP, EXCEEDANCES + index).items():
        stored = column.stored(column.numbered(number))
        is_it = has_value & (rows == np.array(stored, dtype=rows.dtype)).all(axis=1)
        further.append((*stored, exceedance.rounded_sum(int(exact[is_it].sum()))))
        has_value &= ~is_it
    values, counts = _largest(rows, noisy, has_value & ((noisy >= threshold) | rehearsal))
    false = np.array(further).reshape(len(further), column.cells + 1)
    return told(np.vstack([values, false[:, :-1]]), np.append(counts, false[:, -1]))


def counted(codes: Integers) -> tuple[Integers, Floats, NDArray[np.bool_]]:
    """All rows in the order of their values; how many rows are equal, at the first of them, else 0; and which rows are
    such first ones, of a value. The arrays have one place for each slot."""
    rows = codes[np.lexsort(codes.T[::-1])]
    first = np.ones(len(rows), dtype=np.bool_)
    first[1:] = (rows[1:] != rows[:-1]).any(axis=1)
    group = np.cumsum(first) - 1
    counts = np.bincount(group, minlength=len(rows))[group]
    has_value = first & (rows[:, 0] > 0)
    return rows, np.where(has_value, counts, 0).astype(np.float64), has_value


def _largest(rows: Integers, counts: Floats, passes: NDArray[np.bool_]) -> tuple[Integers, Floats]:
    """The rows that pass, with the largest counts, of equal ones the first: as many as may be told. Only these are
    copied: how many pass sizes nothing."""
    order = np.argsort(np.where(passes, -counts, math.inf), kind="stable")[:MOST_VALUES]
    order = order[passes[order]]
    return rows[order], counts[order]


def told(values: Integers | Floats, counts: Floats) -> Tensor:
    """The most frequent values with their counts; of equal counts, in the order of the texts."""
    table = np.column_stack([values, counts]).astype(np.float64)
    order = np.lexsort((*table[:, :-1].T[::-1], -table[:, -1]))
    return torch.from_numpy(table[order[:MOST_VALUES]])


def _noised(exact: Floats, std: float, generator: GaussianGenerator, index: int) -> Floats:
    noise = generator.noise(STEP, index, len(exact))
    noisy: Floats = add_noise(torch.from_numpy(exact), noise, std, generator.stream, STEP, index).numpy()
    return noisy
