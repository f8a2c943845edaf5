"""What one record adds, and that the noise covers it: exact integers and fractions."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.contracts.dataset_spec import ClassificationTask
from core.contracts.queries import QuerySettings, Where
from core.contracts.table import CategoryColumn, NumberColumn, TableFeatures
from core.parts.table_cells import CellCoder
from core.privacy.mechanism import MechanismConfig
from core.privacy.statistics_release import StatisticsRelease
from core.statistics.plans import QueryPlan, Unfit
from core.statistics.statistics_columns import Axis, Cells, Column, Scale, column_of, declared_columns, filter_of
from tests.statistics.data import QUERIES, TASK, asked, cells, spec, start_of

JOB = spec()
PLANS = asked(JOB)
EXTREMES = [0.0, 1.0, -0.0, 50.0, 100.0, 1e30, -1e30, float("nan"), float("inf"), -float("inf"), 3e38, 1e-45]


def one(x: list[float], y: float) -> Cells:
    return Cells(np.array([x], dtype=np.float32), np.array([y]))


def squared(plan: QueryPlan, record: Cells) -> Fraction:
    (sums,) = [plan.sums(record, np.ones(1, dtype=np.bool_))]
    return sum((Fraction(int(each), plan.unit) ** 2 for each in sums), Fraction(0))


@given(st.lists(st.floats(width=32) | st.sampled_from(EXTREMES), min_size=4, max_size=4), st.floats())
def test_a_record_adds_at_most_what_its_query_declares(x: list[float], y: float) -> None:
    for query, plan in zip(JOB.queries or (), PLANS.plans, strict=True):
        assert squared(plan, one(x, y)) <= Fraction(query.quarters, 4)


def test_some_record_reaches_each_bound() -> None:
    """The bounds are tight, or nearly: no query pays for more than a record can do."""
    ends = [one([age, bmi, 0.0, 18300.0], 0.0) for age in (0.0, 50.0, 100.0) for bmi in (10.0, 35.0, 60.0)]
    for query, plan in zip(JOB.queries or (), PLANS.plans, strict=True):
        assert max(squared(plan, each) for each in ends) == Fraction(query.quarters, 4), query.kind


def test_a_record_that_a_filter_leaves_out_adds_nothing() -> None:
    filtered = asked(spec(where=[{"column": "sex", "in": ["f"]}, {"column": "bmi", "between": [20, 30]}]))
    outside = [
        one([50.0, 25.0, 1.0, 18300.0], 1.0),
        one([50.0, 31.0, 0.0, 0.0], 1.0),
        one([50.0, np.nan, 0.0, 0.0], 1.0),
    ]
    for each in outside:
        assert all(not sums.any() for sums in filtered.sums(each))
    assert all(sums.any() for sums in filtered.sums(one([60.0, 26.0, 0.0, 18300.0], 1.0)))


@given(
    st.lists(st.floats(min_value=1e-3, max_value=1e3), min_size=1, max_size=30),
    st.floats(min_value=0.1, max_value=1e5),
    st.integers(min_value=1, max_value=10_000),
)
def test_the_noise_covers_one_unit_exactly(weights: list[float], sigma: float, per_unit: int) -> None:
    """Σ (k Δ_q / s_q)² ≤ 1/σ², in fractions of the very floats that run."""
    chosen = [QUERIES[number % len(QUERIES)] | {"weight": weight} for number, weight in enumerate(weights)]
    release = StatisticsRelease.of(spec(chosen).queries or ())
    moved = sum(
        (
            Fraction(per_unit) ** 2 * Fraction(each.quarters, 4) / Fraction(each.noise_std(sigma, per_unit)) ** 2
            for each in release.queries
        ),
        Fraction(0),
    )
    assert Fraction(1) / Fraction(sigma) ** 2 * (1 - Fraction(1, 10**11)) < moved <= 1 / Fraction(sigma) ** 2


def test_an_uncharged_query_is_found() -> None:
    """Less noise on one query, or a query more than was charged, moves the sums by more than 1/σ."""
    release = StatisticsRelease.of(spec().queries or ())
    fewer = release.model_copy(update={"queries": release.queries[1:]})
    with_all = sum(Fraction(q.quarters, 4) / Fraction(q.noise_std(2.0, 1)) ** 2 for q in release.queries)
    missing = Fraction(release.queries[0].quarters, 4) / Fraction(release.queries[0].noise_std(2.0, 1)) ** 2
    assert with_all <= Fraction(1, 4) < with_all + missing
    assert len(fewer.queries) == len(release.queries) - 1


def test_sums_are_those_of_any_order_and_places() -> None:
    records = cells(2_000)
    shuffled = np.random.default_rng(1).permutation(len(records))
    again = Cells(records.x[shuffled], records.y[shuffled])
    for first, second in zip(PLANS.sums(records), PLANS.sums(again), strict=True):
        assert np.array_equal(first, second)
    halves = [Cells(records.x[:700], records.y[:700]), Cells(records.x[700:], records.y[700:])]
    parts = [PLANS.sums(each) for each in halves]
    for first, *rest in zip(PLANS.sums(records), *parts, strict=True):
        assert np.array_equal(first, sum(rest))


def test_numbers_of_any_range_are_cut_on_integers() -> None:
    narrow = Scale.of(Column(NumberColumn(name="a", range=(0.0, 5e-324)), 0))
    for value in EXTREMES:
        t, _ = narrow.grid(one([value], 0.0))
        assert abs(int(t[0])) <= 2**20


def test_statistics_are_one_step_without_anything_besides(tmp_path: Path) -> None:
    stored = start_of(tmp_path, spec(), cells(100))["mechanism"]
    assert MechanismConfig.model_validate(stored).event("train").events[0].model_dump()["count"] == 1
    for wrong in ({"steps": 2}, {"max_grad_norm": 2.0}):
        with pytest.raises(ValueError, match="one full-batch noisy sum"):
            MechanismConfig.model_validate(stored | {"training": stored["training"] | wrong})


def test_every_query_has_a_plan() -> None:
    kinds = {each.kind for each in JOB.queries or ()}
    named = {
        each.model_fields["kind"].default for each in QuerySettings.__subclasses__() if "kind" in each.model_fields
    }
    assert named - {"categories"} <= kinds  # which has tests of its own: test_categories


def test_a_number_that_float32_does_not_hold_is_found_all_the_same() -> None:
    """A table's cells are float32: what a filter names is compared as one."""
    declared = TableFeatures.model_validate({"columns": [{"kind": "number", "name": "id", "range": [0, 2**25]}]})
    named = declared_columns(declared, ClassificationTask.model_validate(TASK))
    passes = filter_of(named, Where.model_validate({"column": "id", "in": [16_777_217]}))
    cells = Cells(np.array([[16_777_217], [5]], dtype=np.float32), np.zeros(2))
    assert passes(cells).tolist() == [True, False]


