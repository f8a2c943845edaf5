"""Which rows a step's records take: public numbers of rows and passes, fresh uniform places; and mutants of each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy import stats

from app.errors import PrivacyError
from app.privacy.slots import unstated_slots
from tests.worker.support import Supervisor, dense, keys_of, records, run_direct, spec, start_of, training_of
from worker.clipping.engine import CountingEngine
from worker.data import slots
from worker.data.passes import EMPTY, Pass, passes_of
from worker.data.slots import Slotted
from worker.noise.order import RandomOrder
from worker.training.loop import Training
from worker.training.plan import Plan

SHAPE = {"records_train": 80, "records_holdout": 20, "features": 3, "outputs": 2, "sparse": False}
X, Y = dense(400, 3)
POISSON: dict[str, Any] = {"kind": "poisson", "expected_batch_size": 16}
FULL = {"kind": "full_batch"}
CYCLIC = {"kind": "cyclic", "batches": 4}
MLP = {"kind": "mlp", "hidden": [5]}
STEPS = 400


def training(count: int = 80, salt: str = "s0", **changes: Any) -> Training:
    """A job's loop over so many of the declared 80 records."""
    record = Supervisor(start_of(spec(**({"evaluation": None} | changes)), SHAPE))
    record.segments[0] |= keys_of(salt)
    return training_of(record, records(X[:count], Y[:count]), None)


def drawn(loop: Training, step: int) -> NDArray[np.int64]:
    """The record in each row of a step."""
    batch, _ = loop._sample(step)
    assert isinstance(batch, Slotted)
    return batch.occupants


# --- What must hold, as functions of a loop, so that mutants can fail them ---


def rows_are_public(build: Callable[..., Training]) -> None:
    """As many rows whatever is drawn, and whoever is there."""
    assert len({len(drawn(build(count), step)) for count in (0, 1, 80, 200) for step in range(1, 40)}) == 1


def places_are_uniform(build: Callable[..., Training]) -> None:
    """Each record's row is uniform over all rows: the last record's, and the first one's."""
    loop = build(80)
    for record in (79, 0):
        rows = Counter(int(np.flatnonzero(at == record)[0]) for at in _draws(loop) if (at == record).any())
        least = stats.chisquare([rows[row] for row in range(len(drawn(loop, 1)))]).pvalue
        assert least > 1e-6


def places_are_fresh(build: Callable[..., Training]) -> None:
    """A record's rows in steps that follow each other, and under other keys, are independent: they agree by chance."""
    loop, other = build(80), build(80, "another")
    one, later, elsewhere = (
        [_rows(drawn(source, step + more)) for step in range(1, 201)]
        for source, more in ((loop, 0), (loop, 1), (other, 0))
    )

    for pairs in (zip(one, later, strict=True), zip(one, elsewhere, strict=True)):
        same = [a[record] == b[record] for a, b in pairs for record in a.keys() & b.keys()]
        assert len(same) > 100 and np.mean(same) < 0.15


def every_pass_runs(build: Callable[..., Training]) -> None:
    """As many passes for nobody as for everybody."""
    counts = []
    for count in (0, 80, 200):
        loop = build(count, runtime={"physical_batch_size": 8})
        with _counted() as passes:
            loop._noised(1, 0, 1.0, loop._initial(), loop._sample(1)[0], None)
        counts.append(len(passes))
    assert len(set(counts)) == 1 and counts[0] > 3


def empty_rows_count_for_nobody(build: Callable[..., Training]) -> None:
    """An adaptive norm counts ±½ for a record that is drawn, and 0 for an empty row."""
    loop = build(0)
    engine = loop._plan.engine
    assert isinstance(engine, CountingEngine)
    total, count = engine.private_sum_and_count(loop._initial().parameters, loop._sample(1)[0])
    assert float(count) == 0.0 and not any(value.any() for value in total.values())


def _draws(loop: Training) -> Iterator[NDArray[np.int64]]:
    return (drawn(loop, step) for step in range(1, STEPS * 8))


def _rows(occupants: NDArray[np.int64]) -> dict[int, int]:
    return {int(record): row for row, record in enumerate(occupants) if record != EMPTY}


@contextmanager
def _counted() -> Iterator[list[int]]:
    passes: list[int] = []
    original = slots.passes_of

    def counting(*args: Any) -> Iterator[Pass[Any]]:
        for each in original(*args):
            passes.append(1)
            yield each

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(slots, "passes_of", counting)
        yield passes


POISSON_RULES = [rows_are_public, places_are_uniform, places_are_fresh, every_pass_runs, empty_rows_count_for_nobody]


def poisson(count: int = 80, salt: str = "s0", **changes: Any) -> Training:
    return training(count, salt, **({"sampling": POISSON, "model": MLP} | changes))


@pytest.mark.parametrize("rule", POISSON_RULES)
def test_a_rule_of_places_holds(rule: Callable[..., None]) -> None:
    rule(poisson)


# --- Mutants ---


def constant_key(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Plan, "order", lambda self, keys: RandomOrder(bytes(range(32))))


def one_order_for_all_steps(patch: pytest.MonkeyPatch) -> None:
    original = RandomOrder.of
    patch.setattr(RandomOrder, "of", lambda self, step, count, part=0: original(self, 1, count, part))


def packed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(RandomOrder, "of", lambda self, step, count, part=0: np.arange(count))


