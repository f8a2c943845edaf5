"""Released statistics: each class knows its event, its account, its line on the bill, its sensitivity and its noise.

A new one is a class here, in the union `Release`, and what releases it in the worker (worker.training.before for what
is released before the first step, worker.metrics.scores for scores).
"""

from __future__ import annotations

import math
from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, TypeAdapter, model_validator

from app.contracts.base import AccountName, Document
from app.contracts.hf import rank_groups
from app.privacy.events import SelfComposed, noisy_sums


class NoisyScore(Document):
    """A score: `times` releases of sums where one record weighs at most `sensitivity` in ℓ₂, and a unit
    `records_per_unit` times it. Their noise has std sensitivity · records_per_unit / noise_mu.

    Of each score both the sum and its complement are released: (s, Δ − s) of one record has ℓ₂ norm at most Δ. With
    `groups` of classes they are released for each group, and for all other classes together: the sums of one record's
    group change, and no others.

    With `ranks` the losses are those of single tokens, each clipped to [0, Δ], released for each of `rank_groups`. The
    T tokens of a record weigh 1/T each: what it adds to all sums is at least 0 and adds up to Δ, so that its ℓ₂ norm is
    at most Δ, however its tokens are spread over the groups.

    `ranking`: of a record with HIT h ∈ {0, 1} and NDCG g ∈ [0, h] at `cutoff`, three sums, of (g, h − g, 1 − h): they
    are at least 0 and add up to 1, so that their ℓ₂ norm is at most Δ = 1.
    """

    line: ClassVar[str] = "evaluation"
    what: str
    account: AccountName
    noise_mu: Annotated[float, Field(gt=0.0)]
    sensitivity: Annotated[float, Field(gt=0.0)] = 1.0
    times: Annotated[int, Field(ge=1)] = 1
    records_per_unit: Annotated[int, Field(ge=1)] = 1
    records: Annotated[int, Field(ge=1)]  # the public size of what is summed over; information, not a divisor
    groups: dict[str, tuple[int, ...]] = Field(default_factory=dict)
    ranks: Annotated[int, Field(ge=1)] | None = None  # how many tokens there are
    cutoff: Annotated[int, Field(ge=1)] | None = None  # k of a ranking

    @model_validator(mode="after")
    def _groups_are_disjoint(self) -> Self:
        places = [place for group in self.groups.values() for place in group]
        if len(set(places)) != len(places):
            raise ValueError("groups that overlap would let one record change several sums")
        if (self.what == "ranking") != (self.cutoff is not None) or (self.cutoff is not None and self.groups):
            raise ValueError("a ranking, and nothing else, has a cutoff; it has no groups")
        if self.ranks is not None and (self.what != "loss" or self.groups):
            raise ValueError("tokens have losses, and groups of their own")
        return self

    @property
    def metric(self) -> str:
        """The name that it is released under."""
        return f"ndcg@{self.cutoff}" if self.what == "ranking" else self.what

    @property
    def parts(self) -> frozenset[str]:
        """The names of what leaves with it, out of the same release."""
        if self.what == "ranking":
            return frozenset({f"hit@{self.cutoff}"})
        return frozenset(f"{self.what}:{name}" for name in self.group_names)

    @property
    def group_names(self) -> tuple[str, ...]:
        """Of the groups, in the order of their sums."""
        return tuple(self.groups if self.ranks is None else rank_groups(self.ranks))

    @property
    def noise_std(self) -> float:
        """Of each sum."""
        return self.sensitivity * self.records_per_unit / self.noise_mu

    @property
    def event(self) -> SelfComposed:
        """A sum in which one record weighs `sensitivity`, with std sensitivity/μ: Gaussian(1/μ), `times` times."""
        return noisy_sums(1.0, 1.0 / self.noise_mu, self.times)


class NoisyCount(NoisyScore):
    """The count of right predictions, which a record changes by one."""

    what: Literal["accuracy"] = "accuracy"
    released_by: ClassVar[Literal["noisy_count"]] = "noisy_count"


class NoisySum(NoisyScore):
    """The sum of losses, or of gains and misses of a ranking."""

    what: Literal["loss", "ranking"]
    released_by: ClassVar[Literal["noisy_sum"]] = "noisy_sum"


class NoisyHistogram(Document):
    """Of each item, of how many users' sequences it is: one histogram of the training part, before the first step.

    A user adds one to each of at most `max_items` bins: ℓ₂ norm at most √max_items. The noise has std √max_items /
    noise_mu, and the histogram is one Gaussian mechanism with noise multiplier 1 / noise_mu.
    """

    account: ClassVar[AccountName] = "train"
    line: ClassVar[str] = "frequencies"
    what: Literal["frequencies"] = "frequencies"
    noise_mu: Annotated[float, Field(gt=0.0)]
    max_items: Annotated[int, Field(ge=1)]

    @property
    def sensitivity(self) -> float:
        return math.sqrt(self.max_items)

    @property
    def noise_std(self) -> float:
        return self.sensitivity / self.noise_mu

    @property
    def event(self) -> SelfComposed:
        """A histogram of sensitivity √T with std √T/μ: Gaussian(1/μ), once."""
        return noisy_sums(1.0, 1.0 / self.noise_mu, 1)


class NoisyMean(Document):
    """The sum of the features of the training part, before the first step, each record's clipped to `max_norm`: its ℓ₂
    sensitivity. The noise has std max_norm / noise_mu, and the sum is one Gaussian mechanism with noise multiplier
    1 / noise_mu. Divided by the public `records` it is their mean."""

    account: ClassVar[AccountName] = "train"
    line: ClassVar[str] = "mean"
    what: Literal["mean"] = "mean"
    noise_mu: Annotated[float, Field(gt=0.0)]
    max_norm: Annotated[float, Field(gt=0.0)]
    records: Annotated[int, Field(ge=1)]

    @property
    def sensitivity(self) -> float:
        return self.max_norm

    @property
    def noise_std(self) -> float:
        """Of the sum."""
        return self.sensitivity / self.noise_mu

    @property
    def event(self) -> SelfComposed:
        """A sum of sensitivity B with std B/μ: Gaussian(1/μ), once."""
        return noisy_sums(1.0, 1.0 / self.noise_mu, 1)


Score = Annotated[NoisyCount | NoisySum, Field(discriminator="what")]
SCORE: TypeAdapter[NoisyCount | NoisySum] = TypeAdapter(Score)
BeforeFirstStep = NoisyHistogram | NoisyMean
Release = Annotated[NoisyCount | NoisySum | NoisyHistogram | NoisyMean, Field(discriminator="what")]
