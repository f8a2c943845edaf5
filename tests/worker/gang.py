"""Ranks of one attempt as threads of a test: the product's own exchange."""

from __future__ import annotations

from collections.abc import Callable
from queue import SimpleQueue
from threading import Thread
from typing import TypeVar

import torch

from tests.worker.support import DirectLink, Supervisor, plan_of
from worker.attempt.exchange import PIECE_BYTES, Exchange
from worker.attempt.together import SharedLink, Unheard
from worker.data.ranks import ALONE, Ranks
from worker.data.records import Records
from worker.telemetry import Telemetry
from worker.training.batches import TrainingData
from worker.training.loop import Outcome, Training
from worker.training.plan import Plan
from worker.training.replay import Replay

PATIENCE_S = 300.0
R = TypeVar("R")


def together(size: int, work: Callable[[Ranks], R], piece_bytes: int = PIECE_BYTES) -> list[R]:
    """What each rank's work returns. The first error is raised; the other ranks end with it, as their links close."""
    found: SimpleQueue[tuple[int, R | BaseException]] = SimpleQueue()
    exchange = Exchange(size, piece_bytes)

    def one(rank: int) -> None:
        torch.set_num_threads(1)
        ranks = exchange.ranks(rank, alone=False)
        try:
            found.put((rank, work(ranks)))
        except BaseException as error:
            found.put((rank, error))
        finally:
            ranks.close()

    for rank in range(size):
        Thread(target=one, args=(rank,), daemon=True).start()
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

    return [work(ALONE)] if size == 1 else together(size, work)
