"""Poisson batches by geometric gaps: the exact law of the charged rate, in time that grows with the batch alone."""

from __future__ import annotations

from fractions import Fraction

import mpmath
import numpy as np
import pytest
import scipy.stats
from numpy.typing import NDArray

from worker.noise import batch_sampling
from worker.noise.batch_sampling import COINS, GAPS, PoissonSampler, exact_gap
from worker.noise.generator import KeyedStream
from worker.noise.rounding import Digits

KEY = bytes(range(32))
RATES = [0.06, 1 / 17, 0.01, 1e-4, 1e-7, 2.0**-30, 1e-12]


class Given(KeyedStream):
    """A stream whose gaps' first words are chosen; further digits are the keyed ones."""

    def __init__(self, words: list[int]) -> None:
        super().__init__(KEY)
        self.first = np.array(words, dtype=np.uint64)

    def words(self, step: int, tensor: int, lane: int, start: int, count: int) -> NDArray[np.int64]:
        if lane == 0 and tensor == GAPS:
            return (self.first[start : start + count] ^ np.uint64(2**63)).view(np.int64)
        return super().words(step, tensor, lane, start, count)


def gaps_of(stream: KeyedStream, rate: float, count: int, records: int = 2**50) -> list[int]:
    sampler = PoissonSampler(KEY, rate, records)
    sampler._stream = stream
    found: list[int] = sampler._gaps(1, 0, count).tolist()
    return found


def reference(stream: KeyedStream, rate: float, position: int) -> int:
    """⌊ln(1−V) / ln(1−q)⌋ from 320 digits of V, with 500 bits: by the quotient, not by comparisons."""
    v = mpmath.ldexp(mpmath.mpf(Digits(stream, 1, GAPS, position).leading(5)) + mpmath.mpf("0.5"), -320)
    return int(mpmath.floor(mpmath.log1p(-v) / mpmath.log1p(-mpmath.mpf(rate))))


@pytest.mark.parametrize("rate", RATES)
def test_gaps_are_the_exact_quotient_s_floor(rate: float) -> None:
    stream = KeyedStream(KEY)
    with mpmath.workprec(500):
        assert gaps_of(stream, rate, 300) == [reference(stream, rate, at) for at in range(300)]


@pytest.mark.parametrize("rate", RATES)
def test_words_at_the_boundary_of_two_gaps(rate: float) -> None:
    """The word that holds 1 − (1−q)^k, and its neighbours: only V's further digits decide."""
    with mpmath.workprec(500):
        boundaries = [-mpmath.expm1(k * mpmath.log1p(-mpmath.mpf(rate))) for k in (1, 2, 3, 10, 1000, 10**6)]
        at = [int(mpmath.floor(mpmath.ldexp(each, 64))) for each in boundaries]
        words = [each + off for each in at for off in (-1, 0, 1) if 0 <= each + off < 2**64]
        words += [0, 1, 2**63 - 1, 2**63, 2**64 - 2, 2**64 - 1, 2**64 - 2**44, 2**64 - 2**44 + 1]
        stream = Given(words)
        assert gaps_of(stream, rate, len(words)) == [reference(stream, rate, at) for at in range(len(words))]


@pytest.mark.parametrize("rate", [0.06, 1e-3])
def test_gaps_against_powers_in_whole_numbers(rate: float) -> None:
    """(1−q)^(G+1) < 1 − V ≤ (1−q)^G in fractions: no logarithm at all."""
    stream, left = KeyedStream(KEY), 1 - Fraction(rate)
    for at, gap in enumerate(gaps_of(stream, rate, 40 if rate > 0.01 else 5)):
        digits = Digits(stream, 1, GAPS, at).leading(4)
        low, high = 1 - Fraction(digits + 1, 2**256), 1 - Fraction(digits, 2**256)
        assert left ** (gap + 1) < low and high <= left**gap


