"""Where published files of jobs lie: in the storage's folder (default), or in a bucket of an object store (S3).

A key is a path under the storage root, such as `jobs/job_…/attempt-1/model.safetensors`. Guarantees of both:

    publish   once: a second publication of the same content changes nothing, and of other content is an error
    local     a file whose SHA-256 was checked as it was read
    hashes    a bucket's object carries its SHA-256; what arrives with another one is refused

With a bucket, the folder is this process's own: a place to write and a cache. API, relay and workers share nothing.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from app.disk import require_room
from app.errors import NotFound, PrivacyError, ServiceError, Unavailable
from app.settings import Settings

if TYPE_CHECKING:
    from obstore.store import ObjectStore

CACHE = "cache"
CACHED_S = 24 * 3600.0  # a deleted model's copies are gone after this
HASH = "sha256"  # an object's own attribute
BLOCK_BYTES = 1 << 20


class DamagedError(ServiceError):
    """A stored object differs from what was published."""


class Objects(Protocol):
    """The published files of jobs. Safe to share between threads."""

    def publish(self, key: str, file: Path, sha256: str) -> None:
        """Makes a file visible to all processes under a key, once.

        Raises:
            PrivacyError: the key has other content.
            Unavailable: the store does not answer.
        """
        ...

    def local(self, key: str, sha256: str) -> Path:
        """Returns a file of this machine with the key's content.

        Raises:
            NotFound: there is none.
            DamagedError: its hash is another one. A folder's file is hashed by whoever reads it, as it is read.
            Unavailable: the store does not answer.
        """
        ...

    def jobs(self) -> list[str]:
        """Lists the jobs that have files here, also if the database does not know them."""
        ...

    def marker(self, key: str) -> str | None:
        """Reads a short text; None if there is none."""
        ...

    def remove(self, prefix: str) -> None:
        """Removes all files below a prefix: a job's, or an attempt's."""
        ...

    def set_aside(self, job_id: str, under: str) -> None:
        """Moves all files of a job to another prefix, where `jobs` does not list them."""
        ...

    def forget(self) -> None:
        """Removes this process's own copies that are older than a day."""
        ...


class Folder:
    """The storage's folder, on this machine or on a volume that all share."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def publish(self, key: str, file: Path, sha256: str) -> None:
        """The file already lies at its place: its writer has synced it to disk."""
        if file.resolve() != (self._root / key).resolve():
            raise PrivacyError("a published file lies at its key's place in the storage")

    def local(self, key: str, sha256: str) -> Path:
        """Returns the file itself."""
        path, root = (self._root / key).resolve(), self._root.resolve()
        if not path.is_relative_to(root) or not path.is_file():
            raise NotFound("this artifact's file is no longer in the store")
        return path

    def jobs(self) -> list[str]:
        """The folders under jobs/."""
        return sorted(path.name for path in (self._root / "jobs").glob("job_*"))

    def marker(self, key: str) -> str | None:
        """The file's text."""
        path = self._root / key
        return path.read_text().strip() if path.is_file() else None

    def remove(self, prefix: str) -> None:
        """Removes the folder."""
        shutil.rmtree(self._root / prefix, ignore_errors=True)

    def set_aside(self, job_id: str, under: str) -> None:
        """Moves the job's folder."""
        folder = self._root / under
        folder.mkdir(mode=0o700, exist_ok=True)
        (self._root / "jobs" / job_id).rename(folder / job_id)

    def forget(self) -> None:
        """It makes no copies."""


