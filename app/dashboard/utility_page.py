"""How near a synthetic job's rows are to the noisy tables, from its utility.json: a table of columns, one of pairs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from app.dashboard.job_document import document_of
from app.dashboard.numbers import significant
from app.db.database import Database
from app.db.models import Artifact
from app.storage.objects import Objects
from core.synthetic.utility_file import ColumnUtility, PairUtility, UtilityFile

MOST_ROWS = 500  # of a table
E = TypeVar("E", ColumnUtility, PairUtility)


@dataclass(frozen=True)
class Utility:
    """Rows of (column or pair, error, error by noise alone), the largest error first.

    Attributes:
        drawn: how many rows the job drew.
        left_out: how many more columns and pairs the file has.
    """

    drawn: int
    columns: list[tuple[str, str, str]]
    pairs: list[tuple[str, str, str]]
    left_out: int


def utility_of(db: Database, store: Objects, file: Artifact) -> Utility | None:
    """Reads utility.json; None if it is too large, not there, or damaged."""
    content = document_of(db, store, file, UtilityFile)
    if content is None:
        return None
    one_way, two_way = _worst(content.one_way), _worst(content.two_way)
    return Utility(
        drawn=content.rows,
        columns=[(each.column, *_numbers(each)) for each in one_way],
        pairs=[(" with ".join(each.columns), *_numbers(each)) for each in two_way],
        left_out=len(content.one_way) + len(content.two_way) - len(one_way) - len(two_way),
    )


def _worst(errors: Sequence[E]) -> list[E]:
    return sorted(errors, key=lambda error: -error.error)[:MOST_ROWS]


def _numbers(utility: ColumnUtility | PairUtility) -> tuple[str, str]:
    return significant(utility.error, 2), significant(utility.noise, 2)
