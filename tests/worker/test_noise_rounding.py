"""What is released is the correctly rounded sum with a true Gaussian: against arithmetic with hundreds of digits."""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor

import mpmath
import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from core.errors import PrivacyError
from worker.noise import rounding
from worker.noise.gaussian import noise_std
from worker.noise.generator import GaussianGenerator, KeyedStream, gaussians
from worker.noise.rounding import Digits, add_noise, grid, settle

KEY = bytes(range(32))
STREAM = KeyedStream(KEY)
STDS = [1.0, 3.7, math.nextafter(2.0, 0.0), 1e-6, 1e-90, 1e90]


class Given(KeyedStream):
    """A stream whose first lanes are chosen; the others are the keyed ones."""

    def __init__(self, *lanes: list[int]) -> None:
        super().__init__(KEY)
        self.lanes = lanes

    def words(self, step: int, tensor: int, lane: int, start: int, count: int) -> NDArray[np.int64]:
        if lane < len(self.lanes):
            return np.array(self.lanes[lane][start : start + count], dtype=np.int64)
        return super().words(step, tensor, lane, start, count)


def gaussian(stream: KeyedStream, step: int, position: int, words: int = 4) -> mpmath.mpf:
    """Z = Φ⁻¹(U) from the digits of U, as the module says it, by the inverse and not by comparisons."""
    digits = Digits(stream, step, 0, position)
    u = (mpmath.mpf(digits.leading(words)) + 0.5) / mpmath.mpf(2) ** (64 * words)
    tail = min(u, 1 - u)
    guess = (
        mpmath.sqrt(2) * mpmath.erfinv(1 - 2 * mpmath.mpf(tail)) if tail > 1e-12 else mpmath.sqrt(-2 * mpmath.log(tail))
    )
    root = mpmath.findroot(lambda x: mpmath.log(mpmath.ncdf(-x)) - mpmath.log(tail), guess)
    return root if u > 0.5 else -root


def reference(values: list[float], std: float, stream: KeyedStream, step: int) -> list[float]:
    with mpmath.workprec(400):
        g = mpmath.mpf(grid(std))
        return [
            float(mpmath.nint((mpmath.mpf(value) + mpmath.mpf(std) * gaussian(stream, step, at)) / g) * g)
            for at, value in enumerate(values)
        ]


def noised(values: list[float] | torch.Tensor, std: float, stream: KeyedStream = STREAM, step: int = 1) -> torch.Tensor:
    total = torch.as_tensor(values, dtype=torch.float64)
    bits = torch.from_numpy(stream.words(step, 0, 0, 0, total.numel()) >> 11)
    return add_noise(total, gaussians(bits), std, stream, step, 0)


def sums(std: float, count: int) -> torch.Tensor:
    """Zeros, exact boundaries, and sums from far below the noise to far above it."""
    generator = torch.Generator().manual_seed(0)
    sizes = 10.0 ** torch.linspace(-20, 18, count - 20, dtype=torch.float64)
    wild = torch.randn(count - 20, generator=generator, dtype=torch.float64) * sizes
    return (
        torch.cat([torch.zeros(10, dtype=torch.float64), torch.arange(10).double() * grid(std) / std / 2, wild]) * std
    )


@pytest.mark.parametrize("std", STDS)
def test_the_grid_is_a_power_of_two_far_below_the_noise(std: float) -> None:
    g = grid(std)
    assert std / 2**11 < g <= std / 2**10 and math.frexp(g)[0] == 0.5


@pytest.mark.parametrize("std", STDS)
def test_a_release_is_the_rounded_sum_of_a_true_gaussian(std: float) -> None:
    values = sums(std, 60)
    assert noised(values, std).tolist() == reference(values.tolist(), std, STREAM, 1)


@pytest.mark.parametrize("std", STDS)
def test_what_float64_is_certain_of_is_what_is_exact(std: float, monkeypatch: pytest.MonkeyPatch) -> None:
    values = sums(std, 400)
    fast = noised(values, std)
    monkeypatch.setattr(rounding, "TOLERANCE", 0.5)  # nothing is certain
    assert torch.equal(noised(values, std), fast)


def test_sums_that_end_up_at_a_boundary_are_rounded_right() -> None:
    """Built so that S + s·Z lies within a rounding error of a boundary between two cells, on either side."""
    std, g = 3.7, grid(3.7)
    with mpmath.workprec(400):
        near = [
            float((mpmath.mpf(2 * cell + 1) / 2) * g - mpmath.mpf(std) * gaussian(STREAM, 1, at))
            for at, cell in enumerate(range(-20, 20))
        ]
    for off in (0.0, 2.0**-40, -(2.0**-40)):
        values = [value + off for value in near]
        expected = reference(values, std, STREAM, 1)
        assert noised(values, std).tolist() == expected
    raw = torch.tensor(near, dtype=torch.float64) + std * GaussianGenerator(KEY).noise(1, 0, len(near))
    assert (torch.round(raw / g) * g).tolist() != reference(near, std, STREAM, 1)  # float64 alone gets some wrong


def test_a_tail_has_all_its_digits() -> None:
    """Words of ones or zeros alone: float64 knows no Gaussian beyond 8.3, the release does."""
    top, bottom = 2**63 - 1, -(2**63)
    one = Given([top, bottom, top, bottom])
    two = Given([top, bottom, top, bottom], [top, bottom, 0, 0], [top, bottom, 5, 5])
    for stream, words in [(one, 6), (two, 6)]:
        with mpmath.workprec(600):
            exact = [float(gaussian(stream, 1, at, words)) for at in range(4)]
        got = (noised([0.0] * 4, 1.0, stream)).tolist()
        assert got == [round(z / grid(1.0)) * grid(1.0) for z in exact]
    assert 16.0 < got[0] < 17.0 and -17.0 < got[1] < -16.0 and 9.0 < got[2] < 10.0


