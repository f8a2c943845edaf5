"""Released statistics: each class knows its event, account, line on the bill, sensitivity and noise.

A new statistic needs a class here, in the union `BeforeFirstStep`, and a file in worker.statistics that releases it.
Scores are metrics: core.contracts.metrics.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from typing import Annotated, ClassVar, Literal, Self, get_args

from pydantic import Field, TypeAdapter, model_validator

from core.contracts.base import AccountName, Document, Unit, is_none, is_one
from core.contracts.hf import rank_groups
from core.contracts.job_spec import LinearModel, Model, TransformerRecModel
from core.contracts.metrics import AUC_PARTS, CountedMetric, SummedMetric, confusion_parts, rule_of
from core.privacy.events import SelfComposed, noisy_sums

LIKELY_VARIANCE = 1.0 / 36.0  # of a target, as a part of its declared range
# The std of accuracy and AUC in parts of σ/n, about: exact for accuracy; for AUC at equal classes, more at a rare one.
ACCURACY_OF_TREE, AUC_OF_TREE = 2.0, 6.0
READABLE = 0.05  # noise above this part of a score's range hides what a model has learned
STDS = 2.0  # within so many std a score may be that of a model that has learned nothing
MORE = "a larger ε shows more, or a noise_mu of the evaluation that takes more of this ε"
LEARN = "a larger ε, more records or fewer features help"


def is_as_good(gain: float, std: float) -> bool:
    """Returns True if released numbers show that a model gains next to nothing over an answer that learned nothing;
    False if it may gain more, and the noise hides it.

    Args:
        gain: of the score, in parts of its range.
        std: of the noise on the gain.

    >>> is_as_good(0.01, 0.01), is_as_good(0.03, 0.02)
    (True, False)
    """
    return gain + STDS * std <= READABLE


class PlannedNoise(str):
    """A warning about a score's noise before it is known, about the largest that it can be. The released score takes
    its place."""


def with_std(value: float, std: float) -> str:
    """A score in words.

    >>> with_std(0.8444, 0.0085)
    '0.844 ± 0.0085'
    """
    return f"{value:.3g}" + (f" ± {std:.2g}" if std > 0.0 else "")


class ScoreNoise(Document):
    """A score that a job will release, and about the largest std of the noise on it.

    Attributes:
        threshold: of categories: the noisy count from which they are told.
    """

    name: str
    std: float
    threshold: float | None = None


class NoisyScore(Document):
    """A score: `times` releases of noisy sums.

    One record contributes at most Δ = `sensitivity` in ℓ₂ norm, and a unit `records_per_unit` times that, times `reach`
    where others' scores are computed from it. The noise has std sensitivity · records_per_unit · reach / noise_mu.

    Each score releases a sum and its complement: one record's (s, Δ − s) has ℓ₂ norm at most Δ. With `groups` of
    classes there is such a pair for each group, and one for all other classes together: a record changes only the sums
    of its own group.

    With `ranks` the losses are those of single tokens, each clipped to [0, Δ], and each of `rank_groups` has its sums.
    Each of a record's T tokens has weight 1/T. So the record's contributions to all sums are non-negative and add up to
    Δ. Their ℓ₂ norm is at most Δ for any spread of the tokens over the groups.

    `r_squared`: a record's squared error e and target u, both as parts of the declared range, contribute (e, 1 − e) and
    (u², u − u², 1 − u). Each pair or triple is non-negative and adds up to 1, so together their ℓ₂ norm is at most
    Δ = √2: the variance that R² is divided by is paid in the same release.

    `auc`: a record is in one cell of a histogram of scores by class. What is released are weighted sums of its cells,
    which a record moves by at most 1 in ℓ₂ norm (core.privacy.score_histogram).

    `macro_f1`: a record is in one cell of a histogram of true and predicted classes, `classes` of each. Each cell gets
    the noise.

    `ranking`: a record with HIT h ∈ {0, 1} and NDCG g ∈ [0, h] at `cutoff` contributes (g, h − g, 1 − h) to three sums.
    These are non-negative and add up to 1, so their ℓ₂ norm is at most Δ = 1.
    """

    line: ClassVar[str] = "evaluation"
    what: str
    account: AccountName
    noise_mu: Annotated[float, Field(gt=0.0)]
    sensitivity: Annotated[float, Field(gt=0.0)] = 1.0
    times: Annotated[int, Field(ge=1)] = 1
    records_per_unit: Annotated[int, Field(ge=1)] = 1
    reach: Annotated[int, Field(ge=1)] = Field(default=1, exclude_if=is_one)  # of TrainingMechanism
    records: Annotated[int, Field(ge=1)]  # the public number of records in the sum; information, not a divisor
    groups: dict[str, tuple[int, ...]] = Field(default_factory=dict)
    ranks: Annotated[int, Field(ge=1)] | None = None  # how many tokens there are
    cutoff: Annotated[int, Field(ge=1)] | None = None  # k of a ranking
    classes: Annotated[int, Field(ge=2)] | None = Field(default=None, exclude_if=is_none)  # K of `macro_f1`

    @model_validator(mode="after")
    def _groups_are_disjoint(self) -> Self:
        places = [place for group in self.groups.values() for place in group]
        if len(set(places)) != len(places):
            raise ValueError("groups must not overlap: one record would change several sums")
        if (self.what == "ranking") != (self.cutoff is not None) or (self.cutoff is not None and self.groups):
            raise ValueError("a ranking needs a cutoff and no groups; other scores must have no cutoff")
        if self.what == "r_squared" and (self.groups or self.sensitivity != rule_of("r_squared").bound):
            raise ValueError("r_squared needs a sensitivity of √2 and no groups")
        if self.what == "auc" and (self.groups or self.sensitivity != 1.0):
            raise ValueError("a histogram of scores has sensitivity 1 and no groups")
        if (self.what == "macro_f1") != (self.classes is not None):
            raise ValueError("`macro_f1` needs its number of classes, and nothing else has one")
        if self.what == "macro_f1" and (self.groups or self.sensitivity != 1.0):
            raise ValueError("a histogram of classes has sensitivity 1 and no groups")
        if self.ranks is not None and (self.what != "loss" or self.groups):
            raise ValueError("`ranks` needs losses, and no `groups`")
        return self

    @property
    def metric(self) -> str:
        """The name of the released number."""
        return f"ndcg@{self.cutoff}" if self.what == "ranking" else self.what

    @property
    def parts(self) -> frozenset[str]:
        """The names of the numbers derived from the same release."""
        if self.what == "ranking":
            return frozenset({f"hit@{self.cutoff}"})
        if self.what == "r_squared":
            return frozenset({"rmse"})
        if self.what == "auc":
            return frozenset(AUC_PARTS)
        if self.classes is not None:
            return frozenset(confusion_parts(self.classes))
        return frozenset(f"{self.what}:{name}" for name in self.group_names)

    @property
    def group_names(self) -> tuple[str, ...]:
        """The groups' names, in the order of their sums."""
        return tuple(self.groups if self.ranks is None else rank_groups(self.ranks))

    @property
    def noise_std(self) -> float:
        """The noise's std on each sum."""
        return self.sensitivity * self.records_per_unit * self.reach / self.noise_mu

    @property
    def planned(self) -> tuple[ScoreNoise, ...]:
        """The means that it releases as whole scores, each with the std at the public number of records.

        The std of the ratio a = S̃ / (S̃ + M̃) is σ_noise · √cells · √(a² + (1−a)²) / n, times Δ/Δ: largest at a = 0
        and 1. A ranking's is at most √2 times σ_noise / n. R² is divided by the target's variance as a part of its
        range: 1/36, that of a normal one six deviations wide; a flat one has 1/12. Of K × K
        cells, each of the K rows of n/K records has noise of K σ_noise/n on its recall at most; so have their mean,
        macro-F1 and accuracy.
        """
        if self.what == "ranking":
            std = math.sqrt(2.0) * self.noise_std / self.records
            return ScoreNoise(name=self.metric, std=std), ScoreNoise(name=f"hit@{self.cutoff}", std=std)
        if self.what == "r_squared":
            return (ScoreNoise(name=self.metric, std=self.noise_std / self.records / LIKELY_VARIANCE),)
        if self.what == "auc":
            std = self.noise_std / self.records
            accuracy = ScoreNoise(name="accuracy", std=ACCURACY_OF_TREE * std)
            return ScoreNoise(name="auc", std=AUC_OF_TREE * std), accuracy
        if self.classes is not None:
            std = self.classes * self.noise_std / self.records
            return ScoreNoise(name=self.metric, std=std), ScoreNoise(name="accuracy", std=std)
        cells = len(self.group_names) + 1
        return (ScoreNoise(name=self.metric, std=self.noise_std * math.sqrt(cells) / self.records),)

    @property
    def event(self) -> SelfComposed:
        """The event: a sum of this sensitivity with std sensitivity/μ is Gaussian(1/μ), `times` times."""
        return noisy_sums(1.0, 1.0 / self.noise_mu, self.times)


