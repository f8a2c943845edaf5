"""The compiled noise step releases the bits of the Python reference, on every path of the CPU."""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import Tensor

from core.errors import PrivacyError
from core.native import build
from core.native import library as libraries
from core.native.library import PATHS
from tests.worker.native import built, of_path, opened
from worker.noise import native
from worker.noise.gaussian import GaussianRelease
from worker.noise.generator import KeyedStream, gaussians
from worker.noise.native import Native
from worker.noise.release import PIECE, Address, noised_mean, noised_means
from worker.noise.rounding import add_noise, grid

KEY = bytes(range(32))
STDS = [1.0, 3.7, math.nextafter(2.0, 0.0), 1e-6, 1e-90, 1e90]
TOP, BOTTOM = 2**63 - 1, -(2**63)


class Given(KeyedStream):
    """A stream whose first lane is chosen; the others are the keyed ones."""

    def __init__(self, words: NDArray[np.int64]) -> None:
        super().__init__(KEY)
        self.first = words

    def words(self, step: int, tensor: int, lane: int, start: int, count: int) -> NDArray[np.int64]:
        if lane == 0:
            return self.first[start : start + count].copy()
        return super().words(step, tensor, lane, start, count)


class Ended(KeyedStream):
    """The keyed stream, but with the last word of all at two positions."""

    def words(self, step: int, tensor: int, lane: int, start: int, count: int) -> NDArray[np.int64]:
        words = super().words(step, tensor, lane, start, count)
        words[[at - start for at in (5, PIECE + 7) if lane == 0 and start <= at < start + count]] = TOP
        return words


@pytest.fixture(scope="module", params=PATHS)
def library(request: pytest.FixtureRequest) -> Native:
    return Native(opened(request.param))


def reference(sums: Tensor, words: NDArray[np.int64], std: float, divisor: int = 1) -> Tensor:
    stream = Given(words)
    return add_noise(sums, gaussians(torch.from_numpy(words >> 11)), std, stream, 1, 0).div_(divisor)


