"""Record batches of Arrow and Parquet files, as blocks of a table."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager

import numpy as np
import pyarrow as pa

from app.formats import reader_records
from app.formats.reader_records import Table
from core.disk import is_full

MOST_ROWS = 2**13
MOST_SHORT_ROWS = 2**14  # where no cell is long


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


def batch_rows(schema: pa.Schema, names: Sequence[str]) -> int:
    """How many rows of these columns are read together."""
    short = all(pa.types.is_primitive(schema.field(name).type) for name in names)
    return max(1, min(MOST_SHORT_ROWS if short else MOST_ROWS, reader_records.HELD // len(names)))


def begin(schema: pa.Schema, table: Table) -> None:
    """Raises InvalidRequest if a wanted column is missing, or of a type that cannot be used as it is wanted."""
    table.begin(schema.names)
    for wanted in table.wanted:
        column_type = schema.field(wanted.name).type
        content = column_type.value_type if pa.types.is_dictionary(column_type) else column_type
        if _kind(content) not in table.usable_types(wanted):
            raise table.unsuited(wanted, f"is of type {str(column_type)[:60]}, which cannot be used here")
        if not _has_known_zone(content):
            advice = "write times in UTC, or in a zone of the IANA list"
            raise table.unsuited(wanted, f"is of type {str(column_type)[:60]}, whose time zone is not known: {advice}")


def add_batches(batches: Iterator[pa.RecordBatch], table: Table) -> None:
    """Adds the rows of batches, in their order."""
    first = 1
    with closing(ahead(batches)) as coming:
        for batch in coming:
            block = {name: batch.column(name) for name in table.names}
            table.add(block, np.arange(first, first + batch.num_rows))
            first += batch.num_rows
            del block, batch  # before the one after the next is decoded


def ahead(batches: Iterator[pa.RecordBatch]) -> Generator[pa.RecordBatch]:
    """The same batches, in the same order; another thread decodes the next one meanwhile, without Python's lock.

    Close it before the file: that waits for the thread.
    """
    with ThreadPoolExecutor(1, "decodes") as decoder:
        coming = decoder.submit(next, batches, None)
        while (batch := coming.result()) is not None:
            coming = decoder.submit(next, batches, None)
            yield batch


def _has_known_zone(column_type: pa.DataType) -> bool:
    """Returns False for times in a zone that Python cannot convert to."""
    if not pa.types.is_timestamp(column_type):
        return True
    try:
        pa.scalar(0, column_type).as_py()
    except pa.ArrowInvalid:
        return False
    return True


def _kind(column_type: pa.DataType) -> str:
    kinds = {
        "text": pa.types.is_string(column_type) or pa.types.is_large_string(column_type),
        "integer": pa.types.is_integer(column_type),
        "float": pa.types.is_floating(column_type),
        "boolean": pa.types.is_boolean(column_type),
        "decimal": pa.types.is_decimal(column_type),
        "day": pa.types.is_date(column_type) or pa.types.is_timestamp(column_type),
    }
    return next((name for name, fits in kinds.items() if fits), "")
