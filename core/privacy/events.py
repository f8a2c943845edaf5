"""Events: a mechanism's effect on one account, as frozen classes with one JSON form.

    Composed        {"kind": "composed", "events": [event, …]}
    SelfComposed    {"kind": "self_composed", "count": T, "event": event}
    Gaussian        {"kind": "gaussian", "noise_multiplier": σ}                   noise std σ at sensitivity 1
    PoissonSampled  {"kind": "poisson_sampled", "sample_rate": q, "event": {"kind": "gaussian", …}}
    TruncatedSampled  {"kind": "truncated_sampled", "sample_rate": q, "records": N, "largest_batch": B, "event": …}
    BestOf          {"kind": "best_of", "weights": [w_1, …], "event": event}      the best of K runs, P(K = k) = w_k/Σw

The classes mirror dp_accounting's `DpEvent`, but are stored, signed and read without it. Every accountant here is a
pure function of an event: it accumulates nothing, so repeated calls give the same answer.

`event.model_dump(mode="json")` writes the JSON form and `read` reads it. Documents that contain events do both
automatically.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple, assert_never

from pydantic import Field, TypeAdapter, ValidationError, model_validator

from core.contracts.base import AccountName, Document
from core.contracts.hpo import MOST_RUNS
from core.errors import PrivacyError

if TYPE_CHECKING:
    from dp_accounting import DpEvent

UNKNOWN = "no accountant knows an event of this kind"


class Gaussian(Document):
    """One noisy sum: noise of std `noise_multiplier` added to a sum of sensitivity 1.

    >>> Gaussian(noise_multiplier=2.0).model_dump(mode="json")
    {'kind': 'gaussian', 'noise_multiplier': 2.0}
    """

    kind: Literal["gaussian"] = "gaussian"
    noise_multiplier: float


class PoissonSampled(Document):
    """A noisy sum over a Poisson sample: each unit takes part independently with probability `sample_rate`."""

    kind: Literal["poisson_sampled"] = "poisson_sampled"
    sample_rate: float
    event: Gaussian


class Truncation(Document):
    """Batches of at most `largest_batch` of at most `records` units: of a larger draw, so many at random."""

    records: int
    largest_batch: int

    def overflow(self, sample_rate: float) -> float:
        """P(Bin(N, q) ≥ B), rounded up: the chance that one more unit would find the batch full."""
        from scipy import special  # noqa: PLC0415 - slow to import

        if self.largest_batch > self.records:
            return 0.0
        tail = special.betainc(self.largest_batch, self.records - self.largest_batch + 1, sample_rate)
        return min(1.0, float(tail) * (1.0 + 1e-9) + 1e-300)


class TruncatedSampled(Truncation):
    """A noisy sum over a truncated Poisson sample.

    If the others' draw has fewer than B units, one more unit with rate q is added. Else it takes part with probability
    at most q, and takes the place of another: it changes the sum by at most 2. So the mechanism, with one unit more and
    without, is a mixture over the others' draws of Poisson-sampled Gaussians with noise multiplier σ or σ/2.
    Divergences are jointly convex, and the second is the larger: with weight at most w = P(Bin(N, q) ≥ B), for any
    number of units up to N, it costs at most (1 − w) times the first and w times the second, in hockey-stick divergence
    and in e^{(α−1)D_α} (docs/theorems.md).

    Source: the mixture is that of dp_accounting's TruncatedSubsampledGaussianDpEvent (arXiv 2508.15089), whose second
    part is larger.
    """

    kind: Literal["truncated_sampled"] = "truncated_sampled"
    sample_rate: float
    event: Gaussian


Weights = Annotated[tuple[Annotated[int, Field(ge=0, le=2**53)], ...], Field(min_length=2, max_length=MOST_RUNS)]


class BestOf(Document):
    """The best of K independent runs of the same event, by a score that is part of it. K is secret, and at least 1.

    `weights`: P(K = k) is the k-th one over their sum. The event has plain Gaussians alone (core.privacy.best_of).
    """

    kind: Literal["best_of"] = "best_of"
    weights: Weights
    event: Event

    @model_validator(mode="after")
    def _one_run(self) -> BestOf:
        if self.weights[0] < 1:
            raise ValueError("one run must be possible: without it the price has no bound")
        return self


class SelfComposed(Document):
    """The same event `count` times, each with fresh noise and a fresh sample."""

    kind: Literal["self_composed"] = "self_composed"
    count: int
    event: Event


class Composed(Document):
    """Several events, in any order."""

    kind: Literal["composed"] = "composed"
    events: tuple[Event, ...]


Event = Annotated[
    Gaussian | PoissonSampled | TruncatedSampled | BestOf | SelfComposed | Composed, Field(discriminator="kind")
]
BestOf.model_rebuild()
SelfComposed.model_rebuild()
Composed.model_rebuild()
_EVENT: TypeAdapter[Gaussian | PoissonSampled | TruncatedSampled | BestOf | SelfComposed | Composed] = TypeAdapter(
    Event
)


class AccountEvents(Document):
    """The events on each account; `holdout` is None if the hold-out is never touched."""

    train: Composed
    holdout: Composed | None

    def of(self, account: AccountName) -> Composed | None:
        """Returns the events on one account."""
        return self.train if account == "train" else self.holdout

    @classmethod
    def read(cls, stored: object) -> AccountEvents:
        """Reads a quote's events from their JSON form.

        Raises:
            PrivacyError: an event's kind is unknown here.
        """
        try:
            return cls.model_validate(stored)
        except ValidationError:
            raise PrivacyError(UNKNOWN) from None


class Leaf(NamedTuple):
    """One noisy sum over a Poisson sample of rate q. q = 1 is the plain Gaussian mechanism.

    `overflow`: w of a truncated sample; see TruncatedSampled. `weights`: of the best of K runs, each a plain Gaussian
    of this noise; see BestOf.
    """

    sample_rate: float
    noise_multiplier: float
    overflow: float = 0.0
    weights: tuple[int, ...] = ()

    @property
    def is_plain(self) -> bool:
        """True for a Gaussian over all units."""
        return self.sample_rate >= 1.0 and not self.weights

    @property
    def parts(self) -> tuple[Leaf, Leaf]:
        """The two mechanisms that a truncated one mixes: with a place left, and with another's place taken."""
        return self._replace(overflow=0.0), Leaf(self.sample_rate, self.noise_multiplier / 2.0)


