"""From noisy tables to rows: near them, in the declared schema, and the same for the same release."""

from __future__ import annotations

import tracemalloc
from datetime import date
from typing import Any

import numpy as np
import pytest

from core.contracts.dataset_spec import ClassificationTask
from core.contracts.marginals import marginals
from core.contracts.table import CategoryColumn, DateColumn, NumberColumn, TableFeatures
from core.statistics.plans import Asked
from core.statistics.statistics_columns import Axis, Cells, Column, declared_columns
from core.synthetic.mixture import Mixture, drawn
from core.synthetic.noisy_tables import Codes, Tables, tables_of
from core.synthetic.synthesis import Synthesis, bytes_of, synthesise
from core.synthetic.target import with_target
from core.synthetic.values import values_of
from tests.statistics.data import COLUMNS, TASK, cells

NAMES = ("age", "bmi", "sex", "day", "y")
SIZES = [4, 3, 5, 2]


def random(seed: int = 0) -> np.random.Generator:
    return np.random.Generator(np.random.PCG64(seed))


def axes() -> list[Axis]:
    columns = declared_columns(TableFeatures.model_validate({"columns": COLUMNS}), ClassificationTask(**TASK))
    numbers = ("age", "bmi", "day")
    return [Axis.of(columns[name], bins=16 if name in numbers else None) for name in NAMES]


def released(records: Cells, std: float = 0.0) -> list[Any]:
    columns = declared_columns(TableFeatures.model_validate({"columns": COLUMNS}), ClassificationTask(**TASK))
    plans = Asked.of(marginals(NAMES, "y", 16), (), columns)
    return [each + random().normal(0.0, std, len(each)) for each in plans.sums(records)]


def synthetic(std: float = 5.0, rows: int = 2_000, target: str | None = "y") -> Synthesis:
    return synthesise(axes(), released(cells(5_000), std), [std] * 10, target, rows)


def dependent(n: int, seed: int = 0) -> Codes:
    """The second column follows the first, and the last follows both."""
    r = random(seed)
    a = r.integers(0, 4, n)
    b = np.where(r.random(n) < 0.8, a % 3, r.integers(0, 3, n))
    c = r.integers(0, 5, n)
    y = (r.random(n) < 1.0 / (1.0 + np.exp(2.0 - a - 0.7 * b))).astype(np.int64)
    return np.column_stack([a, b, c, y])


def apart(one: Codes, other: Codes) -> float:
    pairs = zip(tables_of(one, SIZES), tables_of(other, SIZES), strict=True)
    return max(0.5 * float(np.abs(a / len(one) - b / len(other)).sum()) for a, b in pairs)


def tables(records: Codes, std: float) -> Tables:
    noisy = [each + random(1).normal(0.0, std, each.shape) for each in tables_of(records, SIZES)]
    return Tables.of(SIZES, noisy, [std] * len(noisy))


def test_rows_have_the_tables_that_they_were_drawn_from() -> None:
    """Every pair is within 2 % where noise is small; independent columns would be 20 % off."""
    records = dependent(20_000)
    found = tables(records, 5.0)
    rows = with_target(Mixture.fitted(found, random()).rows(20_000, random()), 3, found, random())
    assert apart(rows, records) < 0.02
    shuffled = np.column_stack([random(k).permutation(records[:, k]) for k in range(4)])
    assert apart(shuffled, records) > 0.2


def test_the_mixture_removes_noise() -> None:
    """Rows of eight columns that share a cause are nearer to the records than the noisy tables themselves."""
    r, sizes, n = random(2), [6] * 8, 3_000
    cause = r.integers(0, 3, n)
    records = np.column_stack([(cause * 2 + (r.random(n) < 0.4) * r.integers(0, 6, n)) % 6 for _ in sizes])
    exact = tables_of(records, sizes)
    noisy = [each + r.normal(0.0, 30.0, each.shape) for each in exact]
    rows = Mixture.fitted(Tables.of(sizes, noisy, [30.0] * len(noisy)), random()).rows(n, random())
    of_rows = sum(float(np.abs(a - b).sum()) for a, b in zip(tables_of(rows, sizes), exact, strict=True))
    of_noise = sum(float(np.abs(a - b).sum()) for a, b in zip(noisy, exact, strict=True))
    assert of_rows < 0.7 * of_noise


def test_the_target_is_drawn_from_the_other_columns() -> None:
    """Of rows whose target says nothing, the new one has each column's table, and the order of the records' odds."""
    records = dependent(20_000)
    found = tables(records, 5.0)
    fresh = dependent(20_000, seed=9)
    fresh[:, 3] = 0
    rows = with_target(fresh, 3, found, random())
    assert apart(rows, records) < 0.03
    high, low = (rows[(rows[:, 0] == a) & (rows[:, 1] == b)][:, 3].mean() for a, b in ((3, 0), (0, 0)))
    true = [records[(records[:, 0] == a) & (records[:, 1] == b)][:, 3].mean() for a, b in ((3, 0), (0, 0))]
    assert [high, low] == pytest.approx(true, abs=0.05)


def test_a_target_may_stand_anywhere() -> None:
    """Its tables with later columns are turned: the same model follows."""
    records = dependent(20_000)[:, [3, 0, 1, 2]]
    sizes = [2, 4, 3, 5]
    noisy = tables_of(records, sizes)
    found = Tables.of(sizes, noisy, [5.0] * len(noisy))
    blank = records.copy()
    blank[:, 0] = 0
    rows = with_target(blank, 0, found, random())
    for a in range(4):
        assert rows[rows[:, 1] == a][:, 0].mean() == pytest.approx(records[records[:, 1] == a][:, 0].mean(), abs=0.03)


