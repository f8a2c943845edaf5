"""The yardsticks of the linear scaling experiment: the oracle, the best r at every ε by grid, and ablations."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from benchmarks.reproduce.linear_scaling_runs import SETTINGS, mean, mu, trial

SEEDS = range(5)
HALF_DECADE, QUARTER = math.sqrt(10.0), 10.0**0.25
PEAK = 0.03  # of accuracy: points so near to the best one are the top of the curve

Point = tuple[float, int]  # η, T


@dataclass(frozen=True)
class Curve:
    """Accuracy over r at one ε, T the grid's middle one.

    Attributes:
        points: (r, mean test accuracy), by r.
        best_r: where a parabola through the top of the curve, in ln r, has its top.
    """

    points: list[tuple[float, float]]
    best_r: float


def curve(name: str, epsilon: float) -> Curve:
    """Half decades of r over the whole space, then a quarter of a decade around the best, two seeds."""
    setting = SETTINGS[name]
    steps = setting.grid_steps[0]
    least, most = (steps * rate for rate in setting.learning_rate)
    count = round(math.log(most / least) / math.log(HALF_DECADE)) + 1
    coarse = {r: _accuracy(name, r, steps, epsilon, [0]) for r in np.geomspace(least, most, count).tolist()}
    top = max(coarse, key=lambda r: coarse[r])
    fine = [top * QUARTER**k for k in (-1, 0, 1)]
    new = {r: _accuracy(name, r, steps, epsilon, [0, 1]) for r in fine}
    old = {r: a for r, a in coarse.items() if all(abs(r / other - 1.0) > 1e-3 for other in fine)}
    points = sorted((new | old).items())
    return Curve(points, _peak(points))


def oracle(name: str, epsilon: float) -> tuple[Point, list[float]]:
    """The best setting by the test records themselves, at the full budget, and its test accuracy with every seed.

    Candidates: the whole curve, and its best r at the grid's other T's.
    """
    setting, found = SETTINGS[name], curve(name, epsilon)
    top = max(found.points, key=lambda point: point[1])[0]
    least, most = setting.learning_rate
    candidates = [(top / steps, steps) for steps in setting.grid_steps if least <= top / steps <= most]
    best = max(candidates, key=lambda point: _test(name, point, epsilon, [0])[0])
    return best, _test(name, best, epsilon, list(SEEDS))


def _test(name: str, point: Point, epsilon: float, seeds: list[int]) -> list[float]:
    return [float(trial(name, *point, mu(epsilon), seed)["test"]) for seed in seeds]


def _accuracy(name: str, r: float, steps: int, epsilon: float, seeds: list[int]) -> float:
    return mean(_test(name, (r / steps, steps), epsilon, seeds))


def _peak(points: list[tuple[float, float]]) -> float:
    """The top of the parabola in ln r by least squares through the top of the curve; the best point's r without one."""
    best_r, best = max(points, key=lambda point: point[1])
    near = [(math.log(r), a) for r, a in points if a > best - PEAK and abs(math.log(r / best_r)) < math.log(12.0)]
    if len(near) < 3:
        return best_r
    x, y = (np.array(each) for each in zip(*near, strict=True))
    c, b, _ = np.polyfit(x - math.log(best_r), y, 2)
    lowest, highest = min(x) - math.log(best_r), max(x) - math.log(best_r)
    return best_r * math.exp(min(max(-b / (2 * c), lowest), highest)) if c < 0 else best_r
