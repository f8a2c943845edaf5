"""A part's layout on disk: an Arrow IPC file of fixed-size record batches (chunks), and an index of them next to it.

    dense      x fixed_size_list<float32>[d]
    sparse     x large_list<struct<column: int32, value: float32>>
    pairs      user_row int32, item_row int32
    sequences  items large_list<int32>
    texts      text large_string
    and of each: y int64 (the class) or float64 (the target); user int64 where users are protected; slot int64,
    ascending, where records are stored in the order of their slots (app.formats.slot_order)

The index is the header as one line of canonical JSON (kind, sizes, types, version, records a chunk, records, and slots
where records have some), then one row for each chunk (`row_type`), in little-endian order: its offset and length in the
file and the length of its lists together (8 bytes each), its records (4), the place of each column's buffer within the
chunk (8 each), and its hash (32).

The part's hash is the root (core.merkle) over the header, without its line break, as the first leaf, and the chunks. A
chunk's leaf is its row in the index without the hash, then its bytes in the file. So the root fixes every byte that is
ever read.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from core import merkle
from core.parts.damage import DataDamagedError
from core.parts.sealed import content_of
from core.parts.stored_records import Csr, Features, Pairs, Sequences, StoredPart, Texts

Kind = Literal["dense", "sparse", "pairs", "sequences", "texts"]
ARROW = b"ARROW1"
VERSION = 1
CHUNK_BYTES = 2**17  # of dense features: what a first read hashes to get at one record
# Records of a chunk where their length varies; public, like d.
CHUNK_ROWS: dict[Kind, int] = {"sparse": 128, "pairs": 8192, "sequences": 512, "texts": 64}
MAX_HEADER_BYTES = 4096
# Each kind's buffers in the index, before those of labels and users.
BUFFERS: dict[Kind, tuple[str, ...]] = {
    "dense": ("x",),
    "sparse": ("ends", "columns", "values"),
    "pairs": ("user_row", "item_row"),
    "sequences": ("ends", "items"),
    "texts": ("ends", "utf8"),
}
TYPES = {"x": "<f4", "values": "<f4", "columns": "<i4", "items": "<i4", "user_row": "<i4", "item_row": "<i4"}
TYPES |= {"ends": "<i8", "user": "<i8", "slot": "<i8", "utf8": "u1"}


@dataclass(frozen=True)
class Layout:
    """How a part is laid out; all of it is public.

    Attributes:
        sizes: d of dense and sparse features; users and items of pairs; items of sequences; none of texts.
        labels: the type of y.
        users: True if each record has a user.
        slots: N, if each record has a slot; None: records are in the order of the file.
    """

    kind: Kind
    sizes: tuple[int, ...]
    labels: Literal["int64", "float64"]
    users: bool
    slots: int | None = None

    @classmethod
    def of(cls, part: StoredPart) -> Layout:
        """The layout of records like these."""
        kind, sizes = _kind(part.x)
        labels: Literal["int64", "float64"] = "int64" if part.y.dtype == np.int64 else "float64"
        return cls(kind, sizes, labels, part.user is not None, None if part.slot is None else part.slot.slots)

    @property
    def chunk_rows(self) -> int:
        """The records of each chunk but the last."""
        return max(1, CHUNK_BYTES // (4 * self.sizes[0])) if self.kind == "dense" else CHUNK_ROWS[self.kind]

    @property
    def buffers(self) -> tuple[str, ...]:
        """The names of a chunk's buffers."""
        optional = {"user": self.users, "slot": self.slots is not None}
        return (*BUFFERS[self.kind], "y", *(name for name, is_present in optional.items() if is_present))

    @property
    def types(self) -> dict[str, np.dtype[Any]]:
        """The type of each buffer's numbers."""
        return {name: np.dtype(TYPES.get(name, self.labels)) for name in self.buffers}

    @property
    def row_type(self) -> np.dtype[Any]:
        """One chunk in the index; little-endian."""
        places = [(name, "<i8") for name in self.buffers]
        sizes = [("offset", "<i8"), ("length", "<i8"), ("entries", "<i8"), ("rows", "<i4")]
        return np.dtype([*sizes, *places, ("sha256", "V32")])

    @property
    def features(self) -> int:
        """The number of features: one of a text."""
        return sum(self.sizes) if self.sizes else 1

    @property
    def is_sparse(self) -> bool:
        """See StoredPart.sparse."""
        return self.kind in ("sparse", "pairs", "sequences")


