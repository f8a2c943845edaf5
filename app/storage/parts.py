"""Where the parts of data sets lie: in the storage's folder (default), or in a bucket with copies on each machine.

    folder   datasets/<data set>/train.arrow, which API and workers share
    bucket   datasets/<data set>/<publication>/train.arrow, under a name that nobody else knows before the database
             names it. The index comes last, if its key is free: a part is published once, and with its index. A machine
             that needs a part fetches it into its own cache (app.storage.cache); each chunk is compared with the
             registered hash as it leaves and as it arrives, and again when it is first read.

A part that lies in this machine's own folder is read there, also with a bucket: from before the bucket was used.
Files of this machine may be sealed (app.storage.seals); objects of a bucket are encrypted by the bucket.
"""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from app.formats.asked import WrittenFile, WrittenParts
from app.settings import Settings
from app.storage.bucket import CACHE, Bucket
from app.storage.cache import PartCache
from app.storage.objects import bucket_of
from app.storage.seals import Seals
from core.contracts.stored_documents import PartFiles, StoredFile
from core.disk import Room, keep
from core.errors import NotFound, ServiceError
from core.ids import new_id
from core.parts.damage import DataDamagedError
from core.parts.sealed import DataKey, blocks, content_size, header_of, readable, sealed_size, sealing

logger = logging.getLogger(__name__)
DATASETS = "datasets"
FEATURES = "features"


@dataclass(frozen=True)
class Published:
    """The parts of one registration, as the database names them.

    Attributes:
        rows: the parts.
        prefix: what they have in common, in a bucket; empty in a folder.
    """

    rows: PartFiles
    prefix: str = ""


class Parts(Protocol):
    """The parts of data sets. Safe to share between threads."""

    def publish(self, dataset_id: str, folder: Path, written: WrittenParts) -> Published:
        """Makes parts visible to all machines, before the transaction that names them.

        Args:
            folder: where they were written.

        Raises:
            DataDamagedError: a part is not what was written.
            Unavailable: the bucket does not answer.
        """
        ...

    def place(self, dataset_id: str, folder: Path) -> None:
        """Puts parts in their final place, on disk before this returns; within the transaction that names them."""
        ...

    def withdraw(self, published: Published) -> None:
        """Removes parts that no transaction named."""
        ...

    def held(self, path: str, sha256: str, going: Callable[[], None] = lambda: None) -> AbstractContextManager[Path]:
        """A part as a file of this machine, until the block ends.

        Args:
            path: as the database names it.
            going: called often while it is fetched; may raise to give up.

        Raises:
            DataDamagedError: it is missing or differs. A folder's part is compared by whoever reads it.
            StorageFull: it does not fit on this machine.
            Unavailable: the bucket does not answer.
        """
        ...

    def features(self, dataset_id: str) -> Path:
        """Where extractors keep features of a data set on this machine. Held with its parts."""
        ...

    def copied(self) -> list[str]:
        """The data sets of which this machine has copies."""
        ...

    def discard(self, dataset_id: str) -> bool:
        """Removes this machine's copies, since one is damaged. Returns True if the next use fetches the parts anew."""
        ...

    def release(self, dataset_id: str) -> None:
        """Removes this machine's copies, unless a process uses them."""
        ...

    def remove(self, dataset_id: str) -> bool:
        """Removes all of a data set. Returns False if something is left."""
        ...

    def stored_bytes(self, dataset_id: str, rows: PartFiles) -> int:
        """What a data set takes, for its owner's quota."""
        ...


def of(settings: Settings) -> Parts:
    """The parts of these settings."""
    bucket = bucket_of(settings)
    if bucket is None:
        return InFolder(settings.storage_root)
    room = Room(settings.disk_reserve_bytes)
    return InBucket(bucket, settings.storage_root, settings.cache_bytes, Seals(settings), room)


class InFolder:
    """The storage's folder."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def publish(self, dataset_id: str, folder: Path, written: WrittenParts) -> Published:
        """Only names them: `place` moves the folder."""
        return Published(_rows(f"{DATASETS}/{dataset_id}", folder, written))

    def place(self, dataset_id: str, folder: Path) -> None:
        """Moves the folder."""
        keep(self._root, folder, dataset_id, DATASETS)

    def withdraw(self, published: Published) -> None:
        """Nothing lies anywhere yet."""

    @contextmanager
    def held(self, path: str, sha256: str, going: Callable[[], None] = lambda: None) -> Iterator[Path]:
        """The file itself."""
        yield (self._root / path).resolve()

    def features(self, dataset_id: str) -> Path:
        """Next to the parts."""
        return self._root.resolve() / DATASETS / dataset_id / FEATURES

    def copied(self) -> list[str]:
        """None: it makes no copies."""
        return []

    def discard(self, dataset_id: str) -> bool:
        """It makes no copies."""
        return False

    def release(self, dataset_id: str) -> None:
        """It makes no copies."""

    def remove(self, dataset_id: str) -> bool:
        """Removes the folder."""
        folder = self._root / DATASETS / dataset_id
        shutil.rmtree(folder, ignore_errors=True)
        return not folder.exists()

    def stored_bytes(self, dataset_id: str, rows: PartFiles) -> int:
        """The folder's bytes, features included."""
        return sum(_sizes(self._root / DATASETS / dataset_id))


