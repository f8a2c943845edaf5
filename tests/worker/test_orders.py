"""The secret order that gives records their rows: uniform, addressed by step, and the same in a replay."""

from __future__ import annotations

from collections import Counter

import numpy as np

from tests.worker.support import Supervisor, spec, start_of
from tests.worker.test_loop import SHAPE, attempt, same, tamper
from worker.noise.secret_places import HOLDOUT, TRAIN, WHOLE_DATA, RandomOrder

KEY = bytes(range(32))


def test_orders_are_uniform() -> None:
    draws, order = 24 * 400, RandomOrder(KEY)
    found = Counter(tuple(order.of(step, 4).tolist()) for step in range(draws))
    assert len(found) == 24
    chi_square = sum((count - 400) ** 2 / 400 for count in found.values())
    assert 5.0 < chi_square < 55.0  # 23 degrees of freedom: 10⁻⁴ on either side


def test_an_order_replays_and_steps_and_parts_differ() -> None:
    one, two = RandomOrder(KEY), RandomOrder(KEY)
    assert np.array_equal(one.of(3, 1000), two.of(3, 1000))
    assert not np.array_equal(one.of(3, 1000), one.of(4, 1000))
    assert not np.array_equal(one.of(3, 1000), RandomOrder(bytes(range(1, 33))).of(3, 1000))
    assert not np.array_equal(one.of(WHOLE_DATA, 1000, TRAIN), one.of(WHOLE_DATA, 1000, HOLDOUT))


def test_a_job_that_began_anew_replays_bit_for_bit() -> None:
    """Its first keys are others then, so a full batch's order is another, too: masks follow rows."""
    model = {"kind": "mlp", "hidden": [16], "dropout": 0.5}
    record = Supervisor(start_of(spec(evaluation=None, model=model, sampling={"kind": "full_batch"}), SHAPE))
    record.hold = 40
    attempt(record)
    tamper(record, 0)
    weights = attempt(record)
    assert record.resalts == 1 and record.started == 20
    assert same(attempt(record), weights)
    assert record.resalts == 1 and record.started == 20
