"""Which rows private records take in steps, scores and statistics: public numbers of rows and passes, uniform places;
and mutants of each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy import stats
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from core.errors import PrivacyError
from core.privacy.releases import SCORE
from core.privacy.slot_numbers import unstated_slots
from tests.worker.support import Supervisor, dense, keys_of, records, run_direct, spec, start_of, training_of
from worker.clipping.engine import CountingEngine
from worker.data import secret_slots
from worker.data.passes import EMPTY, Batch, Pass, passes_of
from worker.data.records import clipped_sum
from worker.data.secret_slots import Slotted
from worker.messages import Segment
from worker.metrics.scores import _private_sums
from worker.noise.secret_places import HOLDOUT, TRAIN, WHOLE_DATA, RandomOrder
from worker.statistics.center import Centering
from worker.training.evaluation import Scores
from worker.training.loop import Training
from worker.training.plan import Plan

SHAPE = {"records_train": 80, "records_holdout": 80, "features": 3, "outputs": 2, "sparse": False}
X, Y = dense(400, 3)
POISSON: dict[str, Any] = {"kind": "poisson", "expected_batch_size": 16}
FULL = {"kind": "full_batch"}
CYCLIC = {"kind": "cyclic", "batches": 4}
MLP = {"kind": "mlp", "hidden": [5]}
P = 8
DRAWS = 3200
LOSS = {"account": "holdout", "what": "loss", "noise_mu": 0.5, "sensitivity": 8.0, "records": 80}


def training(count: int = 80, salt: str = "s0", **changes: Any) -> Training:
    """A job's loop over so many of the declared 80 records."""
    record = Supervisor(start_of(spec(**({"evaluation": None} | changes)), SHAPE))
    record.segments[0] |= keys_of(salt)
    return training_of(record, records(X[:count], Y[:count]), None)


@dataclass(frozen=True)
class Sum:
    """A sum over private records in rows.

    Attributes:
        sampling: of its job.
        rows: those of the sum's n-th draw of places: of step n, or under the n-th keys.
        add: computes it.
        counts: it has a number to which each record adds, whatever its values are.
        period: how many draws later a record can be drawn again.
    """

    sampling: dict[str, Any]
    rows: Callable[[Training, int], Slotted[Any]]
    add: Callable[[Training, Batch[Any]], Tensor]
    counts: bool = True
    period: int = 1

    def loop(self, count: int = 80, salt: str = "s0") -> Training:
        return training(count, salt, sampling=self.sampling, model=MLP, runtime={"physical_batch_size": P})

    def occupants(self, loop: Training, draw: int) -> NDArray[np.int64]:
        """The record in each row."""
        occupants = self.rows(loop, draw).occupants
        assert isinstance(occupants, np.ndarray)
        return occupants


def _step(loop: Training, step: int) -> Slotted[Any]:
    batch, _ = loop._batches.sample(step, loop._randomness)
    assert isinstance(batch, Slotted)
    return batch


def _part(part: int) -> Callable[[Training, int], Slotted[Any]]:
    def rows(loop: Training, draw: int) -> Slotted[Any]:
        segment = Segment.model_validate({"from_step": 1} | keys_of(f"{loop._randomness.keys.order_key} {draw}"))
        loop._batches.rekey(segment)
        return loop._batches.whole(loop._batches.train, part)

    return rows


def _gradients(loop: Training, batch: Batch[Any]) -> Tensor:
    """And last the count of an adaptive norm."""
    engine = loop._plan.engine
    assert isinstance(engine, CountingEngine)
    total, count = engine.private_sum_and_count(loop._initial().parameters, batch)
    return torch.cat([*(value.flatten() for value in total.values()), count.view(1)])


def _loss(loop: Training, batch: Batch[Any]) -> Tensor:
    release = SCORE.validate_python(LOSS)
    return torch.tensor(_private_sums(release, loop._plan.model, loop._initial().parameters, batch))  # type: ignore[arg-type]


def _mean(loop: Training, batch: Batch[Any]) -> Tensor:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("worker.data.records.CHUNK_BYTES", 8 * 3 * P)
        return clipped_sum(batch, 3, 1.0)


