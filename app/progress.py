"""What a helper process tells its caller during one request: how many bytes it has read.

The number says nothing of the content but the file's size, which its owner knows.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

COUNTERS = Path("/proc/self/io")
EVERY_S = 0.5
_hearers: list[Callable[[int], None]] = []


@contextmanager
def heard_by(hearer: Callable[[int], None]) -> Iterator[None]:
    """Sends what is told inside the block to `hearer`. Without one, nothing is counted."""
    _hearers.append(hearer)
    try:
        yield
    finally:
        _hearers.remove(hearer)


@contextmanager
def of_reads() -> Iterator[None]:
    """Tells, twice a second, how many bytes this process has read since the block began; nothing where the kernel does
    not count them."""
    begun = _read_bytes()
    if not _hearers or begun is None:
        yield
        return
    hearer, over = _hearers[-1], threading.Event()

    def tell() -> None:
        while not over.wait(EVERY_S):
            hearer((_read_bytes() or begun) - begun)

    teller = threading.Thread(target=tell, name="progress", daemon=True)
    teller.start()
    try:
        yield
    finally:
        over.set()
        teller.join()


def _read_bytes() -> int | None:
    try:
        return int(COUNTERS.read_text().split(maxsplit=2)[1])  # rchar: the first line
    except (OSError, ValueError, IndexError):
        return None
