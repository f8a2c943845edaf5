"""The public numbers of places that a data set's parts have for records (docs/theorems.md, "A record has a place of its
own"), and the rounding of numbers that are to be public."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, model_validator

from core import leaves
from core.contracts.base import Document, is_none

MOST_SLOTS = 2**53 - 1  # exact in float64, and so in every reader of JSON
SlotCount = Annotated[int, Field(strict=True, ge=1)]
DeclaredCount = Annotated[int, Field(strict=True, ge=1, le=MOST_SLOTS)]


def rounded(count: int) -> int:
    """Rounds a count to tens, or to two digits: the number of records to suggest to an owner, as an exact one becomes
    public.

    >>> rounded(24_873), rounded(943), rounded(64)
    (25000, 940, 60)
    """
    unit: int = 10 ** max(1, len(str(count)) - 2)
    return max(unit, (count + unit // 2) // unit * unit)


class DeclaredSlots(Document):
    """At most this many units, and records, of each part; public. A number left out has its default (docs/data.md,
    "Slots"): ⌈1.05 d⌉ + 64 + 6 √(f (1 − f) `records`) for d units declared of a part, never fewer, and a split with
    `fraction` f.

    `train` and `holdout` count what `records` counts. `train_rows` and `holdout_rows` count records where a unit is a
    user with up to k of them; the default is k times the units. A file with more is refused, and its owner alone is
    told.
    """

    train: DeclaredCount | None = Field(default=None, exclude_if=is_none)
    holdout: DeclaredCount | None = Field(default=None, exclude_if=is_none)
    train_rows: DeclaredCount | None = Field(default=None, exclude_if=is_none)
    holdout_rows: DeclaredCount | None = Field(default=None, exclude_if=is_none)


class PartSlots(Document):
    """The places of one part.

    Attributes:
        units: N, at most this many units (records, or users) are registered.
        rows: at most this many records; k · N unless the owner declares fewer, where a unit has up to k records.

    >>> PartSlots(units=100, rows=300) + PartSlots(units=20, rows=60)
    PartSlots(units=120, rows=360)
    """

    units: SlotCount
    rows: SlotCount

    @model_validator(mode="after")
    def _fits(self) -> PartSlots:
        if self.rows < self.units:
            raise ValueError("`rows` must be at least `units`: a unit has at least one record")
        return self

    def __add__(self, other: PartSlots) -> PartSlots:
        """Returns the places of both parts together."""
        return PartSlots(units=self.units + other.units, rows=self.rows + other.rows)


@leaves.DECLARED
class Slots(Document):
    """The places of a private data set. `holdout`: None where there is no private hold-out, or nothing bounds it."""

    train: PartSlots
    holdout: PartSlots | None = None

    def __add__(self, other: Slots) -> Slots:
        """Returns the places of two blocks together."""
        if self.holdout is None or other.holdout is None:  # of one block it is not known, so neither of both
            return Slots(train=self.train + other.train)
        return Slots(train=self.train + other.train, holdout=self.holdout + other.holdout)
