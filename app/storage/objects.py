"""Where published files of jobs lie: in the storage's folder (default), or in a bucket of an object store (S3).

A key is a path under the storage root, such as `jobs/job_…/attempt-1/model.safetensors`. Guarantees of both:

    publish   once: a second publication of the same content changes nothing, and of other content is an error
    local     a file whose SHA-256 was checked as it was read
    hashes    a bucket's object carries its SHA-256; what arrives with another one is refused

Checkpoints alone are replaced (`replace`, `latest`); they are authenticated by their own key.

With a bucket (app.storage.bucket), the folder is this process's own: a place to write and a cache. API, relay and
workers share nothing. Parts of data sets lie there too: app.storage.parts.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Protocol

from app.settings import Settings
from app.storage.bucket import Bucket
from app.storage.folder import Folder
from core.disk import Room


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

    def replace(self, key: str, file: Path) -> None:
        """Moves a file to a key in place of what it holds; it is kept before this returns.

        Raises:
            Unavailable: the store does not answer.
        """
        ...

    def latest(self, key: str, copy: Path) -> Path | None:
        """A file of this machine with what a key of `replace` holds; None if it holds nothing.

        Args:
            copy: where a bucket's object is written.

        Raises:
            StorageFull: the disk has no room for it.
            Unavailable: the store does not answer.
        """
        ...

    def jobs(self, under: str = "jobs") -> list[str]:
        """Lists the jobs that have files under a prefix, also if the database does not know them.

        Raises:
            Unavailable: the store does not answer.
        """
        ...

    def stale(self, under: str) -> list[str]:
        """Lists the folders right under a prefix of which nothing was written for a day: no request lives that long.

        Raises:
            Unavailable: the store does not answer.
        """
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


def of(settings: Settings) -> Objects:
    """The store of these settings."""
    return bucket_of(settings) or Folder(settings.storage_root)


def bucket_of(settings: Settings) -> Bucket | None:
    """The bucket of these settings; None if files lie in the storage's folder."""
    if not settings.object_store:
        return None
    encryption, kms_key = settings.object_encryption, settings.object_kms_key
    return _bucket(settings.object_store, settings.storage_root, encryption, kms_key, settings.disk_reserve_bytes)


@cache
def _bucket(url: str, root: Path, encryption: str, kms_key: str, reserve_bytes: int) -> Bucket:
    """One client for each bucket: it keeps its connections."""
    return Bucket(url, root, encryption, kms_key, Room(reserve_bytes))