def test_a_stream_without_end_is_refused() -> None:
    lanes = [[-(2**63)]] * 256
    digits = Digits(Given(*lanes), 1, 0, 0)
    assert digits.leading(256) == 0
    with pytest.raises(PrivacyError):
        digits.leading(257)


@pytest.mark.parametrize("off", [1e-12, -1e-12])
def test_other_machines_release_the_same_bits(off: float) -> None:
    """An erf⁻¹ that is wrong in its last thousands of units changes nothing: so far apart are no two libraries."""
    size, std = 200_000, 2.0
    values = torch.randn(size, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    z = GaussianGenerator(KEY).noise(1, 0, size)
    shaken = z * (1 + off) + off * torch.sign(torch.arange(size) % 2 - 0.5)
    here, there = (add_noise(values, each, std, STREAM, 1, 0) for each in (z.clone(), shaken))
    assert torch.equal(here, there)


def test_the_machine_s_inverse_is_as_good_as_is_assumed() -> None:
    """In u, and in units of 2⁻⁵³: 7 is assumed up to |z| = 4.9."""
    rng = np.random.default_rng(0)
    edge = (2.0 ** rng.uniform(20, 52, 1000)).astype(np.int64)
    bits = np.concatenate([rng.integers(-(2**52), 2**52, 1000), 2**52 - edge, edge - 2**52, np.arange(-10, 10)])
    z = gaussians(torch.from_numpy(bits))
    worst = 0.0
    with mpmath.workprec(160):
        for k, value in zip(bits.tolist(), z.tolist(), strict=True):
            if abs(value) <= 4.9:
                off = mpmath.erf(mpmath.mpf(value) / mpmath.sqrt(2)) - mpmath.mpf(2 * k + 1) / 2**53
                worst = max(worst, float(abs(off)) * 2**52)
    assert worst < 1.0


def test_a_release_depends_on_the_sum_alone() -> None:
    """Moved by whole cells, all moves with it and nothing else: the low bits of a sum are gone."""
    std, g = 5.0, grid(5.0)
    values = torch.randn(50_000, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    here = noised(values, std)
    assert torch.equal(torch.round(here / g) * g, here)
    snapped = torch.round(values * 2.0**40) * 2.0**-40  # so that adding cells is exact
    assert torch.equal(noised(snapped + 12345 * g, std), noised(snapped, std) + 12345 * g)


def precision(values: torch.Tensor) -> torch.Tensor:
    """The exponent of the lowest bit that is set."""
    mantissas = (torch.frexp(values)[0] * 2.0**53).to(torch.int64)
    lowest = torch.log2((mantissas & -mantissas).double())
    return torch.frexp(values)[1] - 53 + lowest


def test_the_attack_on_the_last_bit_fails() -> None:
    """Is the sum 0 or 1? Where Gaussians are added in floats, also four of them, bits below 2⁻⁵³ tell a 0 for sure."""
    size = 200_000
    lanes = [gaussians(torch.from_numpy(STREAM.words(1, 0, lane, 0, size) >> 11)) for lane in range(4)]
    four = (lanes[0] + lanes[1] + lanes[2] + lanes[3]) / 2
    for z in (lanes[0], four):
        assert float((precision(0.0 + z) < -53).double().mean()) > 0.1
        assert not torch.any(precision(1.0 + z)[(1.0 + z) != 0] < -53)
    zero, one = noised(torch.zeros(size), 1.0), noised(torch.ones(size), 1.0)
    for released in (zero, one):
        assert torch.equal(torch.round(released * 2**10), released * 2**10)
    assert set(zero.tolist()) & set(one.tolist())


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_sum_that_is_not_finite_is_refused(bad: float) -> None:
    with pytest.raises(PrivacyError):
        noised([0.0, bad, 1.0], 1.0)


def test_exact_arithmetic_is_not_disturbed_by_others() -> None:
    """Threads that settle at once, while the process's own precision is low: the same cells."""
    expected = [settle(0.25, 1500.0, Digits(STREAM, 1, 0, at), 0) for at in range(40)]

    def cell(at: int) -> int:
        return settle(0.25, 1500.0, Digits(STREAM, 1, 0, at), 0)

    with mpmath.workprec(5), ThreadPoolExecutor(4) as pool:
        assert list(pool.map(cell, range(40))) == expected


def test_a_bad_guess_is_found_out() -> None:
    for at in range(20):
        cells = {settle(0.25, 1500.0, Digits(STREAM, 1, 0, at), guess) for guess in (0, 9000, -9000, 10**5)}
        assert len(cells) == 1


def test_shapes_chunks_and_empty_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    values = sums(1.0, 1000).reshape(10, 100).T  # not contiguous
    whole = noised(values, 1.0)
    assert whole.shape == (100, 10)
    monkeypatch.setattr(rounding, "CHUNK", 7)
    assert torch.equal(noised(values, 1.0), whole)
    assert noised(torch.zeros(0), 1.0).shape == (0,)


def test_the_noise_is_never_smaller_than_charged() -> None:
    for sigma, clip in [(0.1, 0.3), (26.38, 0.5), (1 / 3, 1e-6)]:
        with mpmath.workprec(200):
            assert mpmath.mpf(noise_std(sigma, clip)) >= mpmath.mpf(sigma) * mpmath.mpf(clip)
