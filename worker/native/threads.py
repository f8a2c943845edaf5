"""Threads for work that has no order: which of them does a piece changes no bit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache

import torch


def on_threads(work: Callable[[int], None], pieces: Sequence[int]) -> None:
    """Does the work of each piece, in any order, on as many threads as torch uses."""
    threads = min(torch.get_num_threads(), len(pieces))
    if threads <= 1:
        for piece in pieces:
            work(piece)
        return
    before = torch.get_num_threads()
    for _ in pool(before).map(work, pieces):
        pass
    torch.set_num_threads(before)  # new threads start with this number, which a helper thread changed


@cache
def pool(threads: int) -> ThreadPoolExecutor:
    """Threads whose operations stay on them: MKL would spread each erf⁻¹ over cores that the gradient needs."""
    return ThreadPoolExecutor(threads, thread_name_prefix="step", initializer=torch.set_num_threads, initargs=(1,))