def read(stored: object) -> Event:
    """Reads an event from its JSON form.

    Raises:
        PrivacyError: an event's kind is unknown here.
    """
    try:
        return _EVENT.validate_python(stored)
    except ValidationError:
        raise PrivacyError(UNKNOWN) from None


def composed(events: Iterable[Event]) -> Composed:
    """Composes several events into one."""
    return Composed(events=tuple(events))


def of_two_queries(noise_multiplier: float) -> float:
    """Returns the joint noise multiplier of two Gaussian queries on one batch, each with σ: σ/√2, rounded down."""
    return math.nextafter(noise_multiplier / math.sqrt(2.0), 0.0)


def noisy_sums(
    sample_rate: float, noise_multiplier: float, count: int, truncation: Truncation | None = None
) -> SelfComposed:
    """Returns `count` noisy sums, each over a fresh Poisson sample of rate q, perhaps truncated; q = 1 takes every
    unit."""
    event = Gaussian(noise_multiplier=noise_multiplier)
    if truncation is not None:
        members = truncation.model_dump()
        return SelfComposed(count=count, event=TruncatedSampled(sample_rate=sample_rate, event=event, **members))
    if sample_rate < 1.0:
        return SelfComposed(count=count, event=PoissonSampled(sample_rate=sample_rate, event=event))
    return SelfComposed(count=count, event=event)


def gradient_sums(
    sample_rate: float,
    noise_multiplier: float,
    steps: int,
    double_steps: int = 0,
    truncation: Truncation | None = None,
) -> SelfComposed | Composed:
    """T-fold Gaussian(σ) for full batch, T-fold PoissonSampled(q, Gaussian(σ)) for Poisson sampling.

    Args:
        double_steps: how many of the T steps query their batch twice. Two Gaussian queries with noise multiplier σ on
            one batch equal one query with σ/√2, even if releases of earlier steps chose the second query. The sample is
            drawn once.
    """
    if double_steps == 0:
        return noisy_sums(sample_rate, noise_multiplier, steps, truncation)
    single_steps = steps - double_steps
    single = [noisy_sums(sample_rate, noise_multiplier, single_steps, truncation)] if single_steps > 0 else []
    return composed([*single, noisy_sums(sample_rate, of_two_queries(noise_multiplier), double_steps, truncation)])


def leaves(event: Event) -> Counter[Leaf]:
    """Counts each distinct noisy sum in `event`.

    Composition is commutative for every accountant used here, so ε depends on this multiset alone.
    """
    match event:
        case Composed():
            return sum((leaves(each) for each in event.events), Counter())
        case SelfComposed():
            return Counter({leaf: count * event.count for leaf, count in leaves(event.event).items()})
        case Gaussian():
            return Counter({Leaf(1.0, event.noise_multiplier): 1})
        case PoissonSampled():
            return Counter({Leaf(event.sample_rate, event.event.noise_multiplier): 1})
        case TruncatedSampled():
            overflow = event.overflow(event.sample_rate)
            return Counter({Leaf(event.sample_rate, event.event.noise_multiplier, overflow): 1})
        case BestOf():
            return _best_of(event.weights, leaves(event.event))
        case _:
            assert_never(event)


def _best_of(weights: tuple[int, ...], run: Counter[Leaf]) -> Counter[Leaf]:
    """The leaf of the best of K runs: the Gaussians of one run are together one Gaussian."""
    if not all(leaf.is_plain for leaf in run):
        raise PrivacyError("the best of a secret number of runs has a price for full batches alone")
    precision = math.fsum(count / leaf.noise_multiplier**2 for leaf, count in run.items())
    return Counter({Leaf(1.0, precision**-0.5, weights=weights): 1} if precision > 0.0 else {})


def to_dp_event(event: Event) -> DpEvent:
    """Converts an event to a `dp_accounting.DpEvent`."""
    import dp_accounting as dp  # noqa: PLC0415 - slow to import: only pricing pays for it

    match event:
        case Composed():
            return dp.ComposedDpEvent([to_dp_event(each) for each in event.events])
        case SelfComposed():
            return dp.SelfComposedDpEvent(to_dp_event(event.event), event.count)
        case Gaussian():
            return dp.GaussianDpEvent(event.noise_multiplier)
        case PoissonSampled():
            return dp.PoissonSampledDpEvent(event.sample_rate, to_dp_event(event.event))
        case TruncatedSampled() if event.overflow(event.sample_rate) == 0.0:  # no draw is larger: nothing is cut
            return dp.PoissonSampledDpEvent(event.sample_rate, to_dp_event(event.event))
        case TruncatedSampled():
            return dp.TruncatedSubsampledGaussianDpEvent(
                event.records, event.sample_rate, event.largest_batch, event.event.noise_multiplier
            )
        case BestOf():
            raise PrivacyError("dp_accounting has no event for the best of a secret number of runs")
        case _:
            assert_never(event)
