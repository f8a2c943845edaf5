"""Small files outside the database that change only from what a writer has read: in a folder, or in a bucket.

`put` is compare-and-set: of two writers that read the same content, one is told that it came too late. A folder has a
lock; a bucket answers If-None-Match and If-Match. `append` adds a line to a record that only grows: a folder writes the
line alone, a bucket the whole record. Both have the content on disk before `put` and `append` return.

A crash may leave the beginning of a line after the last whole one. No `append` returned for it: the next removes it.
"""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Protocol

from app.secrets import write_private
from app.settings import Settings
from app.storage.s3 import answers, client
from core.disk import sync

AT_ONCE = 16
TRIES = 100  # each loss means that another writer won
END_BYTES = 4096  # read first to find a record's last line
Follows = Callable[[bytes], object]


@dataclass(frozen=True)
class Record:
    """A file's content.

    Attributes:
        version: what `put` compares.
    """

    content: bytes
    version: str


class Records(Protocol):
    """Named records. Safe for any number of threads, processes and hosts that share them."""

    def read(self, name: str) -> Record | None:
        """A record; None if there is none.

        Raises:
            OSError: the folder cannot be read.
            Unavailable: the bucket does not answer.
        """
        ...

    def read_all(self, names: list[str]) -> list[Record | OSError | None]:
        """Several records, each as `read` answers it or with the error of a folder. Raises Unavailable."""
        ...

    def put(self, name: str, text: str, expected: Record | None) -> bool:
        """Writes a record if it is still `expected` (None: absent), on disk before this returns; False if it is not.

        Raises:
            OSError, Unavailable: as `read`.
        """
        ...

    def append(self, name: str, line: str, follows: Follows) -> None:
        """Adds a line to a record, on disk before this returns. Nobody else adds to it meanwhile.

        Args:
            follows: checks the record's end, its last line and what comes after, or b"" if there is none; what it
                raises leaves the record as it is, or absent. Called again if another writer came first.

        Raises:
            OSError: as `read`; another writer always won; or the line cannot be written whole, and does not count.
            Unavailable: as `read`.
        """
        ...

    def remove(self, name: str) -> None:
        """Removes a record, if it is there."""
        ...

    def names(self, ending: str) -> list[str]:
        """The records whose names end so."""
        ...


