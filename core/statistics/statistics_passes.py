"""How a statistics job passes over its slots, and what that takes of memory: from public sizes alone.

A pass reads as many rows whatever the records, and its arrays have sizes that only the declaration and the queries
decide. So no record can make an attempt run out of memory, and admission knows before the price what one needs.
"""

from __future__ import annotations

from dataclasses import dataclass

from core.contracts.dataset_spec import Columns, Features, NodeColumns
from core.contracts.neighbourhoods import stored_width
from core.contracts.table import TableFeatures
from core.statistics.plans import Asked

MOST_ROWS_PER_PASS = 2**16
CELL_BYTES = 2**26  # of the stored cells of a pass
COPIES = 3  # of a pass's cells, while they are gathered from the parts
SUM_COPIES, NOISE_COPIES = 4, 12  # 8-byte numbers for each released one: sums of a pass and of all; exact noise
USER_BYTES, LABEL_BYTES = (
    40,
    24,
)  # of a slot, while a column of one or several parts is read (worker.statistics.slot_columns)
ANSWER_BYTES = 4_500  # of an answer, as a document and as text in two files; measured, see tests/statistics


@dataclass(frozen=True)
class Passes:
    """The passes of a job over a data set.

    Attributes:
        width: how many numbers of a stored record are read; 0: its label alone.
        rows: of a pass.
        count: how many passes there are.
    """

    width: int
    rows: int
    count: int

    @property
    def slots(self) -> int:
        """The rows of all passes."""
        return self.rows * self.count

    @classmethod
    def over(cls, slots: int, width: int) -> Passes:
        """The passes over so many slots.

        >>> Passes.over(200_000, 8), Passes.over(10, 2**25)
        (Passes(width=8, rows=65536, count=4), Passes(width=33554432, rows=1, count=10))
        """
        slots = max(slots, 1)
        rows = max(1, min(MOST_ROWS_PER_PASS, CELL_BYTES // (4 * max(width, 1)), slots))
        return cls(width, rows, -(-slots // rows))


def width_of(features: Features) -> int:
    """How many numbers of a stored record statistics read: none where its features have no names."""
    match features:
        case NodeColumns():
            return len(features.columns) + stored_width(features.keep)
        case TableFeatures():
            return features.stored_width
        case Columns():
            return len(features.columns)
        case _:
            return 0


def column_bytes(width: int, slots: int, *, of_users: bool) -> int:
    """What columns that are read at once take: users' numbers, and then labels where nothing else is read. Slots
    decide it: an array has one place for each, whatever the number of records.

    >>> column_bytes(0, 100, of_users=False), column_bytes(0, 100, of_users=True)
    (2400, 4000)
    """
    return slots * max(USER_BYTES if of_users else 0, 0 if width else LABEL_BYTES)


@dataclass(frozen=True)
class ReleaseMemory:
    """What a release holds at most, in bytes, besides Python, the parts and their columns: of public sizes alone.

    Attributes:
        sums, noise: of the released numbers.
        passes: a pass's cells, and what the query that takes most computes of them.
        answers: as documents and as text.
    """

    sums: int
    noise: int
    passes: int
    answers: int

    @classmethod
    def of(cls, question: Asked, passes: Passes) -> ReleaseMemory:
        """That of these queries."""
        row = 4 * COPIES * passes.width + max(each.row_bytes for each in question.plans)
        return cls(
            sums=8 * SUM_COPIES * question.numbers + passes.slots * sum(each.slot_bytes for each in question.plans),
            noise=8 * NOISE_COPIES * question.numbers,
            passes=passes.rows * row,
            answers=ANSWER_BYTES * question.answers,
        )

    @property
    def whole(self) -> int:
        """All of it."""
        return self.sums + self.noise + self.passes + self.answers
