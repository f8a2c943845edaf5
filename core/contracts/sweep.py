"""What-if: what other totals, other levels and more or fewer trials would leave for a study's final trial."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from core.contracts.base import Document, EpsilonValue
from core.contracts.job_spec import JobSpec

Levels = Annotated[list[EpsilonValue], Field(min_length=2, max_length=3)]
RunsPerLevel = Annotated[int, Field(strict=True, ge=1, le=20)]


class Sweep(Document):
    """Every combination of the three lists. A list that is left out takes the value in `spec`, whose `hpo` is
    `linear_scaling`."""

    spec: JobSpec
    total_epsilon: Annotated[list[EpsilonValue], Field(min_length=1, max_length=50)] | None = None
    levels: Annotated[list[Levels], Field(min_length=1, max_length=20)] | None = None
    runs_per_level: Annotated[list[RunsPerLevel], Field(min_length=1, max_length=20)] | None = None