SUMS = {
    "poisson": Sum(POISSON, _step, _gradients),
    "cyclic": Sum(CYCLIC, _step, _gradients, period=4),
    "full batch": Sum(FULL, _part(TRAIN), _gradients),
    "score": Sum(POISSON, _part(HOLDOUT), _loss),
    "mean": Sum(FULL, _part(TRAIN), _mean, counts=False),
}


# --- What must hold, as functions of a sum, so that mutants can fail them ---


def rows_are_public(of: Sum) -> None:
    """As many rows whatever is drawn, and whoever is there."""
    loops = [of.loop(count) for count in (0, 1, 80, 200)]
    sizes = {tuple(len(of.occupants(loop, draw)) for draw in range(1, 40)) for loop in loops}
    assert len(sizes) == 1 and all(min(each) > P for each in sizes)
    assert len(set(*sizes)) == of.period, "a group's rows are those of its slots"


def places_are_uniform(of: Sum) -> None:
    """Each record's row is uniform over all rows: the last record's, and the first one's."""
    loop = of.loop()
    draws = [of.occupants(loop, draw) for draw in range(1, DRAWS)]
    for record in (79, 0):
        own = [each for each in draws if (each == record).any()]
        rows = Counter(int(np.flatnonzero(each == record)[0]) for each in own)
        assert stats.chisquare([rows[row] for row in range(len(own[0]))]).pvalue > 1e-6


def places_are_fresh(of: Sum) -> None:
    """A record's rows in draws that follow each other, and under another key, are independent: they agree by chance."""
    loop, other = of.loop(), of.loop(salt="another")
    other._randomness = replace(other._randomness, sampler=loop._randomness.sampler)
    one, later, elsewhere = (
        [_rows(of.occupants(source, draw + more)) for draw in range(1, 201)]
        for source, more in ((loop, 0), (loop, of.period), (other, 0))
    )
    for pairs in (zip(one, later, strict=True), zip(one, elsewhere, strict=True)):
        same = [a[record] == b[record] for a, b in pairs for record in a.keys() & b.keys()]
        assert len(same) > 100 and np.mean(same) < 0.15


def every_pass_runs(of: Sum) -> None:
    """As many operations for one record as for all: no pass and no row is left out. (The first step of a process also
    makes constants of public numbers, which are kept.)"""
    counts = list[int]()
    for count in (1, 1, 80, 200):
        loop = of.loop(count)
        batch = of.rows(loop, 1)
        loop._initial()
        with _Operations() as operations:
            of.add(loop, batch)
        counts.append(operations.count)
    assert len({*counts[1:]}) == 1 and counts[1] > len(batch) // P


def empty_rows_count_for_nobody(of: Sum) -> None:
    """An adaptive norm counts ±½ for a record, a score (s, Δ − s), and 0 for an empty row."""
    loop = of.loop(0)
    assert not of.add(loop, of.rows(loop, 1)).any()


class _Operations(TorchDispatchMode):
    """Counts what torch computes."""

    count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        return func(*args, **(kwargs or {}))


def _rows(occupants: NDArray[np.int64]) -> dict[int, int]:
    return {int(record): row for row, record in enumerate(occupants) if record != EMPTY}


Rule = Callable[[Sum], None]
RULES: list[Rule] = [rows_are_public, places_are_uniform, places_are_fresh, every_pass_runs]
COUNTING = [name for name, each in SUMS.items() if each.counts]
CASES = [(name, rule) for name in SUMS for rule in RULES] + [(name, empty_rows_count_for_nobody) for name in COUNTING]


@pytest.mark.parametrize(("name", "rule"), CASES)
def test_a_rule_of_places_holds(name: str, rule: Rule) -> None:
    rule(SUMS[name])


# --- Mutants ---

Mutant = Callable[[pytest.MonkeyPatch], None]


def constant_key(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Plan, "order", lambda self, keys: RandomOrder(bytes(range(32))))


def one_order_for_all_steps(patch: pytest.MonkeyPatch) -> None:
    original = RandomOrder.of
    patch.setattr(RandomOrder, "of", lambda self, step, count, *more: original(self, 1, count, *more))