def _kind(x: Features) -> tuple[Kind, tuple[int, ...]]:
    if isinstance(x, Csr):
        return "sparse", (x.shape[1],)
    if isinstance(x, Pairs):
        return "pairs", x.sizes
    if isinstance(x, Sequences):
        return "sequences", (x.size,)
    if isinstance(x, Texts):
        return "texts", ()
    return "dense", (x.shape[1],)


@dataclass(frozen=True)
class Index:
    """The chunks of one part. `rows`, the number of records, is as private as they are."""

    layout: Layout
    rows: int
    chunks: NDArray[Any]

    @property
    def header(self) -> bytes:
        """The first leaf."""
        fields = asdict(self.layout) | {"version": VERSION, "rows": self.rows, "chunk_rows": self.layout.chunk_rows}
        if self.layout.slots is None:  # as the parts before it were written
            del fields["slots"]
        return json.dumps(fields, sort_keys=True, separators=(",", ":")).encode()

    @property
    def root(self) -> str:
        """The part's hash, in hex."""
        hashes = self.chunks["sha256"].tobytes()
        leaves = (hashes[at : at + 32] for at in range(0, len(hashes), 32))
        return merkle.root_of([merkle.leaf(self.header), *leaves]).hex()

    def to_bytes(self) -> bytes:
        """The index's file."""
        return self.header + b"\n" + self.chunks.tobytes()

    @classmethod
    def read(cls, path: Path, sha256: str, key: bytes | None = None) -> Index:
        """Reads the index of the part at `path`, and compares its root with the registered hash.

        Args:
            key: the data key, if it may be sealed.

        Raises:
            DataDamagedError: the index is missing or does not have this root; or it is sealed under another key.
        """
        try:
            content = content_of(index_path(path), key)
        except OSError:
            raise DataDamagedError("a stored part of the data set differs from the registered one") from None
        return cls.of_bytes(content, sha256)

    @classmethod
    def of_bytes(cls, content: bytes, sha256: str) -> Index:
        """Interprets an index's file. Raises like `read`."""
        try:
            line, _, rows_bytes = content.partition(b"\n")
            if len(line) > MAX_HEADER_BYTES:
                raise ValueError
            fields = json.loads(line)
            rows, version, step = (fields.pop(name) for name in ("rows", "version", "chunk_rows"))
            layout = Layout(**fields | {"sizes": tuple(fields["sizes"])})
            index = cls(layout, rows, np.frombuffer(rows_bytes, layout.row_type))
            right = version == VERSION and step == layout.chunk_rows and index.header == line and index.root == sha256
            counts = [min(step, rows - start) for start in range(0, rows, step)]
            if not right or index.chunks["rows"].tolist() != counts:
                raise ValueError
        except (ValueError, KeyError, TypeError, AttributeError):
            raise DataDamagedError("a stored part of the data set differs from the registered one") from None
        return index


def leaf_of(row: NDArray[Any], content: merkle.Buffer) -> bytes:
    """The leaf hash of a chunk: its row in the index but for the hash, then its bytes in the file."""
    return merkle.leaf(row.tobytes()[:-32], content)


def index_path(path: Path) -> Path:
    """Where the index of a part lies."""
    return path.with_name(path.name + ".index")


def row_of(layout: Layout, numbers: Sequence[int]) -> NDArray[Any]:
    """A row of the index without its hash: offset, length, entries, records, and the buffers' places."""
    return np.array((*numbers, b""), dtype=layout.row_type)
