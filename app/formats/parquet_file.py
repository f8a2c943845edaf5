"""Parquet: flat columns, read in batches. The unpacked size that the footer claims is checked before a page is read."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa
import pyarrow.parquet as pq

from app.formats.batches import add_batch, batch_rows, check_type, intact, plain
from app.formats.records import Records, Table, Wanted
from app.formats.sealed import Named

READ_BYTES = 2**20
CELL_BYTES = 8  # the size of a number, once unpacked


def read(path: Named, records: Records) -> None:
    """Reads the wanted columns in batches; checks the claimed size first."""
    with _opened(path, records) as file:
        for each in _begun(file, records):
            check_type(file.schema_arrow.field(each.name).type, each, records)
        _read(file, records)


def read_rows(path: Named, table: Table) -> None:
    """Reads ids (texts or whole numbers) and a number, row by row."""
    with _opened(path, table) as file:
        wanted = _begun(file, table)
        for each in wanted:
            _check_row_type(file.schema_arrow.field(each.name).type, each, table)
        for batch in _batches(file, table):
            *ids, label = (plain(batch.column(each.name)).to_pylist() for each in wanted)
            for row, value in zip(zip(*ids, strict=True), label, strict=True):
                table.add(row, value)


@contextmanager
def _opened(path: Named, table: Table) -> Iterator[pq.ParquetFile]:
    # Pages are read one by one: a column of a row group may be larger than memory.
    options = {"memory_map": False, "pre_buffer": False, "buffer_size": READ_BYTES}
    with intact(table, "Parquet"), path.open("rb") as content, pq.ParquetFile(content, **options) as file:
        yield file


def _begun(file: pq.ParquetFile, table: Table) -> list[Wanted]:
    table.begin(file.schema_arrow.names)
    return list(dict.fromkeys((*table.features, table.label)))


def _batches(file: pq.ParquetFile, table: Table) -> Iterator[pa.RecordBatch]:
    names = list(dict.fromkeys(each.name for each in (*table.features, table.label)))
    claimed = max(_claimed(file.metadata, set(names)), file.metadata.num_rows * len(names) * CELL_BYTES)
    if claimed > table.max_unpacked_bytes:
        raise table.broken(f"it unpacks to {claimed} bytes; at most {table.max_unpacked_bytes} are allowed")
    yield from file.iter_batches(batch_rows(len(names)), columns=names, use_threads=False)


def _read(file: pq.ParquetFile, records: Records) -> None:
    for batch in _batches(file, records):
        add_batch(batch, records)


def _claimed(metadata: pq.FileMetaData, names: set[str]) -> int:
    groups = (metadata.row_group(i) for i in range(metadata.num_row_groups))
    columns = (group.column(i) for group in groups for i in range(group.num_columns))
    return sum(column.total_uncompressed_size for column in columns if column.path_in_schema in names)


def _check_row_type(found: pa.DataType, wanted: Wanted, table: Table) -> None:
    plain = found.value_type if pa.types.is_dictionary(found) else found
    is_id = pa.types.is_string(plain) or pa.types.is_large_string(plain) or pa.types.is_integer(plain)
    is_number = pa.types.is_integer(plain) or pa.types.is_floating(plain)
    if not (is_number if wanted == table.label else is_id):
        raise table.unsuited(wanted, f"is of type {str(found)[:60]}, which cannot be used here")