class InBucket:
    """A bucket, and this machine's copies."""

    def __init__(
        self,
        bucket: Bucket,
        root: Path,
        cache_bytes: int,
        seals: Seals,
        room: Room = Room(),
    ) -> None:
        self._bucket, self._own, self._seals = bucket, InFolder(root), seals
        self._root = root
        self.cache = PartCache(root / CACHE / DATASETS, cache_bytes, room)

    def publish(self, dataset_id: str, folder: Path, written: WrittenParts) -> Published:
        """Uploads each part, checked on its way, and then its index."""
        prefix = f"{DATASETS}/{dataset_id}/{new_id('p')}"
        published = Published(_rows(prefix, folder, written, _content_size), prefix)
        try:
            for part in written.all:
                self._upload(folder / part.file, f"{prefix}/{part.file}", part.sha256)
        except BaseException:
            self.withdraw(published)
            raise
        return published

    def _upload(self, file: Path, key: str, sha256: str) -> None:
        from app.formats.checked import checked  # noqa: PLC0415 - numpy, which an idle API does without
        from core.parts.layout import Index, index_path  # noqa: PLC0415

        seal = self._seals.key_of(file)
        opens = None if seal is None else seal.key
        index = Index.read(file, sha256, opens)
        with readable(file, opens).open("rb") as content:
            size = content.seek(0, os.SEEK_END)
            content.seek(0)
            self._bucket.upload(key, checked(blocks(content), index), size)
        number_bytes = index.to_bytes()
        self._bucket.upload(f"{index_path(Path(key))}", [number_bytes], len(number_bytes))

    def place(self, dataset_id: str, folder: Path) -> None:
        """They are in place."""

    def withdraw(self, published: Published) -> None:
        """Removes them; what cannot be removed now goes with the data set, or stays without a name."""
        try:
            self._bucket.remove(published.prefix)
        except ServiceError as error:
            logger.warning("unnamed parts under %s could not be removed: %s", published.prefix, error.code)

    @contextmanager
    def held(self, path: str, sha256: str, going: Callable[[], None] = lambda: None) -> Iterator[Path]:
        """A copy, fetched if this machine has none, or one that is not sealed as new ones are."""
        if (self._root / path).is_file():
            yield (self._root / path).resolve()
            return
        _, dataset_id, part_name = path.split("/", 2)
        with self.cache.using(dataset_id) as folder:
            copy = folder / part_name
            if not self._seals.fits(copy):
                with self.cache.fetching(dataset_id):
                    if not self._seals.fits(copy):
                        self._fetch(path, sha256, copy, going)
            yield copy.resolve()

    def _fetch(self, key: str, sha256: str, copy: Path, going: Callable[[], None]) -> None:
        """Fetches the index, then the part: it is there once its own file is."""
        from app.formats.checked import checked, checked_whole  # noqa: PLC0415
        from core.parts.layout import Index, index_path  # noqa: PLC0415

        seal = self._seals.new()  # one for both files: an attempt is told of one
        try:
            if copy.suffix == ".npz":
                size = self._bucket.size(key)
                self._write(copy, checked_whole(self._bucket.blocks(key, size), sha256), size, seal, going)
                return
            at = index_path(Path(key))
            content = b"".join(self._bucket.blocks(str(at), self._bucket.size(str(at))))
            index = Index.of_bytes(content, sha256)
            self._write(index_path(copy), [content], len(content), seal)
            size = self._bucket.size(key)
            self._write(copy, checked(self._bucket.blocks(key, size), index), size, seal, going)
        except NotFound:
            raise DataDamagedError("a stored part of the data set is no longer in the bucket") from None

    def _write(
        self,
        copy: Path,
        content: Iterable[bytes],
        size: int,
        seal: DataKey | None,
        going: Callable[[], None] = lambda: None,
    ) -> None:
        taken = size if seal is None else sealed_size(size)
        with self.cache.new(copy, taken) as partial, partial.open("r+b") as plain:
            file = plain if seal is None else sealing(plain, seal)
            for block in content:
                file.write(block)
                going()
            file.close()

    def features(self, dataset_id: str) -> Path:
        """With the copies."""
        return self._root.resolve() / CACHE / DATASETS / dataset_id / FEATURES

    def copied(self) -> list[str]:
        """What the cache has."""
        return self.cache.datasets()

    def discard(self, dataset_id: str) -> bool:
        """Also those that others use: what they have open stays theirs."""
        self.cache.discard(dataset_id)
        return True

    def release(self, dataset_id: str) -> None:
        """Those that nobody uses."""
        self.cache.forget(dataset_id)

    def remove(self, dataset_id: str) -> bool:
        """Removes the objects and this machine's copies; other machines drop theirs (app.lifecycle.copies)."""
        try:
            self._bucket.remove(f"{DATASETS}/{dataset_id}")
        except ServiceError as error:
            logger.warning("the content of %s could not be removed: %s", dataset_id, error.code)
            return False
        return self.cache.forget(dataset_id) and self._own.remove(dataset_id)

    def stored_bytes(self, dataset_id: str, rows: PartFiles) -> int:
        """What was uploaded; from before the bucket was used, the folder's bytes."""
        return sum(each.bytes or 0 for each in rows.all) or self._own.stored_bytes(dataset_id, rows)


def _stored_size(file: Path) -> int:
    return file.stat().st_size


def _rows(prefix: str, folder: Path, written: WrittenParts, size_of: Callable[[Path], int] = _stored_size) -> PartFiles:
    from core.parts.layout import index_path  # noqa: PLC0415

    def row(part: WrittenFile) -> StoredFile:
        file = folder / part.file
        size = size_of(file) + size_of(index_path(file))
        return StoredFile(path=f"{prefix}/{part.file}", sha256=part.sha256, bytes=size)

    holdout = None if written.holdout is None else row(written.holdout)
    return PartFiles(train=None if written.train is None else row(written.train), holdout=holdout)


def _content_size(file: Path) -> int:
    return _stored_size(file) if header_of(file) is None else content_size(file)


def _sizes(folder: Path) -> Iterator[int]:
    for path in folder.rglob("*"):
        try:
            if path.is_file():
                yield path.stat().st_size
        except FileNotFoundError:  # deleted meanwhile
            continue
