"""Writes a part's Arrow file chunk by chunk, with its index: at most one chunk and what is added are in memory."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Self

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from core.disk import LOOK_BYTES, Room
from core.parts.layout import CHUNK_BYTES, Index, Layout, index_path, leaf_of, row_of
from core.parts.part_pieces import cut, joined
from core.parts.sealed import DataKey, create, finish
from core.parts.stored_records import Csr, Pairs, Sequences, StoredPart, Texts

TYPES = {"<i8": pa.int64(), "<i4": pa.int32(), "<f8": pa.float64(), "<f4": pa.float32()}
PENDING_BYTES = 2**20  # small additions are joined up to this size: a join costs a copy, and chunks are small


class PartWriter:
    """A new part, of mode 0600. `close` ends it and returns its hash; leaving the `with` block without `close` leaves
    files that are no part.

    Args:
        path: a new file; the index is written next to it.
        layout: what every added piece must be.
        room: what to leave of the disk; None: nothing. A small compressed file may hold terabytes.
        key: seals both files.
        temporary: what is written need not outlast a power cut: nothing waits for the disk.

    Raises:
        OSError: from every call that writes: the disk is full.
        StorageFull: its reserve begins.
    """

    def __init__(
        self,
        path: Path,
        layout: Layout,
        *,
        room: Room | None = None,
        key: DataKey | None = None,
        temporary: bool = False,
    ) -> None:
        self._temporary = temporary
        self._pending_most = CHUNK_BYTES if temporary else PENDING_BYTES
        self._key, self._path, self._layout, self._schema = key, path, layout, _schema(layout)
        self._file = create(path, key)
        self._sink = pa.PythonFile(self._file, "w")
        self._writer = pa.ipc.new_file(self._sink, self._schema)
        self._pending: list[StoredPart] = []
        self._waiting, self._pending_bytes, self.rows = 0, 0, 0
        self._room, self._next_look = room, 0
        self._rows_of_index = bytearray()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    def add(self, part: StoredPart) -> None:
        """Appends records.

        Raises:
            ValueError: they have another layout.
        """
        if Layout.of(part) != self._layout:
            raise ValueError("a part holds records of one layout")
        if not len(part.y):
            return
        self._pending.append(part)
        self._waiting += len(part.y)
        self.rows += len(part.y)
        self._pending_bytes += part.nbytes
        if self._waiting >= self._layout.chunk_rows and self._pending_bytes >= self._pending_most:
            self._write(whole_only=True)

    def close(self) -> str:
        """Writes what is left, synced to disk. Returns the part's hash. The caller syncs the folder's entries."""
        self._write(whole_only=False)
        self._writer.close()
        self._finish(self._file)
        index = Index(self._layout, self.rows, np.frombuffer(bytes(self._rows_of_index), self._layout.row_type))
        with create(index_path(self._path), self._key) as file:
            file.write(index.to_bytes())
            self._finish(file)
        return index.root

    def _finish(self, file: BinaryIO) -> None:
        if self._temporary:
            file.close()
        else:
            finish(file)

    def _write(self, *, whole_only: bool) -> None:
        if not self._pending:
            return
        part, step = joined(self._pending), self._layout.chunk_rows
        end = self._waiting // step * step if whole_only else self._waiting
        for start in range(0, end, step):
            self._write_chunk(cut(part, start, min(start + step, end)))
        self._pending = [cut(part, end, self._waiting)] if end < self._waiting else []
        self._waiting -= end
        self._pending_bytes = sum(each.nbytes for each in self._pending)

    def _write_chunk(self, part: StoredPart) -> None:
        if self._room is not None and self._sink.tell() >= self._next_look:
            self._room.require(self._path.parent)
            self._next_look = self._sink.tell() + LOOK_BYTES
        batch = pa.RecordBatch.from_arrays(_columns(part, self._schema), schema=self._schema)
        content = batch.serialize()
        self._writer.write_batch(batch)
        offset = self._sink.tell() - content.size
        reread = pa.ipc.read_record_batch(content, self._schema)
        places = _places(reread, content.address)
        numbers = (offset, content.size, _entries(part), len(part.y), *(places[name] for name in self._layout.buffers))
        row = row_of(self._layout, numbers)
        row["sha256"] = leaf_of(row, content)
        self._rows_of_index += row.tobytes()


def _field(name: str, arrow_type: pa.DataType) -> pa.Field:
    return pa.field(name, arrow_type, nullable=False)


def _schema(layout: Layout) -> pa.Schema:
    fields = [_field("y", pa.int64() if layout.labels == "int64" else pa.float64())]
    if layout.users:
        fields.append(_field("user", pa.int64()))
    if layout.slots is not None:
        fields.append(_field("slot", pa.int64()))
    match layout.kind:
        case "dense":
            fields.append(_field("x", pa.list_(_field("item", pa.float32()), layout.sizes[0])))
        case "sparse":
            entry = pa.struct([_field("column", pa.int32()), _field("value", pa.float32())])
            fields.append(_field("x", pa.large_list(_field("item", entry))))
        case "pairs":
            fields += [_field("user_row", pa.int32()), _field("item_row", pa.int32())]
        case "sequences":
            fields.append(_field("items", pa.large_list(_field("item", pa.int32()))))
        case "texts":
            fields.append(_field("text", pa.large_string()))
    return pa.schema(fields)


def _columns(part: StoredPart, schema: pa.Schema) -> list[pa.Array]:
    x, columns = part.x, [_array(part.y)]
    if part.user is not None:
        columns.append(_array(part.user))
    if part.slot is not None:
        columns.append(_array(part.slot.numbers))
    arrow_type = schema.field(len(columns)).type
    if isinstance(x, Pairs):
        return [*columns, _array(x.users), _array(x.items)]
    if isinstance(x, Csr):
        entries = pa.StructArray.from_arrays(
            [_array(x.indices), _array(x.data)], fields=[arrow_type.value_type.field(0), arrow_type.value_type.field(1)]
        )
        return [*columns, pa.LargeListArray.from_arrays(_array(x.indptr), entries, type=arrow_type)]
    if isinstance(x, Sequences):
        return [*columns, pa.LargeListArray.from_arrays(_array(_offsets(x.ends)), _array(x.items), type=arrow_type)]
    if isinstance(x, Texts):
        texts = pa.py_buffer(np.ascontiguousarray(x.utf8))
        return [*columns, pa.LargeStringArray.from_buffers(len(x.ends), pa.py_buffer(_offsets(x.ends)), texts)]
    return [*columns, pa.FixedSizeListArray.from_arrays(_array(x.reshape(-1)), type=arrow_type)]


def _array(values: NDArray[Any]) -> pa.Array:
    """The numbers as they are. `pa.array` would load pandas where it is installed, which takes memory."""
    content = pa.py_buffer(np.ascontiguousarray(values))
    return pa.Array.from_buffers(TYPES[values.dtype.str], len(values), [None, content])


def _offsets(ends: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.concatenate((np.zeros(1, dtype=np.int64), ends))


def _entries(part: StoredPart) -> int:
    """How many numbers a chunk's lists have together; 0 for records of one length."""
    x = part.x
    if isinstance(x, Csr):
        return len(x.data)
    return len(x.items if isinstance(x, Sequences) else x.utf8) if isinstance(x, Sequences | Texts) else 0


def _places(batch: pa.RecordBatch, start: int) -> dict[str, int]:
    """Where each buffer begins in the batch's bytes; 0 for one that is empty."""
    places: dict[str, int] = {}

    def note(buffer: pa.Buffer | None, name: str) -> None:
        places[name] = buffer.address - start if buffer is not None and buffer.size else 0

    for name in batch.schema.names:
        column = batch.column(name)
        if pa.types.is_large_string(column.type):
            _, ends, utf8 = column.buffers()
            note(ends, "ends")
            note(utf8, "utf8")
        elif pa.types.is_large_list(column.type):
            note(column.buffers()[1], "ends")
            values = column.values
            for part, called in ((values, "items"),) if name == "items" else _entry_columns(values):
                note(part.buffers()[1], called)
        else:
            note(column.buffers()[-1], name)
    return places


def _entry_columns(entries: pa.StructArray) -> tuple[tuple[pa.Array, str], tuple[pa.Array, str]]:
    return (entries.field(0), "columns"), (entries.field(1), "values")
