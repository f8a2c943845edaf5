"""Checks a part's file while it is copied from one place to another: each chunk against the index, as it passes."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator

from core.parts.damage import DataDamagedError
from core.parts.layout import Index, leaf_of


def checked(blocks: Iterable[bytes], index: Index) -> Iterator[bytes]:
    """Hands on the blocks of a part's Arrow file. In memory: one block and one chunk.

    Bytes between the chunks are handed on as they are: nobody reads them.

    Raises:
        DataDamagedError: a chunk has another hash, or the file ends before its last chunk does. What was handed on
            until then is no part.
    """
    rows = iter(index.chunks)
    row = next(rows, None)
    buffer, at = bytearray(), 0  # the current chunk as far as it has arrived; the file's offset
    for block in blocks:
        start = at
        at += len(block)
        while row is not None:
            offset, length = int(row["offset"]), int(row["length"])
            begin = max(offset + len(buffer), start)
            if begin >= at:
                break
            buffer += memoryview(block)[begin - start : offset + length - start]
            if len(buffer) < length:
                break
            if leaf_of(row, buffer) != row["sha256"].tobytes():
                raise _damaged()
            buffer.clear()
            row = next(rows, None)
        yield block
    if row is not None:
        raise _damaged()


def checked_whole(blocks: Iterable[bytes], sha256: str) -> Iterator[bytes]:
    """The same of a part of before: one file with one hash.

    Raises:
        DataDamagedError: it has another hash, known after its last block.
    """
    digest = hashlib.sha256()
    for block in blocks:
        digest.update(block)
        yield block
    if digest.hexdigest() != sha256:
        raise _damaged()


def _damaged() -> DataDamagedError:
    return DataDamagedError("a stored part of the data set differs from the registered one")
