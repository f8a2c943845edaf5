"""Recognizes files of another format than declared, for a clearer error than "no such column"."""

from __future__ import annotations

from pathlib import Path

GZIP = b"\x1f\x8b"
# The first bytes of a file, its name, and the format that may begin so.
BEGINNINGS: tuple[tuple[bytes, str, str], ...] = (
    (b"PAR1", "a Parquet file", "parquet"),
    (b"PK\x03\x04", "a ZIP archive, such as NPZ or XLSX", "npz"),
    (b"PK\x05\x06", "an empty ZIP archive", "npz"),
    (b"\x93NUMPY", "a single NPY array: put features and labels in one NPZ file", ""),
    (GZIP, "a gzip archive: unpack it first", ""),
    (b"\x28\xb5\x2f\xfd", "a Zstandard archive: unpack it first", ""),
    (b"BZh", "a bzip2 archive: unpack it first", ""),
    (b"\xfd7zXZ\x00", "an xz archive: unpack it first", ""),
    (b"\xff\xfe", "text in UTF-16: save it as UTF-8", ""),
    (b"\xfe\xff", "text in UTF-16: save it as UTF-8", ""),
    (b"SQLite format 3\x00", "an SQLite database", ""),
    (b"%PDF-", "a PDF document", ""),
    (b"\x89HDF", "an HDF5 file", ""),
)
TEXT_FORMATS = ("csv", "jsonl")
LOOKED_AT_BYTES = 4096


def what_else(path: Path, format: str) -> str | None:
    """The file's real format, by its first bytes; None if it may be `format`.

    A text may hold a NUL, but no name in its first line does.
    """
    with path.open("rb") as file:
        head = file.read(LOOKED_AT_BYTES)
    for beginning, what, fits in BEGINNINGS:
        if head.startswith(beginning) and fits != format:
            return None if beginning == GZIP and format in TEXT_FORMATS else what  # the readers unpack it
    if format in TEXT_FORMATS and b"\x00" in head.partition(b"\n")[0]:
        return "not text: there are NUL bytes in its first line"
    return None
