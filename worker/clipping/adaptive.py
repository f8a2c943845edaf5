"""The norm of adaptive clipping: a quantile of the gradient norms, estimated from noisy counts."""

from __future__ import annotations

import math
from dataclasses import dataclass

from worker.clipping.engine import CountingEngine
from worker.noise.gaussian import NoisedCount

LEAST, MOST = 1e-6, 1e6  # the same limits as for requested norms: noise is representable between them


@dataclass(frozen=True)
class AdaptiveNorm:
    """C ← C · exp(−η (b̃ − γ)),   b̃ = ½ + (noisy Σ_{i∈B} (1[‖g_i‖ ≤ C] − ½)) / L.

    b̃ is clamped to [0, 1], so that no noise changes C by more than a factor e^η. C is clamped to [10⁻⁶, 10⁶].

    Guarantee: C is constant within a step, and a function of noised counts and public numbers only. So C may be
    published, and noise of std σ_g·C fits a sum that was clipped to this C.

    Attributes:
        engine: clips to the C of each step, and counts.
        first: C of the first step.
        target_quantile: γ, the share of records that should stay unclipped.
        learning_rate: η.
        expected_batch_size: L.

    Source: Andrew, Thakkar, McMahan & Ramaswamy 2021, "Differentially private learning with adaptive clipping",
    Algorithm 1, with the expected batch size as divisor.
    """

    engine: CountingEngine
    first: float
    target_quantile: float
    learning_rate: float
    expected_batch_size: int

    def after(self, max_grad_norm: float, noised: NoisedCount) -> float:
        """C of the next step.

        Args:
            max_grad_norm: C of this step.
            noised: this step's noised count.
        """
        share = min(max(0.5 + noised / self.expected_batch_size, 0.0), 1.0)
        moved = max_grad_norm * math.exp(-self.learning_rate * (share - self.target_quantile))
        return min(max(moved, LEAST), MOST)
