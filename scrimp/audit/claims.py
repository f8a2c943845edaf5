"""From a certificate to its claimed curve. Computed by dp_accounting, not by the service's own code."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from scrimp.audit.statistics import Claim

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
    exact = precision(tree)
    if exact is not None:
        return Claim.gaussian(math.sqrt(exact))
    import dp_accounting

    accountant = dp_accounting.pld.PLDAccountant(value_discretization_interval=GRID)
    accountant.compose(_event(tree))
    epsilons = np.linspace(0.0, LARGEST_EPSILON, POINTS)
    deltas = np.asarray(accountant.get_delta(epsilons), dtype=np.float64)
    return Claim(epsilons, deltas, mu_of(epsilon, delta), exact=False)


def precision(tree: Tree) -> float | None:
    """Σ 1/σ² = μ² of a tree of Gaussians; None if anything is sampled.

    Raises:
        ValueError: an event of an unknown kind.
    """
    kind = tree["kind"]
    if kind == "gaussian":
        return float(tree["noise_multiplier"]) ** -2
    if kind == "self_composed":
        inner = precision(tree["event"])
        return None if inner is None else int(tree["count"]) * inner
    if kind == "composed":
        parts = [precision(event) for event in tree["events"]]
        return None if None in parts else math.fsum(part for part in parts if part is not None)
    if kind in ("poisson_sampled", "truncated_sampled"):
        return None
    raise ValueError(f"an event of unknown kind {kind!r}")


def mu_of(epsilon: float, delta: float) -> float:
    """The μ of the Gaussian mechanism that is exactly (ε, δ)-DP."""
    from scipy import optimize, special

    def excess(mu: float) -> float:
        upper = special.ndtr(mu / 2.0 - epsilon / mu)
        return float(upper - math.exp(epsilon + special.log_ndtr(-mu / 2.0 - epsilon / mu))) - delta

    return float(optimize.brentq(excess, 1e-6, 2.0 * math.sqrt(epsilon) + epsilon + 1.0))


def _event(tree: Tree) -> Any:
    import dp_accounting as dp

    if tree["kind"] == "composed":
        return dp.ComposedDpEvent([_event(event) for event in tree["events"]])
    if tree["kind"] == "self_composed":
        return dp.SelfComposedDpEvent(_event(tree["event"]), tree["count"])
    if tree["kind"] == "gaussian":
        return dp.GaussianDpEvent(tree["noise_multiplier"])
    if tree["kind"] == "truncated_sampled":
        return dp.TruncatedSubsampledGaussianDpEvent(
            tree["records"], tree["sample_rate"], tree["largest_batch"], tree["event"]["noise_multiplier"]
        )
    return dp.PoissonSampledDpEvent(tree["sample_rate"], _event(tree["event"]))
