"""Arrow IPC: a file or a stream of record batches, with the columns that Parquet may have. Compressed ones too.

A batch of a hostile file may claim anything: every batch is validated whole before a number of it is used. A batch is
in memory at once, so the memory limit of this process bounds it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa

from app.formats.arrow_batches import add_batches, batch_rows, begin, intact
from app.formats.reader_records import Table
from core.parts.layout import ARROW
from core.parts.sealed import Named


def read(path: Named, table: Table) -> None:
    """Reads the wanted columns, batch by batch.

    Raises:
        InvalidRequest: the file is damaged, or a column is missing or of a type that cannot be used.
    """
    with intact(table, "Arrow IPC"), path.open("rb") as file, pa.PythonFile(file, "r") as source:
        is_file = source.read(len(ARROW)) == ARROW
        schema = _opened(source, is_file=is_file).schema
        begin(schema, table)
        needed = sorted(schema.get_field_index(name) for name in table.names)  # others are not even decompressed
        step = batch_rows(schema, table.names)
        add_batches(_sliced(_batches(_opened(source, needed, is_file=is_file), is_file=is_file), table, step), table)


def _sliced(batches: Iterator[pa.RecordBatch], table: Table, step: int) -> Iterator[pa.RecordBatch]:
    """Valid batches of few rows."""
    unpacked = Unpacked()
    for batch in batches:
        batch.validate(full=True)
        if unpacked.after(batch) > table.max_unpacked_bytes:
            limit = table.max_unpacked_bytes
            raise table.broken(f"it unpacks to more than {limit} bytes, which is the most that is allowed")
        yield from (batch.slice(start, step) for start in range(0, batch.num_rows, step))


def _opened(source: pa.NativeFile, needed: Sequence[int] = (), *, is_file: bool) -> pa.RecordBatchReader:
    """A reader from the beginning, of the columns at these places; of all if there are none."""
    source.seek(0)
    options = pa.ipc.IpcReadOptions(included_fields=list(needed))
    return (pa.ipc.open_file if is_file else pa.ipc.open_stream)(source, options=options)


def _batches(reader: pa.RecordBatchReader, *, is_file: bool) -> Iterator[pa.RecordBatch]:
    if is_file:
        return (reader.get_batch(number) for number in range(reader.num_record_batches))
    return iter(reader)


class Unpacked:
    """Counts the bytes of batches. A dictionary that several batches share counts once."""

    def __init__(self) -> None:
        self._bytes = 0
        self._last: dict[str, pa.Array] = {}  # held, so that no other dictionary takes its place in memory

    def after(self, batch: pa.RecordBatch) -> int:
        """The bytes of all batches so far, this one included."""
        for name, column in zip(batch.schema.names, batch.columns, strict=True):
            if not pa.types.is_dictionary(column.type):
                self._bytes += column.nbytes
                continue
            self._bytes += column.indices.nbytes
            last, dictionary = self._last.get(name), column.dictionary
            if last is None or _places(last) != _places(dictionary):
                self._bytes += dictionary.nbytes
            self._last[name] = dictionary
        return self._bytes


def _places(array: pa.Array) -> list[tuple[int, int]]:
    return [(0, 0) if each is None else (each.address, each.size) for each in array.buffers()]