class NoisyCount(NoisyScore):
    """The noisy count of correct predictions, or counts by class and score, or by true and predicted class; a record
    changes them by at most one."""

    what: CountedMetric = "accuracy"
    released_by: ClassVar[Literal["noisy_count"]] = "noisy_count"


class NoisySum(NoisyScore):
    """The noisy sum of losses or other values, or of a ranking's gains and misses."""

    what: Literal[SummedMetric, "ranking"]
    released_by: ClassVar[Literal["noisy_sum"]] = "noisy_sum"


class NoisySumBefore(Document):
    """One noisy sum over the training part, before the first step.

    The noise has std sensitivity / noise_mu, so the sum is one Gaussian mechanism with noise multiplier 1 / noise_mu.
    """

    account: ClassVar[AccountName] = "train"
    line: ClassVar[str]
    what: str
    noise_mu: Annotated[float, Field(gt=0.0)]

    @classmethod
    @abstractmethod
    def of(cls, model: Model, records: int) -> Self | None:
        """The release that a job's model asks for, if it does."""

    @abstractmethod
    def check_unit(self, unit: Unit, records_per_unit: set[int]) -> None:
        """Raises ValueError if a unit could contribute more than the sensitivity."""

    @property
    @abstractmethod
    def sensitivity(self) -> float:
        """The ℓ₂ norm of what one unit contributes, at most."""

    @property
    def noise_std(self) -> float:
        """The noise's std on each number."""
        return self.sensitivity / self.noise_mu

    @property
    def event(self) -> SelfComposed:
        """The event: a sum of sensitivity Δ with std Δ/μ is Gaussian(1/μ), once."""
        return noisy_sums(1.0, 1.0 / self.noise_mu, 1)


