"""What every kind of model says of itself before it runs: the memory of its passes, and the shape of its products."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from core.contracts.base import Document


@dataclass(frozen=True)
class RecordSizes:
    """A data set's public sizes of one record.

    Attributes:
        features, outputs: its numbers of features and outputs.
        sparse: True if the features are sparse.
        items: the declared number of items; 1 where there are none.
    """

    features: int
    outputs: int
    sparse: bool
    items: int


@dataclass(frozen=True)
class ImageForm:
    """How a record's numbers form an image."""

    height: int
    width: int
    channels: int
    channels_last: bool


class ModelSettings(Document):
    """A job's settings of its model.

    Attributes:
        shallow: passes hold few numbers: linear models and ratings.
    """

    shallow: ClassVar[bool] = False

    @abstractmethod
    def held(self, sizes: RecordSizes) -> int | None:
        """About how many numbers a pass holds for one record: layer outputs, their gradients, and scores.

        None: not known yet; then a pass holds one record.
        """

    def peak(self) -> float:
        """What a pass holds at its peak, as a multiple of `held`; measured (benchmarks/reports/memory.md)."""
        return 1.0

    def only_float64(self, *, sparse: bool) -> bool:
        """True if passes must be in float64: float32 would not make these products faster.

        Args:
            sparse: the features are sparse.
        """
        return False

    def positions(self) -> int:
        """At most this many rows of one product belong to one record; a tied matrix is used twice."""
        return 1

    @property
    def reach(self) -> int:
        """A unit's record more or less moves a sum of terms of norm c by at most so many c: 1, if it is in its own."""
        return 1

    def pixels(self) -> ImageForm | None:
        """How the records form images, if the model reads images."""
        return None
