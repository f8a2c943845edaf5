"""What a statistics job asks: queries on declared columns, and filters.

`quarters` is the most that one record adds to a query's sums: its squared ℓ₂ norm, in quarters. It depends on the query
alone: numbers are scaled by their declared range (docs/decisions/0042).
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Annotated, Literal

from pydantic import ConfigDict, Field, StringConstraints, model_validator

from core.contracts.base import Document, is_none
from core.contracts.feature_settings import ColumnName
from core.contracts.table import RangeEnd

TREE_LEVELS = 10  # of a quantile's tree: 1,024 leaves
MOST_ROWS = 2**32  # slots: so many numbers of at most 2²⁰ add up to at most 2⁵², which float64 holds exactly
MOST_NUMBERS = 100_000  # that all queries of a job release
CellValue = Annotated[int, Field(ge=-(2**53), le=2**53)] | Annotated[str, StringConstraints(max_length=200)]
Between = RangeEnd | Annotated[str, StringConstraints(pattern=r"^\d{4}-\d{2}-\d{2}$")]
Edges = Annotated[tuple[RangeEnd, ...], Field(min_length=1, max_length=999)]
Bins = Annotated[int, Field(strict=True, ge=2, le=1_000)]
Names = Annotated[tuple[ColumnName, ...], Field(min_length=1, max_length=50)]


class QuerySettings(Document):
    """A query. `weight`: its share of the job's μ² is weight / Σ weight. More weight is less noise."""

    weight: Annotated[float, Field(ge=1e-3, le=1e3)] = 1.0

    @property
    def named(self) -> tuple[str, ...]:
        """The columns that it reads, by name."""
        return ()

    @property
    @abstractmethod
    def quarters(self) -> int:
        """4 Δ²: the squared ℓ₂ norm of what one record adds, at most."""


class Count(QuerySettings):
    """How many records there are."""

    kind: Literal["count"] = "count"

    @property
    def quarters(self) -> int:
        """See QuerySettings.quarters."""
        return 4


class Histogram(QuerySettings):
    """How many records each value or bin of a column has.

    A number needs `edges` (the edges between bins: [18, 65] makes three), or `bins`, so many equal parts of its
    declared range, or declared bins. Numbers beyond the range are in the first or the last bin.
    """

    kind: Literal["histogram"] = "histogram"
    column: ColumnName
    edges: Edges | None = Field(default=None, exclude_if=is_none)
    bins: Bins | None = Field(default=None, exclude_if=is_none)

    @model_validator(mode="after")
    def _one_of(self) -> Histogram:
        if self.edges is not None and self.bins is not None:
            raise ValueError("give either `edges` or `bins`")
        if self.edges is not None and sorted(set(self.edges)) != list(self.edges):
            raise ValueError("`edges` must rise")
        return self

    @property
    def named(self) -> tuple[str, ...]:
        """See QuerySettings.named."""
        return (self.column,)

    @property
    def quarters(self) -> int:
        """See QuerySettings.quarters: a record is in one cell."""
        return 4


class Contingency(QuerySettings):
    """How many records each pair of values or bins of two columns has. `bins`: of numbers without declared bins."""

    kind: Literal["contingency"] = "contingency"
    columns: tuple[ColumnName, ColumnName]
    bins: Bins | None = Field(default=None, exclude_if=is_none)

    @model_validator(mode="after")
    def _differ(self) -> Contingency:
        if self.columns[0] == self.columns[1]:
            raise ValueError("`columns` must be two different ones")
        return self

    @property
    def named(self) -> tuple[str, ...]:
        """See QuerySettings.named."""
        return self.columns

    @property
    def quarters(self) -> int:
        """See QuerySettings.quarters: a record is in one cell."""
        return 4


class _OfColumns(QuerySettings):
    """A query of numbers with declared ranges."""

    columns: Names

    @model_validator(mode="after")
    def _distinct(self) -> _OfColumns:
        if len(set(self.columns)) != len(self.columns):
            raise ValueError("`columns` must not repeat a column")
        return self

    @property
    def named(self) -> tuple[str, ...]:
        """See QuerySettings.named."""
        return self.columns


