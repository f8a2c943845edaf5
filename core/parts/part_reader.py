"""Reads a part's Arrow file: chunk by chunk, or records by their numbers, from a memory map or from a sealed file.

The root of the index is compared with the registered hash when the file is opened: that reads no record. A chunk's own
hash is checked when the chunk is first read. Only numpy is needed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from core.parts.blobs import open_blob
from core.parts.damage import DataDamagedError
from core.parts.layout import Index, Layout, leaf_of
from core.parts.part_pieces import joined
from core.parts.stored_records import Csr, Features, Pairs, Sequences, SlotColumn, StoredPart, Texts

LISTS = ("columns", "values", "items", "utf8")
Columns = Mapping[str, NDArray[Any]]


class PartFile:
    """One part, open.

    Args:
        path: of the Arrow file.
        sha256: the registered hash.
        key: the data key, if it may be sealed.
        again: announce places of chunks that were read before too: the part may be larger than the kernel's cache.

    Raises:
        DataDamagedError: a file is missing, or the index is not the registered one; or it is sealed under another key.
            Reading raises it for a chunk whose bytes differ.
    """

    def __init__(self, path: Path, sha256: str, key: bytes | None = None, *, again: bool = False) -> None:
        self._again = again
        self._index = Index.read(path, sha256, key)
        self.layout = self._index.layout
        self._chunks = self._index.chunks
        self._starts: dict[str, NDArray[np.int64]] = {}
        self._seen: NDArray[np.bool_] = np.zeros(len(self._chunks), dtype=np.bool_)
        self._blob = open_blob(path, key)

    def __len__(self) -> int:
        return self._index.rows

    def chunks(self) -> Iterator[StoredPart]:
        """All records in order, a chunk at a time, without a memory map: for processes with a bounded address space."""
        for number, row in enumerate(self._chunks):
            content = self._blob.read(int(row["offset"]), int(row["length"]))
            self._compare(number, content)
            columns = self._columns(row, content)
            if "ends" in columns:
                columns["ends"] = columns["ends"][1:]
            yield _part(self.layout, columns, int(row["rows"]))

    def whole(self) -> StoredPart:
        """All records in memory, each chunk checked."""
        n, layout = len(self), self.layout
        out = {name: np.empty(self._entries(name), dtype=dtype) for name, dtype in layout.types.items()}
        at = dict.fromkeys(out, 0)
        for number, row in enumerate(self._chunks):
            content = self._blob.read(int(row["offset"]), int(row["length"]))
            self._compare(number, content)
            columns = self._columns(row, content)
            if "ends" in columns:
                columns["ends"] = columns["ends"][1:] + (out["ends"][at["ends"] - 1] if at["ends"] else 0)
            for name, column in columns.items():
                out[name][at[name] : at[name] + len(column)] = column
                at[name] += len(column)
        return _part(layout, out, n)

    def rows(self, numbers: NDArray[np.int64]) -> StoredPart:
        """The records with these numbers, in their order, copied.

        Raises:
            DataDamagedError: as above.
            IndexError: a number is not below the number of records.
        """
        if len(numbers) and not 0 <= int(numbers.min()) <= int(numbers.max()) < len(self):
            raise IndexError("there is no record with this number")
        at_once = self._blob.rows_at_once or max(1, len(numbers))
        starts = range(0, max(1, len(numbers)), at_once)
        return joined([self._rows(numbers[start : start + at_once]) for start in starts])

    def announce(self, numbers: NDArray[np.int64]) -> None:
        """Tells the kernel that `rows` reads these records soon. Reads nothing.

        A chunk that was never read is announced whole: it is checked. Where lists lie is known only once their ends are
        read, so `rows` announces them.
        """
        chunks, within = np.divmod(numbers, self.layout.chunk_rows)
        new = np.unique(chunks[~self._seen[chunks]])
        starts, lengths = [self._chunks["offset"][new]], [self._chunks["length"][new]]
        if self._again:
            seen = self._seen[chunks]
            for name, dtype in self.layout.types.items():
                if name not in LISTS:
                    width, count = (self.layout.sizes[0],) * 2 if name == "x" else (1, 2 if name == "ends" else 1)
                    at = self._places(name, chunks[seen], dtype) + within[seen] * width
                    starts.append(at * dtype.itemsize)
                    lengths.append(np.full(len(at), count * dtype.itemsize))
        self._blob.announce(np.concatenate(starts).astype(np.int64), np.concatenate(lengths).astype(np.int64))

    def _rows(self, numbers: NDArray[np.int64]) -> StoredPart:
        chunks, within = np.divmod(numbers, self.layout.chunk_rows)
        self._check(chunks)
        out: dict[str, NDArray[Any]] = {}
        for name, dtype in self.layout.types.items():
            if name == "x":
                out["x"] = self._dense(chunks, within)
            elif name in ("y", "user", "slot", "user_row", "item_row"):
                words, places = self._words(dtype, self._places(name, chunks, dtype) + within)
                out[name] = words[places]
        if "ends" in self.layout.types:
            self._lists(chunks, within, out)
        return _part(self.layout, out, len(numbers))

    def column(self, name: str) -> NDArray[Any]:
        """All of `y`, `user` or `slot`: 8 bytes a record. Checks every chunk."""
        out, at = np.empty(len(self), dtype=self.layout.types[name]), 0
        for number, row in enumerate(self._chunks):
            content = self._blob.read(int(row["offset"]), int(row["length"]))
            self._compare(number, content)
            column = self._columns(row, content)[name]
            out[at : at + len(column)] = column
            at += len(column)
        return out

    @property
    def units(self) -> int:
        """The number of protected units: records, or users."""
        return len(np.unique(self.column("user"))) if self.layout.users else len(self)

    def _entries(self, name: str) -> int:
        if name in LISTS:
            return int(self._chunks["entries"].sum())
        return len(self) * (self.layout.sizes[0] if name == "x" else 1)

    def _columns(self, row: NDArray[Any], content: bytes) -> dict[str, NDArray[Any]]:
        """Views of a checked chunk's buffers; `ends` begins with 0."""
        rows, entries = int(row["rows"]), int(row["entries"])
        columns = {}
        for name, dtype in self.layout.types.items():
            count = {"x": rows * (self.layout.sizes or (0,))[0], "ends": rows + 1}.get(name, rows)
            count = entries if name in LISTS else count
            columns[name] = np.frombuffer(content, dtype, count, int(row[name]))
        return columns

    def _check(self, chunks: NDArray[np.int64]) -> None:
        """Checks those of the chunks that were not read before."""
        for number in np.unique(chunks[~self._seen[chunks]]).tolist():
            row = self._chunks[number]
            offset = int(row["offset"])
            self._compare(number, self._blob.read(offset, int(row["length"])))

    def _compare(self, number: int, content: bytes | memoryview) -> None:
        row = self._chunks[number]
        if leaf_of(row, content) != row["sha256"].tobytes():
            raise DataDamagedError("a stored part of the data set differs from the registered one")
        self._seen[number] = True

    def _words(
        self, dtype: np.dtype[Any], places: NDArray[np.int64], counts: NDArray[np.int64] | int = 1
    ) -> tuple[NDArray[Any], NDArray[np.int64]]:
        """Numbers of one type that hold `counts` of them from each place of the file on, and where those are in them.

        Arrow aligns every buffer to 8 bytes.
        """
        offsets, gathered = self._blob.gathered(places * dtype.itemsize, counts * dtype.itemsize)
        return offsets[: len(offsets) // dtype.itemsize * dtype.itemsize].view(dtype), gathered // dtype.itemsize

    def _places(self, name: str, chunks: NDArray[np.int64], dtype: np.dtype[Any]) -> NDArray[np.int64]:
        """Where a buffer of each chunk begins, counted in numbers of its type."""
        if name not in self._starts:
            self._starts[name] = (self._chunks["offset"] + self._chunks[name]) // dtype.itemsize
        return self._starts[name][chunks]

    def _dense(self, chunks: NDArray[np.int64], within: NDArray[np.int64]) -> NDArray[np.float32]:
        width, dtype = self.layout.sizes[0], self.layout.types["x"]
        if not len(chunks):
            return np.empty((0, width), dtype=np.float32)
        words, starts = self._words(dtype, self._places("x", chunks, dtype) + within * width, width)
        rows: NDArray[np.float32] = np.lib.stride_tricks.sliding_window_view(words, width)[starts]
        return rows

    def _lists(self, chunks: NDArray[np.int64], within: NDArray[np.int64], out: dict[str, NDArray[Any]]) -> None:
        """Gathers the lists of each record: their ends in the result, and their numbers one after the other."""
        types = self.layout.types
        at = self._places("ends", chunks, types["ends"]) + within
        words, at = self._words(types["ends"], at, 2)
        starts = words[at]
        lengths = words[at + 1] - starts
        ends = np.cumsum(lengths, dtype=np.int64)
        total = int(ends[-1]) if len(ends) else 0
        out["ends"] = ends
        places = {name: self._places(name, chunks, types[name]) + starts for name in LISTS if name in types}
        if self._again:
            sizes = [types[name].itemsize for name in places]
            spans = [at * size for at, size in zip(places.values(), sizes, strict=True)]
            self._blob.announce(np.concatenate(spans), np.concatenate([lengths * size for size in sizes]))
        for name, at in places.items():
            words, first = self._words(types[name], at, lengths)
            out[name] = words[np.repeat(first - (ends - lengths), lengths) + np.arange(total)]


def _part(layout: Layout, columns: Columns, n: int) -> StoredPart:
    slot = None if layout.slots is None else SlotColumn(columns["slot"], layout.slots)
    return StoredPart(_features(layout, columns, n), columns["y"], columns.get("user"), slot)


def _features(layout: Layout, columns: Columns, n: int) -> Features:
    match layout.kind:
        case "sparse":
            indptr = np.concatenate((np.zeros(1, dtype=np.int64), columns["ends"]))
            return Csr(indptr, columns["columns"], columns["values"], (n, layout.sizes[0]))
        case "pairs":
            return Pairs(columns["user_row"], columns["item_row"], (layout.sizes[0], layout.sizes[1]))
        case "sequences":
            return Sequences(columns["items"], columns["ends"], layout.sizes[0])
        case "texts":
            return Texts(columns["utf8"], columns["ends"])
        case "dense":
            features: NDArray[np.float32] = columns["x"].reshape(n, layout.sizes[0])
            return features
