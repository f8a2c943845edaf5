"""The noise's distribution. Keys are fixed, so no test is a matter of luck; the power of each is stated.

With a million numbers and a scale that is wrong by 2 %, the variance test is off by 28 standard deviations, and the
KS distance is 0.0049·√n = 4.9, far beyond the 2.0 of its threshold (p < 10⁻³): either accepts a wrong scale with a
probability below 10⁻⁸.
"""

from __future__ import annotations

import mpmath
import numpy as np
import pytest
import scipy.special
import scipy.stats
import torch
from numpy.typing import NDArray

from worker.noise.attempt_keys import derive_key
from worker.noise.gaussian import GaussianRelease
from worker.noise.generator import GaussianGenerator, KeyedStream, gaussians
from worker.noise.rounding import add_noise, grid

KEY = bytes(range(32))
SECRET = bytes(range(1, 33))
MILLION = 1_000_000


def released_noise(sigma: float, clip: float, batch: int) -> NDArray[np.float64]:
    """What a release adds to sums of all sizes."""
    total = torch.linspace(-1e4, 1e4, MILLION, dtype=torch.float64) * clip
    release = GaussianRelease(KEY, noise_multiplier=sigma, max_grad_norm=clip, expected_batch_size=batch)
    noised: NDArray[np.float64] = (release.release({"w": total}, 1)["w"] * batch - total).numpy()
    return noised


def ks(ordered: NDArray[np.float64]) -> float:
    """The p-value of the Kolmogorov–Smirnov test for a standard Gaussian, of sorted numbers."""
    n, cdf = len(ordered), scipy.special.ndtr(ordered)
    distance = max((cdf - np.arange(n) / n).max(), (np.arange(1, n + 1) / n - cdf).max())
    return float(scipy.stats.kstwobign.sf(distance * n**0.5))


@pytest.mark.parametrize(("sigma", "clip"), [(1.0, 1.0), (26.38, 0.5)])
def test_the_noise_has_the_charged_scale_and_no_other(sigma: float, clip: float) -> None:
    values = np.sort(released_noise(sigma, clip, 7))
    for wrong, accepted in [(1.0, True), (0.98, False), (1.02, False)]:
        scale = sigma * clip * wrong
        spread = abs(float((values**2).sum()) / scale**2 - MILLION) / (2 * MILLION) ** 0.5
        assert bool(ks(values / scale) > 1e-3) is accepted
        assert bool(spread < 4) is accepted


@pytest.mark.parametrize("released", [True, False])
def test_moments_of_a_standard_gaussian(released: bool) -> None:
    z = torch.from_numpy(released_noise(1.0, 1.0, 1)) if released else GaussianGenerator(KEY).noise(9, 0, MILLION)
    wanted = [(0.0, 1.0), (1.0, 2.0), (0.0, 15.0), (3.0, 96.0), (0.0, 945.0), (15.0, 10170.0)]
    for power, (moment, variance) in enumerate(wanted, start=1):
        assert abs(float((z**power).mean()) - moment) < 5 * (variance / MILLION) ** 0.5


def key_of(purpose: str = "noise", salt: bytes = b"s" * 16, key_id: str = "k1") -> bytes:
    return derive_key(SECRET, key_id, salt, purpose)


def noise_of(key: bytes, step: int = 1, tensor: int = 0) -> torch.Tensor:
    return GaussianGenerator(key).noise(step, tensor, 200_000)


OTHERS = {
    "the next step": noise_of(key_of(), step=2),
    "a far step": noise_of(key_of(), step=2**20),
    "the next tensor": noise_of(key_of(), tensor=1),
    "another purpose": noise_of(key_of("release")),
    "the sampler's purpose": noise_of(key_of("sampler")),
    "another salt": noise_of(key_of(salt=b"s" * 15 + b"t")),
    "another secret": noise_of(key_of(key_id="k2")),
    "the next number": noise_of(key_of()).roll(1),
    "the number after it": noise_of(key_of()).roll(2),
}


