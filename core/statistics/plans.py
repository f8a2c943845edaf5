"""What each query adds up, and what follows from its noisy sums. One class for each kind of query.

Sums are integers: int64, in units of 1/ONE for queries of numbers. `squared_norm` tells what a record added, in the
units of `core.contracts.queries.QuerySettings.quarters`: tests compare the two.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain, combinations
from typing import assert_never

import numpy as np
from numpy.typing import NDArray

from core.contracts.queries import (
    MOST_NUMBERS,
    TREE_LEVELS,
    Categories,
    Contingency,
    Count,
    Covariance,
    Histogram,
    Mean,
    Quantile,
    Query,
    Sum,
    Variance,
    Where,
)
from core.contracts.table import NumberColumn
from core.statistics.answer import Answer
from core.statistics.answers import LEAST_COUNT, NORMAL_95, answer, nonnegative, positive_semidefinite, withheld
from core.statistics.statistics_columns import (
    ONE,
    AnyColumn,
    Axis,
    Cells,
    Column,
    Floats,
    Integers,
    Passes,
    Scale,
    Texts,
    UnknownColumn,
    column_of,
    texts_of,
)
from core.statistics.statistics_columns import filter_of as filter_of_where
from core.statistics.tree import error_of, leaves_of, tree_sums

Mask = NDArray[np.bool_]
HALF = ONE // 2
MOST_VALUES = 10_000  # of one query of categories
FALSE_VALUES = 2.0**-10  # how many values that no record has are among its answers, in the mean; at most
ROW_BYTES = 96  # of the numbers, cells and masks that one column takes while it is added up


class QueryPlan(ABC):
    """A query on declared columns.

    Attributes:
        unit: a record's part is in integers of 1/unit.
    """

    unit: int = 1

    @property
    @abstractmethod
    def size(self) -> int:
        """How many numbers it releases."""

    @property
    @abstractmethod
    def answer_count(self) -> int:
        """How many answers follow from them."""

    @property
    def row_bytes(self) -> int:
        """What `sums` holds at most for each row of a pass, besides its cells."""
        return ROW_BYTES

    @property
    def slot_bytes(self) -> int:
        """What it holds for each slot of the data set, besides passes."""
        return 0

    def nothing(self, slots: int) -> Integers:
        """What `added` begins with."""
        return np.zeros(self.size, dtype=np.int64)

    def added(self, total: Integers, cells: Cells, mask: Mask, start: int) -> Integers:
        """The total with the records of a pass, whose first one has the number `start`."""
        return total + self.sums(cells, mask)

    @abstractmethod
    def sums(self, cells: Cells, mask: Mask) -> Integers:
        """The sums over the records in `mask`, int64 (size,): each record's part bounded by 2 Δ/√quarters."""

    @abstractmethod
    def answers(self, noisy: Floats, std: float) -> list[Answer]:
        """The answers.

        Args:
            noisy: the released sums, (size,), over `unit`.
            std: of the noise on each of them; 0 on public data.
        """

    @abstractmethod
    def planned_std(self, std: float, records: int) -> float:
        """About the largest standard error of an answer, where so many records are counted."""

    def threshold(self, std: float) -> float | None:
        """The least noisy count that is told; None: all are."""
        return None


@dataclass(frozen=True)
class CountPlan(QueryPlan):
    """Counts records."""

    @property
    def size(self) -> int:
        return 1

    @property
    def answer_count(self) -> int:
        return 1

    def sums(self, cells: Cells, mask: Mask) -> Integers:
        return np.array([np.count_nonzero(mask)], dtype=np.int64)

    def answers(self, noisy: Floats, std: float) -> list[Answer]:
        return [answer(float(noisy[0]), std, bounds=(0.0, math.inf))]

    def planned_std(self, std: float, records: int) -> float:
        return std


