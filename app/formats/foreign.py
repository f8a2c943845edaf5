"""Recognizes files of another format than declared, for a clearer error than "no such column"."""

from __future__ import annotations

from app.formats.readers import GZIP, ZSTANDARD, reader_of
from core.contracts.dataset_spec import TableFormat
from core.parts.sealed import Named

# The first bytes of a file, and its name.
BEGINNINGS: tuple[tuple[bytes, str], ...] = (
    (b"PAR1", "a Parquet file"),
    (b"ARROW1", "an Arrow file"),
    (b"PK\x03\x04", "a ZIP archive, such as NPZ or XLSX"),
    (b"PK\x05\x06", "an empty ZIP archive"),
    (b"\x93NUMPY", "a single NPY array: put features and labels in one NPZ file"),
    (GZIP, "a gzip archive: unpack it first"),
    (ZSTANDARD, "a Zstandard archive: unpack it first"),
    (b"BZh", "a bzip2 archive: unpack it first"),
    (b"\xfd7zXZ\x00", "an xz archive: unpack it first"),
    (b"\xff\xfe", "text in UTF-16: save it as UTF-8"),
    (b"\xfe\xff", "text in UTF-16: save it as UTF-8"),
    (b"SQLite format 3\x00", "an SQLite database"),
    (b"%PDF-", "a PDF document"),
    (b"\x89HDF", "an HDF5 file"),
)
LOOKED_AT_BYTES = 4096


def what_else(path: Named, format: TableFormat) -> str | None:
    """The file's real format, by its first bytes; None if it may be `format`.

    A text may hold a NUL, but no name in its first line does.
    """
    with path.open("rb") as file:
        head = file.read(LOOKED_AT_BYTES)
    reader = reader_of(format)
    for beginning, kind in BEGINNINGS:
        if head.startswith(beginning):
            return None if beginning in reader.begins else kind
    if reader.is_text and b"\x00" in head.partition(b"\n")[0]:
        return "not text: there are NUL bytes in its first line"
    return None
