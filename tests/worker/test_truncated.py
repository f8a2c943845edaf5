"""Truncated Poisson batches where they are drawn and summed: never too large, uniform, and as many passes each step."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.stats
import torch

from app.errors import PrivacyError
from app.privacy.events import Truncation
from tests.worker.support import Supervisor, dense, plan_of, records, run_direct, spec, start_of
from worker.data.passes import Filled
from worker.noise.sampling import PoissonSampler
from worker.training.loop import Training

KEY = bytes(range(32))
SHAPE = {"records_train": 200, "records_holdout": 0, "features": 3, "outputs": 2, "sparse": False}
TRAIN = records(*dense(200, 3))
SAMPLING = {"kind": "poisson", "expected_batch_size": 100}


def sampler(most: int, records: int = 200, rate: float = 0.5) -> PoissonSampler:
    return PoissonSampler(KEY, rate, records, truncation=Truncation(records=464, largest_batch=most))


def test_no_batch_is_larger_and_smaller_draws_stay() -> None:
    plain, cut = PoissonSampler(KEY, 0.5, 200), sampler(100)
    sizes = set()
    for step in range(1, 60):
        whole, kept = plain.draw(step), cut.draw(step)
        assert len(kept) == min(len(whole), 100) and set(kept) <= set(whole)
        assert np.array_equal(kept, np.sort(kept)) and np.array_equal(kept, cut.draw(step))
        assert len(whole) > 100 or np.array_equal(whole, kept)
        sizes.add(len(whole) > 100)
    assert sizes == {True, False}


def test_each_record_of_a_larger_draw_is_as_likely_to_stay() -> None:
    plain, cut, stayed, drawn = PoissonSampler(KEY, 0.5, 40), sampler(15, 40), np.zeros(40), np.zeros(40)
    for step in range(1, 4000):
        whole = plain.draw(step)
        if len(whole) == 20:
            drawn[whole] += 1
            stayed[cut.draw(step)] += 1
    expected = drawn * 15 / 20
    # Records compete for places, so the counts vary a little less than independent ones.
    assert abs(((stayed - expected) ** 2 / (expected * 0.25)).sum() - 40) < 6 * 80**0.5
    assert scipy.stats.chisquare(stayed, expected * stayed.sum() / expected.sum()).pvalue > 1e-3


def test_more_records_than_the_price_covers_are_refused() -> None:
    sampler(100, records=464)
    with pytest.raises(PrivacyError, match="more records"):
        sampler(100, records=465)


def job(**changes: Any) -> Supervisor:
    asked: dict[str, Any] = {
        "sampling": SAMPLING | {"largest_batch": 110},
        "evaluation": None,
        "length": {"steps": 20},
        "runtime": {"physical_batch_size": 48},
    }
    return Supervisor(start_of(spec(**(asked | changes)), SHAPE))


def attempt(record: Supervisor) -> dict[str, torch.Tensor]:
    return run_direct(record, TRAIN, None)[0].parameters


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_every_step_makes_the_same_number_of_passes(monkeypatch: pytest.MonkeyPatch, dtype: str) -> None:
    made: list[int] = []
    original = Training._sample

    def watched(self: Any, step: int) -> Any:
        batch, canaries = original(self, step)
        made.append(len(list(batch.passes(48, torch.float64))))
        return batch, canaries

    monkeypatch.setattr(Training, "_sample", watched)
    attempt(job(runtime={"physical_batch_size": 48, "dtype": dtype}))
    assert made == [3] * 20
    assert plan_of(job().start).passes_of_a_step == 3


def test_padding_passes_change_no_bit_of_a_sum() -> None:
    """A bound that no draw reaches gives the model of plain batches, whatever number of passes is added."""
    plain = attempt(job(sampling=SAMPLING))
    loose = attempt(job(sampling=SAMPLING | {"largest_batch": 200}))
    assert all(torch.equal(plain[name], loose[name]) for name in plain)
    tight = attempt(job(sampling=SAMPLING | {"largest_batch": 100}))
    assert not all(torch.equal(plain[name], tight[name]) for name in plain)


def test_a_pass_of_padding_alone_weighs_nothing() -> None:
    passes = list(Filled(TRAIN.select(np.arange(50)), 3).passes(48, torch.float64))  # type: ignore[arg-type]
    assert [each.count for each in passes] == [48, 2, 0]
    assert float(passes[2].weights(48).sum()) == 0.0 and len(passes[2].records) == 48


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
