"""Reads the parts of a job's stored quote that its later life needs. Quotes of old releases stay readable."""

from __future__ import annotations

from typing import Self

from pydantic import ConfigDict

from core.contracts.base import Document, Epsilon
from core.privacy.numerics import Numerics
from core.privacy.prices import Charge, Line


class Quoted(Document):
    """The price of a job, and the numbers that it computes in; null for jobs that were quoted before they were stored.
    `planned_noise`: the warnings that released scores replace; empty for such jobs.

    A quote has more members, which this leaves out.
    """

    model_config = ConfigDict(extra="ignore")

    charge: Charge
    epsilon: Epsilon | None
    numerics: Numerics | None = None
    planned_noise: tuple[str, ...] = ()

    @classmethod
    def of(cls, column: object) -> Self:
        """Reads a job's column.

        Raises:
            ValidationError: it is no quote.
        """
        return cls.model_validate(column)


class SearchQuoted(Document):
    """How a study's total is claimed: the ε of the whole study, and that of its final trial by itself."""

    model_config = ConfigDict(extra="ignore")

    strategy: str
    procedure: Epsilon | None
    final: Epsilon | None


class StudyQuote(Quoted):
    """The same of a study; `hpo` is null for another job."""

    hpo: SearchQuoted | None = None


class TrialQuote(Document):
    """What differs between the quote of a study's trial and its study's. The events are in the trial's mechanism."""

    noise_multiplier: float | None
    steps: int
    mechanism: None = None
    comparison: None = None
    epsilon: Epsilon | None
    charge: Charge
    lines: tuple[Line, ...] = ()
    hpo: None = None
