"""A job's steps: how many, who takes part in each, and how their noise hangs together."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Annotated, ClassVar, Literal

from pydantic import Field, model_validator

from core.contracts.base import Document, Steps
from core.errors import InvalidRequest

MOST_STEPS = 10_000_000


class FullBatch(Document):
    """Every record takes part in every step."""

    is_sampled: ClassVar[bool] = False
    takes_all: ClassVar[bool] = True
    kind: Literal["full_batch"] = "full_batch"

    def batch(self, records: int) -> int:
        """L, the divisor of every step."""
        return records

    def rate(self, records: int) -> float:
        """q: the chance of a record to take part in a step, where the price rests on that chance; else 1."""
        return 1.0

    def steps_an_epoch(self, records: int) -> Fraction:
        """How many steps take each record once, in the mean."""
        return Fraction(1)


class Poisson(Document):
    """Each record takes part in a step independently, with probability expected_batch_size / records.

    A step computes as many rows as no draw exceeds, or `largest_batch` records' where that is given: of a larger draw
    so many are chosen, uniformly. A record may then take another's place and change the sum by 2 C. The price counts
    that with the chance of a larger draw of all slots. About 1.05 L + 7.5 √L, L = expected_batch_size, costs nothing
    that shows. Look at the charge, not at σ: an `rdp` filter of order α weighs a rare replaced record by
    e^{(α − 1) D}. Studies and audits refuse it.
    """

    is_sampled: ClassVar[bool] = True
    takes_all: ClassVar[bool] = False
    kind: Literal["poisson"] = "poisson"
    expected_batch_size: Annotated[int, Field(strict=True, ge=1)]
    largest_batch: Annotated[int, Field(strict=True, ge=1)] | None = Field(
        default=None, exclude_if=lambda largest: largest is None
    )

    @model_validator(mode="after")
    def _truncates_few(self) -> Poisson:
        if self.largest_batch is not None and self.largest_batch < self.expected_batch_size:
            raise ValueError("`largest_batch` must be at least `expected_batch_size`")
        return self

    def batch(self, records: int) -> int:
        """L, the divisor of every step."""
        return self.expected_batch_size

    def rate(self, records: int) -> float:
        """q = L / records."""
        return self.expected_batch_size / records

    def steps_an_epoch(self, records: int) -> Fraction:
        """See FullBatch.steps_an_epoch."""
        return Fraction(records, self.expected_batch_size)


class Cyclic(Document):
    """Each record belongs to one of `batches` secret groups, drawn once, and step t takes group t mod `batches`.

    A record takes part once in every `batches` steps, and each time is charged whole: nothing is won by the draw. So
    the price is exact, under either filter, and `noise` may be correlated.
    """

    is_sampled: ClassVar[bool] = False
    takes_all: ClassVar[bool] = False
    kind: Literal["cyclic"] = "cyclic"
    batches: Annotated[int, Field(strict=True, ge=2, le=65_535)]

    def batch(self, records: int) -> int:
        """L = records / batches, rounded, at least 1."""
        return max(1, round(records / self.batches))

    def rate(self, records: int) -> float:
        """1: the price does not rest on chance."""
        return 1.0

    def steps_an_epoch(self, records: int) -> Fraction:
        """See FullBatch.steps_an_epoch."""
        return Fraction(self.batches)


class CorrelatedNoise(Document):
    """Step t adds z_t − decay · z_{t−1}: each step takes back a part of the noise of the step before.

    z_{t−1} is made again from its key, so nothing is kept. What a record adds in one step shows in later ones too, and
    z is scaled up for that: by the root of (1 + λᵇ) / ((1 − λ²)(1 − λᵇ)), for λ = `decay` and records that take part
    every b steps. For λᵇ near 0 the noise of a sum of many steps falls by √((1 − λ)/(1 + λ)), and each step's grows. It
    pays where b is well above 1/(1 − λ): with `cyclic` sampling of at least 2/(1 − λ) batches; in full batch the
    factors cancel. It costs no memory, and twice the time to make noise. Refused: Poisson sampling, `adaptive`
    clipping, `dp2_*`, `hpo`; "auto" has no rule for its rate.

    Source: Kalinin, McKenna, Pagh & Lampert 2026, "DP-λCGD: efficient noise correlation for differentially private
    model training".
    """

    kind: Literal["correlated"] = "correlated"
    decay: Annotated[float, Field(strict=True, gt=0.0, le=0.999)]


Sampling = Annotated[FullBatch | Poisson | Cyclic, Field(discriminator="kind")]


class Length(Document):
    """steps, or epochs: floor(epochs · records / expected_batch_size), at least 1.

    `steps` "auto", the default of a job: a number from public facts, which admission puts in its place (app.hpo.rates).
    """

    steps: Steps | Literal["auto"] | None = None
    epochs: Annotated[float, Field(strict=True, gt=0.0, le=1e7)] | None = None

    @model_validator(mode="after")
    def _one_of(self) -> Length:
        if (self.steps is None) == (self.epochs is None):
            raise ValueError("give either `steps` or `epochs`")
        return self

    def total(self, steps_an_epoch: Fraction) -> int:
        """Returns T, exact for the decimal number in the request.

        Raises:
            InvalidRequest: more than MOST_STEPS.
            ValueError: `steps` is still "auto".
        """
        if self.steps == "auto":
            raise ValueError("`steps` is still auto")
        if self.epochs is None:
            return self.steps or 0
        steps = max(1, math.floor(Fraction(repr(self.epochs)) * steps_an_epoch))
        if steps > MOST_STEPS:
            raise InvalidRequest.at("/length/epochs", f"that is {steps} steps; at most {MOST_STEPS} are allowed")
        return steps