def rows_of_the_draw(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Plan, "rows_of", lambda self, drawn: drawn)


def last_place(patch: pytest.MonkeyPatch) -> None:
    """The last record always takes the last row."""
    original = Slotted.injected.__func__  # type: ignore[attr-defined]

    def mutant(cls: Any, of: Any, order: NDArray[np.int64], rows: int, numbers: Any = None) -> Any:
        if numbers is not None and len(numbers):
            order = order.copy()
            at, last = len(numbers) - 1, int(np.flatnonzero(order == rows - 1)[0])
            order[[at, last]] = order[[last, at]]
        return original(cls, of, order, rows, numbers)

    patch.setattr(Slotted, "injected", classmethod(mutant))


def empty_rows_are_counted(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Pass, "weights", property(lambda self: torch.ones(len(self.present), dtype=torch.float64)))


def empty_passes_are_skipped(patch: pytest.MonkeyPatch) -> None:
    def mutant(of: Any, places: NDArray[np.int64], rows: int, dtype: torch.dtype) -> Iterator[Pass[Any]]:
        return (each for each in passes_of(of, places, rows, dtype) if each.present.any())

    patch.setattr(slots, "passes_of", mutant)


@pytest.mark.parametrize(
    ("mutant", "rule"),
    [
        (constant_key, places_are_fresh),
        (one_order_for_all_steps, places_are_fresh),
        (packed, places_are_uniform),
        (rows_of_the_draw, rows_are_public),
        (last_place, places_are_uniform),
        (empty_rows_are_counted, empty_rows_count_for_nobody),
        (empty_passes_are_skipped, every_pass_runs),
    ],
)
def test_a_mutant_is_caught(
    mutant: Callable[[pytest.MonkeyPatch], None], rule: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    mutant(monkeypatch)
    with pytest.raises(AssertionError):
        rule(poisson)


# --- A = B: a step whose coin leaves x out, and one whose row of x is emptied ---


@pytest.mark.parametrize("sampling", [POISSON, POISSON | {"largest_batch": 40}, CYCLIC])
def test_a_step_without_x_is_that_of_the_data_without_x(sampling: dict[str, Any]) -> None:
    """Given the others' coins and matched injections, D's step, D ∪ {x}'s with tails, and D ∪ {x}'s with heads and x's
    row emptied give the same bits; with x in its row one row differs."""
    with_x, without = (training(count, sampling=sampling, model=MLP) for count in (81, 80))
    at = with_x._initial()
    coins = with_x._sampler.draw(1)
    assert coins is not None
    others = coins[coins != 80]
    sums = {}
    for name, loop, draw in (("D", without, others), ("tails", with_x, others)):
        loop._sampler.draw = lambda step, draw=draw: draw  # type: ignore[method-assign]
        batch, _ = loop._sample(1)
        sums[name] = loop._plan.engine.private_sum(at.parameters, batch)
    heads = np.sort(np.append(others, 80))
    rows = with_x._plan.rows_of(len(heads) if sampling is CYCLIC else len(others))
    taken = batch.occupants  # type: ignore[attr-defined]
    free = np.flatnonzero(taken == EMPTY)
    assert rows is not None and len(free)
    emptied = Slotted(with_x._drawn, taken)
    sums["emptied"] = with_x._plan.engine.private_sum(at.parameters, emptied)
    full = taken.copy()
    full[free[0]] = 80
    sums["x"] = with_x._plan.engine.private_sum(at.parameters, Slotted(with_x._drawn, full))
    for name in ("tails", "emptied"):
        assert all(torch.equal(sums["D"][key], sums[name][key]) for key in sums["D"])
    change = torch.cat([(sums["x"][key] - sums["D"][key]).flatten() for key in sums["D"]])
    assert 0.0 < float(change.norm()) <= with_x._plan.numerics.sensitivity_slack


def test_a_full_batch_and_its_scores_keep_their_places_for_all_steps_and_keys() -> None:
    loop = training(sampling=FULL, model=MLP)
    first = loop._whole(loop._train, 0).occupants
    assert len(first) == unstated_slots(80) and sorted(first[first != EMPTY]) == list(range(80))
    assert not np.array_equal(first, loop._whole(loop._train, 1).occupants[: len(first)])
    other = training(salt="another", sampling=FULL, model=MLP)
    assert not np.array_equal(first, other._whole(other._train, 0).occupants)


def test_an_attempt_draws_each_part_s_places_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """And not for each of its scores."""
    original, parts = RandomOrder.of, list[int]()

    def counted(self: RandomOrder, step: int, count: int, part: int = 0, block: int = 0) -> NDArray[np.int64]:
        parts.extend([part] if step == 0 else [])
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
    plan = poisson()._plan
    rows, slots_ = plan.numerics.rows_per_step, unstated_slots(80)
    assert rows is not None
    exact = next(most for most in range(slots_) if stats.binom.sf(most - 1, slots_, 0.2) <= 2.0**-60)
    assert exact <= rows <= exact + 3


def test_no_place_shows_in_how_long_a_draw_takes() -> None:
    """Coins are tossed for all slots: the draws of 1 record and of 80 are the same numbers."""
    one, all_of_them = (poisson(count) for count in (1, 80))
    for step in range(1, 20):
        assert np.array_equal(one._sampler.draw(step), all_of_them._sampler.draw(step))  # type: ignore[arg-type]


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