@dataclass(frozen=True)
class CellsPlan(QueryPlan):
    """Counts records in the cells of one axis, or of two."""

    axes: tuple[Axis, ...]
    name: str

    @property
    def shape(self) -> tuple[int, ...]:
        """How many cells each axis has."""
        return tuple(len(each.labels) for each in self.axes)

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def answer_count(self) -> int:
        return self.size + (sum(self.shape) if len(self.axes) > 1 else 0)

    def sums(self, cells: Cells, mask: Mask) -> Integers:
        places = np.ravel_multi_index(tuple(each.places(cells) for each in self.axes), self.shape)
        return _counted(places, mask, self.size)

    def answers(self, noisy: Floats, std: float) -> list[Answer]:
        table = nonnegative(noisy).reshape(self.shape)
        answers = [
            self._cell(place, float(table[place]), float(noisy.reshape(self.shape)[place]), std)
            for place in np.ndindex(self.shape)
        ]
        if len(self.axes) == 1:
            return answers
        raw = noisy.reshape(self.shape)
        for axis, (labels, other) in enumerate(zip(self.axes, self.shape[::-1], strict=True)):
            margin, total, error = table.sum(axis=1 - axis), raw.sum(axis=1 - axis), std * math.sqrt(other)
            name = labels.column.declared.name
            answers += [
                answer(float(total[k]), error, of=name, cell=(label,), value=float(margin[k]), bounds=(0.0, math.inf))
                for k, label in enumerate(labels.labels)
            ]
        return answers

    def _cell(self, place: tuple[int, ...], value: float, raw: float, std: float) -> Answer:
        labels = tuple(axis.labels[k] for axis, k in zip(self.axes, place, strict=True))
        return answer(raw, std, of=self.name, cell=labels, value=value, bounds=(0.0, math.inf))

    def planned_std(self, std: float, records: int) -> float:
        return std


@dataclass(frozen=True)
class SumPlan(QueryPlan):
    """Adds numbers, scaled around 0."""

    scales: tuple[Scale, ...]
    unit: int = ONE

    @property
    def size(self) -> int:
        return len(self.scales)

    @property
    def answer_count(self) -> int:
        return len(self.scales)

    def sums(self, cells: Cells, mask: Mask) -> Integers:
        return np.array([_total(*each.grid(cells), mask) for each in self.scales], dtype=np.int64)

    def answers(self, noisy: Floats, std: float) -> list[Answer]:
        return [
            answer(float(total) * each.half, std * each.half, of=_name(each))
            for each, total in zip(self.scales, noisy, strict=True)
        ]

    def planned_std(self, std: float, records: int) -> float:
        return std * max(each.half for each in self.scales)


@dataclass(frozen=True)
class MeanPlan(QueryPlan):
    """Adds (u, ½) of each column: the mean of u is A/n, with n = 2B."""

    scales: tuple[Scale, ...]
    unit: int = ONE

    @property
    def size(self) -> int:
        return 2 * len(self.scales)

    @property
    def answer_count(self) -> int:
        return len(self.scales)

    def sums(self, cells: Cells, mask: Mask) -> Integers:
        sums_of = list[int]()
        for scale in self.scales:
            t, present = scale.grid(cells)
            sums_of += [_total(t, present, mask), HALF * int(np.count_nonzero(present & mask))]
        return np.array(sums_of, dtype=np.int64)

    def answers(self, noisy: Floats, std: float) -> list[Answer]:
        return [
            self._mean(each, float(noisy[2 * k]), float(noisy[2 * k + 1]), std) for k, each in enumerate(self.scales)
        ]

    def _mean(self, scale: Scale, total: float, half: float, std: float) -> Answer:
        count = 2.0 * half
        if count <= LEAST_COUNT * 2.0 * std:
            return withheld(_name(scale))
        mean = total / count
        error = std * math.hypot(1.0, 2.0 * mean) / count  # of A/n and of n = 2B
        bounds = (scale.center - scale.half, scale.center + scale.half)
        return answer(scale.center + scale.half * mean, scale.half * error, of=_name(scale), bounds=bounds)

    def planned_std(self, std: float, records: int) -> float:
        return std * math.sqrt(5.0) * max(each.half for each in self.scales) / records