class Bucket:
    """A bucket of an object store. Publishes with If-None-Match, so that of two writers one is refused.

    Args:
        url: s3://bucket/prefix; credentials and endpoint come from the environment (AWS_…).
        root: this process's own folder.
    """

    def __init__(self, url: str, root: Path) -> None:
        self._root, self._own = root, Folder(root)
        self._store = _store(url)
        self.forget()  # what this process's last run left

    def publish(self, key: str, file: Path, sha256: str) -> None:
        """Puts the file if the key is free."""
        from obstore import put  # noqa: PLC0415 - optional
        from obstore.exceptions import AlreadyExistsError  # noqa: PLC0415

        content = file.read_bytes()
        if hashlib.sha256(content).hexdigest() != sha256:
            raise PrivacyError("a file changed before it was published")
        try:
            with _answers():
                put(self._store, key, content, mode="create", use_multipart=False, attributes={HASH: sha256})
        except AlreadyExistsError:
            if self._hash(key) != sha256:
                raise PrivacyError("another content was published under this key") from None

    def _hash(self, key: str) -> str:
        from obstore import get  # noqa: PLC0415

        with _answers():
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
        with _answers():
            try:
                found = get(self._store, key)
            except FileNotFoundError:
                raise NotFound("this artifact's file is no longer in the store") from None
            require_room(target.parent, found.meta["size"])
            for block in found.stream(min_chunk_size=BLOCK_BYTES):
                digest.update(block)
                write(bytes(block))
        return digest.hexdigest()

    def forget(self) -> None:
        """So no copy outlives its object for long."""
        for copy in (self._root / CACHE).glob("*"):
            with suppress(FileNotFoundError):
                if time.time() - copy.stat().st_mtime > CACHED_S:
                    copy.unlink()

    def jobs(self) -> list[str]:
        """The prefixes under jobs/."""
        from obstore import list_with_delimiter  # noqa: PLC0415

        with _answers():
            found = list_with_delimiter(self._store, prefix="jobs")["common_prefixes"]
        return sorted(name for each in found if (name := each.rpartition("/")[2]).startswith("job_"))

    def marker(self, key: str) -> str | None:
        """The object's text."""
        from obstore import get  # noqa: PLC0415

        with _answers():
            try:
                return bytes(get(self._store, key).bytes()).decode().strip()
            except FileNotFoundError:
                return None

    def remove(self, prefix: str) -> None:
        """Removes the objects, and this process's own files."""
        from obstore import delete  # noqa: PLC0415

        self._own.remove(prefix)
        with _answers():
            for keys in self._keys(prefix):
                delete(self._store, keys)

    def set_aside(self, job_id: str, under: str) -> None:
        """Renames the job's objects, one after the other; the marker, which `jobs` is asked for, is the last."""
        from obstore import rename  # noqa: PLC0415

        with _answers():
            keys = [key for some in self._keys(f"jobs/{job_id}") for key in some]
            for key in sorted(keys, key=lambda each: each.count("/"), reverse=True):
                rename(self._store, key, f"{under}/{key.removeprefix('jobs/')}")

    def _keys(self, prefix: str) -> Iterator[list[str]]:
        from obstore import list as objects  # noqa: PLC0415

        for some in objects(self._store, prefix=prefix):
            yield [each["path"] for each in some]


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def of(settings: Settings) -> Objects:
    """The store of these settings."""
    return _of(settings.object_store, settings.storage_root)


@cache
def _of(url: str, root: Path) -> Objects:
    """One client for each bucket: it keeps its connections."""
    return Bucket(url, root) if url else Folder(root)


def _store(url: str) -> ObjectStore:
    try:
        from obstore.store import from_url  # noqa: PLC0415
    except ImportError:
        raise ServiceError("SCRIMP_OBJECT_STORE needs the extra: pip install 'scrimp[s3]'") from None
    return from_url(url, client_options={"allow_http": True}, retry_config={"max_retries": 3})


class _answers:  # noqa: N801 - reads as a block's condition
    """Turns the store's own errors into Unavailable: a retry may succeed. Others pass."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if error is None or isinstance(error, ServiceError | OSError):
            return
        from obstore.exceptions import AlreadyExistsError, BaseError  # noqa: PLC0415

        if isinstance(error, BaseError) and not isinstance(error, AlreadyExistsError):
            raise Unavailable("the object store does not answer: try again in a moment") from error
