"""From a certificate to its claimed curve. Computed by the reader's own accountant, not by the service's code."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from scrimp import privacy_loss
from scrimp.audit.audit_statistics import Claim

Tree = Mapping[str, Any]
GRID = 1e-3  # pessimistic: the curve lies slightly above the certificate's, which uses a finer grid
POINTS = 400
LARGEST_EPSILON = 30.0


def claim_of(tree: Tree, epsilon: float, delta: float) -> Claim:
    """The curve of an event tree.

    Args:
        tree: as in a certificate's `events`.
        epsilon, delta: the certificate's figures, for the claim's μ if the tree has none.
    """
    curve = privacy_loss.Curve.of(tree, grid=GRID)
    if curve.mu is not None:
        return Claim.gaussian(curve.mu)
    epsilons = np.linspace(0.0, LARGEST_EPSILON, POINTS)
    deltas = np.array(curve.deltas(epsilons.tolist()))
    return Claim(epsilons, deltas, mu_of(epsilon, delta), exact=False)


def mu_of(epsilon: float, delta: float) -> float:
    """The μ of the Gaussian mechanism that is exactly (ε, δ)-DP."""
    low, high = 1e-6, 2.0 * math.sqrt(epsilon) + epsilon + 1.0
    while high - low > 1e-12 * high:
        middle = (low + high) / 2.0
        low, high = (low, middle) if privacy_loss.gaussian_delta(middle, epsilon) > delta else (middle, high)
    return high