class InFolder:
    """Files of mode 0600 in one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def read(self, name: str) -> Record | None:
        """The file."""
        try:
            return Record((self.folder / name).read_bytes(), "")
        except FileNotFoundError:
            return None

    def read_all(self, names: list[str]) -> list[Record | OSError | None]:
        """One after the other."""
        records: list[Record | OSError | None] = []
        for name in names:
            try:
                records.append(self.read(name))
            except OSError as error:
                records.append(error)
        return records

    def put(self, name: str, text: str, expected: Record | None) -> bool:
        """Under the folder's lock."""
        with self._locked():
            if self.read(name) != expected:
                return False
            write_private(self.folder / name, text, overwrite=True)  # this syncs the file
            sync(self.folder)
        return True

    def append(self, name: str, line: str, follows: Follows) -> None:
        """Under the file's own lock, which is not the name's: the file may be removed before the line is in it."""
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        while not self._append(name, line, follows):
            pass

    def _append(self, name: str, line: str, follows: Follows) -> bool:
        """False if the file with the line is no longer the one of this name."""
        with os.fdopen(self._opened(name, follows), "r+b", buffering=0) as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            size = os.fstat(file.fileno()).st_size
            end = _end(file.fileno(), size)
            follows(end)
            if torn := len(end) - end.rfind(b"\n") - 1:
                file.truncate(size - torn)
            remaining = memoryview(line.encode() + b"\n")
            while remaining:
                remaining = remaining[file.write(remaining) :]
            os.fsync(file.fileno())
            if size == torn:  # new
                sync(self.folder)
            try:
                return os.path.samestat(os.fstat(file.fileno()), os.lstat(self.folder / name))
            except FileNotFoundError:
                return False

    def _opened(self, name: str, follows: Follows) -> int:
        """A descriptor; makes the file only if the line may be a record's first."""
        flags = os.O_RDWR | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            return os.open(self.folder / name, flags)
        except FileNotFoundError:
            follows(b"")
            return os.open(self.folder / name, flags | os.O_CREAT, 0o600)

    def remove(self, name: str) -> None:
        """Removes the file."""
        (self.folder / name).unlink(missing_ok=True)

    def names(self, ending: str) -> list[str]:
        """The files."""
        return sorted(path.name for path in self.folder.glob(f"*{ending}"))

    @contextmanager
    def _locked(self) -> Iterator[None]:
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = os.open(self.folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
        finally:
            os.close(lock)


class InBucket:
    """Objects below s3://bucket/prefix.

    Args:
        encryption, kms_key: see app.storage.s3.client.
    """

    def __init__(self, url: str, encryption: str = "", kms_key: str = "") -> None:
        self._store = client(url, encryption, kms_key)

    def read(self, name: str) -> Record | None:
        """The object and its ETag."""
        from obstore import get  # noqa: PLC0415 - optional

        with answers():
            try:
                content = get(self._store, name)
                return Record(bytes(content.bytes()), content.meta["e_tag"] or "")
            except FileNotFoundError:
                return None

    def read_all(self, names: list[str]) -> list[Record | OSError | None]:
        """A few at once: each is a request."""
        if len(names) < 2:
            return [self.read(name) for name in names]
        with ThreadPoolExecutor(min(AT_ONCE, len(names))) as threads:
            return list(threads.map(self.read, names))

    def put(self, name: str, text: str, expected: Record | None) -> bool:
        """If-None-Match for a new object, If-Match for one that was read.

        An answer may be lost after the store has written: the client then asks again and is refused by its own write.
        So a refusal counts as written if the object has this text.
        """
        from obstore import put  # noqa: PLC0415
        from obstore.exceptions import AlreadyExistsError, PreconditionError  # noqa: PLC0415

        content = text.encode()
        try:
            with answers():
                if expected is None:
                    put(self._store, name, content, mode="create", use_multipart=False)
                else:
                    put(self._store, name, content, mode={"e_tag": expected.version}, use_multipart=False)
        except (AlreadyExistsError, PreconditionError):
            now = self.read(name)
            return now is not None and now.content == content
        return True

    def append(self, name: str, line: str, follows: Follows) -> None:
        """Writes the object anew: a bucket cannot append."""
        for _ in range(TRIES):
            record = self.read(name)
            lines = [b""] if record is None else record.content.split(b"\n")
            follows(b"\n".join(lines[-2:]))
            lines[-1] = line.encode()
            if self.put(name, b"\n".join([*lines, b""]).decode(), record):
                return
        raise OSError(errno.EAGAIN, "others keep writing it", name)

    def remove(self, name: str) -> None:
        """Removes the object."""
        from obstore import delete  # noqa: PLC0415

        with answers():
            delete(self._store, [name])

    def names(self, ending: str) -> list[str]:
        """The objects."""
        from obstore import list as objects  # noqa: PLC0415

        with answers():
            names = [each["path"].rpartition("/")[2] for some in objects(self._store) for each in some]
        return sorted(name for name in names if name.endswith(ending))


def _end(descriptor: int, size: int) -> bytes:
    """A file's last whole line, and what comes after it."""
    span = END_BYTES
    while True:
        start = max(0, size - span)
        lines = os.pread(descriptor, size - start, start).split(b"\n")
        if start == 0 or len(lines) > 2:
            return b"\n".join(lines[-2:])
        span *= 2


def records_of(settings: Settings) -> Records:
    """The records in these settings."""
    url = settings.heads_store
    if url:
        return in_bucket(url, settings.object_encryption, settings.object_kms_key)
    return InFolder(settings.effective_heads_dir)


@cache
def in_bucket(url: str, encryption: str, kms_key: str) -> InBucket:
    """One client for each bucket: it keeps its connections."""
    return InBucket(url, encryption, kms_key)