class NoisyHistogram(NoisySumBefore):
    """For each item the number of users with it. A user adds one to each of at most `max_items` bins."""

    line: ClassVar[str] = "frequencies"
    # Pointer and detail: a study's trials share no release but the mean, which its first trial makes.
    refused_in_studies: ClassVar[tuple[str, str]] = (
        "/model/re_attention/frequencies",
        "a study's trials would each count the items again: declare them with the data set, and use `public`",
    )
    what: Literal["frequencies"] = "frequencies"
    max_items: Annotated[int, Field(ge=1)]

    @classmethod
    def of(cls, model: Model, records: int) -> Self | None:
        """See NoisySumBefore.of."""
        if not isinstance(model, TransformerRecModel) or model.re_attention.noise_mu is None:
            return None
        return cls(noise_mu=model.re_attention.noise_mu, max_items=model.max_length)

    def check_unit(self, unit: Unit, records_per_unit: set[int]) -> None:
        """Raises ValueError unless a unit is one record."""
        if records_per_unit != {1}:
            raise ValueError("a histogram of items needs one record per unit")

    @property
    def sensitivity(self) -> float:
        """√max_items."""
        return math.sqrt(self.max_items)


class NoisyMean(NoisySumBefore):
    """The sum of the features, divided by the public `records`: a mean. Each record is clipped to `max_norm`."""

    line: ClassVar[str] = "mean"
    what: Literal["mean"] = "mean"
    max_norm: Annotated[float, Field(gt=0.0)]
    records: Annotated[int, Field(ge=1)]

    @classmethod
    def of(cls, model: Model, records: int) -> Self | None:
        """See NoisySumBefore.of."""
        center = model.center if isinstance(model, LinearModel) else None
        return cls(noise_mu=center.noise_mu, max_norm=center.max_norm, records=records) if center is not None else None

    def check_unit(self, unit: Unit, records_per_unit: set[int]) -> None:
        """Raises ValueError unless records are protected."""
        if unit != "example":
            raise ValueError("a mean of features needs the unit `example`")

    @property
    def sensitivity(self) -> float:
        """`max_norm`."""
        return self.max_norm


Score = Annotated[NoisyCount | NoisySum, Field(discriminator="what")]
SCORE: TypeAdapter[NoisyCount | NoisySum] = TypeAdapter(Score)
# A new class comes last: a statistic's place among its job's addresses its noise, and stored jobs must replay the same.
BeforeFirstStep = NoisyHistogram | NoisyMean
BEFORE: tuple[type[BeforeFirstStep], ...] = get_args(BeforeFirstStep)
Release = Annotated[NoisyCount | NoisySum | BeforeFirstStep, Field(discriminator="what")]