class Sum(_OfColumns):
    """The sum of each column. A number beyond its declared range counts as the range's end."""

    kind: Literal["sum"] = "sum"

    @property
    def quarters(self) -> int:
        """See QuerySettings.quarters."""
        return 4 * len(self.columns)


class Mean(_OfColumns):
    """The mean of each column: a noisy sum of centred values over a noisy count of the records that have one."""

    kind: Literal["mean"] = "mean"

    @property
    def quarters(self) -> int:
        """See QuerySettings.quarters: (u, ½) for each column."""
        return 5 * len(self.columns)


class Variance(_OfColumns):
    """The variance of each column, divided by the number of records that have a value."""

    kind: Literal["variance"] = "variance"

    @property
    def quarters(self) -> int:
        """See QuerySettings.quarters: (u, 2u² − 1, ½) for each column."""
        return 9 * len(self.columns)


class Covariance(_OfColumns):
    """The covariance matrix of the columns, over the records that have a value in each of them."""

    kind: Literal["covariance"] = "covariance"
    columns: Annotated[tuple[ColumnName, ...], Field(min_length=2, max_length=50)]

    @property
    def quarters(self) -> int:
        """See QuerySettings.quarters: all u, all 2u² − 1, all products, and ½."""
        count = len(self.columns)
        return 8 * count + 2 * count * (count - 1) + 1


class Quantile(QuerySettings):
    """Quantiles of a number, from a tree of counts over 1,024 equal parts of its declared range (and scale)."""

    kind: Literal["quantile"] = "quantile"
    column: ColumnName
    q: Annotated[tuple[Annotated[float, Field(gt=0.0, lt=1.0)], ...], Field(min_length=1, max_length=100)]

    @property
    def named(self) -> tuple[str, ...]:
        """See QuerySettings.named."""
        return (self.column,)

    @property
    def quarters(self) -> int:
        """See QuerySettings.quarters: one number of each level, and the total."""
        return 4 * (TREE_LEVELS + 1)


class Categories(QuerySettings):
    """Which values of a column of texts are frequent, and how many records each has: those whose noisy count reaches a
    public threshold (docs/decisions/0077), at most 10,000. A text that no record has is among them in one release of a
    thousand.

    The threshold is √(2 ln(512 D)) standard errors, D the number of texts that the declaration allows: 6.0 for five
    digits, 15.2 for 24 printable characters. So declare values as narrowly as is known. A count near it is rather too
    large, and its interval holds less often than 95 %.
    """

    kind: Literal["categories"] = "categories"
    column: ColumnName

    @property
    def named(self) -> tuple[str, ...]:
        """See QuerySettings.named."""
        return (self.column,)

    @property
    def quarters(self) -> int:
        """See QuerySettings.quarters: a record has one value of all that there can be."""
        return 4


Query = Annotated[
    Count | Histogram | Contingency | Mean | Sum | Variance | Covariance | Quantile | Categories,
    Field(discriminator="kind"),
]
Queries = Annotated[tuple[Query, ...], Field(min_length=1, max_length=100)]


class Where(Document):
    """A filter: records whose cell is one of these values (`in`), or within [lowest, highest] (`between`).

    Every query of the job counts only the records that pass all filters. A missing number or day passes none; a missing
    category is the value `other`, where its declaration says so, and `in` may name that.
    """

    model_config = ConfigDict(serialize_by_alias=True, validate_by_name=True, validate_by_alias=True)

    column: ColumnName
    one_of: Annotated[tuple[CellValue, ...], Field(min_length=1, max_length=10_000)] | None = Field(
        default=None, alias="in", exclude_if=is_none
    )
    between: tuple[Between, Between] | None = Field(default=None, exclude_if=is_none)

    @model_validator(mode="after")
    def _one_of_two(self) -> Where:
        if (self.one_of is None) == (self.between is None):
            raise ValueError("give either `in` or `between`")
        if self.between is not None:
            low, high = self.between
            if isinstance(low, str) != isinstance(high, str) or low > high:  # type: ignore[operator] # of one type
                raise ValueError("`between` must be [lowest, highest]: two numbers, or two days such as 2024-05-01")
        return self


Filters = Annotated[tuple[Where, ...], Field(max_length=20)]
