"""Record batches of Arrow and Parquet files, as records."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from app.disk import is_full
from app.formats.columns import Numbers, Prompts, Unlabelled
from app.formats.records import HELD, Records, Table, Wanted

MOST_ROWS = 8192


@contextmanager
def intact(table: Table, kind: str) -> Iterator[None]:
    """Names the file as damaged if Arrow cannot read it. Lack of memory or disk is not the file's fault.

    Raises:
        InvalidRequest: it is not an intact file of this kind.
    """
    try:
        yield
    except MemoryError:
        raise
    except (pa.ArrowException, OSError, ValueError) as error:  # Arrow's texts may quote cells
        if is_full(error):  # the parts' disk, not this file
            raise
        raise table.broken(f"it is not an intact {kind} file of a supported kind") from None


def batch_rows(columns: int) -> int:
    """How many rows of so many columns are read together."""
    return max(1, min(MOST_ROWS, HELD // columns))


def add_batch(batch: pa.RecordBatch, records: Records) -> None:
    """Adds the rows of a batch whose columns `check_type` accepted, and hands them on."""
    names = [each.name for each in (*records.features, records.label)]
    records.count += batch.num_rows
    if records.texts is not None:
        for text in plain(batch.column(names[0])).to_pylist():
            records.texts.add((text,))
    elif records.cells is not None:
        columns = [plain(batch.column(coder.column.name)).to_pylist() for coder in records.cells.coders]
        for row in zip(*columns, strict=True):
            records.cells.add(row)
    else:
        _add_numbers(records.numbers, [batch.column(name) for name in records.numbers.columns])
    if records.users is not None:
        for user in plain(batch.column(records.users.column)).to_pylist():
            records.add_user(user)
    if isinstance(records.labels, Unlabelled):
        records.labels.add_rows(batch.num_rows)
    elif isinstance(records.labels, Numbers):
        _add_numbers(records.labels, [batch.column(names[-1])])
    else:
        for label in plain(batch.column(names[-1])).to_pylist():
            records.labels.add(label)
    records.hand_on()


def _add_numbers(numbers: Numbers, columns: list[pa.Array]) -> None:
    block: NDArray[np.float64] = np.empty((len(columns[0]), len(columns)), dtype=np.float64)
    missing = np.zeros(len(columns), dtype=np.int64)
    for i, column in enumerate(columns):
        found = plain(column)
        missing[i] = found.null_count
        # Unsafe: integers beyond 2^53 are rounded, as in every other format. Nulls become NaN.
        block[:, i] = pc.cast(found, pa.float64(), safe=False).to_numpy(zero_copy_only=False)
    numbers.add_block(block, missing)


def plain(column: pa.Array) -> pa.Array:
    """The column without a dictionary."""
    return column.dictionary_decode() if pa.types.is_dictionary(column.type) else column


def check_type(found: pa.DataType, wanted: Wanted, records: Records) -> None:
    """Raises InvalidRequest if a column's type cannot be used as it is wanted."""
    plain = found.value_type if pa.types.is_dictionary(found) else found
    is_text = pa.types.is_string(plain) or pa.types.is_large_string(plain)
    is_number = pa.types.is_integer(plain) or pa.types.is_floating(plain) or pa.types.is_boolean(plain)
    if wanted == records.label and not isinstance(records.labels, Unlabelled):
        is_prompt = isinstance(records.labels, Prompts)
        fits = is_text if is_prompt else is_number or (is_text and records.spec.task.is_classification)
    elif records.users is not None and wanted.name == records.users.column:
        fits = is_text or pa.types.is_integer(plain)
    else:
        is_table = records.cells is not None and (is_text or pa.types.is_date(plain) or pa.types.is_timestamp(plain))
        fits = is_text if records.texts is not None else is_number or pa.types.is_decimal(plain) or is_table
    if not fits:
        raise records.unsuited(wanted, f"is of type {str(found)[:60]}, which cannot be used here")
