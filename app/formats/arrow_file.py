"""Arrow IPC: a file or a stream of record batches, with the columns that Parquet may have. Compressed ones too.

A batch of a hostile file may claim anything: every batch is validated whole before a number of it is used. A batch is
in memory at once, so the memory limit of this process bounds it.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

from app.disk import is_full
from app.formats.batches import add_batch, batch_rows, check_type
from app.formats.layout import ARROW
from app.formats.records import Records


def read(path: Path, records: Records) -> None:
    """Reads the wanted columns, batch by batch.

    Raises:
        InvalidRequest: the file is damaged, or a column is missing or of a type that cannot be used.
    """
    try:
        with pa.OSFile(str(path)) as source:
            _read(source, records)
    except MemoryError:
        raise
    except (pa.ArrowException, OSError, ValueError) as error:  # Arrow's texts may quote cells
        if is_full(error):  # the parts' disk, not this file
            raise
        raise records.broken("it is not an intact Arrow IPC file of a supported kind") from None


def _read(source: pa.NativeFile, records: Records) -> None:
    is_file = source.read(len(ARROW)) == ARROW
    source.seek(0)
    reader = pa.ipc.open_file(source) if is_file else pa.ipc.open_stream(source)
    records.begin(reader.schema.names)
    wanted = list(dict.fromkeys((*records.features, records.label)))
    for each in wanted:
        check_type(reader.schema.field(each.name).type, each, records)
    names = list(dict.fromkeys(each.name for each in wanted))
    step, unpacked = batch_rows(len(names)), 0
    for batch in _batches(reader, is_file=is_file):
        batch.validate(full=True)
        unpacked += batch.nbytes
        if unpacked > records.max_unpacked_bytes:
            most = records.max_unpacked_bytes
            raise records.broken(f"it unpacks to more than {most} bytes, which is the most that is allowed")
        needed = batch.select(names)
        for start in range(0, needed.num_rows, step):
            add_batch(needed.slice(start, step), records)


def _batches(reader: pa.RecordBatchReader, *, is_file: bool) -> Iterator[pa.RecordBatch]:
    if is_file:
        return (reader.get_batch(number) for number in range(reader.num_record_batches))
    return iter(reader)
