"""Correlated noise: the price of a mechanism whose steps share noise.

Step t releases Y_t = X_t + s (Z_t − λ Z_{t−1}), Z_0 = 0, with independent standard Gaussians Z_t and clipped sums X_t.
Knowing Y_1 … Y_t is the same as knowing W_1 … W_t, where

    W_t = Σ_{j ≤ t} λ^{t−j} Y_j = Σ_{j ≤ t} λ^{t−j} X_j + s Z_t .

So each step is one Gaussian mechanism with fresh noise s Z_t, of the query Σ λ^{t−j} X_j: T of them compose adaptively,
whatever chose X_t after Y_1 … Y_{t−1}. A unit that takes part at steps t_1 < t_2 < …, with at most C each time, changes
query t by at most C c_t, c_t = Σ_{t_i ≤ t} λ^{t − t_i}. So after t steps the mechanism is μ-GDP for that unit with

    μ² = (C/s)² Σ_{τ ≤ t} c_τ² ≤ (C/s)² Σ_{i, j} λ^{|t_i − t_j|} / (1 − λ²) ≤ (C/s)² k (1 + λᵇ) / ((1 − λ²)(1 − λᵇ))

if it took part k times, at least b steps apart. (⟨column t_i, column t_j⟩ of the matrix λ^{t−j} is at most its infinite
sum, λ^{|t_i − t_j|}/(1 − λ²); and Σ_j λ^{b |i − j|} ≤ (1 + λᵇ)/(1 − λᵇ).) With

    s = σ C √((1 + λᵇ) / ((1 − λ²)(1 − λᵇ)))

the k participations cost what k Gaussian mechanisms of noise multiplier σ cost: μ² ≤ k/σ². The bound adds up over steps
and over segments of other keys, each of which begins with Z = 0, so both filters charge it exactly.

Source: the noise is that of Kalinin, McKenna, Pagh & Lampert 2026, "DP-λCGD: efficient noise correlation for
differentially private model training". The argument is adaptive composition alone; it agrees with Theorem 2.1 of
Denisov, McMahan, Rush, Smith & Thakurta 2022 on matrix mechanisms and adaptive streams.
"""

from __future__ import annotations

import math
from typing import Annotated

from pydantic import Field

from core.contracts.base import Document

# Above the error of the few float operations here. The largest is that of 1 − λᵇ: λᵇ is wrong by 2⁻⁵³, so for λ ≤ 0.999
# its relative error is at most 2⁻⁴³, and half of that in the root.
_ROUNDING = 1.0 + 2.0**-40


class CorrelatedMechanism(Document):
    """Noise s (z_t − λ z_{t−1}), with λ = `decay`. See the module."""

    decay: Annotated[float, Field(gt=0.0, le=0.999)]

    def stretch(self, separation: int) -> float:
        """√((1 + λᵇ) / ((1 − λ²)(1 − λᵇ))), rounded up: s over σC, for units that take part every b steps.

        >>> round(CorrelatedMechanism(decay=0.5).stretch(1), 9)
        2.0

        Args:
            separation: b ≥ 1; 1: every unit takes part in every step.
        """
        again = self.decay**separation
        square = (1.0 + again) / ((1.0 - self.decay) * (1.0 + self.decay) * (1.0 - again))
        return math.sqrt(square) * _ROUNDING

    @property
    def spread(self) -> float:
        """√(1 + λ²): the standard deviation of a step's noise, over s."""
        return math.hypot(1.0, self.decay)

    @property
    def sentence(self) -> str:
        """What a model's card says of it."""
        return (
            f"each step took back {self.decay:g} of the noise of the step before; ε accounts for what that shows of a "
            "record in later steps"
        )