@dataclass(frozen=True)
class CovariancePlan(QueryPlan):
    """Adds all u, all 2u² − 1, all products of two, and ½, of the records with a value in each column."""

    scales: tuple[Scale, ...]
    as_variance: bool = False
    unit: int = ONE

    @property
    def size(self) -> int:
        count = len(self.scales)
        return 2 * count + count * (count - 1) // 2 + 1

    @property
    def answer_count(self) -> int:
        return len(self.scales) if self.as_variance else self.size - 1 - len(self.scales)

    @property
    def row_bytes(self) -> int:
        return ROW_BYTES + 9 * len(self.scales)  # each column's numbers, and which it has

    def sums(self, cells: Cells, mask: Mask) -> Integers:
        grids = [each.grid(cells) for each in self.scales]
        present = np.logical_and.reduce([is_present for _, is_present in grids])
        numbers = [t for t, _ in grids]
        # One after another: the products of many columns are not kept beside one another.
        squares = (np.clip(_over_one(2 * t * t) - ONE, -ONE, ONE) for t in numbers)
        products = (np.clip(_over_one(a * b), -ONE, ONE) for a, b in combinations(numbers, 2))
        totals = [_total(each, present, mask) for each in chain(numbers, squares, products)]
        return np.array([*totals, HALF * int(np.count_nonzero(present & mask))], dtype=np.int64)

    def answers(self, noisy: Floats, std: float) -> list[Answer]:
        m, count = len(self.scales), 2.0 * float(noisy[-1])
        pairs = [(k, k) for k in range(m)] + list(combinations(range(m), 2))
        if self.as_variance:
            pairs = pairs[:m]
        if count <= LEAST_COUNT * 2.0 * std:
            return [withheld(self._named(*pair)) for pair in pairs]
        means = noisy[:m] / count
        seconds, errors = np.zeros((m, m)), np.zeros((m, m))
        for place, (i, j) in enumerate(pairs):
            moment = float(noisy[m + place]) / count  # of 2u² − 1, or of a product
            scale = self.scales[i].half * self.scales[j].half
            if i == j:
                second = (moment + 1.0) / 2.0 - means[i] ** 2
                parts = (0.5, 2.0 * means[i], 2.0 * (2.0 * means[i] ** 2 - moment / 2.0))
            else:
                second = moment - means[i] * means[j]
                parts = (1.0, math.hypot(means[i], means[j]), 2.0 * (2.0 * means[i] * means[j] - moment))
            seconds[i, j] = seconds[j, i] = scale * second
            errors[i, j] = scale * std * math.hypot(*parts) / count
        fixed = positive_semidefinite(seconds) if not self.as_variance else seconds
        return [self._answer(i, j, seconds, errors, fixed) for i, j in pairs]

    def _answer(self, i: int, j: int, raw: Floats, errors: Floats, fixed: Floats) -> Answer:
        largest = self.scales[i].half * self.scales[j].half
        bounds = (0.0 if i == j else -largest, largest)
        value = float(fixed[i, j])
        return answer(float(raw[i, j]), float(errors[i, j]), of=self._named(i, j), value=value, bounds=bounds)

    def _named(self, i: int, j: int) -> str:
        first, second = _name(self.scales[i]), _name(self.scales[j])
        return first if self.as_variance else f"{first}, {second}"

    def planned_std(self, std: float, records: int) -> float:
        return std * math.sqrt(10.0) * max(each.half for each in self.scales) ** 2 / records


@dataclass(frozen=True)
class VariancePlan(QueryPlan):
    """One covariance "matrix" of each column alone: (u, 2u² − 1, ½)."""

    columns: tuple[CovariancePlan, ...]
    unit: int = ONE

    @property
    def size(self) -> int:
        return 3 * len(self.columns)

    @property
    def answer_count(self) -> int:
        return len(self.columns)

    def sums(self, cells: Cells, mask: Mask) -> Integers:
        return np.concatenate([each.sums(cells, mask) for each in self.columns])

    def answers(self, noisy: Floats, std: float) -> list[Answer]:
        return [each for k, column in enumerate(self.columns) for each in column.answers(noisy[3 * k : 3 * k + 3], std)]

    def planned_std(self, std: float, records: int) -> float:
        return max(each.planned_std(std, records) for each in self.columns)