def compiled(library: Native, sums: Tensor, words: NDArray[np.int64], std: float, divisor: int = 1) -> Tensor:
    """With one rule for who may be undecided: far fewer than one in a million, outside the far tails."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(native, "NATIVE", library)
        return noised_mean(sums, torch.from_numpy(words.copy()), std, divisor, Address(Given(words), 1, 0))


def check(library: Native, sums: Tensor, words: NDArray[np.int64], std: float, divisor: int = 1) -> None:
    got, expected = compiled(library, sums, words, std, divisor), reference(sums, words, std, divisor)
    assert torch.equal(got.view(torch.int64), expected.view(torch.int64))  # the sign of 0 too


def random_words(count: int, seed: int = 0) -> NDArray[np.int64]:
    return np.random.default_rng(seed).integers(BOTTOM, TOP, count, dtype=np.int64, endpoint=True)


def wild_sums(count: int, std: float) -> Tensor:
    """Zeros, exact boundaries, and sums from far below the noise to far above it."""
    generator = torch.Generator().manual_seed(0)
    sizes = 10.0 ** torch.linspace(-20, 18, count, dtype=torch.float64)
    sums = torch.randn(count, generator=generator, dtype=torch.float64) * sizes * std
    sums[:10], sums[10:20] = 0.0, torch.arange(10).double() * grid(std) / 2
    return sums


@pytest.mark.parametrize("std", STDS)
def test_random_words_and_sums_of_all_sizes(library: Native, std: float) -> None:
    check(library, wild_sums(20_000, std), random_words(20_000), std)


def test_a_million_ordinary_numbers_with_a_divisor(library: Native) -> None:
    sums = torch.randn(2**20, generator=torch.Generator().manual_seed(1), dtype=torch.float64) * 40
    words = random_words(2**20, 1)
    check(library, sums, words, 3.7, 250)
    undecided = library.release(torch.from_numpy(words), sums, torch.empty_like(sums), 3.7, grid(3.7), 1.0)
    assert len(undecided) == 0  # exact arithmetic takes 2 ms a number


@pytest.mark.parametrize("size", [0, 1, 7, 31, 32, 33, 255, 256, 257, 1000])
@pytest.mark.parametrize("offset", [0, 1, 3])
def test_odd_lengths_and_addresses(library: Native, size: int, offset: int) -> None:
    words, sums = random_words(size + offset)[offset:], wild_sums(size + 30, 2.0)[30 - offset :][offset:]
    for memory in (None, "sums", "other"):
        given_words, given_sums = torch.from_numpy(words.copy()), sums.clone()
        out = {None: given_words.view(torch.float64), "sums": given_sums}.get(memory, torch.empty(size).double())
        assert len(library.release(given_words, given_sums, out, 2.0, grid(2.0), 3.0)) == 0
        assert torch.equal(out, reference(sums, words, 2.0, 3))


def test_tails_and_extreme_words(library: Native) -> None:
    """Beyond each power of two, to the last word: tier 1 ends at |Z| = 3.5, tier 2 at 6.5."""
    edges = [2**exponent + off for exponent in range(64) for off in (-1, 0, 1)]
    near_ends = [end for e in edges for end in (TOP - e, BOTTOM + e) if BOTTOM <= end <= TOP]
    centre = [e for e in edges if e <= TOP] + [-e for e in edges if -e >= BOTTOM]
    words = np.array([TOP, BOTTOM, 0, -1, *near_ends, *centre], dtype=np.int64)
    for std in (1.0, math.nextafter(2.0, 0.0)):
        check(library, torch.linspace(-5, 5, len(words), dtype=torch.float64), words, std)


def boundary_sums(words: NDArray[np.int64], std: float) -> Tensor:
    """Sums that end within a rounding error of a boundary between cells, as far as float64 reaches."""
    import mpmath

    g = grid(std)
    with mpmath.workprec(160):
        sums = []
        for at, word in enumerate(words.tolist()):
            tail = mpmath.ldexp(mpmath.mpf(min(word - BOTTOM, TOP - word)) + mpmath.mpf("0.5"), -64)
            z = mpmath.findroot(
                lambda x, tail=tail: mpmath.log(mpmath.ncdf(-x)) - mpmath.log(tail), float(gaussians(abs_k(word)))
            )
            sums.append(float((mpmath.mpf(2 * at + 1) / 2) * g - mpmath.mpf(std) * (z if word >= 0 else -z)))
    return torch.tensor(sums, dtype=torch.float64)


def abs_k(word: int) -> Tensor:
    return torch.tensor([abs((word >> 11) | 1)])


OFFSETS = [0.0, *(sign * 2.0**exponent for exponent in range(-42, -5, 6) for sign in (1, -1))]  # in cells


@pytest.fixture(scope="module")
def boundaries() -> list[tuple[Tensor, NDArray[np.int64], Tensor]]:
    """Sums, words and releases."""
    words = np.concatenate([random_words(120, 3), random_words(30, 4) >> 14 | TOP - 2**50 + 1])  # 30 beyond 4.1
    near = boundary_sums(words, 3.7)
    return [(sums, words, reference(sums, words, 3.7, 7)) for sums in (near + off * grid(3.7) for off in OFFSETS)]


def test_sums_near_a_boundary_of_two_cells(
    library: Native, boundaries: list[tuple[Tensor, NDArray[np.int64], Tensor]]
) -> None:
    for sums, words, expected in boundaries:
        assert torch.equal(compiled(library, sums, words, 3.7, 7), expected)


PLANTED = {
    "tier 1": ("-DFIRST_ERROR=0x1p-26",),
    "tier 2": ("-DSECOND_ERROR=0.0", "-DSECOND_TAIL=0.0", "-DSECOND_ROUNDING=0.0"),
}


@pytest.fixture(scope="module", params=PLANTED)
def planted(request: pytest.FixtureRequest) -> Path:
    """A library with this fault, for all paths: a compiler takes 2 s of processor time."""
    return built(*PLANTED[request.param], sources=[build.FOLDER / "noise.c"])


@pytest.mark.parametrize("path", PATHS)
def test_a_bound_that_is_too_small_is_found(
    planted: Path, path: str, boundaries: list[tuple[Tensor, NDArray[np.int64], Tensor]]
) -> None:
    faulty = Native(of_path(planted, path))
    wrong = [int((compiled(faulty, sums, words, 3.7, 7) != expected).sum()) for sums, words, expected in boundaries]
    assert sum(wrong) > 5


@settings(max_examples=40)
@given(
    words=st.lists(st.integers(BOTTOM, TOP), min_size=1, max_size=40),
    std=st.floats(1e-99, 1e99),
    cells=st.floats(-(2.0**60), 2.0**60),
    divisor=st.integers(1, 10**6),
)
def test_any_word_sum_and_scale(library: Native, words: list[int], std: float, cells: float, divisor: int) -> None:
    sums = cells * grid(std) * torch.linspace(0.5, 1.0, len(words), dtype=torch.float64)
    check(library, sums, np.array(words, dtype=np.int64), std, divisor)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_sum_that_is_not_finite_is_refused(library: Native, bad: float) -> None:
    with pytest.raises(PrivacyError):
        compiled(library, torch.tensor([0.0, bad, 1.0], dtype=torch.float64), random_words(3), 1.0)


@pytest.mark.parametrize("std", [1.0, math.nextafter(2.0, 0.0)])
def test_sums_far_above_the_noise(library: Native, std: float) -> None:
    """Where S has no bits below a cell, R may need more than 53 bits: rounded once."""
    sizes = torch.cat([2.0 ** torch.arange(36, 70, dtype=torch.float64) + off for off in (-0.5, 0.0, 0.5, 1.5)])
    sums = torch.cat([sizes, -sizes, torch.tensor([1e300, -1e300], dtype=torch.float64)]) * grid(std)
    words = random_words(len(sums), 6)
    check(library, sums, words, std, 9)
    undecided = library.release(torch.from_numpy(words), sums, torch.empty_like(sums), std, grid(std), 9.0)
    assert len(undecided) == 0


def test_a_large_tensor_in_pieces_and_in_place(library: Native, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "NATIVE", library)
    size, address = PIECE + 1001, Address(Ended(KEY), 3, 2)
    sums = torch.randn(size, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    words = torch.from_numpy(address.stream.words(3, 2, 0, 0, size))  # one undecided in each piece
    expected = add_noise(sums, gaussians(words >> 11), 2.0, address.stream, 3, 2) / 11
    assert torch.equal(noised_mean(sums, words.clone(), 2.0, 11, address), expected)
    assert torch.equal(noised_mean(sums, words, 2.0, 11, address, out=sums), expected)
    assert torch.equal(sums, expected)


def test_threads_share_a_library(library: Native) -> None:
    words, sums = random_words(50_000, 5), wild_sums(50_000, 1.0)
    expected = reference(sums, words, 1.0)

    def once(_: int) -> bool:
        out = torch.empty_like(sums)
        undecided = library.release(torch.from_numpy(words), sums, out, 1.0, grid(1.0), 1.0)
        out[undecided] = expected[undecided]
        return torch.equal(out, expected)

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(once, range(20)))


def test_tensors_that_the_library_cannot_read_are_refused(library: Native) -> None:
    words, sums = torch.from_numpy(random_words(8)), torch.zeros(8, dtype=torch.float64)
    for wrong in ((words[::2], sums[::2], sums[::2]), (words, sums[:7], sums), (words, sums.float(), sums)):
        with pytest.raises(PrivacyError):
            library.release(*wrong, 1.0, grid(1.0), 1.0)


# --- Which one runs ---


def test_releases_do_not_depend_on_who_computes_them(library: Native, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the library or without, prepared or not, and where the library goes away in between."""
    total = {"a": torch.full((3, 5), 0.25, dtype=torch.float64), "b": wild_sums(70_001, 3.0)}

    def release(before: Native | None, after: Native | None, prepared: bool) -> dict[str, Tensor]:
        made = GaussianRelease(KEY, noise_multiplier=1.5, max_grad_norm=2.0, expected_batch_size=10)
        monkeypatch.setattr(native, "NATIVE", before)
        if prepared:
            made.prepare(total, 1)
        monkeypatch.setattr(native, "NATIVE", after)
        return made.release(total, 1)

    expected = release(None, None, False)
    for before, after in [(library, library), (None, library), (library, None)]:
        for prepared in (True, False):
            got = release(before, after, prepared)
            assert all(torch.equal(got[name], expected[name]) for name in total)


