"""Tells the kernel which ranges of a file are read soon: a disk then reads them side by side, while a pass computes."""

from __future__ import annotations

import os
from contextlib import suppress

import numpy as np
from numpy.typing import NDArray

Places = NDArray[np.int64]
GAP_BYTES = (
    2**15
)  # ranges this near are announced as one: a disk reads the bytes between them in less than a call's time
MOST_RANGES = 2**13  # in one announcement: as many system calls
MOST_BYTES = 2**28  # in one announcement: half of what is loaded whole, so it fits where smaller data sets do


def announce(descriptor: int, starts: Places, lengths: Places) -> None:
    """Announces ranges of a file. The kernel may ignore it: it changes when bytes are read, not which."""
    for start, length in merged(starts, lengths):
        with suppress(OSError):  # a file system that cannot read ahead
            os.posix_fadvise(descriptor, start, length, os.POSIX_FADV_WILLNEED)


def merged(starts: Places, lengths: Places) -> list[tuple[int, int]]:
    """Ranges that hold these ones: in the file's order, near ones as one, at most MOST_RANGES of MOST_BYTES together.

    What is beyond these limits is left out.

    >>> merged(np.array([200_000, 0, 500]), np.array([8, 400, 400]))
    [(0, 900), (200000, 8)]
    """
    some = lengths > 0
    order = np.argsort(starts[some], kind="stable")
    starts, ends = starts[some][order], np.maximum.accumulate((starts + lengths)[some][order])
    first = np.append(True, starts[1:] - ends[:-1] > GAP_BYTES)[: len(starts)]
    last = np.append(first[1:], True)[: len(starts)]
    starts, lengths = starts[first], ends[last] - starts[first]
    joins = (np.cumsum(lengths) <= MOST_BYTES) & (np.arange(len(starts)) < MOST_RANGES)
    return list(zip(starts[joins].tolist(), lengths[joins].tolist(), strict=True))
