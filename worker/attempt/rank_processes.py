"""The processes of one attempt: rank 0 forks the others once it is confined, and all of them end together.

A fork inherits the sandbox: the files, the namespaces and the memory group; each rank then closes its system calls. It
dies with rank 0 (PR_SET_PDEATHSIG), so whatever ends rank 0 ends them all: a stop, a lost lease, the supervisor's end.
If another rank dies, rank 0 ends at once, without a word: the supervisor gives the job back, and the next attempt
repeats the same steps.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from torch import Tensor

from app.sandbox.confinement import die_with
from core.contracts.base import Document
from worker.attempt.exchange import Exchange
from worker.attempt.ring import RingRanks
from worker.data.ranks import ALONE, Ranks, RanksError
from worker.messages import PEER_GONE, Checkpoint, Digest, FailureCode, Resalt, failure_of
from worker.training.loop import Link

SETTLE_S = 10.0


@dataclass(frozen=True)
class Forked:
    """This process's place among the ranks.

    Attributes:
        rank: 0 in the process that forked the others.
        pids: of all ranks, in their order; of rank 0 alone in the others. Of this one alone where others are elsewhere.
        ranks: their exchange.
    """

    rank: int
    size: int
    pids: tuple[int, ...]
    ranks: Ranks = ALONE


def fork_ranks(size: int) -> Forked:
    """Forks `size` − 1 further ranks; returns in each of them. This process must have one thread.

    Raises:
        RanksError: the machine has no process or memory left for one. Those already forked end with this process.
    """
    first, pids = os.getpid(), []
    if size == 1:
        return Forked(0, 1, (first,))
    exchange = Exchange(size)
    for rank in range(1, size):
        try:
            pid = os.fork()
        except OSError as error:
            exchange.close()
            raise RanksError("a rank of this attempt cannot be started") from error
        if pid == 0:
            die_with(first)
            return Forked(rank, size, (first,), exchange.ranks(rank))
        pids.append(pid)
    return Forked(0, size, (first, *pids), exchange.ranks(0))


def on_ring(rank: int, size: int, link: int) -> Forked:
    """This process as one rank of several machines (worker.cluster). `link`: the socket that leads to the others."""
    return Forked(rank, size, (os.getpid(),), RingRanks(rank, size, socket.socket(fileno=link)))


class Others:
    """Watches the other ranks from rank 0, in a thread of its own: rank 0 may be deep in a computation.

    A rank that was killed ends this whole process at once. One that failed by a known cause is noted; rank 0 then finds
    its connection closed, and reports that cause. So may a further rank, which ends with PEER_GONE and says nothing.
    """

    def __init__(self, pids: Sequence[int]) -> None:
        self._left = set(pids)
        self._failed: FailureCode | None = None
        self._news = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="ranks", daemon=True)
        self._thread.start()

    def failure(self) -> FailureCode | None:
        """Why a rank failed, waiting a moment for its end; None if it is not known."""
        self._news.wait(SETTLE_S)
        return self._failed

    def _watch(self) -> None:
        while self._left:
            pid, raw = os.waitpid(-1, 0)
            self._left.discard(pid)
            status = os.waitstatus_to_exitcode(raw)
            if status in (0, PEER_GONE):
                continue
            code = failure_of(status)
            if code is None:
                os._exit(1)
            self._failed = self._failed or code
            self._news.set()


class SharedLink:
    """The link of a rank: rank 0 talks to the supervisor, and the others wait for what it heard.

    Args:
        ranks: all ranks.
        link: rank 0's own; None in the others.
    """

    def __init__(self, ranks: Ranks, link: Link | None) -> None:
        self._ranks, self._link = ranks, link

    def begin(self, first_step: int, last_step: int) -> bool:
        """See Link.begin. No rank begins before the block is recorded."""
        saves = self._link is not None and self._link.begin(first_step, last_step)
        return bool(self._ranks.from_first(b"x" if saves else b""))

    def save(self, header: Checkpoint, pieces: Iterator[Tensor]) -> None:
        """See Link.save. Every rank goes through the pieces: some have parts of them."""
        if self._link is not None:
            self._link.save(header, pieces)
        for _ in pieces:
            pass

    def fill(self, numbers: Tensor) -> None:
        """See Link.fill: the same in all ranks."""
        if self._link is not None:
            self._link.fill(numbers)
        self._ranks.from_rank(0, numbers)

    def poll(self, step: int) -> None:
        """See Link.poll. Where rank 0 stops, it ends, and the others with it."""
        if self._link is not None:
            self._link.poll(step)

    def mismatch(self, matched_step: int) -> Resalt:
        """See Link.mismatch. All ranks go on under the same fresh keys."""
        mismatch = b"" if self._link is None else self._link.mismatch(matched_step).model_dump_json().encode()
        return Resalt.model_validate_json(self._ranks.from_first(mismatch))


class Unheard:
    """The sender of a rank that releases nothing."""

    def send(self, message: Document) -> None:
        """Drops the message."""

    def record(self, digest: Digest) -> None:
        """Drops the digest, which is rank 0's too."""

    def flush(self) -> None:
        """Sends nothing."""
