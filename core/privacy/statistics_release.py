"""The one release of a job without a model: the queries' integer sums side by side, with Gaussian noise.

    R_q = S_q + N(0, s_q² I)       s_q = σ k Δ_q / √share_q, rounded up        Σ share_q = 1

Guarantee: S moves by at most 1/σ in the norm that divides query q's numbers by s_q, for neighbours that differ in one
unit. So R is one Gaussian mechanism with noise multiplier σ (docs/decisions/0042).
"""

from __future__ import annotations

import math
from typing import Annotated, Literal

from pydantic import Field

from core.contracts.base import Document
from core.contracts.queries import Query

ReleaseLine = Literal["statistics", "synthetic rows"]
ROUNDED_UP = 1.0 + 2.0**-40  # more than all roundings of shares, roots and products


class ReleasedQuery(Document):
    """A query's part of the release.

    Attributes:
        quarters: 4 Δ², of one record.
        share: of μ².
    """

    kind: str
    columns: tuple[str, ...] = ()
    quarters: Annotated[int, Field(ge=1)]
    share: Annotated[float, Field(gt=0.0, le=1.0)]

    def noise_std(self, sigma: float, records_per_unit: int) -> float:
        """s_q, where a record's part is in units of 1.

        Args:
            sigma: σ, the release's noise multiplier.
            records_per_unit: k.
        """
        return sigma * records_per_unit * math.sqrt(self.quarters / (4.0 * self.share)) * ROUNDED_UP


class StatisticsRelease(Document):
    """What a job without a model releases, in the order of its queries.

    Attributes:
        line: its name on the bill, by what is made of it; "statistics" is not written.
    """

    queries: Annotated[tuple[ReleasedQuery, ...], Field(min_length=1)]
    line: ReleaseLine = Field(default="statistics", exclude_if=lambda line: line == "statistics")

    @classmethod
    def of(cls, queries: tuple[Query, ...], line: ReleaseLine = "statistics") -> StatisticsRelease:
        """The release of a specification's queries."""
        total = math.fsum(each.weight for each in queries)
        return cls(
            line=line,
            queries=tuple(
                ReleasedQuery(
                    kind=each.kind, columns=each.named, quarters=each.quarters, share=min(1.0, each.weight / total)
                )
                for each in queries
            ),
        )