@dataclass(frozen=True)
class QuantilePlan(QueryPlan):
    """Quantiles from the tree of a number's leaves."""

    axis: Axis
    ends: tuple[float, ...]  # of the leaves, one more than there are
    q: tuple[float, ...]

    @property
    def size(self) -> int:
        return int(2**TREE_LEVELS)

    @property
    def answer_count(self) -> int:
        return len(self.q)

    def sums(self, cells: Cells, mask: Mask) -> Integers:
        present = ~np.isnan(self.axis.column.values(cells))
        places = np.minimum(self.axis.places(cells), self.size - 1)  # a missing cell's, which is left out
        return tree_sums(_counted(places, mask & present, self.size))

    def answers(self, noisy: Floats, std: float) -> list[Answer]:
        name, total = self.axis.column.declared.name, float(noisy[0])
        if total <= LEAST_COUNT * std:
            return [withheld(f"{name}, q = {q:g}") for q in self.q]
        cumulated = np.cumsum(leaves_of(noisy)) / total
        rising = np.clip(np.maximum.accumulate(np.append(0.0, cumulated)), 0.0, 1.0)
        rising[-1] = 1.0
        return [self._quantile(q, rising, cumulated, total, std) for q in self.q]

    def _quantile(self, q: float, rising: Floats, raw: Floats, total: float, std: float) -> Answer:
        """The value whose rank is q, and those of the interval of its rank; the error follows from the interval."""
        name = f"{self.axis.column.declared.name}, q = {q:g}"
        leaf = int(np.searchsorted(rising[1:], q))
        weights = np.where(np.arange(self.size) <= leaf, 1.0 - q, -q)
        error = error_of(weights) * std / total  # of the rank of the leaf's end
        low, value, high = (self._at(rank, rising) for rank in (q - NORMAL_95 * error, q, q + NORMAL_95 * error))
        return Answer(
            of=name, value=value, standard_error=(high - low) / (2.0 * NORMAL_95), interval=(low, high), raw=value
        )

    def _at(self, rank: float, rising: Floats) -> float:
        leaf = min(int(np.searchsorted(rising[1:], rank)), self.size - 1)
        count_before, count_after = float(rising[leaf]), float(rising[leaf + 1])
        part = (
            min(max((rank - count_before) / (count_after - count_before), 0.0), 1.0)
            if count_after > count_before
            else 0.0
        )
        return self.ends[leaf] + part * (self.ends[leaf + 1] - self.ends[leaf])

    def planned_std(self, std: float, records: int) -> float:
        return std * math.sqrt(TREE_LEVELS + 1) / 2.0 * (self.ends[-1] - self.ends[0]) / records


@dataclass(frozen=True)
class CategoriesPlan(QueryPlan):
    """Counts the records of each value that a text can have: of so many that only those above a threshold are told.

    What is added up are the records' values themselves, one place for each slot: worker.statistics.frequent_values
    counts them and draws the noise.
    """

    texts: Texts

    @property
    def size(self) -> int:
        return MOST_VALUES

    @property
    def answer_count(self) -> int:
        return MOST_VALUES

    @property
    def row_bytes(self) -> int:
        return ROW_BYTES + 16 * self.texts.declared.cells  # its numbers, and those of the mask

    @property
    def slot_bytes(self) -> int:
        return 17 * self.texts.declared.cells + 80

    def threshold(self, std: float) -> float:
        """What a noisy count must reach: D/2 exp(−t²/2), at least the mean number of empty values whose noise reaches
        t stds, is FALSE_VALUES."""
        return std * math.sqrt(2.0 * math.log(self.texts.declared.domain / (2.0 * FALSE_VALUES)))

    def nothing(self, slots: int) -> Integers:
        return np.zeros((slots, self.texts.declared.cells), dtype=np.int64)

    def added(self, total: Integers, cells: Cells, mask: Mask, start: int) -> Integers:
        total[start : start + len(cells)] = self.sums(cells, mask)
        return total

    def sums(self, cells: Cells, mask: Mask) -> Integers:
        return self.texts.codes(cells).astype(np.int64) * mask[:, None]

    def answers(self, noisy: Floats, std: float) -> list[Answer]:
        column = self.texts.declared
        return [
            answer(float(count), std, of=column.name, cell=(column.text_of(stored),), bounds=(0.0, math.inf))
            for *stored, count in noisy.tolist()
        ]

    def planned_std(self, std: float, records: int) -> float:
        return std


def _name(scale: Scale) -> str:
    return scale.column.declared.name


def _total(numbers: Integers, present: Mask, mask: Mask) -> int:
    """The sum of those in both masks; its work is that of all rows, whatever the masks."""
    return int((numbers * (present & mask)).sum())


def _counted(places: Integers, mask: Mask, size: int) -> Integers:
    """How many rows of the mask are in each of `size` cells. The others are counted in a cell that is dropped, so that
    the work is that of all rows."""
    return np.bincount(np.where(mask, places, size), minlength=size + 1)[:size].astype(np.int64)


def _over_one(numbers: Integers) -> Integers:
    """⌊numbers / ONE⌉, exactly."""
    return (numbers + HALF) // ONE


