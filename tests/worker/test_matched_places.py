"""A = B: a step that leaves x out, by its coin or because it is not there, gives the same bits; with x one row differs.

All rows are the loop's own. D's are under the coins and the injection of D ∪ {x}, restricted to D: the coupling of the
theorem (docs/theorems.md, "A record has a place of its own"), whatever number x has among the records.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from core.privacy.slot_numbers import unstated_slots
from tests.worker.support import Supervisor, records, spec, start_of, training_of
from tests.worker.test_places import CYCLIC, FULL, MLP, POISSON, SHAPE, X, Y
from worker.data.passes import EMPTY
from worker.data.secret_slots import Slotted
from worker.noise.secret_places import TRAIN, RandomOrder
from worker.training.loop import Training

STEPS = range(1, 25)
SMALL = POISSON | {"largest_batch": 16}  # as many as are drawn in the mean: half of all draws are larger
BATCHES = {"poisson": POISSON, "largest batch": POISSON | {"largest_batch": 40}, "cyclic": CYCLIC}
Occupants = NDArray[np.int64]
Sums = dict[str, Tensor]


def loop_over(numbers: NDArray[np.int64], sampling: dict[str, Any]) -> Training:
    record = Supervisor(start_of(spec(evaluation=None, sampling=sampling, model=MLP), SHAPE))
    return training_of(record, records(X[numbers], Y[numbers]), None)


def numbers_of(loop: Training, step: int) -> Occupants:
    """The step's draw: records, and beyond them slots without one."""
    numbers = loop._randomness.sampler.draw(step)
    assert numbers is not None
    return numbers


@dataclass
class Restriction:
    """Gives D's loop the coins and injections of D ∪ {x}.

    Attributes:
        x: its number in D ∪ {x}, of 81 records. Later ones have numbers one lower in D, where x's slot is number 80.
        heads: x's coin in each step.
        place: of x among the drawn records of a step.
    """

    x: int
    heads: dict[int, bool] = field(default_factory=dict)
    place: dict[int, int] = field(default_factory=dict)

    def of(self, loop: Training, joined: Training) -> None:
        """From now on `loop` draws as `joined` does."""
        original = RandomOrder.of

        def draw(step: int) -> Occupants:
            numbers = numbers_of(joined, step)
            self.heads[step] = self.x in numbers
            self.place[step] = int(np.searchsorted(numbers, self.x))
            shifted = np.where(numbers == self.x, 80, numbers - ((numbers > self.x) & (numbers <= 80)))
            return np.sort(shifted)

        def order(step: int, count: int) -> Occupants:
            rows = joined._plan.rows_of(len(numbers_of(joined, step)))
            drawn = int(np.searchsorted(numbers_of(joined, step), 81))
            assert rows is not None and joined._randomness.order is not None
            whole = original(joined._randomness.order, step, max(rows, drawn))
            return without_x(whole, self.place[step], count) if self.heads[step] else whole

        loop._randomness.sampler.draw = draw  # type: ignore[method-assign]
        loop._randomness.order.of = order  # type: ignore[method-assign, union-attr]


def without_x(order: Occupants, place: int, count: int) -> Occupants:
    """The injection of the others, from that of all.

    Where there are as many rows, x's goes to nobody. Where the others overflow them too, there is one number less: who
    has the largest one, which stands for no row, takes x's.
    """
    others = np.delete(order, place)
    if count == len(order):
        return np.append(others, order[place])
    return np.where(others == len(order) - 1, order[place], others)


def sums_of(loop: Training, batch: Any) -> Sums:
    return loop._plan.engine.private_sum(loop._initial().parameters, batch)


def same(one: Sums, other: Sums) -> bool:
    return all(torch.equal(one[key], other[key]) for key in one)


def change(one: Sums, other: Sums) -> float:
    return float(torch.cat([(one[key] - other[key]).flatten() for key in one]).norm())


def steps_of(sampling: dict[str, Any], x: int) -> tuple[Restriction, Training, Training]:
    numbers = np.arange(81)
    joined, alone = loop_over(numbers, sampling), loop_over(np.delete(numbers, x), sampling)
    restriction = Restriction(x)
    restriction.of(alone, joined)
    return restriction, joined, alone


