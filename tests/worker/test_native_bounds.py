"""The error bounds of noise.c, on which its bits depend: docs/theorems.md, "Why the noise holds"."""

from __future__ import annotations

import ctypes
import math
import re
from itertools import pairwise
from pathlib import Path

import mpmath
import numpy as np
import pytest
from numpy.typing import NDArray

from core.native import library
from core.native.build import FOLDER
from core.native.library import PATHS
from tests.worker.native import SURVEY, built

TEXT = (FOLDER / "noise.c").read_text() + (FOLDER / "gaussians.h").read_text()
TABLE = [(int(tail, 16), float.fromhex(scale)) for tail, scale in re.findall(r"\{0x([0-9a-f]{16})u, (0x[^}]+)\}", TEXT)]
BOTTOM = np.int64(-(2**63))
END = 2**31 - 2**20  # tier 1 takes high halves below this
PIECES = [0, 1, 2**20, 2**28, 2**30, 3 * 2**29, 2**31 - 2**24, 2**31 - 2**22, END - 2**17]


def constant(name: str) -> float:
    found = re.search(rf"^ *#define {name} (\S+)", TEXT, re.MULTILINE)
    assert found is not None
    return float.fromhex(found[1])


@pytest.fixture(scope="module")
def survey() -> ctypes.CDLL:
    library = ctypes.CDLL(str(built(f"-I{FOLDER}", sources=[SURVEY])))
    library.survey_worst.restype = ctypes.c_double
    library.survey_worst.argtypes = [ctypes.c_int, ctypes.c_int64, ctypes.c_int64]
    return library


