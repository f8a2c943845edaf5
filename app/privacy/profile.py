"""What a guarantee means for an attacker who knows everything except whether one unit took part.

The attacker tests "took part" against "did not". Of the non-members it wrongly accuses a share α; then it finds at most
the share TPR(α) of the members. For a μ-GDP mechanism, exactly

    TPR(α) = Φ(Φ⁻¹(α) + μ),        advantage = max_α TPR(α) − α = 2Φ(μ/2) − 1.

Where batches are sampled, from the mechanism's whole (ε, δ) curve, never too small:

    TPR(α) = min over ε ≥ 0 of e^ε α + δ(ε) and 1 − e^−ε (1 − δ(ε) − α),        advantage = δ(0).

Source: Dong, Roth & Su 2022, "Gaussian Differential Privacy", Proposition 3 and Corollary 1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from app.errors import PrivacyError
from app.privacy import gdp, pld
from app.privacy.events import Event, read

DELTAS = (1e-5, 1e-6, 1e-7, 1e-8, 1e-9, 1e-10)
FALSE_POSITIVES = (0.001, 0.01, 0.1)
_STEP, _MOST = 0.01, 20.0  # the ε at which a sampled mechanism's curve is read


@dataclass(frozen=True)
class Profile:
    """A mechanism's guarantee in several ways; all are upper bounds.

    Attributes:
        mu: μ, if the mechanism is exactly μ-GDP.
        epsilons: δ → ε; ∞ where double precision cannot resolve δ.
        true_positives: false-positive rate α → TPR(α).
        advantage: the most that TPR exceeds α anywhere.
    """

    mu: float | None
    epsilons: dict[float, float]
    true_positives: dict[float, float]
    advantage: float


def profile(event: Event) -> Profile:
    """The profile of an account's event.

    >>> from app.privacy.events import noisy_sums
    >>> {a: round(tpr, 4) for a, tpr in profile(noisy_sums(1.0, 3.73, 1)).true_positives.items()}
    {0.001: 0.0024, 0.01: 0.0197, 0.1: 0.1553}
    """
    mu = gdp.mu_of_event(event)
    if mu is not None:
        return Profile(
            mu=mu,
            epsilons={delta: gdp.epsilon_from_mu(mu, delta) for delta in DELTAS},
            true_positives={alpha: _of_gaussian(mu, alpha) for alpha in FALSE_POSITIVES},
            advantage=math.erf(0.5 * mu / math.sqrt(2.0)),
        )
    grid = [_STEP * k for k in range(round(_MOST / _STEP) + 1)]
    curve = pld.deltas(event, grid, min(FALSE_POSITIVES) * 1e-3)
    return Profile(
        mu=None,
        epsilons={delta: pld.epsilon(event, delta) for delta in DELTAS},
        true_positives={alpha: _of_curve(grid, curve, alpha) for alpha in FALSE_POSITIVES},
        advantage=1.0 if curve is None else curve[0],
    )


def of_tree(stored: object) -> Profile:
    """The profile of an account's event in its stored form, for `scrimp certificates explain`.

    Raises:
        ValueError: an event's kind is unknown here.
    """
    try:
        return profile(read(stored))
    except PrivacyError as error:
        raise ValueError(error.message) from None


def _of_gaussian(mu: float, alpha: float) -> float:
    from scipy import special  # noqa: PLC0415 - slow to import

    return float(special.ndtr(special.ndtri(alpha) + mu))


def _of_curve(epsilons: list[float], deltas: list[float] | None, alpha: float) -> float:
    """Any point of the curve gives a bound; without a curve nothing is known."""
    if deltas is None:
        return 1.0
    bounds = [1.0]
    for epsilon, delta in zip(epsilons, deltas, strict=True):
        bounds.append(math.exp(epsilon) * alpha + delta)
        bounds.append(1.0 - math.exp(-epsilon) * (1.0 - delta - alpha))
    return min(bounds)
