"""Statistics from Python: a list of queries, run as one job with one privacy cost.

answers = client.query("visits").histogram("age", edges=[18, 65]).mean("bmi").run(epsilon=0.5)
for each in answers:
    print(each.kind, each.of, each.cell, each.value, each.interval)
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

from scrimp.rows import Rows

if TYPE_CHECKING:
    from scrimp.client import Client
    from scrimp.models import Quote

FILE = "answers.json"


class StatisticsAnswer(BaseModel):
    """One number.

    Attributes:
        query: the place of its query in the list.
        of: the column, the pair of columns, or the quantile.
        cell: the value or bin, or one for each of two columns.
        value: after post-processing; None: too few records for the noise.
        standard_error: of the noise on `raw`.
        interval: of 95 %, of the noise alone.
        raw: the noisy number before post-processing.
    """

    query: int
    kind: str
    of: str | None = None
    cell: tuple[str, ...] = ()
    value: float | None
    standard_error: float | None
    interval: tuple[float, float] | None
    raw: float | None


@dataclass(frozen=True)
class StatisticsQuery:
    """Queries on a data set and filters, sent as one job. Each method returns a longer list.

    `weight`: a query's share of the cost, among the weights of all; more weight is less noise.
    """

    client: Client
    dataset: str
    queries: tuple[dict[str, Any], ...] = ()
    filters: tuple[dict[str, Any], ...] = ()

    def count(self, *, weight: float = 1.0) -> StatisticsQuery:
        """How many records there are."""
        return self._with({"kind": "count", "weight": weight})

    def histogram(
        self, column: str, *, edges: Sequence[float] | None = None, bins: int | None = None, weight: float = 1.0
    ) -> StatisticsQuery:
        """How many records each value or bin of a column has."""
        members = {
            name: value for name, value in (("edges", edges and list(edges)), ("bins", bins)) if value is not None
        }
        return self._with({"kind": "histogram", "column": column, "weight": weight, **members})

    def contingency(self, first: str, second: str, *, bins: int | None = None, weight: float = 1.0) -> StatisticsQuery:
        """How many records each pair of values or bins has. `bins`: of numbers without declared bins."""
        members = {} if bins is None else {"bins": bins}
        return self._with({"kind": "contingency", "columns": [first, second], "weight": weight, **members})

    def mean(self, *columns: str, weight: float = 1.0) -> StatisticsQuery:
        """The mean of each column."""
        return self._with({"kind": "mean", "columns": list(columns), "weight": weight})

    def sum(self, *columns: str, weight: float = 1.0) -> StatisticsQuery:
        """The sum of each column."""
        return self._with({"kind": "sum", "columns": list(columns), "weight": weight})

    def variance(self, *columns: str, weight: float = 1.0) -> StatisticsQuery:
        """The variance of each column."""
        return self._with({"kind": "variance", "columns": list(columns), "weight": weight})

    def covariance(self, *columns: str, weight: float = 1.0) -> StatisticsQuery:
        """The covariance matrix of the columns."""
        return self._with({"kind": "covariance", "columns": list(columns), "weight": weight})

    def categories(self, column: str, *, weight: float = 1.0) -> StatisticsQuery:
        """Which values of a column of texts are frequent, and how many records each has."""
        return self._with({"kind": "categories", "column": column, "weight": weight})

    def quantile(self, column: str, *q: float, weight: float = 1.0) -> StatisticsQuery:
        """Quantiles of a number: `quantile("age", 0.5, 0.9)`."""
        return self._with({"kind": "quantile", "column": column, "q": list(q), "weight": weight})

    def where(
        self, column: str, *, one_of: Sequence[int | str] | None = None, between: Sequence[float | str] | None = None
    ) -> StatisticsQuery:
        """Keeps the records whose cell is one of these values, or within [lowest, highest]."""
        conditions = {"in": one_of and list(one_of), "between": between and list(between)}
        filter_body = {"column": column} | {name: value for name, value in conditions.items() if value is not None}
        return replace(self, filters=(*self.filters, filter_body))

    def spec(self, epsilon: float, **members: Any) -> dict[str, Any]:
        """The JobSpec. `members`: further ones, such as `name` or `blocks`."""
        filters = {"where": list(self.filters)} if self.filters else {}
        body = {"kind": "statistics", "dataset": self.dataset, "queries": list(self.queries), **filters}
        return body | {"privacy": {"target_epsilon": epsilon}} | members

    def quote(self, epsilon: float, **members: Any) -> Quote:
        """What the job would cost, with about the standard error of each query (`scores`). It is free."""
        return self.client.quote(self.spec(epsilon, **members))

    def run(self, epsilon: float, *, timeout_s: float = 600.0, **members: Any) -> Rows[StatisticsAnswer]:
        """Runs the job and returns its answers.

        Raises:
            BudgetRefused: it does not fit; nothing was charged.
        """
        job = self.client.wait_for(self.client.submit(self.spec(epsilon, **members)), timeout_s)
        with tempfile.TemporaryDirectory() as folder:
            answers = json.loads(self.client.download(job.id, FILE, Path(folder) / FILE).read_text(encoding="utf-8"))
        return Rows(
            StatisticsAnswer.model_validate({"query": number, "kind": query["query"]["kind"], **each})
            for number, query in enumerate(answers["queries"])
            for each in query["answers"]
        )

    def _with(self, query: dict[str, Any]) -> StatisticsQuery:
        return replace(self, queries=(*self.queries, query))
