"""One answer of a statistics job, as it is stored and shown."""

from __future__ import annotations

from typing import Literal

from core.contracts.base import Document
from core.contracts.queries import Query, Where


class Answer(Document):
    """One number.

    Attributes:
        of: the column, pair of columns, or quantile; None for a count.
        cell: the value or bin, or one for each of two columns.
        value: after post-processing; None: too few records for the noise.
        standard_error: the std of the noise on `raw`; None with `value`.
        interval: of 95 %, around `raw`; cut to what the number can be.
        raw: unbiased where it is a sum or a count; None with `value`.
    """

    of: str | None = None
    cell: tuple[str, ...] = ()
    value: float | None
    standard_error: float | None
    interval: tuple[float, float] | None
    raw: float | None


class AnsweredQuery(Document):
    """A query as asked, the std of its noise on each released number, and its answers.

    Attributes:
        threshold: of categories: the noisy count from which they are told.
    """

    query: Query
    noise_std: float
    threshold: float | None = None
    answers: tuple[Answer, ...]


class AnswersFile(Document):
    """answers.json."""

    version: Literal[1] = 1
    where: tuple[Where, ...] = ()
    queries: tuple[AnsweredQuery, ...]
