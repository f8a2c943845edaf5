"""Threads for the routes that are asked most, at half the cost of anyio's pool for a route.

anyio lends each call a token and a scope in which it may be cancelled. A read of some milliseconds needs neither.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import TypeVar

T = TypeVar("T")
POOL = ThreadPoolExecutor(10, "read")  # as many as connections that stay open: more would wait for one


async def in_thread(work: Callable[[], T]) -> T:
    """Runs work that reads, in the caller's context. If the caller is cancelled, it runs to its end unheard."""
    return await asyncio.get_running_loop().run_in_executor(POOL, copy_context().run, work)
