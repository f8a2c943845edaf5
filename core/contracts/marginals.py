"""What a synthetic job measures: the two-way tables of its columns. They are all its queries."""

from __future__ import annotations

from itertools import combinations
from typing import Annotated, Literal

from pydantic import Field

from core.contracts.feature_settings import ColumnName
from core.contracts.queries import Contingency

SYNTHETIC_BINS = 16
MOST_SYNTHETIC_ROWS = 1_000_000
SyntheticColumns = Annotated[tuple[ColumnName, ...], Field(min_length=2, max_length=400)]
SyntheticRows = Literal["declared"] | Annotated[int, Field(strict=True, ge=1, le=MOST_SYNTHETIC_ROWS)]
SyntheticMethod = Literal["mixture"]


def marginals(columns: tuple[str, ...], target: str | None, bins: int | None) -> tuple[Contingency, ...]:
    """One table for each pair of columns, in their order; those with the target weigh as much as half the columns.

    A one-way margin is the sum of every table that its column is in: their mean has less noise than a table of its own
    would have at this price.

    Args:
        target: the column that is drawn from the others.
        bins: of numbers without declared ones; None: 16.

    >>> [(each.columns, each.weight) for each in marginals(("a", "b", "y"), "y", 16)]
    [(('a', 'b'), 1.0), (('a', 'y'), 1.5), (('b', 'y'), 1.5)]
    """
    heavy = max(1.0, len(columns) / 2.0)
    return tuple(
        Contingency(columns=pair, bins=bins or SYNTHETIC_BINS, weight=heavy if target in pair else 1.0)
        for pair in combinations(columns, 2)
    )