@pytest.mark.parametrize("rate", RATES)
def test_what_float64_is_certain_of_is_what_is_exact(rate: float, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = KeyedStream(KEY)
    fast = gaps_of(stream, rate, 100, 10**6)
    monkeypatch.setattr(batch_sampling, "LEAST_TAIL", 2.0)  # nothing is certain
    assert gaps_of(stream, rate, 100, 10**6) == fast


def test_a_bad_guess_is_found_out() -> None:
    for at in range(10):
        digits = Digits(KeyedStream(KEY), 1, GAPS, at)
        assert len({exact_gap(1e-3, digits, guess, 10**5) for guess in (0, 17, 10**4, 10**5)}) == 1
        assert exact_gap(1e-3, digits, 0, 3) == min(3, exact_gap(1e-3, digits, 0, 10**5))


def test_the_logarithms_are_as_good_as_is_assumed() -> None:
    """2⁻⁴⁶ is assumed; for both ranges of the argument, and for rates."""
    rng = np.random.default_rng(0)
    v = np.concatenate([rng.uniform(0, 0.5, 500), 2.0 ** rng.uniform(-64, -1, 500)])
    worst = 0.0
    with mpmath.workprec(160):
        for at, one, other in zip(v.tolist(), np.log1p(-v).tolist(), np.log(v).tolist(), strict=True):
            worst = max(
                worst,
                *(
                    float(abs(got / want - 1))
                    for got, want in ((one, mpmath.log1p(-mpmath.mpf(at))), (other, mpmath.log(mpmath.mpf(at))))
                ),
            )
    assert worst < 2.0**-50


@pytest.mark.parametrize("rate", [0.06, 1e-3, 1e-7])
def test_gaps_are_geometric_with_the_charged_rate_and_no_other(rate: float) -> None:
    """χ² over twenty ranges that are equally likely, of 200,000 gaps: a rate that is wrong by 3 % is rejected."""
    gaps = np.array(gaps_of(KeyedStream(KEY), rate, 200_000))
    for wrong, accepted in [(1.0, True), (0.97, False), (1.03, False)]:
        law = scipy.stats.geom(rate * wrong, loc=-1)
        edges = np.unique(law.ppf(np.linspace(0, 1, 21)[1:-1]))
        shares = np.diff([0.0, *law.cdf(edges), 1.0])
        counts = np.bincount(np.searchsorted(edges, gaps), minlength=len(shares))
        assert bool(scipy.stats.chisquare(counts, shares * len(gaps)).pvalue > 1e-3) is accepted


@pytest.mark.parametrize("rate", [0.0624, 0.01])
def test_gaps_and_coins_have_one_law(rate: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Batch sizes of both draws, over 1,000 steps: KS finds a rate that is wrong by 4 %, and else nothing."""

    def sizes(at: float) -> list[int]:
        return [len(PoissonSampler(KEY, at, 20_000).draw(step)) for step in range(1, 1001)]

    gaps, other = sizes(rate), sizes(rate * 1.04)
    monkeypatch.setattr(batch_sampling, "GAPS_BELOW", 0.0)
    coins = sizes(rate)
    assert coins != gaps
    assert scipy.stats.ks_2samp(gaps, coins).pvalue > 1e-3
    assert scipy.stats.ks_2samp(other, coins).pvalue < 1e-3


def test_the_work_grows_with_the_batch_not_with_the_records(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []
    original = KeyedStream.words

    def noted(self: KeyedStream, step: int, tensor: int, lane: int, start: int, count: int) -> NDArray[np.int64]:
        made.append(count)
        return original(self, step, tensor, lane, start, count)

    monkeypatch.setattr(KeyedStream, "words", noted)
    sampler = PoissonSampler(KEY, 1e-6, 10**9)
    assert 800 < len(sampler.draw(1)) < 1200 and sum(made) < 1500


@pytest.mark.parametrize("records", [0, 1, 2, 17])
def test_few_records(records: int) -> None:
    seen = np.zeros(records)
    for step in range(1, 4001):
        drawn = PoissonSampler(KEY, 0.05, records).draw(step)
        assert drawn.dtype == np.int64 and np.all(np.diff(drawn) > 0) and np.all(drawn < records)
        seen[drawn] += 1
    assert np.all(np.abs(seen - 200) < 5 * (4000 * 0.05 * 0.95) ** 0.5)


@pytest.mark.parametrize("rate", [1 / 16, 1 - 1e-9, 1 - 2.0**-53, 1.0])
def test_large_rates_toss_exact_coins(rate: float) -> None:
    """On 64 bits, where q·2⁶⁴ is an integer: nothing is rounded."""
    sampler = PoissonSampler(KEY, rate, 1)
    below = Fraction(rate) * 2**64
    assert below.denominator == 1 and not sampler._by_gaps and COINS != GAPS
    for u in (0, int(below) - 1, min(int(below), 2**64 - 1), 2**64 - 1):
        assert (u - 2**63 <= sampler._last) is (u < below)
    assert len(PoissonSampler(KEY, rate, 10_000).draw(1)) >= (9_990 if rate > 0.5 else 500)