def packed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(RandomOrder, "of", lambda self, step, count, *more: np.arange(count))


def rows_of_the_records(patch: pytest.MonkeyPatch) -> None:
    """As many rows as there are records in the sum."""
    original = Slotted.injected.__func__  # type: ignore[attr-defined]

    def mutant(cls: Any, of: Any, order: NDArray[np.int64], rows: int, numbers: Any = None) -> Any:
        count = len(of) if numbers is None else len(numbers)
        return original(cls, of, np.argsort(np.argsort(order[:count])), count, numbers)

    patch.setattr(Slotted, "injected", classmethod(mutant))


def last_place(patch: pytest.MonkeyPatch) -> None:
    """The last record always takes the last row."""
    original = Slotted.injected.__func__  # type: ignore[attr-defined]

    def mutant(cls: Any, of: Any, order: NDArray[np.int64], rows: int, numbers: Any = None) -> Any:
        count = len(of) if numbers is None else len(numbers)
        if count:
            order = order.copy()
            at, last = count - 1, int(np.flatnonzero(order == rows - 1)[0])
            order[[at, last]] = order[[last, at]]
        return original(cls, of, order, rows, numbers)

    patch.setattr(Slotted, "injected", classmethod(mutant))


def empty_rows_are_counted(patch: pytest.MonkeyPatch) -> None:
    def mutant(*args: Any) -> Iterator[Pass[Any]]:
        return (replace(each, present=torch.ones_like(each.present)) for each in passes_of(*args))

    patch.setattr(secret_slots, "passes_of", mutant)


def empty_passes_are_skipped(patch: pytest.MonkeyPatch) -> None:
    def mutant(*args: Any) -> Iterator[Pass[Any]]:
        return (each for each in passes_of(*args) if each.present.any())

    patch.setattr(secret_slots, "passes_of", mutant)


STEPS = ["poisson", "cyclic"]  # sums whose places are drawn for each step
CAUGHT: list[tuple[Mutant, Rule, list[str]]] = [
    (constant_key, places_are_fresh, list(SUMS)),
    (one_order_for_all_steps, places_are_fresh, STEPS),
    (packed, places_are_uniform, list(SUMS)),
    (rows_of_the_records, rows_are_public, list(SUMS)),
    (last_place, places_are_uniform, list(SUMS)),
    (empty_rows_are_counted, empty_rows_count_for_nobody, COUNTING),
    (empty_passes_are_skipped, every_pass_runs, list(SUMS)),
]


