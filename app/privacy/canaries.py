"""What a job's canaries show: a lower bound on its privacy loss, from numbers that it released.

A canary is a synthetic unit whose clipped gradient is C along a coordinate of its own, in a tensor beside the model
(worker.training.canaries). A public coin puts it in or leaves it out. As many coordinates again, halved, belong to no
canary: decoys. A canary's score is the released number at its coordinate.

Two bounds, each wrong with probability at most 2.5 %, so that both hold with 95 %:

* **one run.** Of the `guesses` canaries with the highest and lowest scores, `right` are guessed right. Their number is
  fixed by the number of canaries. For an (ε, δ)-DP mechanism, P(right ≥ v) is at most the p-value below, however the
  scores depend on each other (Steinke, Nasr & Jagielski 2023, Theorem 5.2 and Appendix D).
* **the curve.** Coordinates share no record and no noise, so canaries that are in exceed a threshold independently,
  with probability p, and those that are out with probability q. Thresholds are quantiles of the decoys. With p ≥ p⁻
  and q ≤ q⁺ (Clopper & Pearson 1934), ε ≥ ln((p⁻ − δ)/q⁺), and μ ≥ Φ⁻¹(p⁻) − Φ⁻¹(q⁺) for a Gaussian mechanism
  (Kairouz, Oh & Viswanath 2015; Dong, Roth & Su 2022).

The claim is `exceeded` if bounds that fail with probability 10⁻⁶ contradict a point of the steps' own curve.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from app.contracts.base import Document, Epsilon
from app.privacy import gdp, pld
from app.privacy.accounting import epsilon_of
from app.privacy.events import Event

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Scores = NDArray[np.float64]

DOMAIN = b"scrimp/canaries/1/"
CONFIDENCE = 0.95
ALARM = 1e-6  # how often an honest job appears to exceed its claim, at most
SPREAD = (-1.0, -0.5, 0.0, 0.5, 1.0)  # of thresholds, in standard deviations around the middle
EXCEEDED = (
    "the audit's canaries show that the steps lost more privacy than their mechanism allows: do not rely on this job's "
    "certificate, and tell who runs the service"
)
STEP, POINTS = 0.02, 1500  # of the claimed curve


class Finding(Document):
    """What the canaries show, as the certificate says it.

    Attributes:
        included: how many canaries the coins put in.
        guesses, right: of the one-run bound.
        charged: ε of all that the job releases.
        epsilon_at_least: of the steps, at the charged δ; never "at most".
        mu_at_least: of the steps, if they are a Gaussian mechanism; null for sampled ones.
        exceeded: the steps lost more than their mechanism allows.
    """

    canaries: Annotated[int, Field(ge=1)]
    decoys: Annotated[int, Field(ge=1)]
    included: Annotated[int, Field(ge=0)]
    guesses: Annotated[int, Field(ge=1)]
    right: Annotated[int, Field(ge=0)]
    charged: Epsilon
    confidence: float = CONFIDENCE
    epsilon_at_least: Annotated[float, Field(ge=0.0)]
    mu_at_least: Annotated[float, Field(ge=0.0)] | None
    exceeded: bool
    statement: str


def coins(job_id: str, canaries: int) -> NDArray[np.bool_]:
    """True for each canary that is in: the first bits of SHAKE-256 of the job's id, which nobody chooses.

    >>> coins("job_a", 8).tolist() == coins("job_a", 9).tolist()[:8]
    True
    """
    import numpy as np  # noqa: PLC0415 - slow to import, and most of the app never asks

    bits = hashlib.shake_256(DOMAIN + job_id.encode()).digest(-(-canaries // 8))
    return np.unpackbits(np.frombuffer(bits, dtype=np.uint8))[:canaries].astype(np.bool_)


def decoys(canaries: int) -> int:
    """How many coordinates belong to no canary."""
    return canaries // 2


def found(released: Scores, job_id: str, canaries: int, steps: Event, charged: Epsilon) -> Finding:
    """What a job's canaries show.

    Args:
        released: (canaries + decoys,), as published.
        steps: the event of the job's steps, without its other releases.
        charged: the job's ε and δ.

    Raises:
        ValueError: there are not as many numbers as canaries and decoys.
    """
    import numpy as np  # noqa: PLC0415

    if released.shape != (canaries + decoys(canaries),):
        raise ValueError("these are not the numbers of so many canaries")
    scores = np.nan_to_num(released.astype(np.float64), nan=0.0)
    inside = coins(job_id, canaries)
    guesses, right = _guessed(scores[:canaries], inside)
    share, delta = (1.0 - CONFIDENCE) / 2.0, charged.delta
    exact = gdp.mu_of_event(steps)
    mu = gdp.mu_from_epsilon(max(epsilon_of(steps, delta).value, 1e-9), delta) if exact is None else exact
    thresholds = _thresholds(scores[canaries:], mu)
    pairs = rates(scores[:canaries], inside, thresholds, share / (2 * len(SPREAD)))
    one_run = epsilon_of_one_run(canaries, guesses, right, delta, share)
    epsilon = max(one_run, *(_epsilon(p, q, delta) for p, q in pairs))
    strict = rates(scores[:canaries], inside, thresholds, ALARM / (2 * len(SPREAD)))
    return Finding(
        canaries=canaries,
        decoys=decoys(canaries),
        included=int(inside.sum()),
        guesses=guesses,
        right=right,
        charged=charged,
        epsilon_at_least=epsilon,
        mu_at_least=max(0.0, *(_separation(p, q) for p, q in pairs)) if exact is not None else None,
        exceeded=exceeded(strict, steps, delta),
        statement=f"charged {math.ceil(100.0 * charged.value) / 100.0:.2f}; the audit found at least "
        f"{math.floor(100.0 * epsilon) / 100.0:.2f} ({100.0 * CONFIDENCE:.0f} %)",
    )


def p_value(canaries: int, guesses: int, right: int, epsilon: float, delta: float) -> float:
    """Bounds the probability of so many right guesses under (ε, δ)-DP.

    β + 2 m δ α, with β = P(X ≥ v) and α = max_i P(v > X ≥ v − i)/i for X ~ Binomial(guesses, 1/(1 + e^−ε)).
    """
    import numpy as np  # noqa: PLC0415
    from scipy import stats  # noqa: PLC0415 - slow to import

    rate = 1.0 / (1.0 + math.exp(-epsilon))
    beyond = float(stats.binom.sf(right - 1, guesses, rate))
    below = np.cumsum(stats.binom.pmf(np.arange(right - 1, -1, -1), guesses, rate))
    alpha = float((below / np.arange(1, right + 1)).max(initial=0.0))
    return min(1.0, beyond + 2.0 * canaries * delta * alpha)


def epsilon_of_one_run(canaries: int, guesses: int, right: int, delta: float, level: float) -> float:
    """The largest ε that so many right guesses refute, except with probability `level`; 0 if none.

    >>> round(epsilon_of_one_run(1000, 100, 75, 1e-4, 0.05), 3)  # the paper's example
    0.673
    """
    low, high = 0.0, 1.0
    while p_value(canaries, guesses, right, high, delta) < level:
        low, high = high, 2.0 * high
    for _ in range(40):
        middle = (low + high) / 2.0
        refuted = p_value(canaries, guesses, right, middle, delta) < level
        low, high = (middle, high) if refuted else (low, middle)
    return low


def rates(
    scores: Scores, inside: NDArray[np.bool_], thresholds: Sequence[float], level: float
) -> list[tuple[float, float]]:
    """For each threshold p⁻ and q⁺; each bound fails with probability at most `level`."""
    sides = scores[inside], scores[~inside]
    hits = [tuple(int((side > each).sum()) for side in sides) for each in thresholds]
    counts = [len(side) for side in sides]
    return [(_least(true, counts[0], level), _most(false, counts[1], level)) for true, false in hits]


def exceeded(pairs: Sequence[tuple[float, float]], steps: Event, delta: float) -> bool:
    """True if p > e^ε q + δ(ε), or 1 − q > e^ε (1 − p) + δ(ε), for a pair of rates and a point of the event's curve."""
    import numpy as np  # noqa: PLC0415

    epsilons = STEP * np.arange(POINTS)
    mu = gdp.mu_of_event(steps)
    if mu is None:
        curve = pld.deltas(steps, epsilons.tolist(), delta)
        if curve is None:  # no digits are left to tell: the claim then has a margin of its own
            return False
    else:
        curve = [gdp.delta_from_mu(mu, float(each)) for each in epsilons]
    grown, claimed = np.exp(epsilons), np.asarray(curve)
    return any(bool(((p - grown * q > claimed) | ((1.0 - q) - grown * (1.0 - p) > claimed)).any()) for p, q in pairs)


