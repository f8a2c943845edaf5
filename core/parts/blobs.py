"""A part's bytes, wherever they are read: mapped from a file, or decrypted from a sealed one into memory."""

from __future__ import annotations

import mmap
import os
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from core.parts.damage import DataDamagedError
from core.parts.read_ahead import Places, announce
from core.parts.sealed import CHUNK_BYTES, HEADER_BYTES, STORED_BYTES, Header, Sealed, require


class Blob(Protocol):
    """Bytes that are read by their places."""

    @property
    def rows_at_once(self) -> int | None:
        """How many records are gathered at once, so that memory stays bounded; None: any number."""
        ...

    def read(self, offset: int, length: int) -> bytes | memoryview:
        """The bytes of one range."""
        ...

    def gathered(self, starts: Places, lengths: Places | int) -> tuple[NDArray[np.uint8], Places]:
        """Bytes that hold these ranges, and where each begins in them. Ranges keep their places modulo 8."""
        ...

    def announce(self, starts: Places, lengths: Places) -> None:
        """Tells the kernel that these ranges are read soon."""
        ...


def open_blob(path: Path, key: bytes | None) -> Mapped | Unsealed:
    """Opens a part's file, sealed or not.

    Args:
        key: the data key of a sealed one.

    Raises:
        DataDamagedError: it is missing; or it is sealed, and there is no key or another one.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        raise DataDamagedError("a stored part of the data set cannot be read") from None
    try:
        header = Header.of(descriptor)
        return Mapped(descriptor) if header is None else Unsealed(descriptor, header, require(key))
    except BaseException:
        os.close(descriptor)
        raise


class Mapped:
    """A file in plaintext.

    Args:
        descriptor: closed with this object.
    """

    rows_at_once = None

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def __del__(self) -> None:
        os.close(self._descriptor)

    def read(self, offset: int, length: int) -> bytes:
        """See Blob.read. Without the map: for processes with a bounded address space."""
        return os.pread(self._descriptor, length, offset)

    def gathered(self, starts: Places, lengths: Places | int) -> tuple[NDArray[np.uint8], Places]:
        """See Blob.gathered: the whole file, where it is."""
        return np.frombuffer(self._map, np.uint8), starts

    def announce(self, starts: Places, lengths: Places) -> None:
        """See Blob.announce."""
        announce(self._descriptor, starts, lengths)

    @cached_property
    def _map(self) -> mmap.mmap:
        try:
            return mmap.mmap(self._descriptor, 0, prot=mmap.PROT_READ)
        except (OSError, ValueError):
            raise DataDamagedError("a stored part of the data set cannot be read") from None


class Unsealed:
    """A sealed file: what is read is decrypted chunk by chunk into this process's own memory, never onto a disk.

    Args:
        descriptor: closed with this object.
    """

    rows_at_once = 1024

    def __init__(self, descriptor: int, header: Header, key: bytes) -> None:
        self._sealed = Sealed(descriptor, header, key)
        self._descriptor = descriptor

    def __del__(self) -> None:
        if hasattr(self, "_descriptor"):  # otherwise it is still the caller's
            os.close(self._descriptor)

    def read(self, offset: int, length: int) -> bytes:
        """See Blob.read."""
        return self._sealed.read(offset, length)

    def gathered(self, starts: Places, lengths: Places | int) -> tuple[NDArray[np.uint8], Places]:
        """See Blob.gathered: the chunks that hold the ranges, each once and in order.

        Chunks that follow each other in the file follow each other here, so a range over several is in one piece.
        """
        some: NDArray[Any] = np.broadcast_to(np.asarray(lengths) > 0, starts.shape)
        firsts = starts[some] // CHUNK_BYTES
        lasts = (starts + lengths - 1)[some] // CHUNK_BYTES
        counts = lasts - firsts + 1
        within = np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)
        chunks = np.unique(np.repeat(firsts, counts) + within)
        ends = np.flatnonzero(np.diff(chunks, append=-1) != 1) + 1
        runs = zip(chunks[np.append(0, ends)[:-1]].tolist(), (chunks[ends - 1] + 1).tolist(), strict=True)
        content = b"".join(chunk for first, end in runs for chunk in self._sealed.chunks(first, end))
        moved = np.zeros_like(starts)
        moved[some] = np.searchsorted(chunks, firsts) * CHUNK_BYTES + starts[some] % CHUNK_BYTES
        return np.frombuffer(content, np.uint8), moved

    def announce(self, starts: Places, lengths: Places) -> None:
        """See Blob.announce: the sealed chunks that hold the ranges."""
        announce(self._descriptor, *stored_ranges(starts, lengths))


def stored_ranges(starts: Places, lengths: Places) -> tuple[Places, Places]:
    """Where a sealed file's chunks lie that hold ranges of its content: their places and lengths in the file."""
    firsts, ends = starts // CHUNK_BYTES, -(-(starts + lengths) // CHUNK_BYTES)
    return HEADER_BYTES + firsts * STORED_BYTES, np.where(lengths > 0, ends - firsts, 0) * STORED_BYTES
