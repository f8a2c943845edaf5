"""A folder as one ZIP archive, whose bytes follow from the files alone: sorted names, no times, no compression.

It is written in pieces and never lies whole anywhere: a model of gigabytes is read where it lies.
"""

from __future__ import annotations

import hashlib
import io
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

BLOCK = 1 << 20
Content = bytes | Path | zipfile.Path
NOTHING: Mapping[str, str] = {}
EPOCH = (1980, 1, 1, 0, 0, 0)  # the earliest time that the format can hold


@dataclass(frozen=True)
class Hashed:
    """A file's SHA-256 (hex) and its bytes."""

    sha256: str
    size_bytes: int


class Changed(Exception):
    """A file is not what it was: it names the file."""


def hashed(content: bytes) -> Hashed:
    """Hashes a content."""
    return hashed_pieces([content])


def hashed_pieces(blocks: Iterable[bytes]) -> Hashed:
    """Hashes what arrives in pieces."""
    digest, size = hashlib.sha256(), 0
    for block in blocks:
        digest.update(block)
        size += len(block)
    return Hashed(digest.hexdigest(), size)


def pieces(files: Mapping[str, Content], expected: Mapping[str, str] = NOTHING) -> Iterator[bytes]:
    """The archive of these files, by their names in it.

    Args:
        expected: the SHA-256 (hex) that some of them must have.

    Raises:
        Changed: one has another.

    >>> one, two = (b"".join(pieces(each)) for each in ({"b": b"2", "a": b"1"}, {"a": b"1", "b": b"2"}))
    >>> one == two, zipfile.ZipFile(io.BytesIO(one)).read("b")
    (True, b'2')
    """
    out = _Pieces()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_STORED, allowZip64=True) as archive:
        for name in sorted(files):
            entry = zipfile.ZipInfo(name, EPOCH)
            entry.external_attr = 0o100644 << 16
            content, digest = files[name], hashlib.sha256()
            large = isinstance(content, Path) and content.stat().st_size >= zipfile.ZIP64_LIMIT
            with archive.open(entry, "w", force_zip64=large) as to:
                for block in _blocks(content):
                    digest.update(block)
                    to.write(block)
                    yield out.taken()
            if expected.get(name) not in (None, digest.hexdigest()):
                raise Changed(name)
    yield out.taken()


class _Pieces(io.RawIOBase):
    """What was written since it was last taken; it cannot seek, so the archive's sizes follow its files."""

    def __init__(self) -> None:
        self._written = bytearray()

    def writable(self) -> bool:
        return True

    def write(self, data: Any, /) -> int:
        self._written += data
        return len(data)

    def taken(self) -> bytes:
        taken, self._written = bytes(self._written), bytearray()
        return taken


def _blocks(content: Content) -> Iterator[bytes]:
    if isinstance(content, bytes):
        yield content
        return
    with content.open("rb") as file:
        while block := file.read(BLOCK):
            yield block
