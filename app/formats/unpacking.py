"""Text files as they are, or from inside a gzip archive, bounded in what they unpack to."""

from __future__ import annotations

import gzip
import io
import zlib
from pathlib import Path
from typing import BinaryIO, cast

from app.formats.readers import GZIP
from app.formats.records import Table


def opened(path: Path, table: Table) -> BinaryIO:
    """Opens a text file; unpacks it while it is read if it is a gzip archive.

    Reads raise InvalidRequest if the archive is damaged, or larger inside than `table.max_unpacked_bytes`.
    """
    file = path.open("rb")
    packed = file.read(len(GZIP)) == GZIP
    file.seek(0)
    return cast(BinaryIO, io.BufferedReader(_Unpacked(file, table))) if packed else file


class _Unpacked(io.RawIOBase):
    """The content of a gzip archive."""

    def __init__(self, file: BinaryIO, table: Table) -> None:
        self._file, self._archive, self._table = file, gzip.GzipFile(fileobj=file), table
        self._read = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._archive.tell()

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Goes back to the beginning, which is all that a reader needs."""
        self._read = 0
        return self._archive.seek(offset, whence)

    def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override]
        try:
            found = self._archive.read(len(buffer))
        except (EOFError, OSError, zlib.error):
            raise self._table.broken("it is not an intact gzip archive") from None
        self._read += len(found)
        if self._read > self._table.max_unpacked_bytes:
            most = self._table.max_unpacked_bytes
            raise self._table.broken(f"it unpacks to more than {most} bytes, which is the most that is allowed")
        buffer[: len(found)] = found
        return len(found)

    def close(self) -> None:
        if not self.closed:
            self._archive.close()
            self._file.close()
        super().close()
