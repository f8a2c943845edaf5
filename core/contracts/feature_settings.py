"""What every kind of features says of itself before any data are read."""

from __future__ import annotations

import math
from typing import Annotated, ClassVar

from pydantic import Field, StringConstraints

from core.contracts.base import Document

# A typical length of a record's features, ‖x‖, from public knowledge.
TypicalLength = Annotated[float, Field(ge=1e-6, le=1e6)]
ColumnName = Annotated[str, StringConstraints(min_length=1, max_length=200)]


class FeatureSettings(Document):
    """What a record's features are.

    Attributes:
        is_sparse: most of a record's numbers are zero and not stored.
    """

    is_sparse: ClassVar[bool] = False

    @property
    def names(self) -> list[str]:
        """The columns or the array that hold them."""
        return []

    @property
    def rows(self) -> tuple[int, int]:
        """The declared numbers of users and items; 0 where there are none."""
        return (0, 0)

    def length(self, features: int) -> float:
        """A typical ‖x‖, from what is declared: numbers between 0 and 1, half as large as they can be.

        Args:
            features: the number of features.
        """
        return math.sqrt(features) / 2.0

    def spread(self, features: int) -> float:
        """The part of ‖x‖ that differs between records, from what is declared: all of it, where nothing else is known.

        Args:
            features: the number of features.
        """
        return self.length(features)

    def numbers(self, stored: int) -> int:
        """How many numbers a record has for a model.

        Args:
            stored: how many are stored for it.
        """
        return stored
