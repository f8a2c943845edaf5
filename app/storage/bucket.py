"""Published files in a bucket of an object store (see app.storage.objects)."""

from __future__ import annotations

import hashlib
import io
import os
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from app.storage.folder import Folder, is_stale
from app.storage.s3 import answers, client
from core.disk import Room
from core.errors import NotFound, PrivacyError, ServiceError

CACHE = "cache"
CACHED_S = 24 * 3600.0  # a deleted model's copies are gone after this
HASH = "sha256"  # an object's own attribute
BLOCK_BYTES = 1 << 20
ONE_PUT_BYTES = 64 << 20  # up to this size an object is put in one request, on the condition that its key is free
FEWEST_PIECE_BYTES = 8 << 20
MOST_PIECES = 9_000  # S3 allows 10,000 pieces of an object
CHANGED, TAKEN = "a file changed before it was published", "another content was published under this key"
RANGE_BYTES = 16 << 20  # of a part that are fetched by one request


class DamagedError(ServiceError):
    """A stored object differs from what was published."""


class Bucket:
    """A bucket of an object store. Publishes with If-None-Match, so that of two writers one is refused.

    Args:
        url: s3://bucket/prefix; credentials and endpoint come from the environment (AWS_…).
        root: this process's own folder.
        encryption, kms_key: see app.storage.s3.client.
        room: what copies leave of the disk.
    """

    def __init__(
        self,
        url: str,
        root: Path,
        encryption: str = "",
        kms_key: str = "",
        room: Room = Room(),
    ) -> None:
        self._root, self._own, self._room = root, Folder(root), room
        self._store = client(url, encryption, kms_key)
        self.forget()  # what this process's last run left

    def publish(self, key: str, file: Path, sha256: str) -> None:
        """Puts the file if the key is free.

        A large one goes in pieces, which S3 cannot make conditional: its folder's name is its one writer's own.
        """
        from obstore import put  # noqa: PLC0415 - optional

        size = file.stat().st_size
        if size <= ONE_PUT_BYTES:
            self.publish_content(key, file.read_bytes(), sha256)
            return
        if _sha256(file) != sha256:
            raise PrivacyError(CHANGED)
        with answers():
            try:
                current = self._hash(key)
            except FileNotFoundError:
                piece = max(FEWEST_PIECE_BYTES, -(-size // MOST_PIECES))
                metadata = {HASH: sha256}
                put(
                    self._store, key, file, attributes=metadata, use_multipart=True, chunk_size=piece, max_concurrency=2
                )
                return
        if current != sha256:
            raise PrivacyError(TAKEN)

    def publish_content(self, key: str, content: bytes, sha256: str) -> None:
        """Puts a file's content, like `publish`."""
        from obstore import put  # noqa: PLC0415 - optional
        from obstore.exceptions import AlreadyExistsError  # noqa: PLC0415

        if hashlib.sha256(content).hexdigest() != sha256:
            raise PrivacyError(CHANGED)
        try:
            with answers():
                put(self._store, key, content, mode="create", use_multipart=False, attributes={HASH: sha256})
        except AlreadyExistsError:
            if self._hash(key) != sha256:
                raise PrivacyError(TAKEN) from None

    def _hash(self, key: str) -> str:
        from obstore import get  # noqa: PLC0415

        with answers():
            return str(get(self._store, key).attributes.get(HASH, ""))

    def local(self, key: str, sha256: str) -> Path:
        """Downloads the object into the cache, hashing it as it arrives; later calls find it there for a day.

        A copy that the disk has changed is removed and fetched anew.
        """
        self.forget()
        target = self._root / CACHE / sha256
        with suppress(FileNotFoundError):
            if _sha256(target) == sha256:
                return target
            target.unlink()
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor, partial = tempfile.mkstemp(dir=target.parent, prefix="in-")
        try:
            with os.fdopen(descriptor, "wb") as file:
                digest = self._download(key, Path(partial), file.write)
            if digest != sha256:
                raise DamagedError("the stored file differs from the published one: ask the operator to restore it")
            Path(partial).replace(target)
        finally:
            with suppress(FileNotFoundError):
                Path(partial).unlink()
        return target

    def _download(self, key: str, target: Path, write: Callable[[bytes], object]) -> str:
        from obstore import get  # noqa: PLC0415

        digest = hashlib.sha256()
        with answers():
            try:
                answer = get(self._store, key)
            except FileNotFoundError:
                raise NotFound("this artifact's file is no longer in the store") from None
            self._room.require(target.parent, answer.meta["size"])
            for block in answer.stream(min_chunk_size=BLOCK_BYTES):
                digest.update(block)
                write(bytes(block))
        return digest.hexdigest()

    def forget(self) -> None:
        """So no copy outlives its object for long."""
        for copy in (self._root / CACHE).glob("*"):
            with suppress(FileNotFoundError):
                if time.time() - copy.stat().st_mtime > CACHED_S:
                    copy.unlink()

    def replace(self, key: str, file: Path) -> None:
        """Puts the file, and removes it here."""
        from obstore import put  # noqa: PLC0415 - optional

        size = file.stat().st_size
        piece = max(FEWEST_PIECE_BYTES, -(-size // MOST_PIECES))
        with answers():
            put(self._store, key, file, use_multipart=size > ONE_PUT_BYTES, chunk_size=piece, max_concurrency=2)
        file.unlink()

    def latest(self, key: str, copy: Path) -> Path | None:
        """Downloads the object."""
        copy.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with os.fdopen(os.open(copy, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            try:
                self._download(key, copy, file.write)
            except NotFound:
                return None
        return copy

    def jobs(self, under: str = "jobs") -> list[str]:
        """The prefixes there."""
        from obstore import list_with_delimiter  # noqa: PLC0415

        with answers():
            prefixes = list_with_delimiter(self._store, prefix=under)["common_prefixes"]
        return sorted(name for each in prefixes if (name := each.rpartition("/")[2]).startswith("job_"))

    def stale(self, under: str) -> list[str]:
        """The prefixes there, by their newest objects; and this process's own folders."""
        from obstore import list as objects  # noqa: PLC0415

        newest: dict[str, float] = {}
        with answers():
            for some in objects(self._store, prefix=under):
                for entry in some:
                    name = entry["path"].removeprefix(f"{under}/").partition("/")[0]
                    newest[name] = max(newest.get(name, 0.0), entry["last_modified"].timestamp())
        old = {name for name, written in newest.items() if is_stale(written)}
        return sorted(old | set(self._own.stale(under)) - newest.keys())

    def marker(self, key: str) -> str | None:
        """The object's text."""
        from obstore import get  # noqa: PLC0415

        with answers():
            try:
                return bytes(get(self._store, key).bytes()).decode().strip()
            except FileNotFoundError:
                return None

    def remove(self, prefix: str) -> None:
        """Removes the objects, and this process's own files."""
        from obstore import delete  # noqa: PLC0415

        self._own.remove(prefix)
        with answers():
            for keys in self._keys(prefix):
                delete(self._store, keys)

    def set_aside(self, job_id: str, under: str) -> None:
        """Renames the job's objects, one after the other; the marker, which `jobs` is asked for, is the last."""
        from obstore import rename  # noqa: PLC0415

        with answers():
            keys = [key for some in self._keys(f"jobs/{job_id}") for key in some]
            for key in sorted(keys, key=lambda key: key.count("/"), reverse=True):
                rename(self._store, key, f"{under}/{key.removeprefix('jobs/')}")

    def _keys(self, prefix: str) -> Iterator[list[str]]:
        from obstore import list as objects  # noqa: PLC0415

        for some in objects(self._store, prefix=prefix):
            yield [each["path"] for each in some]

    # --- parts of data sets (app.storage.parts) ---

    def upload(self, key: str, blocks: Iterable[bytes], size: int) -> None:
        """Puts a stream of so many bytes under a new key.

        A large one arrives in pieces, which S3 cannot make conditional: its key must be one that nobody else knows.

        Raises:
            PrivacyError: the key is taken.
            Unavailable: the store does not answer.
        """
        from obstore import put  # noqa: PLC0415
        from obstore.exceptions import AlreadyExistsError  # noqa: PLC0415

        try:
            with answers():
                if size <= ONE_PUT_BYTES:
                    put(self._store, key, b"".join(blocks), mode="create", use_multipart=False)
                    return
                piece = max(FEWEST_PIECE_BYTES, -(-size // MOST_PIECES))
                put(self._store, key, blocks, use_multipart=True, chunk_size=piece, max_concurrency=2)
        except AlreadyExistsError:
            raise PrivacyError("a part was published under this key before") from None

    def size(self, key: str) -> int:
        """An object's bytes. Raises NotFound, Unavailable."""
        from obstore import head  # noqa: PLC0415

        with answers():
            try:
                return int(head(self._store, key)["size"])
            except FileNotFoundError:
                raise NotFound("this object is no longer in the store") from None

    def named(self, key: str) -> StoredObject:
        """An object that is read like a file, and not written to this machine's disk. Raises NotFound, Unavailable."""
        return StoredObject(self, key, self.size(key))

    def blocks(self, key: str, size: int) -> Iterator[bytes]:
        """The first `size` bytes of an object, a range at a time: each is asked for again by itself if it breaks off.

        Raises:
            NotFound, Unavailable: as `size`.
        """
        from obstore import get_range  # noqa: PLC0415

        for start in range(0, size, RANGE_BYTES):
            with answers():
                try:
                    content = get_range(self._store, key, start=start, end=min(start + RANGE_BYTES, size))
                except FileNotFoundError:
                    raise NotFound("this object is no longer in the store") from None
            yield bytes(content)


@dataclass(frozen=True)
class StoredObject:
    """An object of so many bytes, to be read like a file's path, from begin to end."""

    bucket: Bucket
    key: str
    size: int

    def open(self, _mode: Literal["rb"], /) -> io.BufferedReader:
        """Its content as a stream."""
        return io.BufferedReader(_Stream(self.bucket.blocks(self.key, self.size)), RANGE_BYTES)


class _Stream(io.RawIOBase):
    """Blocks as a file."""

    def __init__(self, blocks: Iterator[bytes]) -> None:
        self._blocks, self._held = blocks, memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: object, /) -> int:
        try:
            self._held = self._held or memoryview(next(self._blocks, b""))
        except NotFound as error:  # it was removed meanwhile
            raise FileNotFoundError(str(error)) from None
        view = memoryview(buffer).cast("B")  # type: ignore[arg-type]
        count = min(len(view), len(self._held))
        view[:count], self._held = self._held[:count], self._held[count:]
        return count


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