def rows_of(loop: Training, step: int) -> tuple[Slotted[Any], Occupants]:
    batch, _ = loop._batches.sample(step, loop._randomness)
    assert isinstance(batch, Slotted)
    return batch, np.asarray(batch.occupants[:])


def renumbered(occupants: Occupants, x: int) -> Occupants:
    """D's rows by the numbers of D ∪ {x}."""
    return np.where(occupants >= x, occupants + 1, occupants)


@pytest.mark.parametrize("x", [0, 40, 80])
@pytest.mark.parametrize("name", BATCHES)
def test_tails_and_absence_leave_the_same_rows_and_sum(name: str, x: int) -> None:
    """And with heads one row more is occupied; emptied, it leaves D's sum.

    Claim: a step without x is that of the data without x, given the others' coins and rows
    Now: the same bits; with x one row differs
    """
    restriction, joined, alone = steps_of(BATCHES[name], x)
    seen = set()
    for step in STEPS:
        without, fewer = rows_of(alone, step)
        batch, full = rows_of(joined, step)
        sum_without, sum_with = sums_of(alone, without), sums_of(joined, batch)
        heads = restriction.heads[step]
        seen.add(heads)
        moved = np.flatnonzero(full != renumbered(fewer, x))
        assert len(full) == len(fewer) and len(moved) == heads
        if not heads:
            assert same(sum_with, sum_without)
            continue
        assert full[moved[0]] == x and fewer[moved[0]] == EMPTY
        emptied = Slotted(joined._batches._drawn, np.where(full == x, EMPTY, full))
        assert same(sums_of(joined, emptied), sum_without)
        assert 0.0 < change(sum_with, sum_without) <= joined._plan.numerics.sensitivity_slack
    assert seen == {True, False}


@pytest.mark.parametrize("x", [0, 40, 80])
def test_in_a_draw_larger_than_its_rows_x_takes_one_other_s_row(x: int) -> None:
    """R = `largest_batch`: a uniform part of a draw stays. With x no row differs, or one, whose record x displaces: the
    pair that the price of truncated batches is for."""
    restriction, joined, alone = steps_of(SMALL, x)
    seen = set()
    for step in STEPS:
        without, fewer = rows_of(alone, step)
        batch, full = rows_of(joined, step)
        assert len(full) == len(fewer) == 16
        sum_without, sum_with = sums_of(alone, without), sums_of(joined, batch)
        moved = np.flatnonzero(full != renumbered(fewer, x))
        if len(moved) == 0:  # tails, or cut
            assert same(sum_with, sum_without)
            seen.add("cut" if restriction.heads[step] else "tails")
            continue
        displaced = bool(fewer[moved[0]] != EMPTY)
        seen.add("displaced" if displaced else "joined")
        assert restriction.heads[step] and len(moved) == 1 and full[moved[0]] == x
        assert not displaced or (full != EMPTY).all(), "nobody is displaced while a row is empty"
        assert 0.0 < change(sum_with, sum_without) <= (1 + displaced) * joined._plan.numerics.sensitivity_slack
    assert {"tails", "displaced"} <= seen


@pytest.mark.parametrize("x", [0, 40, 80])
def test_a_full_batch_without_x_leaves_its_slot_empty(x: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the rows that steps, statistics and scores on this part take."""
    numbers = np.arange(81)
    joined = loop_over(numbers, FULL)
    original = RandomOrder.of
    monkeypatch.setattr(
        RandomOrder, "of", lambda self, step, count, *part: without_x(original(self, step, count, *part), x, count)
    )
    alone = loop_over(np.delete(numbers, x), FULL)
    full, fewer = (np.asarray(loop._batches.whole(loop._batches.train, TRAIN).occupants[:]) for loop in (joined, alone))
    assert len(full) == len(fewer) == unstated_slots(80)
    assert np.array_equal(np.where(full == x, EMPTY, full), renumbered(fewer, x))
    batches = [loop._batches.sample(1, loop._randomness)[0] for loop in (joined, alone)]
    sum_with, sum_without = (sums_of(loop, batch) for loop, batch in zip((joined, alone), batches, strict=True))
    emptied = Slotted(joined._batches.train, np.where(full == x, EMPTY, full))
    assert same(sums_of(joined, emptied), sum_without)
    assert 0.0 < change(sum_with, sum_without) <= joined._plan.numerics.sensitivity_slack
