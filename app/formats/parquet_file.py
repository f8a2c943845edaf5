"""Parquet: flat columns, read in batches. The unpacked size that the footer claims is checked before a page is read."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from app.formats.columns import Numbers, Unlabelled
from app.formats.records import Records, Table, Wanted

BATCH_ROWS = 8192
CELL_BYTES = 8  # the size of a number, once unpacked


def read(path: Path, records: Records) -> None:
    """Reads the wanted columns in batches; checks the claimed size first."""
    with _opened(path, records) as file:
        for each in _begun(file, records):
            _check_type(file.schema_arrow.field(each.name).type, each, records)
        _read(file, records)


def read_rows(path: Path, table: Table) -> None:
    """Reads ids (texts or whole numbers) and a number, row by row."""
    with _opened(path, table) as file:
        wanted = _begun(file, table)
        for each in wanted:
            _check_row_type(file.schema_arrow.field(each.name).type, each, table)
        for batch in _batches(file, table):
            *ids, label = (_plain(batch.column(each.name)).to_pylist() for each in wanted)
            for row, value in zip(zip(*ids, strict=True), label, strict=True):
                table.add(row, value)


@contextmanager
def _opened(path: Path, table: Table) -> Iterator[pq.ParquetFile]:
    try:
        with pq.ParquetFile(path, memory_map=False, pre_buffer=False) as file:
            yield file
    except MemoryError:
        raise
    except (pa.ArrowException, OSError, ValueError):  # Arrow's texts may quote cells
        raise table.broken("it is not an intact Parquet file of a supported kind") from None


def _begun(file: pq.ParquetFile, table: Table) -> list[Wanted]:
    table.begin(file.schema_arrow.names)
    return list(dict.fromkeys((*table.features, table.label)))


def _batches(file: pq.ParquetFile, table: Table) -> Iterator[pa.RecordBatch]:
    names = list(dict.fromkeys(each.name for each in (*table.features, table.label)))
    claimed = max(_claimed(file.metadata, set(names)), file.metadata.num_rows * len(names) * CELL_BYTES)
    if claimed > table.max_unpacked_bytes:
        raise table.broken(f"it unpacks to {claimed} bytes; at most {table.max_unpacked_bytes} are allowed")
    yield from file.iter_batches(BATCH_ROWS, columns=names, use_threads=False)


def _read(file: pq.ParquetFile, records: Records) -> None:
    names = [each.name for each in (*records.features, records.label)]
    for batch in _batches(file, records):
        records.count += batch.num_rows
        if records.texts is not None:
            for text in _plain(batch.column(names[0])).to_pylist():
                records.texts.add((text,))
        elif records.cells is not None:
            columns = [_plain(batch.column(coder.column.name)).to_pylist() for coder in records.cells.coders]
            for row in zip(*columns, strict=True):
                records.cells.add(row)
        else:
            _add_numbers(records.numbers, [batch.column(name) for name in records.numbers.columns])
        if records.users is not None:
            for user in _plain(batch.column(records.users.column)).to_pylist():
                records.add_user(user)
        if isinstance(records.labels, Unlabelled):
            records.labels.add_rows(batch.num_rows)
        elif isinstance(records.labels, Numbers):
            _add_numbers(records.labels, [batch.column(names[-1])])
        else:
            for label in _plain(batch.column(names[-1])).to_pylist():
                records.labels.add(label)


def _claimed(metadata: pq.FileMetaData, names: set[str]) -> int:
    groups = (metadata.row_group(i) for i in range(metadata.num_row_groups))
    columns = (group.column(i) for group in groups for i in range(group.num_columns))
    return sum(column.total_uncompressed_size for column in columns if column.path_in_schema in names)


def _add_numbers(numbers: Numbers, columns: list[pa.Array]) -> None:
    block: NDArray[np.float64] = np.empty((len(columns[0]), len(columns)), dtype=np.float64)
    missing = np.zeros(len(columns), dtype=np.int64)
    for i, column in enumerate(columns):
        plain = _plain(column)
        missing[i] = plain.null_count
        # Unsafe: integers beyond 2^53 are rounded, as in every other format. Nulls become NaN.
        block[:, i] = pc.cast(plain, pa.float64(), safe=False).to_numpy(zero_copy_only=False)
    numbers.add_block(block, missing)


def _plain(column: pa.Array) -> pa.Array:
    return column.dictionary_decode() if pa.types.is_dictionary(column.type) else column


def _check_type(found: pa.DataType, wanted: Wanted, records: Records) -> None:
    plain = found.value_type if pa.types.is_dictionary(found) else found
    is_text = pa.types.is_string(plain) or pa.types.is_large_string(plain)
    is_number = pa.types.is_integer(plain) or pa.types.is_floating(plain) or pa.types.is_boolean(plain)
    if wanted == records.label and not isinstance(records.labels, Unlabelled):
        fits = is_number or (is_text and records.spec.task.is_classification)
    elif records.users is not None and wanted.name == records.users.column:
        fits = is_text or pa.types.is_integer(plain)
    else:
        is_table = records.cells is not None and (is_text or pa.types.is_date(plain) or pa.types.is_timestamp(plain))
        fits = is_text if records.texts is not None else is_number or pa.types.is_decimal(plain) or is_table
    if not fits:
        raise records.unsuited(wanted, f"is of type {str(found)[:60]}, which cannot be used here")


def _check_row_type(found: pa.DataType, wanted: Wanted, table: Table) -> None:
    plain = found.value_type if pa.types.is_dictionary(found) else found
    is_id = pa.types.is_string(plain) or pa.types.is_large_string(plain) or pa.types.is_integer(plain)
    is_number = pa.types.is_integer(plain) or pa.types.is_floating(plain)
    if not (is_number if wanted == table.label else is_id):
        raise table.unsuited(wanted, f"is of type {str(found)[:60]}, which cannot be used here")
