"""utility.json of a synthetic job, as it is stored and shown: how near its rows are to the noisy tables."""

from __future__ import annotations

from typing import Literal

from core.contracts.base import Document


class Cell(Document):
    """A value or bin of a column: its share of the noisy records, and of the rows."""

    cell: str
    noisy: float
    rows: float


class ColumnUtility(Document):
    """A column's margin.

    Attributes:
        error: half the sum of the cells' differences (total variation).
        noise: what noise alone makes of it, in the mean; an error about as large says nothing against the rows.
    """

    column: str
    error: float
    noise: float
    cells: tuple[Cell, ...]


class PairUtility(Document):
    """The table of two columns; see ColumnUtility."""

    columns: tuple[str, str]
    error: float
    noise: float


class UtilityFile(Document):
    """utility.json. `records`: about how many there are, by the noisy tables."""

    version: Literal[1] = 1
    rows: int
    records: float
    target: str | None
    one_way: tuple[ColumnUtility, ...]
    two_way: tuple[PairUtility, ...]
