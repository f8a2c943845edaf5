"""Text files as they are, or from inside a gzip or Zstandard archive, bounded in what they unpack to."""

from __future__ import annotations

import gzip
import io
import zlib
from typing import Any, BinaryIO, Literal, cast

from app.formats.reader_records import Table
from app.formats.readers import GZIP, ZSTANDARD
from core.parts.sealed import Named


def opened(path: Named, table: Table) -> BinaryIO:
    """Opens a text file; unpacks it while it is read if it is an archive.

    Reads raise InvalidRequest if the archive is damaged, or larger inside than `table.max_unpacked_bytes`.
    """
    file = path.open("rb")
    head = file.read(4)
    file.seek(0)
    if head.startswith((GZIP, ZSTANDARD)):
        file.close()
        return cast(BinaryIO, io.BufferedReader(_Unpacked(path, table, "zstd" if head == ZSTANDARD else "gzip")))
    return file


class _Unpacked(io.RawIOBase):
    """The content of an archive."""

    def __init__(self, path: Named, table: Table, kind: Literal["gzip", "zstd"]) -> None:
        self._path, self._table, self._kind = path, table, kind
        self._open()

    def _open(self) -> None:
        self._read = 0
        self._archive: Any
        self._file = self._path.open("rb")
        if self._kind == "gzip":
            self._archive = gzip.GzipFile(fileobj=self._file)
            return
        import pyarrow as pa  # noqa: PLC0415 - for such archives alone

        self._archive = pa.CompressedInputStream(pa.PythonFile(self._file, "r"), "zstd")

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._read

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Goes back to the beginning, which is all that a reader needs."""
        if offset or whence != io.SEEK_SET:
            raise io.UnsupportedOperation
        self._archive.close()
        self._file.close()
        self._open()
        return 0

    def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override]
        try:
            piece = self._archive.read(len(buffer))
        except (EOFError, OSError, zlib.error):
            name = "gzip" if self._kind == "gzip" else "Zstandard"
            raise self._table.broken(f"it is not an intact {name} archive") from None
        self._read += len(piece)
        if self._read > self._table.max_unpacked_bytes:
            limit = self._table.max_unpacked_bytes
            raise self._table.broken(
                f"it unpacks to more than {limit} bytes, the most that is allowed for a file of its size"
            )
        buffer[: len(piece)] = piece
        return len(piece)

    def close(self) -> None:
        if not self.closed:
            self._archive.close()
            self._file.close()
        super().close()
