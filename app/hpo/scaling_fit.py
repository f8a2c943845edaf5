"""The scaling law: the best total step size as a function of a trial's privacy, extrapolated to the final trial."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Fallback = Literal["line-for-quadratic", "proportional", "best-pilot", "clipped"]


@dataclass(frozen=True)
class Fit:
    """r(x) = Σ_k coefficients[k] x^k, with x = μ or ε.

    Attributes:
        coefficients: of the curve in use, lowest power first.
        r_star: the final trial's r, within the space.
        fallbacks: deviations from the requested fit:
            `line-for-quadratic`: the quadratic turns back before the final trial.
            `proportional`: the line does not rise, or leads below the best pilot: r_top · x_final / x_top.
            `best-pilot`: the final trial has less privacy to spend than the top level, and the curve leads below its r;
                that r is used.
            `clipped`: the curve leads out of the space.
    """

    coefficients: tuple[float, ...]
    r_star: float
    fallbacks: tuple[Fallback, ...]


def fit(
    xs: Sequence[float],
    rs: Sequence[float],
    x_final: float,
    bounds: tuple[float, float],
    curve: Literal["line", "quadratic"] = "line",
) -> Fit:
    """Fits the curve through the best r of each level, and evaluates it at the final trial.

    Noise in the scores can make r fall with x. The final trial has more privacy to spend than any pilot, so it must not
    go below the best pilot's r: then r_top · x_final / x_top applies, the line through the origin, which is the law
    without an intercept.

    Args:
        xs: the levels' μ or ε, rising: two or three.
        rs: the best r of each.
        x_final: the final trial's μ or ε.
        bounds: the least and the largest r of the space.

    Source: Panda et al. 2024, Algorithm 1 and Table 10 (three levels, quadratic).
    """
    fallbacks: list[Fallback] = []
    coefficients = _line(xs, rs)
    if curve == "quadratic" and len(set(xs)) == len(xs):
        bent = _quadratic(xs, rs)
        if _rises(bent, xs[0], max(x_final, xs[-1])):
            coefficients = bent
        else:
            fallbacks.append("line-for-quadratic")
    at_final = _at(coefficients, x_final)
    falls = len(coefficients) == 2 and coefficients[1] <= 0.0
    if falls or (x_final >= xs[-1] and at_final < rs[-1]):
        fallbacks.append("proportional")
        coefficients = (0.0, rs[-1] / xs[-1])
        at_final = _at(coefficients, x_final)
    if x_final < xs[-1] and at_final < rs[-1]:
        fallbacks.append("best-pilot")
        at_final = rs[-1]
    r_star = min(max(at_final, bounds[0]), bounds[1])
    if r_star != at_final:
        fallbacks.append("clipped")
    return Fit(coefficients, r_star, tuple(fallbacks))


def _at(coefficients: Sequence[float], x: float) -> float:
    return sum(c * x**k for k, c in enumerate(coefficients))


def _line(xs: Sequence[float], rs: Sequence[float]) -> tuple[float, ...]:
    """Through two points; by least squares through three. Constant if all lie at one x."""
    middle_x, middle_r = sum(xs) / len(xs), sum(rs) / len(rs)
    spread = sum((x - middle_x) ** 2 for x in xs)
    if spread == 0.0:
        return middle_r, 0.0
    slope = sum((x - middle_x) * (r - middle_r) for x, r in zip(xs, rs, strict=True)) / spread
    return middle_r - slope * middle_x, slope


def _quadratic(xs: Sequence[float], rs: Sequence[float]) -> tuple[float, ...]:
    """Through three points, by Newton's divided differences."""
    (a, b, c), (r_a, r_b, r_c) = xs, rs
    first = (r_b - r_a) / (b - a)
    second = ((r_c - r_b) / (c - b) - first) / (c - a)
    return r_a - first * a + second * a * b, first - second * (a + b), second


def _rises(coefficients: Sequence[float], low: float, high: float) -> bool:
    """Returns True if a quadratic's slope is positive at both ends, hence between."""
    return all(coefficients[1] + 2.0 * coefficients[2] * x > 0.0 for x in (low, high))
