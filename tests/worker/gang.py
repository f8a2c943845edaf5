"""Ranks of one attempt as threads of a test: the product's own exchange, gloo over 127.0.0.1."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from typing import TypeVar

import torch

from tests.worker.support import DirectLink, Supervisor, plan_of
from worker.attempt.gloo import GlooRanks
from worker.attempt.together import SharedLink, Unheard
from worker.data.ranks import ALONE, Ranks
from worker.data.records import Records
from worker.telemetry import Telemetry
from worker.training.loop import Outcome, Training
from worker.training.plan import Plan
from worker.training.replay import Replay

PATIENCE = timedelta(seconds=20)
R = TypeVar("R")


def together(size: int, work: Callable[[Ranks], R]) -> list[R]:
    """What each rank's work returns. The first error is raised; the other ranks then end for want of patience."""
    found: SimpleQueue[tuple[int, R | BaseException]] = SimpleQueue()
    with tempfile.TemporaryDirectory() as folder:

        def one(rank: int) -> None:
            torch.set_num_threads(1)
            try:
                found.put((rank, work(GlooRanks(Path(folder) / "ranks", rank, size, PATIENCE))))
            except BaseException as error:
                found.put((rank, error))

        for rank in range(size):
            Thread(target=one, args=(rank,), daemon=True).start()
        results: dict[int, R] = {}
        while len(results) < size:
            rank, result = found.get(timeout=2 * PATIENCE.total_seconds())
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
        return Training(plan, train, None, holdout_public=True, replay=replay, link=link, telemetry=telemetry).run()

    return [work(ALONE)] if size == 1 else together(size, work)