@pytest.mark.parametrize("what", OTHERS)
def test_noise_at_two_addresses_is_independent(what: str) -> None:
    """Correlations of values, squares and signs: one of 0.02 is found almost surely (9 standard deviations; 5 are let
    pass). The two have one distribution, and so have their scaled sum and difference, as few dependent pairs have."""
    one, other = noise_of(key_of()), OTHERS[what]
    for left, right in [(one, other), (one**2, other**2), (one.sign(), other.sign()), (one**2, other)]:
        assert abs(float(torch.corrcoef(torch.stack([left, right]))[0, 1])) < 5 / len(one) ** 0.5
    assert scipy.stats.ks_2samp(one.numpy(), other.numpy()).pvalue > 1e-3
    for mixed in (one + other, one - other):
        assert ks(np.sort(mixed.numpy()) / 2**0.5) > 1e-3


def test_tails_are_counted() -> None:
    """16 million words, counted by their distance e from the nearest end of the range: each bin [2ʲ, 2ʲ⁺¹) is half
    as likely as the next. The far bins are those beyond 5σ."""
    count, stream = 2**24, KeyedStream(KEY)
    bins = np.zeros(54, dtype=np.int64)
    for step in range(4):
        bits = stream.words(step, 0, 0, 0, count // 4) >> 11
        distance = 2**52 - 1 - (bits ^ (bits >> 63))
        bins += np.bincount(np.frexp(distance.astype(np.float64))[1], minlength=54)[:54]
    expected = np.array([count * 2.0 ** (exponent - 53) for exponent in range(54)])
    far = int(np.argmax(expected >= 10))
    seen = np.concatenate([[bins[:far].sum()], bins[far:53]])
    wanted = np.concatenate([[expected[:far].sum()], expected[far:53]])
    assert bins.sum() == count and abs(wanted.sum() / count - 1) < 1e-6
    assert scipy.stats.chisquare(seen, wanted * count / wanted.sum()).pvalue > 1e-3
    edge = torch.tensor([2**52 - 1 - (2 ** (far - 1))])  # the far bins lie beyond 4.9σ
    assert float(gaussians(edge)) > 4.9


class Tail(KeyedStream):
    """The keyed words, but the first bits of each number are set: those of the tail beyond a quantile."""

    def __init__(self, bits: int) -> None:
        super().__init__(KEY)
        self.bits = bits

    def words(self, step: int, tensor: int, lane: int, start: int, count: int) -> NDArray[np.int64]:
        words = super().words(step, tensor, lane, start, count)
        if lane == 0 and self.bits:
            return (words & (2 ** (64 - self.bits) - 1)) | (2**63 - 2 ** (64 - self.bits))
        return words


@pytest.mark.parametrize(("bits", "least"), [(30, 6.0), (53, 8.2), (64, 9.0)])
def test_tails_beyond_six_deviations_have_their_shape(bits: int, least: float) -> None:
    """Given that U > 1 − 2⁻ᵇ, Z is a Gaussian that exceeds its (1 − 2⁻ᵇ)-quantile: ten bins that are equally likely.

    53 bits are all that float64 sees: beyond, every release is settled from further words. A tail P(Z > t)^p is found
    with probability 0.7 where p = 4/3 and 0.9 where p = 3/4, one that ends too early for certain.
    """
    count, std = 400, 1.0
    stream = Tail(bits)
    z = gaussians(torch.from_numpy(stream.words(1, 0, 0, 0, count) >> 11))
    released = add_noise(torch.zeros(count, dtype=torch.float64), z, std, stream, 1, 0)
    assert float(released.min()) > least
    with mpmath.workprec(200):
        left = [float(mpmath.ldexp(mpmath.ncdf(-value), bits)) for value in released.tolist()]  # uniform on (0, 1)
    spread = grid(std) * (float(released.max()) + 1)  # of log(left), by rounding: far below a bin
    assert max(left) < 1 + spread
    counts = np.histogram(left, bins=np.linspace(0, 1 + spread, 11))[0]
    assert scipy.stats.chisquare(counts).pvalue > 1e-3
