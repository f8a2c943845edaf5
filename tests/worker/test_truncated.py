"""Truncated Poisson batches where they are drawn and summed: never too large, uniform, and as many passes each step."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
import scipy.stats
import torch

from core.errors import PrivacyError
from core.privacy.slot_numbers import unstated_slots
from tests.worker.support import Supervisor, dense, keys_of, plan_of, records, run_direct, spec, start_of, training_of
from worker.data.passes import EMPTY
from worker.data.secret_slots import Slotted
from worker.messages import Keys
from worker.noise.secret_places import RandomOrder
from worker.training.batches import Batches

KEY = bytes(range(32))
SHAPE = {"records_train": 200, "records_holdout": 0, "features": 3, "outputs": 2, "sparse": False}
TRAIN = records(*dense(200, 3))
SAMPLING = {"kind": "poisson", "expected_batch_size": 100}


def job(**changes: Any) -> Supervisor:
    asked: dict[str, Any] = {
        "sampling": SAMPLING | {"largest_batch": 110},
        "evaluation": None,
        "length": {"steps": 20},
        "runtime": {"physical_batch_size": 48},
    }
    return Supervisor(start_of(spec(**(asked | changes)), SHAPE))


def test_no_batch_is_larger_and_smaller_draws_stay() -> None:
    """Empty slots are drawn too, and take no record's row."""
    record = job()
    training, plan, keys = training_of(record, TRAIN, None), plan_of(record.start), Keys.model_validate(keys_of("s0"))
    sampler, sizes = plan.sampler(keys, unstated_slots(200)), set()
    for step in range(1, 60):
        whole = sampler.draw(step)
        assert whole is not None
        batch, again = (training._batches.sample(step, training._randomness)[0] for _ in range(2))
        assert isinstance(batch, Slotted) and isinstance(again, Slotted) and len(batch) == 110
        kept = batch.occupants[batch.occupants != EMPTY]
        assert len(kept) == min((whole < 200).sum(), 110) and set(kept) <= set(whole)
        assert np.array_equal(batch.occupants, again.occupants) and len(whole) > 110
        sizes.add(len(kept) == 110)
    assert sizes == {True, False}


def test_each_record_of_a_larger_draw_is_as_likely_to_stay_in_each_row() -> None:
    order, found = RandomOrder(KEY), np.zeros((15, 20))
    for step in range(1, 4001):
        found[np.arange(15), Slotted.injected(range(20), order.of(step, 20), 15).occupants] += 1  # type: ignore[arg-type]
    assert scipy.stats.chisquare(found.flatten()).pvalue > 1e-3
    stayed = found.sum(axis=0)
    # Records compete for rows, so the counts vary a little less than independent ones.
    assert abs(((stayed - 3000) ** 2 / 750).sum() - 20) < 6 * 40**0.5


def test_more_records_than_the_price_covers_are_refused() -> None:
    for records_of in (464, 465):
        train = records(*dense(records_of, 3))
        with nullcontext() if records_of == 464 else pytest.raises(PrivacyError, match="more records than slots"):
            training_of(job(), train, None)


def attempt(record: Supervisor) -> dict[str, torch.Tensor]:
    return run_direct(record, TRAIN, None)[0].parameters


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_every_step_makes_the_same_number_of_passes(monkeypatch: pytest.MonkeyPatch, dtype: str) -> None:
    made: list[int] = []
    original = Batches.sample

    def watched(self: Any, step: int, randomness: Any) -> Any:
        batch, canaries = original(self, step, randomness)
        made.append(len(list(batch.passes(48, torch.float64))))
        return batch, canaries

    monkeypatch.setattr(Batches, "sample", watched)
    attempt(job(runtime={"physical_batch_size": 48, "dtype": dtype}))
    assert made == [3] * 20
    assert plan_of(job().start).numerics.rows_per_step == 110


def test_empty_rows_change_a_sum_by_its_rounding_alone() -> None:
    """A bound that no draw reaches gives the model of plain batches, whatever number of rows is added."""

    def weights(**more: int) -> torch.Tensor:
        asked = job(sampling=SAMPLING | more, runtime={"physical_batch_size": 48, "dtype": "float64"})
        return torch.cat([each.flatten() for each in attempt(asked).values()])

    plain = weights()
    torch.testing.assert_close(weights(largest_batch=200), plain, rtol=1e-9, atol=1e-12)
    assert not torch.allclose(weights(largest_batch=100), plain, rtol=1e-3)


def test_a_pass_of_empty_rows_alone_weighs_nothing() -> None:
    passes = list(Slotted(TRAIN, np.append(np.arange(50), np.full(94, EMPTY))).passes(48, torch.float64))
    assert [int(each.present.sum()) for each in passes] == [48, 2, 0]
    assert float(passes[2].weights.sum()) == 0.0 and len(passes[2].records) == 48


def test_a_killed_attempt_goes_on_to_the_same_weights_bit_for_bit() -> None:
    straight = job()
    weights = attempt(straight)
    for step in (1, 15):
        record = job()
        record.die_at = step
        with pytest.raises(ConnectionError):
            attempt(record)
        record.die_at = None
        found = attempt(record)
        assert all(torch.equal(found[name], weights[name]) for name in weights)
        assert record.digests() == straight.digests()