@pytest.mark.parametrize(
    ("mutant", "rule", "name"), [(mutant, rule, name) for mutant, rule, names in CAUGHT for name in names]
)
def test_a_mutant_is_caught(mutant: Mutant, rule: Rule, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant(monkeypatch)
    with pytest.raises(AssertionError):
        rule(SUMS[name])


def test_scores_and_statistics_of_an_attempt_take_all_slots(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same rows in each of them, for few records and for many."""
    taken: list[tuple[str, Slotted[Any]]] = []
    score, mean = Scores.noisy, Centering.release
    monkeypatch.setattr(Scores, "noisy", lambda *args: (taken.append(("score", args[-1])), score(*args))[1])
    monkeypatch.setattr(
        Centering,
        "release",
        lambda self, train, *a, **b: (taken.append(("mean", train)), mean(self, train, *a, **b))[1],
    )
    center = {"max_norm": 2.0, "noise_mu": 0.5}
    start = start_of(spec(sampling=POISSON, model={"kind": "linear", "center": center}), SHAPE)
    start["mechanism"]["mean"] = center | {"records": 80}
    for train, held_out in ((1, 0), (80, 20)):
        taken.clear()
        run_direct(
            Supervisor(start), records(X[:train], Y[:train]), records(X[80 : 80 + held_out], Y[80 : 80 + held_out])
        )
        assert [name for name, _ in taken] == ["mean", "score"]
        for name, rows in taken:
            occupants, count = rows.occupants[:], train if name == "mean" else held_out
            assert len(occupants) == unstated_slots(80)
            assert sorted(occupants[occupants != EMPTY]) == list(range(count))


def test_a_full_batch_and_its_scores_keep_their_places_for_all_steps_and_keys() -> None:
    loop = training(sampling=FULL, model=MLP)
    first = loop._batches.whole(loop._batches.train, TRAIN).occupants
    assert len(first) == unstated_slots(80) and sorted(first[first != EMPTY]) == list(range(80))
    assert not np.array_equal(first, loop._batches.whole(loop._batches.train, HOLDOUT).occupants[: len(first)])
    other = training(salt="another", sampling=FULL, model=MLP)
    assert not np.array_equal(first, other._batches.whole(other._batches.train, TRAIN).occupants)


def test_an_attempt_draws_each_part_s_places_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """And not for each of its scores."""
    original, parts = RandomOrder.of, list[int]()

    def counted(self: RandomOrder, step: int, count: int, part: int = 0, block: int = 0) -> NDArray[np.int64]:
        parts.extend([part] if step == WHOLE_DATA else [])
        return original(self, step, count, part, block)

    monkeypatch.setattr(RandomOrder, "of", counted)
    record = Supervisor(start_of(spec(sampling=FULL, evaluation={"noise_mu": 0.5, "points": 5}), SHAPE))
    run_direct(record, records(X[:80], Y[:80]), records(X[80:100], Y[80:100]))
    assert parts == [0, 1]


def test_a_larger_draw_keeps_a_uniform_part() -> None:
    """Of 300 numbers in 40 rows each record stays equally often, and in each row."""
    order, rows = RandomOrder(bytes(range(32))), 40
    of: Any = records(X[:300], Y[:300])
    kept = [Slotted.injected(of, order.of(step, 300), rows, np.arange(300)).occupants for step in range(1, 2001)]
    assert all(len(each) == rows and (each != EMPTY).all() and len(set(each)) == rows for each in kept)
    assert stats.chisquare(np.bincount(np.concatenate(kept), minlength=300)).pvalue > 1e-6


@pytest.mark.parametrize("sampling", [FULL, POISSON, CYCLIC])
def test_more_records_than_slots_are_refused(sampling: dict[str, Any]) -> None:
    most = unstated_slots(80)
    training(most, sampling=sampling)
    with pytest.raises(PrivacyError, match="more records than slots"):
        training(most + 1, sampling=sampling)


def test_a_step_s_rows_hold_its_draw() -> None:
    """R is the exact quantile of the draw at 2⁻⁶⁰, or at most three rows more."""
    plan = SUMS["poisson"].loop()._plan
    rows, slots_ = plan.numerics.rows_per_step, unstated_slots(80)
    assert rows is not None
    exact = next(most for most in range(slots_) if stats.binom.sf(most - 1, slots_, 0.2) <= 2.0**-60)
    assert exact <= rows <= exact + 3


def test_no_place_shows_in_how_long_a_draw_takes() -> None:
    """Coins are tossed for all slots: the draws of 1 record and of 80 are the same numbers."""
    one, all_of_them = (SUMS["poisson"].loop(count) for count in (1, 80))
    for step in range(1, 20):
        assert np.array_equal(one._randomness.sampler.draw(step), all_of_them._randomness.sampler.draw(step))  # type: ignore[arg-type]


def test_an_attempt_ends_alike_with_few_records_and_many() -> None:
    """The whole loop: blocks, scores and releases are as many for 1 record as for 80."""
    seen = []
    for count, held_out in ((1, slice(80, 80)), (80, slice(80, 100))):
        record = Supervisor(start_of(spec(sampling=POISSON, model=MLP), SHAPE))
        outcome, _ = run_direct(record, records(X[:count], Y[:count]), records(X[held_out], Y[held_out]))
        seen.append(([each.kind for each in record.seen], outcome.private_passes))
    assert seen[0] == seen[1]


def test_the_engines_name_no_count_of_records() -> None:
    """A prefix of a pass is not its records: no code may cut a pass by a number."""
    assert not hasattr(Pass, "count") and "present" in Pass.__dataclass_fields__
