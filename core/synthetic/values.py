"""Cells as values of the declared schema: numbers and days within their bins, categories, missing cells."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

import numpy as np

from core.contracts.table import EPOCH, CategoryColumn, DateColumn, NumberColumn
from core.statistics.statistics_columns import Axis, Floats
from core.synthetic.noisy_tables import Codes

DIGITS = 6  # of a number: as many as a float32 keeps


@dataclass(frozen=True)
class Values:
    """A column of rows. `values`: None where missing."""

    name: str
    values: Sequence[float | int | str | None]


def values_of(axis: Axis, codes: Codes, random: np.random.Generator) -> Values:
    """The values of a column's cells; a number or a day is uniform in its bin, on its declared scale."""
    declared = axis.column.declared
    uniform = random.random(len(codes))
    if isinstance(declared, CategoryColumn):
        return Values(declared.name, _categories(declared, codes))
    edges = _ends(axis, declared)
    missing = codes >= len(edges) - 1
    low, high = edges[np.where(missing, 0, codes)], edges[np.where(missing, 0, codes) + 1]
    if isinstance(declared, DateColumn):
        first, beyond = np.ceil(low), np.where(high == edges[-1], high + 1.0, np.ceil(high))
        days = first + np.floor(uniform * np.maximum(beyond - first, 1.0))
        written = [_day(declared, int(day)) for day in np.minimum(days, edges[-1])]
        return Values(declared.name, [None if gone else day for day, gone in zip(written, missing, strict=True)])
    numbers = low * (high / low) ** uniform if declared.scale == "log" else low + uniform * (high - low)
    written_numbers = [_rounded(number) for number in numbers.tolist()]
    return Values(declared.name, [None if gone else x for x, gone in zip(written_numbers, missing, strict=True)])


def _ends(axis: Axis, declared: NumberColumn | DateColumn) -> Floats:
    """The bins' ends, one more than there are bins. Without a range, an outer bin is as wide as its neighbour."""
    edges = np.asarray(axis.edges, dtype=np.float64)
    if declared.ends is not None:
        low, high = declared.ends
        inner = edges[(edges > low) & (edges < high)]
        # Edges beyond the range, of a query's own: their bins are empty of width.
        below, above = int((edges <= low).sum()), int((edges >= high).sum())
        return np.concatenate([[low] * (below + 1), inner, [high] * (above + 1)])
    first, last = (edges[1] - edges[0], edges[-1] - edges[-2]) if len(edges) > 1 else (max(abs(edges[0]), 1.0),) * 2
    return np.concatenate([[edges[0] - first], edges, [edges[-1] + last]])


def _rounded(number: float) -> float:
    return number if number == 0.0 else round(number, DIGITS - 1 - math.floor(math.log10(abs(number))))


def _day(declared: DateColumn, day: int) -> str:
    day_read = EPOCH + timedelta(days=day)
    return day_read.isoformat() if declared.format == "iso" else day_read.strftime(declared.format)


def _categories(declared: CategoryColumn, codes: Codes) -> list[int | str | None]:
    """The declared values. The cell of others is a missing cell where those count as it, or else an unknown text."""
    values: list[int | str | None] = list(declared.values)
    if declared.missing == "other":
        values.append(None)
    elif declared.other is not None:
        values = [*map(str, declared.values), declared.other]
    return [values[code] for code in codes.tolist()]
