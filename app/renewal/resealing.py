"""All sealed files of a storage: under which keys they are, new wraps for a new parts key, seals for what has none.

Every step leaves each file readable, and can be repeated: a crash loses nothing.

    rewrap   writes the new wrap into the free place of each header; with `drop`, then clears the old one. No chunk is
             written
    seal     writes a sealed copy next to a file, compares the two, and puts it in the file's place
"""

from __future__ import annotations

import fcntl
import logging
import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from app.datasets import volume
from app.datasets.storage import SEALED
from app.secrets import load_secrets
from app.settings import Settings
from app.storage.bucket import CACHE
from app.storage.parts import DATASETS
from app.storage.seals import NAME, KeyMissing, Seals, names_of, opened, opens, wrap
from core.contracts.blocks import UNITS
from core.disk import Room, sync
from core.parts.damage import DataDamagedError
from core.parts.sealed import (
    PLACES,
    WRAP_BYTES,
    DataKey,
    Header,
    blocks,
    create,
    finish,
    header_of,
    readable,
    sealed_size,
)

logger = logging.getLogger(__name__)
KEPT = (DATASETS, UNITS, f"{CACHE}/{DATASETS}")
SEALABLE = (".arrow", ".index", ".npz")
HALF = ".sealing"


@dataclass
class Found:
    """What lies in the storage.

    Attributes:
        plain: files in plaintext.
        sealed: files that a parts key here opens.
        foreign: files that none here opens, by the public names of the keys that would.
    """

    plain: int = 0
    sealed: int = 0
    foreign: Counter[str] = field(default_factory=Counter)


def look(settings: Settings, keys: tuple[bytes, ...]) -> Found:
    """Looks at the header of each file that is kept of data sets.

    Args:
        keys: the parts keys.
    """
    out = Found()
    for path in _kept(settings.storage_root):
        try:
            header = header_of(path)
        except FileNotFoundError:  # deleted meanwhile
            continue
        if header is None:
            out.plain += 1
        elif any(opens(each, keys) is not None for each in header.wraps):
            out.sealed += 1
        else:
            out.foreign[" or ".join(names_of(header)) or "none"] += 1
    return out


def rewrap(settings: Settings, *, drop: bool) -> int:
    """Wraps the data key of each sealed file under the parts key in use. Files of unknown keys stay as they are.

    Args:
        drop: clears the wraps under older keys.

    Returns:
        How many files are sealed under a key that is not here.

    Raises:
        SecretError: `parts_key` is missing.
    """
    keys, foreign = load_secrets(settings, NAME), 0
    for path in _all(settings):
        try:
            rewrap_file(path, keys, drop=drop)
        except FileNotFoundError:
            continue
        except (KeyMissing, DataDamagedError) as error:
            foreign += 1
            logger.warning("%s: %s", path.relative_to(settings.storage_root), error)
    return foreign


def rewrap_file(path: Path, keys: tuple[bytes, ...], *, drop: bool) -> None:
    """Wraps the data key of one file under the first of these parts keys; leaves a file in plaintext alone.

    Raises:
        KeyMissing, DataDamagedError: as `opened`.
        OSError: it is gone, or cannot be written.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        header = Header.of(descriptor)
        if header is None:
            return
        key = opened(header, keys)
        new = next((at for at in range(2) if opens(header.wraps[at], keys[:1]) is not None), None)
        if new is None:
            # Not the place of a wrap that opens: it is the only one until the new one is on disk.
            new = next(at for at in range(2) if opens(header.wraps[1 - at], keys) is not None)
            _put(descriptor, new, wrap(key, keys[0]))
        if drop and any(header.wraps[1 - new]):
            _put(descriptor, 1 - new, bytes(WRAP_BYTES))
    finally:
        os.close(descriptor)


def seal(settings: Settings) -> int:
    """Seals what is kept of data sets in plaintext. Returns how many files it sealed.

    Raises:
        SecretError: `parts_key` is missing.
        StorageFull: a copy does not fit on the disk.
    """
    seals, count, keys = Seals(settings), 0, dict[Path, DataKey]()
    for path in list(_kept(settings.storage_root)):
        try:
            if header_of(path) is None:
                folder = settings.storage_root / "/".join(_dataset(settings.storage_root, path))
                if folder not in keys:
                    keys[folder] = _key_of(folder, seals)
                seal_file(path, keys[folder])
                count += 1
        except FileNotFoundError:
            continue
    return count


def seal_file(path: Path, key: DataKey) -> None:
    """Puts a sealed copy in a file's place. Who has it open reads on in the old one.

    Raises:
        DataDamagedError: the copy differs.
    """
    size, half = path.stat(), path.with_name(path.name + HALF)
    half.unlink(missing_ok=True)
    Room().require(path.parent, sealed_size(size.st_size))
    try:
        with path.open("rb") as content, create(half, key) as copy:
            for block in blocks(content):
                copy.write(block)
            finish(copy)
        with path.open("rb") as content, readable(half, key.key).open("rb") as copied:
            if any(block != copied.read(len(block)) for block in blocks(content)) or copied.read(1):
                raise DataDamagedError("a sealed copy differs from its file: the disk or the memory is faulty")
        os.utime(half, ns=(size.st_atime_ns, size.st_mtime_ns))
        half.replace(path)
    finally:
        half.unlink(missing_ok=True)
    sync(path.parent)


def _key_of(folder: Path, seals: Seals) -> DataKey:
    """The data key of the files in a folder: that of those that are sealed already, or a new one."""
    for path in sorted(folder.rglob("*")):
        if path.is_file() and (key := seals.key_of(path)) is not None:
            return key
    return seals.made()


def _dataset(root: Path, path: Path) -> tuple[str, ...]:
    """The folder of a data set's files, below the storage root."""
    parts = path.relative_to(root).parts
    return parts[: parts.index(DATASETS if DATASETS in parts else UNITS) + 2]


def _kept(root: Path) -> Iterator[Path]:
    for kind in KEPT:
        for path in (root / kind).rglob("*"):
            if path.is_file() and (kind == UNITS or path.suffix in SEALABLE):
                yield path


def _all(settings: Settings) -> Iterator[Path]:
    yield from _kept(settings.storage_root)
    for kind in volume.KINDS:  # a name tells what is sealed: whoever sends a file chooses its bytes
        for path in (settings.arrivals_root / kind).rglob("*"):
            if path.is_file() and (path.suffix in (SEALED, *SEALABLE) or path.name == UNITS):
                yield path


def _put(descriptor: int, place: int, content: bytes) -> None:
    os.pwrite(descriptor, content, PLACES[place])
    os.fsync(descriptor)
