"""Parquet: flat columns, read in batches. What the footer claims to unpack to is checked before a page is read."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from app.formats.columns import Numbers
from app.formats.records import Records, Wanted

BATCH_ROWS = 8192
CELL_BYTES = 8  # of a number, once unpacked


def read(path: Path, records: Records) -> None:
    try:
        with pq.ParquetFile(path, memory_map=False, pre_buffer=False) as file:
            _read(file, records)
    except MemoryError:
        raise
    except (pa.ArrowException, OSError, ValueError):  # their texts may quote cells
        raise records.broken("it is not a whole Parquet file of a kind that is supported") from None


def _read(file: pq.ParquetFile, records: Records) -> None:
    records.begin(file.schema_arrow.names)
    wanted = [*records.features, records.label]
    for each in wanted:
        _check_type(file.schema_arrow.field(each.name).type, each, records)
    names = [each.name for each in wanted]
    claimed = max(_claimed(file.metadata, set(names)), file.metadata.num_rows * len(names) * CELL_BYTES)
    if claimed > records.max_unpacked_bytes:
        raise records.broken(f"it unpacks to {claimed} bytes; at most {records.max_unpacked_bytes} are allowed")
    for batch in file.iter_batches(BATCH_ROWS, columns=names, use_threads=False):
        records.count += batch.num_rows
        if records.texts is not None:
            for text in _plain(batch.column(names[0])).to_pylist():
                records.texts.add((text,))
        else:
            _add_numbers(records.numbers, [batch.column(name) for name in names[:-1]])
        if isinstance(records.labels, Numbers):
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
    if wanted == records.label:
        fits = is_number or (is_text and records.spec.task.kind == "classification")
    else:
        fits = is_text if records.texts is not None else is_number or pa.types.is_decimal(plain)
    if not fits:
        raise records.unsuited(wanted, f"is of type {str(found)[:60]}, which can not be used here")
