"""What a job's canaries show: a lower bound on its privacy loss, from numbers that it released.

A canary is a synthetic unit that a public coin puts in or leaves out. There are two kinds of canaries:

* **gradients**: its clipped gradient is C along a coordinate of its own, in a tensor beside the model
  (worker.training.canaries). As many coordinates again, halved, belong to no canary: decoys. A canary's score is the
  released number at its coordinate.
* **records**: a random record, sequence or text that the model trains on. A canary's score is by how much the way from
  the first to the released weights lowers its loss (worker.training.planted).

Each bound is wrong with probability at most 2.5 %, so that two hold with 95 %:

* **one run**, for all kinds. Of the `guesses` canaries with the highest and lowest scores, `right` are guessed right.
  Their number is fixed by the number of canaries. The bounds hold however scores depend on each other
  (core.privacy.one_run): on ε, and for records on the μ of a Gaussian mechanism.
* **the curve**, for gradients alone. Coordinates share no record and no noise, so canaries that are in exceed a
  threshold independently, with probability p, and those that are out with probability q. Thresholds are quantiles of
  the decoys. With p ≥ p⁻ and q ≤ q⁺ (Clopper & Pearson 1934), ε ≥ ln((p⁻ − δ)/q⁺), and μ ≥ Φ⁻¹(p⁻) − Φ⁻¹(q⁺) for a
  Gaussian mechanism (Kairouz, Oh & Viswanath 2015; Dong, Roth & Su 2022).

The claim is `exceeded` if bounds that fail with probability 10⁻⁶ contradict a point of the steps' own curve.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from core.contracts.audit import CanaryKind
from core.contracts.base import Document, Epsilon
from core.privacy import gdp, one_run, pld
from core.privacy.accounting import epsilon_of
from core.privacy.events import Event

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Scores = NDArray[np.float64]

DOMAIN = b"scrimp/canaries/1/"
CONFIDENCE = 0.95
SHARE = (1.0 - CONFIDENCE) / 2.0  # how often each of two bounds is wrong, at most
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
        kind: what a canary is.
        included: how many canaries the coins put in.
        guesses, right: of the one-run bound.
        charged: ε of all that the job releases.
        epsilon_at_least: of the steps, at the charged δ; never "at most".
        mu_at_least: of the steps, if they are a Gaussian mechanism; null for sampled ones.
        exceeded: the steps lost more than their mechanism allows.
    """

    kind: CanaryKind = "gradients"
    canaries: Annotated[int, Field(ge=1)]
    decoys: Annotated[int, Field(ge=0)]
    included: Annotated[int, Field(ge=0)]
    guesses: Annotated[int, Field(ge=1)]
    right: Annotated[int, Field(ge=0)]
    charged: Epsilon
    confidence: float = CONFIDENCE
    epsilon_at_least: Annotated[float, Field(ge=0.0)]
    mu_at_least: Annotated[float, Field(ge=0.0)] | None
    exceeded: bool
    statement: str


@dataclass(frozen=True)
class _Shown:
    """What one kind of canaries shows. `mu`: as if the steps were a Gaussian mechanism. `epsilon`: beside the one-run
    bound."""

    mu: float
    exceeded: bool
    epsilon: float = 0.0


