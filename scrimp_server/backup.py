"""A copy of an embedded service's database and storage, made while the service runs."""

from __future__ import annotations

import hashlib
import os
import sqlite3
import tarfile
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from app.settings import Settings
from core.disk import sync

DATABASE = "scrimp.db"
STORAGE = "storage.tar"
SUMS = "SHA256SUMS"  # the last file; sha256sum --check reads it


class BackupError(Exception):
    """The backup cannot be made; the message says what to change."""


def back_up(settings: Settings, folder: Path) -> list[Path]:
    """Copies the database, then the storage: so the storage has every file that the database names. Then their hashes:
    a folder without them is no finished backup.

    The recorded heads and the secrets are in no backup: heads that are set back with the database hide what it lost.

    Raises:
        BackupError: the database is not an embedded one, the folder has a backup already, or a file cannot be read or
            written.
    """
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        files = [copy_database(settings, folder / DATABASE)]
        if not settings.object_store:
            files.append(_archive(settings.storage_root, folder / STORAGE))
        files.append(_sums(files, folder / SUMS))
    except OSError as error:
        raise BackupError(f"the backup is not complete: {error}") from None
    return files


def copy_database(settings: Settings, to: Path) -> Path:
    """Writes a copy of an embedded database as it was last committed; others go on writing.

    Raises:
        BackupError: see `back_up`.
    """
    if settings.database_url:
        raise BackupError("the database is a server's: back it up with its own tools (docs/production.md)")
    database = settings.home / DATABASE
    if not database.exists():
        raise BackupError(f"{database} is not there: check --home and SCRIMP_HOME")
    with _whole(to) as part:  # VACUUM INTO takes an empty file, and keeps its mode
        try:
            with closing(sqlite3.connect(database)) as connection:
                connection.execute("VACUUM INTO ?", (str(part),))
        except sqlite3.Error as error:
            raise BackupError(f"cannot copy {database} to {to}: {error}") from None
    return to


@contextmanager
def _whole(path: Path) -> Iterator[Path]:
    """A new private file, under another name until it is complete and on disk.

    Raises:
        BackupError: there is a file of one of these names.
    """
    part = path.with_name(f"{path.name}.part")
    if path.exists():
        raise BackupError(f"{path} exists already: choose another folder for each backup")
    try:
        part.touch(mode=0o600, exist_ok=False)
    except FileExistsError:
        raise BackupError(
            f"{part} is there: a backup is being made, or was stopped before its end; choose another folder"
        ) from None
    try:
        yield part
        with part.open("rb") as file:
            os.fsync(file.fileno())
        part.rename(path)
        sync(path.parent)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def _sums(files: Sequence[Path], to: Path) -> Path:
    """Writes the files' SHA-256, as sha256sum does."""
    with _whole(to) as part, part.open("w") as sums:
        for path in files:
            with path.open("rb") as file:
                sums.write(f"{hashlib.file_digest(file, 'sha256').hexdigest()}  {path.name}\n")
    return to


def _archive(root: Path, to: Path) -> Path:
    """Archives a folder under its own name, with what its links lead to: the disk behind one may be what is lost.

    Files that are deleted meanwhile, such as an upload's, are left out. A file with several names is written under
    each, since a name that is deleted meanwhile would leave the others without content.
    """
    with _whole(to) as part, tarfile.open(part, "w", dereference=True) as archive:
        for path in _below(root, frozenset()):
            try:
                archive.add(path, str(path.relative_to(root.parent)), recursive=False)
            except FileNotFoundError:
                if path.is_symlink():
                    raise BackupError(
                        f"{path} is a link to {path.readlink()}, which is not there: mount it, or remove the link"
                    ) from None
    return to


def _below(path: Path, above: frozenset[Path]) -> Iterator[Path]:
    """A path and all that is below it, links included; each folder before its content.

    Args:
        above: the folders that it is in, without links.
    """
    yield path
    if not path.is_dir():
        return
    folder = path.resolve()
    if folder in above:
        raise BackupError(f"{path} is a link to a folder above it: remove the link")
    with suppress(FileNotFoundError):
        for inside in sorted(path.iterdir()):
            yield from _below(inside, above | {folder})
