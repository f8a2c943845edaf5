"""Places for large bodies: each key has a few under way in a process, and its others wait unread.

A body that waits is not received: it takes what the connection's buffer takes, and no thread.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

from core.errors import TooManyRequests

WAITING = 16
AGAIN_S = 1


@dataclass
class _Line:
    """One key's bodies: those under way, and who waits, each in its event loop."""

    under_way: int = 0
    waiting: deque[asyncio.Future[None]] = field(default_factory=deque)


class BodyPlaces:
    """Gives places to keys. Safe to share between threads and event loops.

    Args:
        per_key: the most bodies of a key under way.
        wait_s: how long one may wait.
    """

    def __init__(self, per_key: int, wait_s: float) -> None:
        self._per_key, self._wait_s = per_key, wait_s
        self._lines: dict[str, _Line] = {}
        self._lock = threading.Lock()

    @asynccontextmanager
    async def place(self, key: str) -> AsyncIterator[None]:
        """Waits for a place, and frees it at the end of the block.

        Raises:
            TooManyRequests: too many of the key's bodies wait, or this one waited for too long.
        """
        turn = self._ask(key)
        try:
            async with asyncio.timeout(self._wait_s):
                await turn
        except TimeoutError:
            self._withdraw(key, turn)
            raise self._refusal() from None
        except BaseException:
            self._withdraw(key, turn)
            raise
        try:
            yield
        finally:
            self._leave(key)

    def _ask(self, key: str) -> asyncio.Future[None]:
        turn = asyncio.get_running_loop().create_future()
        with self._lock:
            line = self._lines.setdefault(key, _Line())
            if line.under_way < self._per_key:
                line.under_way += 1
                turn.set_result(None)
            elif len(line.waiting) < WAITING:
                line.waiting.append(turn)
            else:
                raise self._refusal()
        return turn

    def _withdraw(self, key: str, turn: asyncio.Future[None]) -> None:
        """Takes a request back: out of the line, or out of the place that it was given meanwhile."""
        with self._lock, suppress(KeyError, ValueError):
            self._lines[key].waiting.remove(turn)
            return
        if turn.done() and not turn.cancelled():
            self._leave(key)

    def _leave(self, key: str) -> None:
        """Gives a place to the first who waits, if one does."""
        with self._lock:
            line = self._lines[key]
            if line.waiting:
                turn = line.waiting.popleft()
                turn.get_loop().call_soon_threadsafe(self._give, key, turn)
                return
            line.under_way -= 1
            if not line.under_way:
                del self._lines[key]

    def _give(self, key: str, turn: asyncio.Future[None]) -> None:
        if turn.done():  # it was cancelled before this came
            self._leave(key)
        else:
            turn.set_result(None)

    def _refusal(self) -> TooManyRequests:
        detail = f"this key may have {self._per_key} large bodies under way and {WAITING} waiting: send fewer at a time"
        return TooManyRequests(detail, AGAIN_S)