def _guessed(scores: Scores, inside: NDArray[np.bool_]) -> tuple[int, int]:
    """The highest tenth is guessed to be in, the lowest tenth to be out: how many guesses, and how many are right."""
    import numpy as np  # noqa: PLC0415

    order, tenth = np.argsort(scores, kind="stable"), len(scores) // 10
    return 2 * tenth, int(inside[order[-tenth:]].sum() + (~inside[order[:tenth]]).sum())


def _thresholds(of_decoys: Scores, mu: float) -> list[float]:
    """Where a μ-GDP mechanism's false-positive rates are Φ(−μ/2 − s), s of SPREAD. Decoys share no noise with
    canaries, so thresholds are independent of what is counted."""
    import numpy as np  # noqa: PLC0415
    from scipy import special  # noqa: PLC0415

    wanted = special.ndtr(-(mu / 2.0 + np.asarray(SPREAD)))
    return [float(each) for each in np.quantile(of_decoys, 1.0 - wanted)]


def _epsilon(p: float, q: float, delta: float) -> float:
    pairs = ((p, q), (1.0 - q, 1.0 - p))
    return max(0.0, *(math.log((high - delta) / low) for high, low in pairs if high > delta and low > 0.0))


def _separation(p: float, q: float) -> float:
    from scipy import special  # noqa: PLC0415

    return float(special.ndtri(p) - special.ndtri(q)) if p > 0.0 and q < 1.0 else 0.0


def _least(hits: int, trials: int, level: float) -> float:
    from scipy import stats  # noqa: PLC0415

    return float(stats.beta.ppf(level, hits, trials - hits + 1)) if hits else 0.0


def _most(hits: int, trials: int, level: float) -> float:
    from scipy import stats  # noqa: PLC0415

    return float(stats.beta.ppf(1.0 - level, hits + 1, trials - hits)) if hits < trials else 1.0
