"""Records of a part, in memory: what parsing writes and attempts read (core.parts.part_files).

y is the int64 index of the class, or a float64 target; 0 for a sequence, which is its own label. Where users are
protected, `user` int64 (n,) is the number of each record's user. Private parts that stay on disk have each record's
`slot`. A part may hold no record at all: its number of records is private.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Csr:
    """Rows of (indices, data) between consecutive entries of indptr."""

    indptr: NDArray[np.int64]
    indices: NDArray[np.int32]
    data: NDArray[np.float32]
    shape: tuple[int, int]


@dataclass(frozen=True)
class Pairs:
    """The row of each record's user and of its item, in lists of `sizes` rows."""

    users: NDArray[np.int32]
    items: NDArray[np.int32]
    sizes: tuple[int, int]

    @property
    def shape(self) -> tuple[int, int]:
        """(records, users + items): a pair is a vector with two ones."""
        return (len(self.users), sum(self.sizes))


@dataclass(frozen=True)
class Sequences:
    """The rows of each record's items, in order, in a list of `size` rows; one record after the other."""

    items: NDArray[np.int32]
    ends: NDArray[np.int64]
    size: int

    @property
    def shape(self) -> tuple[int, int]:
        """(records, items)."""
        return (len(self.ends), self.size)


@dataclass(frozen=True)
class Texts:
    """Texts one after the other, read by an extractor. Each counts as one feature."""

    utf8: NDArray[np.uint8]
    ends: NDArray[np.int64]

    @classmethod
    def of(cls, texts: Sequence[str]) -> Texts:
        """Packs texts into one array of UTF-8 bytes."""
        encoded = [text.encode() for text in texts]
        ends = np.cumsum([len(each) for each in encoded], dtype=np.int64)
        return cls(np.frombuffer(b"".join(encoded), dtype=np.uint8), ends)

    @property
    def shape(self) -> tuple[int, int]:
        """(records, 1)."""
        return (len(self.ends), 1)

    def texts(self) -> Iterator[str]:
        """The texts in the order of the records."""
        start = 0
        for end in self.ends.tolist():
            yield self.utf8[start:end].tobytes().decode()
            start = end


Features = NDArray[np.float32] | Csr | Pairs | Sequences | Texts


@dataclass(frozen=True)
class SlotColumn:
    """The slot of each record, where records are stored in the order of their slots (app.formats.slot_order).

    Attributes:
        numbers: int64 (n,), ascending. Private.
        slots: N, how many slots the part has; public, and the part's own for ever.
    """

    numbers: NDArray[np.int64]
    slots: int


@dataclass(frozen=True)
class StoredPart:
    """Records in the order of the file, or of their slots. All of it is private if the data set is."""

    x: Features
    y: NDArray[np.int64] | NDArray[np.float64]
    user: NDArray[np.int64] | None = None
    slot: SlotColumn | None = None

    @property
    def units(self) -> int:
        """The number of protected units: records, or users."""
        return len(self.y) if self.user is None else len(np.unique(self.user))

    @property
    def nbytes(self) -> int:
        """The bytes of all numbers."""
        x = (self.x,) if isinstance(self.x, np.ndarray) else vars(self.x).values()
        slot = None if self.slot is None else self.slot.numbers
        return sum(each.nbytes for each in (*x, self.y, self.user, slot) if isinstance(each, np.ndarray))

    @property
    def sparse(self) -> bool:
        """Returns True if the features are stored sparsely."""
        return isinstance(self.x, Csr | Pairs | Sequences)

    @property
    def shape(self) -> tuple[int, int]:
        """(records, features)."""
        return (int(self.x.shape[0]), int(self.x.shape[1]))