def second(survey: ctypes.CDLL, words: NDArray[np.int64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    z, error = np.empty(len(words)), np.empty(len(words))
    pointers = [ctypes.c_void_p(each.ctypes.data) for each in (words, z, error)]
    survey.survey_second(*pointers, ctypes.c_int64(len(words)))
    return z, error


def has(survey: ctypes.CDLL, path: str) -> bool:
    return PATHS.index(path) <= int(survey.scrimp_path())


# --- Tier 1: by enumeration ---


@pytest.mark.parametrize("path", PATHS)
def test_the_first_tier_errs_by_less_than_its_bound(survey: ctypes.CDLL, path: str) -> None:
    """A part of the enumeration: the centre, the edge of the tails, where the error is largest, and in between."""
    if not has(survey, path):
        pytest.skip(f"this CPU lacks {path}")
    worst = [survey.survey_worst(PATHS.index(path), at, at + 2**17) for at in PIECES]
    assert min(worst) > 0.0 and max(worst) <= constant("FIRST_ERROR")
    assert max(worst) > 0.85 * constant("FIRST_ERROR")  # a bound that is smaller by a sixth would be found


@pytest.mark.nightly
@pytest.mark.parametrize("path", PATHS)
def test_the_first_tier_is_enumerated(survey: ctypes.CDLL, path: str) -> None:
    """All 2³¹ high halves of positive words; negative ones differ in the sign alone. A minute for each path."""
    if not has(survey, path):
        pytest.skip(f"this CPU lacks {path}")
    assert 0.0 < survey.survey_worst(PATHS.index(path), 0, END) <= constant("FIRST_ERROR")


@pytest.mark.parametrize("path", PATHS)
def test_the_first_tier_is_odd_and_has_no_tails(survey: ctypes.CDLL, path: str) -> None:
    if not has(survey, path):
        pytest.skip(f"this CPU lacks {path}")
    rng = np.random.default_rng(0)
    highs = np.concatenate([rng.integers(0, 2**31, 200), [END - 1, END, 2**31 - 1]])
    positive, z = (highs << 32).astype(np.int64), np.empty(len(highs), dtype=np.float32)
    mirrored = np.empty_like(z)
    for words, out in ((positive, z), (~positive, mirrored)):
        survey.survey_first(PATHS.index(path), *(ctypes.c_void_p(a.ctypes.data) for a in (words, out)), len(words))
    assert np.array_equal(np.isnan(z), highs >= END) and np.array_equal(z, -mirrored, equal_nan=True)


# --- Tier 2: a table, a series, and a remainder that is bounded ---


def test_the_table_is_right() -> None:
    assert len(TABLE) == 209
    with mpmath.workprec(200):
        for at, (tail, scale) in enumerate(TABLE):
            x = mpmath.mpf(at) / 32
            assert abs(mpmath.ldexp(mpmath.ncdf(-x), 64) - tail) <= 0.5
            assert abs(mpmath.ldexp(1 / mpmath.npdf(x), -64) / scale - 1) <= mpmath.mpf(2) ** -53


def polynomial(order: int) -> list[int]:
    """Q of the inverse's derivative: (Φ⁻¹)⁽ᵏ⁾ = Q_k(z) / φ(z)ᵏ, Q₁ = 1, Q_{k+1} = Q_k′ + k z Q_k: none is negative."""
    q = [1]
    for k in range(1, order):
        slope = [*(power * value for power, value in enumerate(q) if power), 0, 0]
        q = [a + b for a, b in zip(slope, [0, *(k * value for value in q)], strict=False)]
    return q


def test_the_series_ends_late_enough() -> None:
    """Lagrange's remainder, over all p that a point of the table serves, and the other errors: within the bound."""
    assert "#define DEGREE 10\n" in TEXT
    order = 11
    Q = polynomial(order)[::-1]
    with mpmath.workprec(200):
        for at in range(len(TABLE) - 1):
            x = mpmath.mpf(at) / 32
            density, own = mpmath.npdf(x), mpmath.ncdf(-x)
            low = mpmath.ldexp(TABLE[at][0] + TABLE[at + 1][0], -65)  # the middle between two points: the farthest p
            high = mpmath.ldexp(TABLE[at][0] + TABLE[at - 1][0], -65) if at else own
            y = max(own - low, high - own) / density
            z = x + mpmath.mpf(1) / 32  # above all Z of these p
            growth = density / mpmath.npdf(z)
            # dz/dp is largest at the far end: p is known to 2⁻⁶⁵ and the table to 2⁻⁶⁵, the rest is rounding
            far = mpmath.findroot(lambda t, low=low: mpmath.log(mpmath.ncdf(-t)) - mpmath.log(low), x + 1 / 64.0)
            remainder = (density / mpmath.npdf(far)) ** order * mpmath.polyval(Q, far) * y**order
            remainder /= mpmath.factorial(order)
            rounding = mpmath.mpf(2) ** -51 + 16 * mpmath.mpf(2) ** -53 * y * growth
            input_error = mpmath.mpf(2) ** -64 / mpmath.npdf(far)
            bound = constant("SECOND_ERROR") + constant("SECOND_TAIL") / density
            assert remainder + rounding + input_error <= 0.9 * bound


def test_the_second_tier_errs_by_less_than_its_bound(survey: ctypes.CDLL) -> None:
    """Against Φ in 160 bits, in the middle and in the tails, on both sides of what each point serves."""
    rng = np.random.default_rng(1)
    middles = [(a + b) // 2 + off for (a, _), (b, _) in pairwise(TABLE[1:]) for off in (0, 1)]
    tails = [int(2.0**exponent) for exponent in rng.uniform(30, 62, 300)]
    ps = np.array([*middles, *tails, *(entry for entry, _ in TABLE[1:]), 2**63 - 1, 2**63 - 2], dtype=np.int64)
    z, error = second(survey, np.concatenate([ps + BOTTOM, ~(ps + BOTTOM)]))
    assert np.array_equal(z[: len(ps)], -z[len(ps) :]) and np.all(z[len(ps) :] > -1e-9)
    with mpmath.workprec(160):
        for p, value, allowed in zip(ps.tolist(), z[len(ps) :].tolist(), error[: len(ps)].tolist(), strict=True):
            for end in (p, p + 1):  # |Φ(−z) − tail| / φ bounds |z − Z| from above, to first order
                tail = mpmath.ldexp(mpmath.mpf(end), -64)
                off = abs(mpmath.ncdf(-mpmath.mpf(value)) - tail) / mpmath.npdf(value)
                assert off <= 0.9 * allowed


def test_the_table_s_end_is_left_to_exact_arithmetic(survey: ctypes.CDLL) -> None:
    last = TABLE[-1][0]
    z, _ = second(survey, np.array([0, 1, last - 1, last], dtype=np.int64) + BOTTOM)
    assert np.isnan(z).tolist() == [True, True, True, False] and math.isclose(z[3], -6.5)


def test_the_survey_uses_the_shipped_source() -> None:
    assert '#include "noise.c"' in SURVEY.read_text() and Path(library.__file__).parent == FOLDER
