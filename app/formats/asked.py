"""What the service asks of the process that reads data files, and what that answers: JSON on the pipe of
app.sandbox.limited,
these documents on both of its sides."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from core.contracts.base import Document, is_none
from core.contracts.dataset_spec import DatasetSpec
from core.contracts.slots import Slots
from core.contracts.stored_documents import Counts

EARLIER_KINDS = ("file", "records")


class ContentKeys(Document):
    """Keys in hex: for the split, and for digests of contents."""

    split: str = Field(repr=False)
    content: str = Field(repr=False)


class SealKey(Document):
    """A data key in hex, and how a sealed file names it."""

    key: str = Field(repr=False)
    wrap: str


class OpeningKeys(Document):
    """The data keys of files that are sealed, in hex."""

    file: str | None = Field(default=None, repr=False)
    holdout_file: str | None = Field(default=None, repr=False)
    edges_file: str | None = Field(default=None, repr=False)


class SealedPart(Document):
    """A stored file on this machine, with its data key in hex; null: it is in plaintext."""

    path: str
    sha256: str
    key: str | None = Field(repr=False)


class ParseRequest(Document):
    """One registration.

    Attributes:
        file, holdout_file, edges_file: paths; null but for a public hold-out, and for a graph's edges.
        opens: opens them.
        seal: seals what is written; null: it is written in plaintext.
        output_dir: an empty folder.
        slots: of private data; null: public data.
        place: among the blocks of its data set, from 0 on.
        earlier: the files of people of earlier blocks, whose records count towards the bound.
        max_unpack_ratio: the most bytes that a byte of a compressed file may unpack to.
        reserve_bytes: what is left free of the disk.
        earlier_hashes: the content's hashes of EARLIER_KINDS are wanted too.
    """

    spec: DatasetSpec
    file: str
    holdout_file: str | None
    edges_file: str | None = None
    opens: OpeningKeys
    seal: SealKey | None
    output_dir: str
    keys: ContentKeys
    slots: Slots | None = None
    place: int = 0
    earlier: tuple[SealedPart, ...] = ()
    max_unpacked_bytes: int
    max_unpack_ratio: float
    reserve_bytes: int
    earlier_hashes: bool = False


class WrittenFile(Document):
    """A part that was written: its file's name, and the SHA-256 of its index."""

    file: str
    sha256: str


class WrittenParts(Document):
    """The parts that were written."""

    train: WrittenFile | None = Field(default=None, exclude_if=is_none)
    holdout: WrittenFile | None = Field(default=None, exclude_if=is_none)

    @property
    def all(self) -> tuple[WrittenFile, ...]:
        """Those that are there."""
        return tuple(each for each in (self.train, self.holdout) if each is not None)


class ContentHash(Document):
    """A keyed hash of a file's bytes (`sha256`), or of its records in any order (`multiset`).

    Registrations before decision 39 have `file` and `records` instead (EARLIER_KINDS).
    """

    part: Literal["data", "holdout"]
    kind: Literal["sha256", "multiset", "file", "records"]
    hmac: str

    @property
    def is_earlier(self) -> bool:
        """Whether it is compared alone, and not stored with new content."""
        return self.kind in EARLIER_KINDS


class PartCount(Document):
    """The protected units of a part, and its records. Private."""

    units: int
    rows: int


class PartCounts(Document):
    """What each part holds. Private: for the owner alone. `holdout`: null without one."""

    train: PartCount
    holdout: PartCount | None


class ParsedFiles(Document):
    """What was read.

    Attributes:
        parts, features, outputs, sparse: public.
        contents: keyed, for the service.
        units_sha256: of the file with the units' digests; null for public data.
        stored: what each part holds. Private.
        squares: Σ (class size)² over classes that a split's hash puts on one side: of units, which are equal records;
            and of records, where they are those of one user. 0 without a split. Private.
        content_sha256, counts, warnings: functions of private data, for the owner alone.
    """

    parts: WrittenParts
    features: int
    outputs: int
    sparse: bool
    contents: tuple[ContentHash, ...]
    content_sha256: str
    units_sha256: str | None
    stored: PartCounts
    squares: PartCount
    counts: Counts
    warnings: tuple[str, ...]

    @property
    def widths(self) -> tuple[int, int, bool]:
        """What the records of a data set's blocks must have in common: features, outputs, sparse."""
        return self.features, self.outputs, self.sparse


class RecountRequest(Document):
    """The stored parts whose units and records are counted."""

    train: SealedPart
    holdout: SealedPart | None