def test_only_a_library_of_these_sources_is_opened(tmp_path: Path) -> None:
    assert libraries.load(tmp_path / "absent.so") is None
    (tmp_path / "broken.so").write_bytes(b"not a library")
    assert libraries.load(tmp_path / "broken.so") is None
    made = built()
    found = libraries.load(made)
    assert found is not None and found.path in PATHS
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(libraries, "digest", lambda: "0" * 64)
        assert libraries.load(made) is None


def test_tensors_that_lie_one_after_another_are_noised_at_once(
    library: Native, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bits are those of each alone; undecided numbers belong to their own tensor's stream."""
    monkeypatch.setattr(native, "NATIVE", library)
    calls: list[int] = []

    def counted(self: Native, words: Tensor, *others: Any) -> NDArray[np.int64]:
        calls.append(len(words))
        return release(self, words, *others)

    release = Native.release
    monkeypatch.setattr(Native, "release", counted)
    sizes = [7, 1, PIECE + 1001, 12]
    flat = torch.randn(sum(sizes), generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    addresses = [Address(Ended(KEY), 3, 4 + at, 2 * (at == 3)) for at in range(len(sizes))]
    words = [
        torch.from_numpy(each.stream.words(3, each.tensor, 0, each.first, size))
        for each, size in zip(addresses, sizes, strict=True)
    ]
    sums = list(flat.split(sizes))
    alone = [noised_mean(s, w.clone(), 2.0, 11, at) for s, w, at in zip(sums, words, addresses, strict=True)]
    calls.clear()
    monkeypatch.setattr("worker.noise.release.AT_ONCE", PIECE)
    found = noised_means(sums, torch.cat(words).split(sizes), 2.0, 11, addresses)
    assert len(calls) == 2  # pieces, not tensors
    assert all(torch.equal(a, b) for a, b in zip(found, alone, strict=True))
    apart = noised_means([each.clone() for each in sums], [each.clone() for each in words], 2.0, 11, addresses)
    assert all(torch.equal(a, b) for a, b in zip(apart, alone, strict=True))
