"""Learning rates over the steps: functions of public numbers, at no privacy cost."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol


class Schedule(Protocol):
    """A schedule of the learning rate."""

    def factor(self, step: int) -> float:
        """The factor on the learning rate, in (0, 1], at t = 1 … T."""
        ...


@dataclass(frozen=True)
class Constant:
    """1 at every step."""

    def factor(self, step: int) -> float:
        """1."""
        return 1.0


CONSTANT = Constant()


@dataclass(frozen=True)
class WarmupLinear:
    """t/W up to W = ⌈warmup · T⌉, then (T + 1 − t) / (T + 1 − W).

    Source: Vaswani et al. 2017 (warm-up); DPFormer uses 20 % of T.

    >>> WarmupLinear(steps=10, warmup=0.2).factor(1)
    0.5
    """

    steps: int
    warmup: float

    def factor(self, step: int) -> float:
        """The factor at step t."""
        rising = math.ceil(self.warmup * self.steps)
        if step <= rising:
            return step / rising
        return (self.steps + 1 - step) / (self.steps + 1 - rising)


@dataclass(frozen=True)
class Cosine:
    """f + (1 − f) (1 + cos(π (t − 1)/T)) / 2.

    Source: Loshchilov & Hutter 2017, "SGDR: stochastic gradient descent with warm restarts", one cycle.
    """

    steps: int
    final: float

    def factor(self, step: int) -> float:
        """The factor at step t."""
        return self.final + (1.0 - self.final) * 0.5 * (1.0 + math.cos(math.pi * (step - 1) / self.steps))
