"""Ranks of one attempt as threads of a test: the product's own exchanges."""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from queue import SimpleQueue
from threading import Thread
from typing import TypeVar

import torch

from tests.worker.support import DirectLink, Supervisor, plan_of
from worker.attempt.exchange import PIECE_BYTES, Exchange, SharedRanks
from worker.attempt.rank_processes import SharedLink, Unheard
from worker.attempt.ring import RingRanks
from worker.data.ranks import ALONE, Ranks
from worker.data.records import Records
from worker.telemetry import Telemetry
from worker.training.batches import TrainingData
from worker.training.loop import Outcome, Training
from worker.training.plan import Plan
from worker.training.write_ahead import Replay

PATIENCE_S = 300.0
R = TypeVar("R")


Ends = Callable[[], SharedRanks | RingRanks]  # takes one rank's end of an exchange, in that rank's thread


def shared(size: int, piece_bytes: int = PIECE_BYTES) -> Sequence[Ends]:
    """The ends of ranks on one machine."""
    exchange = Exchange(size, piece_bytes)
    return [partial(exchange.ranks, rank, standalone=False) for rank in range(size)]


def ring(size: int, piece_bytes: int = PIECE_BYTES) -> Sequence[Ends]:
    """The ends of ranks on several machines, with threads that carry bytes from each to the next."""
    pairs = [socket.socketpair() for _ in range(size)]
    for rank in range(size):
        Thread(target=_carry, args=(pairs[rank][1], pairs[(rank + 1) % size][1].dup()), daemon=True).start()
    return [partial(RingRanks, rank, size, pairs[rank][0], piece_bytes) for rank in range(size)]


def _carry(source: socket.socket, target: socket.socket) -> None:
    """As worker.cluster.links.Bridge: whatever ended it, the next rank hears nothing more, and this one is cut off."""
    with source, target:
        with suppress(OSError):
            while said := source.recv(1 << 16):
                target.sendall(said)
        for end, way in ((source, socket.SHUT_RDWR), (target, socket.SHUT_WR)):
            with suppress(OSError):
                end.shutdown(way)


def aside(work: Callable[[], R]) -> Callable[[], R]:
    """Begins work in a thread that nobody's end waits for. Returns what waits for its result, `PATIENCE_S` at most."""
    result: Future[R] = Future()

    def run() -> None:
        try:
            result.set_result(work())
        except BaseException as error:
            result.set_exception(error)

    Thread(target=run, daemon=True).start()
    return partial(result.result, PATIENCE_S)


def together(
    size: int, work: Callable[[Ranks], R], piece_bytes: int = PIECE_BYTES, ends: Callable[..., Sequence[Ends]] = shared
) -> list[R]:
    """What each rank's work returns. The first error is raised; the other ranks end with it, as their links close."""
    found: SimpleQueue[tuple[int, R | BaseException]] = SimpleQueue()

    def one(rank: int, end: Ends) -> None:
        torch.set_num_threads(1)
        ranks = end()
        try:
            found.put((rank, work(ranks)))
        except BaseException as error:
            found.put((rank, error))
        finally:
            ranks.close()

    for rank, end in enumerate(ends(size, piece_bytes)):
        Thread(target=one, args=(rank, end), daemon=True).start()
    results: dict[int, R] = {}
    while len(results) < size:
        rank, result = found.get(timeout=PATIENCE_S)
        if isinstance(result, BaseException):
            raise result
        results[rank] = result
    return [results[rank] for rank in range(size)]


def trained(
    record: Supervisor,
    train: Records,
    size: int,
    plan_for: Callable[[Ranks], Plan] | None = None,
    ends: Callable[..., Sequence[Ends]] = shared,
) -> list[Outcome]:
    """Each rank's outcome of one attempt; rank 0 speaks to the supervisor's record."""
    start = record.message()

    def work(ranks: Ranks) -> Outcome:
        plan = plan_for(ranks) if plan_for else plan_of(record.start, ranks)
        own = DirectLink(record) if ranks.rank == 0 else None
        telemetry = Telemetry(
            own or Unheard(), start.mechanism, data_public=start.data_public, holdout_public=start.holdout_public
        )
        replay = Replay(start.steps, start.segments, start.allowed_steps, plan.block_end)
        link = SharedLink(ranks, own)
        return Training(
            plan, TrainingData(train, None, holdout_public=True), replay, link, telemetry, start.saved
        ).run()

    return [work(ALONE)] if size == 1 else together(size, work, ends=ends)