def test_margins_and_the_total_follow_from_all_tables() -> None:
    records = dependent(5_000)
    found = tables(records, 20.0)
    assert found.total == pytest.approx(5_000, abs=200)
    for place, margin in enumerate(found.margins):
        assert margin.min() >= 0.0 and margin.sum() == pytest.approx(found.total)
        off = margin - np.bincount(records[:, place], minlength=SIZES[place])
        assert np.abs(off).max() < 5.0 * found.margin_stds[place]
    alone = min(found.stds.values())
    assert max(found.margin_stds) < alone * np.sqrt(max(SIZES))


def test_tables_of_noise_alone_still_make_rows() -> None:
    """No record at all: totals may be negative, and every cell too."""
    found = Tables.of(SIZES, [random(3).normal(-40.0, 5.0, a * b) for a, b in _products()], [5.0] * 6)
    rows = with_target(Mixture.fitted(found, random()).rows(100, random()), 3, found, random())
    assert rows.shape == (100, 4) and (rows >= 0).all() and (rows < SIZES).all()


def _products() -> list[tuple[int, int]]:
    return [(SIZES[i], SIZES[j]) for i in range(4) for j in range(i + 1, 4)]


def test_a_release_has_one_set_of_rows() -> None:
    assert synthetic() == synthetic()
    noisy = released(cells(5_000), 5.0)
    noisy[0][0] = np.nextafter(noisy[0][0], np.inf)  # one bit more
    assert synthesise(axes(), noisy, [5.0] * 10, "y", 2_000).columns != synthetic().columns


def test_rows_are_in_the_declared_schema() -> None:
    found = {each.name: each.values for each in synthetic().columns}
    assert list(found) == list(NAMES) and all(len(each) == 2_000 for each in found.values())
    assert all(isinstance(age, float) and 0.0 <= age <= 100.0 for age in found["age"])
    gone = sum(bmi is None for bmi in found["bmi"])
    assert 0.05 < gone / 2_000 < 0.15  # a tenth of the records' cells is missing
    assert all(bmi is None or 10.0 <= bmi <= 60.0 for bmi in found["bmi"])  # type: ignore[operator]
    assert set(found["sex"]) == {"f", "m"} and set(found["y"]) == {"no", "yes"}
    days = [date.fromisoformat(str(day)) for day in found["day"]]
    assert date(2020, 1, 1) <= min(days) and max(days) <= date(2020, 12, 31)


def test_utility_is_against_the_noisy_tables() -> None:
    """Without noise the error is of sampling alone; with much noise it is the part of it that no rows have."""
    exact = synthetic(0.0).utility
    assert all(each.noise == 0.0 and each.error < 0.03 for each in exact.one_way)
    noisy = synthetic(40.0).utility
    error, noise = (sum(getattr(pair, what) for pair in noisy.two_way) for what in ("error", "noise"))
    assert 0.3 * noise < error < 1.1 * noise
    assert noisy.records == pytest.approx(5_000, rel=0.1) and noisy.rows == 2_000 and noisy.target == "y"
    assert [each.column for each in noisy.one_way] == list(NAMES)
    assert all(sum(cell.rows for cell in each.cells) == pytest.approx(1.0) for each in noisy.one_way)


@pytest.mark.parametrize("rows", [100, 20_000])
def test_the_memory_is_what_admission_expects(rows: int) -> None:
    """Traced: numpy's arrays and Python's values are counted."""
    noisy = released(cells(1_000), 5.0)
    tracemalloc.start()
    synthesise(axes(), noisy, [5.0] * 10, "y", rows)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < bytes_of(sum(map(len, noisy)), len(NAMES), rows)


def test_draws_follow_their_distribution() -> None:
    shares = np.array([[0.5, 0.5, 0.0], [0.0, 0.0, 1.0]])
    which, uniform = np.array([0, 0, 1, 1]), np.array([0.49, 0.51, 0.0, 0.999999])
    assert drawn(shares, which, uniform).tolist() == [0, 1, 2, 2]


def column(declared: Any) -> Column:
    return Column(declared, 0)


def test_a_category_of_others_is_missing_or_an_unknown_text() -> None:
    codes = np.array([0, 1, 2])
    lost = CategoryColumn(name="c", values=[1, 2], missing="other", unknown="other")
    assert values_of(Axis.of(column(lost)), codes, random()).values == [1, 2, None]
    unknown = CategoryColumn(name="c", values=["other", "b"], unknown="other")
    assert values_of(Axis.of(column(unknown)), codes, random()).values == ["other", "b", "other_"]


def test_numbers_without_a_range_and_on_a_log_scale_stay_in_their_bins() -> None:
    edged = NumberColumn(name="n", bins=(18.0, 65.0), missing="own")
    axis = Axis.of(column(edged))
    codes = np.repeat(np.arange(4), 50)
    drawn_ = values_of(axis, codes, random()).values
    back = axis.places(Cells(np.array([[np.nan if x is None else x] for x in drawn_], dtype=np.float32), np.zeros(200)))
    assert back.tolist() == codes.tolist()
    log = NumberColumn(name="n", range=(1.0, 10_000.0), scale="log", bins=4)
    values = values_of(Axis.of(column(log)), np.zeros(1_000, dtype=np.int64), random()).values
    assert np.median([float(each or 0.0) for each in values]) == pytest.approx(10.0**0.5, rel=0.1)


def test_days_stay_in_their_bins() -> None:
    declared = DateColumn(name="d", range=(date(2024, 1, 1), date(2024, 3, 1)))
    axis = Axis.of(column(declared), bins=7)
    codes = np.repeat(np.arange(7), 40)
    days = [declared.day(each) for each in values_of(axis, codes, random()).values]
    assert axis.places(Cells(np.array(days, dtype=np.float32)[:, None], np.zeros(280))).tolist() == codes.tolist()
