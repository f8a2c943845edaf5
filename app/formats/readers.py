"""The formats of data files with one record a row: how each is read, and how it is told from others."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, assert_never

from core.contracts.dataset_spec import TableFormat
from core.parts.columns import json_number, text_number

GZIP, ZSTANDARD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"


@dataclass(frozen=True)
class Reader:
    """How files of one format are read.

    Attributes:
        module: its name in app.formats; its `read(path, records)` fills Records. Imported on demand.
        number: a cell as a number; raises ValueError or TypeError.
        is_text: files are UTF-8 text.
        begins: first bytes that such files may have and that name a format, or an archive that the reader unpacks.
    """

    module: str
    number: Callable[[Any], float] = float
    is_text: bool = False
    begins: tuple[bytes, ...] = ()


def reader_of(name: TableFormat) -> Reader:
    """The reader of a format.

    >>> reader_of("csv").module
    'csv_file'
    """
    match name:
        case "csv":
            return Reader("csv_file", text_number, is_text=True, begins=(GZIP, ZSTANDARD))
        case "jsonl":
            return Reader("jsonl_file", json_number, is_text=True, begins=(GZIP, ZSTANDARD))
        case "parquet":
            return Reader("parquet_file", begins=(b"PAR1",))
        case "npz":
            return Reader("npz_file", begins=(b"PK\x03\x04", b"PK\x05\x06"))
        case "arrow":
            return Reader("arrow_file", begins=(b"ARROW1",))
        case "images":
            return Reader("image_file", begins=(b"PK\x03\x04", b"PK\x05\x06", GZIP, ZSTANDARD))
        case _:
            assert_never(name)
