"""Poisson sampling from a keyed stream."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.stats

from core.errors import PrivacyError
from worker.noise.attempt_keys import derive_key
from worker.noise.batch_sampling import FullBatch, PoissonSampler
from worker.noise.generator import GaussianGenerator

KEY = bytes(range(32))


@pytest.mark.parametrize("q", [0.13, 0.03])
def test_every_record_joins_with_probability_q_independently(q: float) -> None:
    n, steps = 200, 4000
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


@pytest.mark.parametrize("rate", [0.3, 0.03])
@pytest.mark.parametrize("more", [1, 3000])
def test_a_draw_replays_and_does_not_depend_on_who_else_is_there(rate: float, more: int) -> None:
    small, large = PoissonSampler(KEY, rate, 1000), PoissonSampler(KEY, rate, 1000 + more)
    assert np.array_equal(small.draw(5), PoissonSampler(KEY, rate, 1000).draw(5))
    assert np.array_equal(small.draw(5), large.draw(5)[large.draw(5) < 1000])
    assert not np.array_equal(small.draw(5), small.draw(6))


def test_known_draws() -> None:
    """Pinned: another draw would give running jobs other batches on replay."""
    assert PoissonSampler(KEY, 0.3, 30).draw(1).tolist() == [1, 3, 4, 5, 8, 9, 10, 11, 13, 15, 21, 24, 27]
    assert PoissonSampler(KEY, 0.03, 200).draw(1).tolist() == [88, 102, 105, 114, 139, 158]


def test_an_empty_draw_and_a_full_one() -> None:
    for rate in (1e-12, 5e-324):
        assert len(PoissonSampler(KEY, rate, 50).draw(1)) == 0
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


@pytest.mark.parametrize(
    ("rate", "n", "steps"), [(0.002, 50_000, 60), (0.06, 50_000, 60), (0.5, 20_000, 60), (0.97, 20_000, 60)]
)
def test_inclusion_is_right_for_small_and_large_rates(rate: float, n: int, steps: int) -> None:
    """Of two million coins and more, the share; over records and over steps, a spread that is binomial, not less."""
    sampler = PoissonSampler(KEY, rate, n)
    per_record, sizes = np.zeros(n), []
    for step in range(1, steps + 1):
        drawn = sampler.draw(step)
        assert np.all(np.diff(drawn) > 0)
        per_record[drawn] += 1
        sizes.append(len(drawn))
    variance = rate * (1 - rate)
    assert abs(sum(sizes) - rate * n * steps) < 4 * (variance * n * steps) ** 0.5
    for seen, trials in [(np.array(sizes), n), (per_record, steps)]:
        dispersion = ((seen - rate * trials) ** 2).sum() / (variance * trials)
        assert abs(dispersion - len(seen)) < 5 * (len(seen) * (2 + 1 / (variance * trials))) ** 0.5


@pytest.mark.parametrize("rate", [0.05, 0.3])
def test_pairs_of_records_join_independently(rate: float) -> None:
    """All four outcomes of neighbours, of far ones, and of one record in two steps: χ² finds correlations of 0.01."""
    n = 400_000
    first, second = (np.isin(np.arange(n), PoissonSampler(KEY, rate, n).draw(step)) for step in (1, 2))
    for one, other in [(first[:-1], first[1:]), (first[: n // 2], first[n // 2 :]), (first, second)]:
        table = np.histogram2d(one, other, bins=2)[0]
        shares = np.outer([1 - rate, rate], [1 - rate, rate]) * len(one)
        assert scipy.stats.chisquare(table.ravel(), shares.ravel()).pvalue > 1e-3


def test_the_sampler_and_the_noise_of_a_job_are_independent() -> None:
    noise = GaussianGenerator(derive_key(KEY, "k", b"s" * 16, "noise")).noise(1, 0, 100_000).numpy()
    drawn = PoissonSampler(derive_key(KEY, "k", b"s" * 16, "sampler"), 0.5, 100_000).draw(1)
    assert abs(noise[drawn].mean()) < 5 / len(drawn) ** 0.5
