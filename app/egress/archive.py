"""A folder as one ZIP archive, whose bytes follow from the files alone: sorted names, no times, no compression."""

from __future__ import annotations

import hashlib
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

BLOCK = 1 << 20
EPOCH = (1980, 1, 1, 0, 0, 0)  # the earliest time that the format can hold


@dataclass(frozen=True)
class Hashed:
    """A file's SHA-256 (hex) and its bytes."""

    sha256: str
    size_bytes: int


def hashed(content: bytes | Path) -> Hashed:
    """Hashes a content, or a file's."""
    digest, size = hashlib.sha256(), 0
    for block in _blocks(content):
        digest.update(block)
        size += len(block)
    return Hashed(digest.hexdigest(), size)


def write(files: Mapping[str, bytes | Path], to: Path) -> Hashed:
    """Writes an archive of these files, by their names in it, and hashes it.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     made = [write({"b": b"2", "a": b"1"}, Path(folder) / name) for name in ("one.zip", "two.zip")]
    >>> made[0] == made[1]
    True
    """
    with zipfile.ZipFile(to, "w", zipfile.ZIP_STORED, allowZip64=True) as archive:
        for name in sorted(files):
            entry = zipfile.ZipInfo(name, EPOCH)
            entry.external_attr = 0o100644 << 16
            content = files[name]
            large = isinstance(content, Path) and content.stat().st_size >= zipfile.ZIP64_LIMIT
            with archive.open(entry, "w", force_zip64=large) as out:
                for block in _blocks(content):
                    out.write(block)
    return hashed(to)


def _blocks(content: bytes | Path) -> Iterator[bytes]:
    if isinstance(content, bytes):
        yield content
        return
    with content.open("rb") as file:
        while block := file.read(BLOCK):
            yield block
