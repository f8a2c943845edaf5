"""NPZ: a ZIP archive of NPY arrays. Sizes are checked before anything is unpacked, and no pickle is ever loaded."""

from __future__ import annotations

import math
import struct
import zipfile
import zlib
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from app.formats.faults import Wanted
from app.formats.reader_records import HELD, Records
from core.disk import is_full
from core.parts.sealed import Named

SUFFIX = ".npy"
MAX_MEMBERS = 10_000
READ_BYTES = 2**20
HEADERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}
PLAIN = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
NOT_PLAIN = "it is not an intact, plain ZIP archive of NPY arrays"
# zipfile's errors for a damaged archive, including names that are not text and offsets before its beginning.
UNREADABLE = (zipfile.BadZipFile, zlib.error, struct.error, EOFError, OSError, RuntimeError, ValueError, OverflowError)
NUMBER_KINDS, LABEL_KINDS, USER_KINDS = "buif", "buifU", "uiU"


def read(path: Named, records: Records) -> None:
    """Reads the declared arrays; checks sizes before it unpacks them."""
    try:
        with path.open("rb") as file, zipfile.ZipFile(file) as archive:
            _read(archive, records)
    except UNREADABLE as error:
        if is_full(error):  # the parts' disk, not this file
            raise
        raise records.broken(NOT_PLAIN) from None


def _read(archive: zipfile.ZipFile, records: Records) -> None:
    members = archive.infolist()
    if len(members) > MAX_MEMBERS or not all(member.filename.endswith(SUFFIX) for member in members):
        raise records.broken("it holds something other than NPY arrays")
    records.begin([member.filename.removesuffix(SUFFIX) for member in members])
    used = [archive.getinfo(each.name + SUFFIX) for each in (*records.features, records.label)]
    if any(member.compress_type not in PLAIN for member in used):
        raise records.broken(NOT_PLAIN)
    claimed = sum(member.file_size for member in used)
    if claimed > records.max_unpacked_bytes:
        raise records.broken(f"it unpacks to {claimed} bytes; at most {records.max_unpacked_bytes} are allowed")
    with ExitStack() as files:
        x, y, *users = (
            _Array(files, archive, records, wanted, kinds)
            for wanted, kinds in (
                (records.features[0], NUMBER_KINDS),
                (records.label, LABEL_KINDS),
                *((each, USER_KINDS) for each in records.features[1:]),
            )
        )
        if not x.shape or y.shape != x.shape[:1]:
            raise records.broken(f"x has the shape {x.shape} and the labels {y.shape}: (n, …) and (n,) are needed")
        if 0 in x.shape[1:]:
            raise records.broken(f"x has the shape {x.shape}: records without features")
        for user in users:
            if user.shape != y.shape:
                raise records.broken(f"the users have the shape {user.shape} and the labels {y.shape}")
        _read_blocks(records, x, y, users)


def _read_blocks(records: Records, x: _Array, y: _Array, users: Sequence[_Array]) -> None:
    """Reads the arrays side by side, so that one block of each is in memory."""
    width = math.prod(x.shape[1:])
    step = max(1, HELD // width)
    for start in range(0, x.shape[0], step):
        count = min(step, x.shape[0] - start)
        labels = _listed(y.rows(count), records, records.label)
        names = [_listed(array.rows(count), records, records.features[1]) for array in users]
        rows = np.arange(start + 1, start + count + 1)
        records.add_tensor(x.rows(count).reshape(count, width), labels, names[0] if names else None, rows)
    for array in (x, y, *users):
        array.end()


def _listed(values: NDArray[Any], records: Records, wanted: Wanted) -> list[Any]:
    try:
        return list(values.tolist())
    except (ValueError, SystemError):  # Python's refusal of numbers that are not characters
        raise records.unsuited(wanted, "holds text that is not Unicode") from None


class _Array:
    """One array of the archive, read row by row. One in Fortran's order is read whole: its rows are not consecutive.

    Raises:
        InvalidRequest: its header is unusable, or claims more than its file.
    """

    def __init__(
        self, files: ExitStack, archive: zipfile.ZipFile, records: Records, wanted: Wanted, kinds: str
    ) -> None:
        member = archive.getinfo(wanted.name + SUFFIX)
        self._records, self._wanted = records, wanted
        self._file = files.enter_context(archive.open(member))
        try:
            version = npy.read_magic(self._file)
            self.shape, fortran, self._dtype = HEADERS[version](self._file)
        except (KeyError, ValueError):
            raise records.broken(f"the array {wanted.name!r} is not in NPY format 1 or 2") from None
        dtype = self._dtype
        if dtype.kind not in kinds or dtype.hasobject or dtype.itemsize == 0:
            problem = "objects, which would need pickle" if dtype.hasobject else f"values of type {str(dtype)[:40]}"
            raise records.unsuited(wanted, f"holds {problem}; numbers are needed")
        if any(size < 0 for size in self.shape):  # numpy's header reader takes any integers
            raise records.broken(f"the array {wanted.name!r} has the shape {self.shape}")
        if math.prod(self.shape) * dtype.itemsize > member.file_size:
            raise records.broken(f"the array {wanted.name!r} claims to be larger than its file")
        self._whole: NDArray[Any] | None = None
        if fortran and len(self.shape) > 1:
            self._whole = self._numbers(math.prod(self.shape)).reshape(self.shape, order="F")
        self._at = 0

    def rows(self, count: int) -> NDArray[Any]:
        """The next rows."""
        start, self._at = self._at, self._at + count
        if self._whole is not None:
            return self._whole[start : self._at]
        return self._numbers(count * math.prod(self.shape[1:])).reshape(count, *self.shape[1:])

    def end(self) -> None:
        """Reads to the end of the file, which compares its checksum."""
        while self._file.read(READ_BYTES):
            pass

    def _numbers(self, count: int) -> NDArray[Any]:
        size = count * self._dtype.itemsize
        content = self._file.read(size)
        if len(content) < size:
            raise self._records.broken(f"the array {self._wanted.name!r} is damaged")
        return np.frombuffer(content, self._dtype, count)