def test_a_declared_value_that_is_called_other_has_a_cell_of_its_own() -> None:
    declared = CategoryColumn(name="ward", values=["other", "b"], unknown="other")
    column = Column(declared, 0)
    axis = Axis.of(column)
    rows = Cells(np.array([[0.0], [1.0], [-1.0]], dtype=np.float32), np.zeros(3))
    assert [axis.labels[place] for place in axis.places(rows)] == ["other", "b", "other_"]
    for value, passing in (("other", [True, False, False]), ("other_", [False, False, True])):
        where = Where.model_validate({"column": "ward", "in": [value]})
        assert filter_of({"ward": column}, where)(rows).tolist() == passing


def test_a_missing_category_is_other_in_filters_and_cells_and_a_missing_number_passes_none() -> None:
    """As stored: a cell of a category that is missing, or not declared, is one code (core.parts.table_cells)."""
    declared = [
        {"kind": "category", "name": "ward", "values": ["a", "b"], "missing": "other"},
        {"kind": "number", "name": "age", "range": [0, 100], "missing": "middle"},
    ]
    features = TableFeatures.model_validate({"columns": declared})
    named = declared_columns(features, ClassificationTask.model_validate(TASK))
    codes = [[CellCoder(column, float).code(cell) for column in features.columns] for cell in ("",)]
    rows = Cells(np.array([*codes, [0.0, 40.0]], dtype=np.float32), np.zeros(2))
    for where, passing in (
        ({"column": "ward", "in": ["other"]}, [True, False]),
        ({"column": "ward", "in": ["a", "b"]}, [False, True]),
        ({"column": "age", "between": [0, 100]}, [False, True]),
        ({"column": "age", "in": [50]}, [False, False]),
    ):
        assert filter_of(named, Where.model_validate(where))(rows).tolist() == passing, where
    axis = Axis.of(column_of(named, "ward"))
    assert axis.labels[axis.places(rows)[0]] == "other"


def test_a_filter_on_what_is_not_declared_is_refused() -> None:
    for where, says in (
        ({"column": "salary", "between": [0, 1]}, "no declared column"),
        ({"column": "sex", "in": ["x"]}, "no declared value"),
        ({"column": "sex", "between": ["2020-01-01", "2020-02-01"]}, "no order"),
    ):
        with pytest.raises(Unfit, match=says) as refused:
            asked(spec(where=[where]))
        assert refused.value.pointer == "/where/0"
