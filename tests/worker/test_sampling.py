"""Poisson sampling from a keyed stream."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.stats

from app.errors import PrivacyError
from worker.noise.generator import KeyedStream
from worker.noise.sampling import FullBatch, PoissonSampler

KEY = bytes(range(32))


def test_every_record_joins_with_probability_q_independently() -> None:
    n, q, steps = 200, 0.13, 4000
    sampler = PoissonSampler(KEY, q, n)
    joined = np.zeros((steps, n))
    for step in range(steps):
        joined[step, sampler.draw(step + 1)] = 1
    per_record = joined.sum(axis=0)
    spread = (q * (1 - q) * steps) ** 0.5
    assert np.abs(per_record - q * steps).max() < 5 * spread
    sizes = joined.sum(axis=1)
    counts = np.bincount(sizes.astype(int), minlength=n + 1)
    expected = scipy.stats.binom.pmf(np.arange(n + 1), n, q) * steps
    keep = expected > 20
    assert scipy.stats.chisquare(counts[keep] * expected[keep].sum() / counts[keep].sum(), expected[keep]).pvalue > 1e-4
    correlation = np.corrcoef(joined[:-1].ravel(), joined[1:].ravel())[0, 1]  # one step and the next
    assert abs(correlation) < 5 / joined[1:].size ** 0.5


def test_a_draw_replays_and_does_not_depend_on_who_else_is_there() -> None:
    small, large = PoissonSampler(KEY, 0.3, 1000), PoissonSampler(KEY, 0.3, 1001)
    assert np.array_equal(small.draw(5), PoissonSampler(KEY, 0.3, 1000).draw(5))
    assert np.array_equal(small.draw(5), large.draw(5)[large.draw(5) < 1000])
    assert not np.array_equal(small.draw(5), small.draw(6))


def test_the_threshold_never_exceeds_q() -> None:
    words = KeyedStream(KEY).words(1, 0, 0, 0, 1000)
    uniforms = ((words >> 11) + 2**52) / 2**53
    drawn = set(PoissonSampler(KEY, 1 / 3, 1000).draw(1).tolist())
    assert drawn == {i for i, u in enumerate(uniforms) if u < 1 / 3}


def test_an_empty_draw_and_a_full_one() -> None:
    assert len(PoissonSampler(KEY, 1e-12, 50).draw(1)) == 0
    assert len(PoissonSampler(KEY, 0.5, 0).draw(1)) == 0
    assert PoissonSampler(KEY, 1.0, 50).draw(1).tolist() == list(range(50))
    assert FullBatch().draw(1) is None


@pytest.mark.parametrize("rate", [0.0, -0.1, 1.1, float("nan")])
def test_a_rate_outside_its_range_is_refused(rate: float) -> None:
    with pytest.raises(PrivacyError):
        PoissonSampler(KEY, rate, 10)


def test_batches_need_a_key() -> None:
    with pytest.raises(PrivacyError):
        PoissonSampler(None, 0.5, 10)
