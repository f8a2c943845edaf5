"""The next step's records are drawn while a step is computed: the same ones, and never those of other keys."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from tests.worker.test_places import MLP, training
from worker.data.secret_slots import Slotted
from worker.noise.batch_sampling import Sampler
from worker.training.loop import Training

POISSON = {"kind": "poisson", "expected_batch_size": 20}


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@dataclass
class Watched:
    """A sampler that notes which thread drew which step."""

    sampler: Sampler
    drew: list[tuple[int, bool]] = field(default_factory=list)

    def draw(self, step: int) -> NDArray[np.int64] | None:
        self.drew.append((step, threading.current_thread() is threading.main_thread()))
        return self.sampler.draw(step)


def watched(salt: str = "s0") -> tuple[Training, Watched]:
    loop = training(80, salt, sampling=POISSON, model=MLP, runtime={"physical_batch_size": 8})
    sampler = Watched(loop._randomness.sampler)
    loop._randomness = replace(loop._randomness, sampler=sampler)
    return loop, sampler


def rows(loop: Training, step: int) -> list[int]:
    batch, canaries = loop._batches.sample(step, loop._randomness)
    assert isinstance(batch, Slotted) and canaries is not None
    return [int(each) for each in batch.occupants[:]]


def test_each_step_is_drawn_once_and_by_another_thread_where_there_are_several() -> None:
    found = {}
    for threads in (1, 2):
        torch.set_num_threads(threads)
        loop, sampler = watched()
        steps = range(1, loop._plan.steps + 1)
        found[threads] = [rows(loop, step) for step in steps]
        assert sampler.drew == [(step, threads == 1 or step == 1) for step in steps], "and none after the last"
        assert loop._batches.private_passes > 0
    assert found[1] == found[2]


def test_a_draw_of_other_keys_or_records_is_dropped() -> None:
    torch.set_num_threads(2)
    alone = {salt: rows(watched(salt)[0], 2) for salt in ("s0", "s1")}
    loop, sampler = watched()
    rows(loop, 1)
    loop._randomness = watched("s1")[0]._randomness
    assert rows(loop, 2) == alone["s1"] != alone["s0"]
    loop, sampler = watched()
    rows(loop, 1)
    loop._batches._use(loop._data.train)
    assert rows(loop, 2) == alone["s0"]
    assert sampler.drew.count((2, True)) == 1, "it was drawn again"
    assert rows(loop, 2) == alone["s0"], "a step that is asked for again is the same"
