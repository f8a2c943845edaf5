"""Parquet: flat columns, read in batches. The unpacked size that the footer claims is checked before a page is read."""

from __future__ import annotations

import pyarrow.parquet as pq

from app.formats.arrow_batches import add_batches, batch_rows, begin, intact
from app.formats.reader_records import Table
from core.parts.sealed import Named

READ_BYTES = 2**20
CELL_BYTES = 8  # the size of a number, once unpacked


def read(path: Named, table: Table) -> None:
    """Reads the wanted columns in batches; checks the claimed size first."""
    # Pages are read one by one: a column of a row group may be larger than memory.
    options = {"memory_map": False, "pre_buffer": False, "buffer_size": READ_BYTES}
    with intact(table, "Parquet"), path.open("rb") as content, pq.ParquetFile(content, **options) as file:
        begin(file.schema_arrow, table)
        names = table.names
        claimed = max(_claimed(file.metadata, set(names)), file.metadata.num_rows * len(names) * CELL_BYTES)
        if claimed > table.max_unpacked_bytes:
            raise table.broken(f"it unpacks to {claimed} bytes; at most {table.max_unpacked_bytes} are allowed")
        add_batches(file.iter_batches(batch_rows(file.schema_arrow, names), columns=names, use_threads=False), table)


def _claimed(metadata: pq.FileMetaData, names: set[str]) -> int:
    groups = (metadata.row_group(i) for i in range(metadata.num_row_groups))
    columns = (group.column(i) for group in groups for i in range(group.num_columns))
    return sum(column.total_uncompressed_size for column in columns if column.path_in_schema in names)