def plan_of(query: Query, columns: Mapping[str, AnyColumn]) -> QueryPlan:  # noqa: PLR0911 - one for each kind
    """The plan of a query.

    Raises:
        UnknownColumn: it does not fit the declaration.
    """
    if isinstance(query, Categories):
        return CategoriesPlan(texts_of(columns, query.column))
    read_columns = [column_of(columns, name) for name in query.named]
    match query:
        case Count():
            return CountPlan()
        case Histogram():
            return CellsPlan((Axis.of(read_columns[0], query.edges, query.bins),), query.column)
        case Contingency():
            axes = tuple(Axis.of(each, bins=_own_bins(each, query.bins)) for each in read_columns)
            plan = CellsPlan(axes, ", ".join(query.columns))
            if plan.size > MOST_NUMBERS:
                raise UnknownColumn(
                    f"that is {plan.size:,} cells; at most {MOST_NUMBERS:,} are allowed: ask for fewer bins"
                )
            return plan
        case Sum():
            return SumPlan(tuple(map(Scale.from_zero, read_columns)))
        case Mean():
            return MeanPlan(tuple(map(Scale.of, read_columns)))
        case Variance():
            return VariancePlan(tuple(CovariancePlan((Scale.of(each),), as_variance=True) for each in read_columns))
        case Covariance():
            return CovariancePlan(tuple(map(Scale.of, read_columns)))
        case Quantile():
            return _quantile_plan(read_columns[0], query.q)
        case _:
            assert_never(query)


def _own_bins(column: Column, bins: int | None) -> int | None:
    """`bins` for a number without declared ones."""
    declared = column.declared
    if declared.kind == "category" or (isinstance(declared, NumberColumn) and declared.bins is not None):
        return None
    return bins


def _quantile_plan(column: Column, q: tuple[float, ...]) -> QuantilePlan:
    scale = Scale.of(column)
    axis = Axis.of(column, bins=2**TREE_LEVELS)
    low, high = scale.center - scale.half, scale.center + scale.half
    return QuantilePlan(axis, (low, *map(float, axis.edges if axis.edges is not None else ()), high), q)


@dataclass(frozen=True)
class Asked:
    """All queries of a job, and the filters that records must pass."""

    plans: tuple[QueryPlan, ...]
    filters: tuple[Passes, ...]

    @classmethod
    def of(cls, queries: tuple[Query, ...], where: tuple[Where, ...], columns: Mapping[str, AnyColumn]) -> Asked:
        """The plans of a specification.

        Raises:
            Unfit: a query or a filter does not fit the declaration.
        """
        plans, filters = list[QueryPlan](), list[Passes]()
        for place, query in enumerate(queries):
            try:
                plans.append(plan_of(query, columns))
            except UnknownColumn as error:
                raise Unfit(f"/queries/{place}", str(error)) from None
        for place, condition in enumerate(where):
            try:
                filters.append(filter_of_where(columns, condition))
            except UnknownColumn as error:
                raise Unfit(f"/where/{place}", str(error)) from None
        total = sum(each.size for each in plans)
        if total > MOST_NUMBERS:
            raise Unfit(
                "/queries", f"that is {total:,} numbers; at most {MOST_NUMBERS:,} are allowed: ask for fewer bins"
            )
        return cls(tuple(plans), tuple(filters))

    @property
    def numbers(self) -> int:
        """How many numbers all queries release."""
        return sum(each.size for each in self.plans)

    @property
    def answers(self) -> int:
        """How many answers follow from them."""
        return sum(each.answer_count for each in self.plans)

    def nothing(self, slots: int) -> list[Integers]:
        """What `added` begins with."""
        return [each.nothing(slots) for each in self.plans]

    def added(self, totals: list[Integers], cells: Cells, start: int) -> list[Integers]:
        """The totals of each query with the records of a pass, the first of which has the number `start`: private."""
        mask = np.ones(len(cells), dtype=np.bool_) if cells.present is None else cells.present.copy()
        for passes in self.filters:
            mask &= passes(cells)
        return [each.added(total, cells, mask, start) for each, total in zip(self.plans, totals, strict=True)]

    def sums(self, cells: Cells) -> list[Integers]:
        """The sums of each query over these records: private."""
        return self.added(self.nothing(len(cells)), cells, 0)


class Unfit(ValueError):
    """A query or a filter that does not fit the declaration. `pointer`: to it."""

    def __init__(self, pointer: str, detail: str) -> None:
        super().__init__(detail)
        self.pointer, self.detail = pointer, detail
