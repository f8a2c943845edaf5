"""The space of a study's draws: bounds of η, T and C, their product r = ηTC, and the ways to split r again."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, replace
from typing import Literal

from app.hpo.study_draws import Draws
from core.contracts.hpo import GridPoints, Space

Split = Literal["steps", "sample", "both"]
NEAR = 0.05  # relative deviation of r, for the split by sampling
TRIES = 1000
REDRAWS = 4  # new draws of r if it could not be split in as many tries


@dataclass(frozen=True)
class Point:
    """One setting. `max_grad_norm` is None if C is not searched; then r = ηT."""

    learning_rate: float
    steps: int
    max_grad_norm: float | None = None

    @property
    def r(self) -> float:
        """The total step size."""
        return self.learning_rate * self.steps * (1.0 if self.max_grad_norm is None else self.max_grad_norm)


@dataclass(frozen=True)
class Bounds:
    """The space with T resolved: if T is not searched, both of its bounds are the plan's."""

    learning_rate: tuple[float, float]
    steps: tuple[int, int]
    max_grad_norm: tuple[float, float] | None
    points: GridPoints | None

    @classmethod
    def of(cls, space: Space, planned_steps: int) -> Bounds:
        """Resolves a space: T is the planned number of steps unless it is searched."""
        return cls(space.rates, space.steps or (planned_steps, planned_steps), space.max_grad_norm, space.points)

    @property
    def r(self) -> tuple[float, float]:
        """The least and the largest r."""
        return self.corners[0].r, self.corners[1].r

    @property
    def corners(self) -> tuple[Point, Point]:
        """The points with the least and with the largest values."""
        lowest, highest = (
            Point(self.learning_rate[end], self.steps[end], self.max_grad_norm[end] if self.max_grad_norm else None)
            for end in (0, 1)
        )
        return lowest, highest

    def draw(self, draws: Draws) -> Point:
        """Draws each number independently: log-uniform, or one of its grid's values."""
        if self.points is not None:
            return draws.choice(self.grid())
        return Point(draws.log_uniform(*self.learning_rate), draws.log_uniform_int(*self.steps), self._draw_norm(draws))

    def draw_by_r(self, split: Split, draws: Draws) -> Point:
        """Draws r log-uniformly and splits it. r is drawn once and reused: redrawing would bias it to dense regions.

        An r that cannot be split is drawn anew. `both` draws each number independently, and so does a space so narrow
        that no r was found.
        """
        if split == "both":
            return self.draw(draws)
        # Without C, chance does not decide if an r can be split into steps.
        redraws, tries = (TRIES, 1) if split == "steps" and self.max_grad_norm is None else (REDRAWS, TRIES)
        for _ in range(redraws):
            r = draws.log_uniform(*self.r)
            for _ in range(tries):
                point = self._split(r, split, draws)
                if point is not None:
                    return point
        return self.draw(draws)

    def split(self, r: float, split: Split, draws: Draws) -> Point:
        """A point with the given r, clipped to the space; the nearest point if none has it exactly."""
        r = min(max(r, self.r[0]), self.r[1])
        for _ in range(TRIES):
            point = self._split(r, "steps" if split == "both" else split, draws)
            if point is not None:
                return point
        return min((self._at(steps, r) for steps in self._few_steps()), key=lambda point: abs(math.log(point.r / r)))

    def longest(self, r: float) -> Bounds:
        """These bounds with T fixed at the most steps with which r can be split. η is then as small as possible."""
        least_rate = self.learning_rate[0] * (self.max_grad_norm[0] if self.max_grad_norm else 1.0)
        highest = min(max(math.floor(r / least_rate * (1.0 + 1e-12)), self.steps[0]), self.steps[1])
        return replace(self, steps=(highest, highest))

    def grid(self) -> list[Point]:
        """All points of the log grid."""
        points = self.points or GridPoints()
        rates = log_grid(*self.learning_rate, points.learning_rate)
        lengths = sorted({round(each) for each in log_grid(*self.steps, points.steps)})
        norms = log_grid(*self.max_grad_norm, points.max_grad_norm) if self.max_grad_norm else [None]
        return [Point(*each) for each in itertools.product(rates, lengths, norms)]

    def _split(self, r: float, split: Split, draws: Draws) -> Point | None:
        """One attempt to split r. `steps`: C, then T within [r/(C η_max), r/(C η_min)], then η = r/(TC)."""
        if split == "sample":
            point = self.draw(draws)
            return point if abs(point.r / r - 1.0) <= NEAR else None
        norm = self._draw_norm(draws)
        product = r / (norm or 1.0)  # ηT
        lowest, highest = self.learning_rate
        shortest = max(self.steps[0], math.ceil(product / highest * (1.0 - 1e-12)))
        longest = min(self.steps[1], math.floor(product / lowest * (1.0 + 1e-12)))
        if shortest > longest:
            return None
        steps = draws.log_uniform_int(shortest, longest)
        return Point(min(max(product / steps, lowest), highest), steps, norm)

    def _draw_norm(self, draws: Draws) -> float | None:
        return draws.log_uniform(*self.max_grad_norm) if self.max_grad_norm else None

    def _few_steps(self) -> list[int]:
        return sorted({round(each) for each in log_grid(*self.steps, 100)})

    def _at(self, steps: int, r: float) -> Point:
        """With this many steps, the C and η that come nearest to r."""
        norm = None
        if self.max_grad_norm is not None:
            middle = math.sqrt(self.learning_rate[0] * self.learning_rate[1])
            norm = min(max(r / (steps * middle), self.max_grad_norm[0]), self.max_grad_norm[1])
        rate = r / (steps * (norm or 1.0))
        return Point(min(max(rate, self.learning_rate[0]), self.learning_rate[1]), steps, norm)


def log_grid(low: float, high: float, count: int) -> list[float]:
    """`count` values evenly spaced in their logarithm, both bounds included; a single one is the middle."""
    if low == high:
        return [low]
    if count == 1:
        return [math.sqrt(low * high)]
    ratio = (high / low) ** (1.0 / (count - 1))
    return [low, *(low * ratio**k for k in range(1, count - 1)), high]
