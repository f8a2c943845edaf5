"""Reads a part's Arrow file: chunk by chunk, or records by their numbers from a memory map.

The root of the index is compared with the registered hash when the file is opened: that reads no record. A chunk's own
hash is checked when the chunk is first read. Only numpy is needed.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from app.formats.damage import DataDamagedError
from app.formats.layout import Index, Layout, leaf_of
from app.formats.stored import Csr, Features, Pairs, Sequences, StoredPart, Texts

Columns = Mapping[str, NDArray[Any]]


class PartFile:
    """One part, open.

    Args:
        path: of the Arrow file.
        sha256: the registered hash.

    Raises:
        DataDamagedError: a file is missing, or the index is not the registered one. Reading raises it for a chunk whose
            bytes differ.
    """

    def __init__(self, path: Path, sha256: str) -> None:
        self._index = Index.read(path, sha256)
        self.layout = self._index.layout
        self._chunks = self._index.chunks
        self._starts: dict[str, NDArray[np.int64]] = {}
        self._seen: NDArray[np.bool_] = np.zeros(len(self._chunks), dtype=np.bool_)
        try:
            descriptor = os.open(path, os.O_RDONLY)
        except OSError:
            raise DataDamagedError("a stored part of the data set cannot be read") from None
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            self._descriptor, self._size = descriptor, file.seek(0, os.SEEK_END)

    def __len__(self) -> int:
        return self._index.rows

    def __del__(self) -> None:
        if hasattr(self, "_descriptor"):
            os.close(self._descriptor)

    def chunks(self) -> Iterator[StoredPart]:
        """All records in order, a chunk at a time, without a memory map: for processes with a bounded address space."""
        for number, row in enumerate(self._chunks):
            content = os.pread(self._descriptor, int(row["length"]), int(row["offset"]))
            self._compare(number, content)
            columns = self._columns(row, content)
            if "ends" in columns:
                columns["ends"] = columns["ends"][1:]
            yield StoredPart(_features(self.layout, columns, int(row["rows"])), columns["y"], columns.get("user"))

    def whole(self) -> StoredPart:
        """All records in memory, each chunk checked."""
        n, layout = len(self), self.layout
        out = {name: np.empty(self._entries(name), dtype=of) for name, of in layout.types.items()}
        at = dict.fromkeys(out, 0)
        for number, row in enumerate(self._chunks):
            content = os.pread(self._descriptor, int(row["length"]), int(row["offset"]))
            self._compare(number, content)
            columns = self._columns(row, content)
            if "ends" in columns:
                columns["ends"] = columns["ends"][1:] + (out["ends"][at["ends"] - 1] if at["ends"] else 0)
            for name, found in columns.items():
                out[name][at[name] : at[name] + len(found)] = found
                at[name] += len(found)
        user = out.get("user")
        return StoredPart(_features(layout, out, n), out["y"], user)

    def rows(self, numbers: NDArray[np.int64]) -> StoredPart:
        """The records with these numbers, in their order, copied from the map.

        Raises:
            DataDamagedError: as above.
            IndexError: a number is not below the number of records.
        """
        if len(numbers) and not 0 <= int(numbers.min()) <= int(numbers.max()) < len(self):
            raise IndexError("there is no record with this number")
        chunks, within = np.divmod(numbers, self.layout.chunk_rows)
        self._check(chunks)
        out: dict[str, NDArray[Any]] = {}
        for name, of in self.layout.types.items():
            if name == "x":
                out["x"] = self._dense(chunks, within)
            elif name in ("y", "user", "user_row", "item_row"):
                out[name] = self._words(of)[self._places(name, chunks, of) + within]
        if "ends" in self.layout.types:
            self._lists(chunks, within, out)
        return StoredPart(_features(self.layout, out, len(numbers)), out["y"], out.get("user"))

    def column(self, name: str) -> NDArray[Any]:
        """All of `y` or `user`: 8 bytes a record. Checks every chunk."""
        found = [each.y if name == "y" else each.user for each in self.chunks()]
        empty = np.empty(0, dtype=self.layout.types[name])
        return np.concatenate([empty, *(each for each in found if each is not None)])

    @property
    def units(self) -> int:
        """The number of protected units: records, or users."""
        return len(np.unique(self.column("user"))) if self.layout.users else len(self)

    def _entries(self, name: str) -> int:
        if name in ("columns", "values", "items", "utf8"):
            return int(self._chunks["entries"].sum())
        return len(self) * (self.layout.sizes[0] if name == "x" else 1)

    def _columns(self, row: NDArray[Any], content: bytes) -> dict[str, NDArray[Any]]:
        """Views of a checked chunk's buffers; `ends` begins with 0."""
        rows, entries = int(row["rows"]), int(row["entries"])
        found = {}
        for name, of in self.layout.types.items():
            count = {"x": rows * (self.layout.sizes or (0,))[0], "ends": rows + 1}.get(name, rows)
            count = entries if name in ("columns", "values", "items", "utf8") else count
            found[name] = np.frombuffer(content, of, count, int(row[name]))
        return found

    def _check(self, chunks: NDArray[np.int64]) -> None:
        """Checks those of the chunks that were not read before."""
        for number in np.unique(chunks[~self._seen[chunks]]).tolist():
            row = self._chunks[number]
            offset = int(row["offset"])
            self._compare(number, memoryview(self._map)[offset : offset + int(row["length"])])
            self._seen[number] = True

    def _compare(self, number: int, content: bytes | memoryview) -> None:
        row = self._chunks[number]
        if leaf_of(row, content) != row["sha256"].tobytes():
            raise DataDamagedError("a stored part of the data set differs from the registered one")

    @cached_property
    def _map(self) -> mmap.mmap:
        try:
            return mmap.mmap(self._descriptor, 0, prot=mmap.PROT_READ)
        except (OSError, ValueError):
            raise DataDamagedError("a stored part of the data set cannot be read") from None

    def _words(self, of: np.dtype[Any]) -> NDArray[Any]:
        """The whole file as numbers of one type: Arrow aligns every buffer to 8 bytes."""
        return np.frombuffer(self._map, of, self._size // of.itemsize)

    def _places(self, name: str, chunks: NDArray[np.int64], of: np.dtype[Any]) -> NDArray[np.int64]:
        """Where a buffer of each chunk begins, counted in numbers of its type."""
        if name not in self._starts:
            self._starts[name] = (self._chunks["offset"] + self._chunks[name]) // of.itemsize
        return self._starts[name][chunks]

    def _dense(self, chunks: NDArray[np.int64], within: NDArray[np.int64]) -> NDArray[np.float32]:
        width, of = self.layout.sizes[0], self.layout.types["x"]
        words, starts = self._words(of), self._places("x", chunks, of) + within * width
        if not len(starts):
            return np.empty((0, width), dtype=np.float32)
        found: NDArray[np.float32] = np.lib.stride_tricks.sliding_window_view(words, width)[starts]
        return found

    def _lists(self, chunks: NDArray[np.int64], within: NDArray[np.int64], out: dict[str, NDArray[Any]]) -> None:
        """Gathers the lists of each record: their ends in the result, and their numbers one after the other."""
        types = self.layout.types
        at = self._places("ends", chunks, types["ends"]) + within
        words = self._words(types["ends"])
        starts = words[at]
        lengths = words[at + 1] - starts
        ends = np.cumsum(lengths, dtype=np.int64)
        total = int(ends[-1]) if len(ends) else 0
        numbers = np.repeat(starts - (ends - lengths), lengths) + np.arange(total)
        out["ends"] = ends
        for name in ("columns", "values", "items", "utf8"):
            if name in types:
                places = np.repeat(self._places(name, chunks, types[name]), lengths)
                out[name] = self._words(types[name])[places + numbers]


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
            found: NDArray[np.float32] = columns["x"].reshape(n, layout.sizes[0])
            return found