def coins(job_id: str, canaries: int) -> NDArray[np.bool_]:
    """True for each canary that is in: the first bits of SHAKE-256 of the job's id, which nobody chooses.

    >>> coins("job_a", 8).tolist() == coins("job_a", 9).tolist()[:8]
    True
    """
    import numpy as np  # noqa: PLC0415 - slow to import, and most of the app never asks

    bits = hashlib.shake_256(DOMAIN + job_id.encode()).digest(-(-canaries // 8))
    return np.unpackbits(np.frombuffer(bits, dtype=np.uint8))[:canaries].astype(np.bool_)


def public_words(job_id: str, purpose: str, count: int) -> NDArray[np.uint64]:
    """The first `count` words that a job's synthetic records are made of: SHAKE-256 of `purpose` and the job's id.

    >>> public_words("job_a", "labels", 2).tolist() == public_words("job_a", "labels", 3).tolist()[:2]
    True
    """
    import numpy as np  # noqa: PLC0415

    stream = hashlib.shake_256(DOMAIN + f"{purpose}/{job_id}".encode()).digest(8 * count)
    return np.frombuffer(stream, dtype="<u8").astype(np.uint64)


def decoys(canaries: int, kind: CanaryKind = "gradients") -> int:
    """How many coordinates belong to no canary."""
    return canaries // 2 if kind == "gradients" else 0


def found(
    released: Scores, job_id: str, canaries: int, steps: Event, charged: Epsilon, kind: CanaryKind = "gradients"
) -> Finding:
    """What a job's canaries show.

    Args:
        released: (canaries + decoys,), as published.
        steps: the event of the job's steps, without its other releases.
        charged: the job's ε and δ.

    Raises:
        ValueError: there are not as many numbers as canaries and decoys.
    """
    import numpy as np  # noqa: PLC0415

    if released.shape != (canaries + decoys(canaries, kind),):
        raise ValueError("these are not the numbers of so many canaries")
    scores = np.nan_to_num(released.astype(np.float64), nan=0.0)
    inside = coins(job_id, canaries)
    guesses, right = _guessed(scores[:canaries], inside)
    if kind == "gradients":
        finding = _by_rates(scores, inside, steps, charged.delta)
    else:
        finding = _by_guesses(canaries, guesses, right, steps, charged.delta)
    epsilon = max(one_run.epsilon_at_least(canaries, guesses, right, charged.delta, SHARE), finding.epsilon)
    return Finding(
        kind=kind,
        canaries=canaries,
        decoys=decoys(canaries, kind),
        included=int(inside.sum()),
        guesses=guesses,
        right=right,
        charged=charged,
        epsilon_at_least=epsilon,
        mu_at_least=finding.mu if gdp.mu_of_event(steps) is not None else None,
        exceeded=finding.exceeded,
        statement=f"charged {math.ceil(100.0 * charged.value) / 100.0:.2f}; the audit found at least "
        f"{math.floor(100.0 * epsilon) / 100.0:.2f} ({100.0 * CONFIDENCE:.0f} %)",
    )


def _by_guesses(canaries: int, guesses: int, right: int, steps: Event, delta: float) -> _Shown:
    """By the one-run bounds for f-DP."""
    mu = gdp.mu_of_event(steps)
    claimed = one_run.gaussian(mu) if mu is not None else _inverse(steps, delta)
    return _Shown(
        mu=one_run.mu_at_least(canaries, guesses, right, SHARE) if mu is not None else 0.0,
        exceeded=claimed is not None and one_run.refuted(claimed, canaries, guesses, right, ALARM),
    )


def _by_rates(scores: Scores, inside: NDArray[np.bool_], steps: Event, delta: float) -> _Shown:
    """By rates at thresholds: for canaries that share no noise. `scores` ends with the decoys'."""
    canaries = len(inside)
    exact = gdp.mu_of_event(steps)
    mu = gdp.mu_from_epsilon(max(epsilon_of(steps, delta).value, 1e-9), delta) if exact is None else exact
    thresholds = _thresholds(scores[canaries:], mu)
    pairs = rates(scores[:canaries], inside, thresholds, SHARE / (2 * len(SPREAD)))
    strict = rates(scores[:canaries], inside, thresholds, ALARM / (2 * len(SPREAD)))
    return _Shown(
        mu=max(0.0, *(_separation(p, q) for p, q in pairs)),
        exceeded=exceeded(strict, steps, delta),
        epsilon=max(_epsilon(p, q, delta) for p, q in pairs),
    )


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

    curve = _curve(steps, delta)
    if curve is None:
        return False
    grown, claimed = np.exp(_epsilons()), np.asarray(curve)
    return any(bool(((p - grown * q > claimed) | ((1.0 - q) - grown * (1.0 - p) > claimed)).any()) for p, q in pairs)


def _epsilons() -> Scores:
    import numpy as np  # noqa: PLC0415

    return STEP * np.arange(POINTS, dtype=np.float64)


def _curve(steps: Event, delta: float) -> list[float] | None:
    """δ(ε) at `_epsilons`; None if no digits are left to tell: the claim then has a margin of its own."""
    mu, epsilons = gdp.mu_of_event(steps), _epsilons().tolist()
    if mu is not None:
        return [gdp.delta_from_mu(mu, each) for each in epsilons]
    losses = pld.losses(steps, delta)
    return None if losses is None else losses.deltas(epsilons)


def _inverse(steps: Event, delta: float) -> one_run.Inverse | None:
    curve = _curve(steps, delta)
    return None if curve is None else one_run.of_curve(_epsilons().tolist(), curve)


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
