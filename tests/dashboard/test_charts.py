"""What charts hold: the released numbers with their noise, thinned, in range, and the same as a table."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.dashboard.burndown import Balance, History, Settled, drawn
from app.dashboard.chart import MOST_POINTS, NORMAL_95, Axis, Chart, Line, Point, around, thinned
from app.dashboard.curve import curves
from app.dashboard.forecast_page import forecast
from app.dashboard.overlay import Compared, Paid, pareto_fronts
from app.jobs.schemas import MetricView
from core.contracts.base import Epsilon

BEGAN = datetime(2026, 1, 1, tzinfo=UTC)


def metric(step: int, value: float, std: float = 0.01, name: str = "accuracy") -> MetricView:
    return MetricView(name=name, step=step, value=value, std=std, on="holdout", released_by="noisy_count")


@given(
    st.lists(st.tuples(st.integers(1, 10_000), st.floats(-1e6, 1e6), st.floats(0, 1e3)), min_size=1, max_size=30),
)
def test_every_point_of_a_curve_lies_inside_it(numbers: list[tuple[int, float, float]]) -> None:
    (curve,) = curves([metric(*each, name="loss") for each in numbers], 10_000)
    (line,), x, y = curve.chart.lines, curve.chart.x, curve.chart.y
    assert [point.x for point in line.points] == sorted(point.x for point in line.points)
    for point in line.points:
        assert y.low < point.y < y.high and x.low <= point.x <= x.high
        if point.low is not None and point.high is not None:
            assert y.low < point.low <= point.y <= point.high < y.high


@given(st.lists(st.tuples(st.floats(-2, 3), st.floats(0, 1)), min_size=1, max_size=30))
def test_a_fraction_s_chart_ends_at_0_and_1_but_where_a_released_number_does_not(
    numbers: list[tuple[float, float]],
) -> None:
    (curve,) = curves([metric(at, *each, name="auc") for at, each in enumerate(numbers)], 100)
    y, values = curve.chart.y, [value for value, _ in numbers]
    assert min(0.0, *values) <= y.low <= min(values) and max(values) <= y.high <= max(1.0, *values)
    assert y.low < y.high


def test_error_bars_are_95_percent_of_the_noise_and_an_exact_number_has_none() -> None:
    (curve,) = curves([metric(50, 0.8, 0.01), metric(100, 0.9, 0.0)], 100)
    noisy, exact = curve.chart.lines[0].points
    assert noisy.high is not None and noisy.low is not None
    assert noisy.high - noisy.low == pytest.approx(2 * NORMAL_95 * 0.01)
    assert (noisy.at, noisy.value) == ("step 50", "0.800 ± 0.010")
    assert (exact.low, exact.high, exact.value) == (None, None, "0.9")


def test_each_metric_has_a_curve_and_what_is_not_a_number_is_left_out() -> None:
    found = curves([metric(1, 0.5), metric(1, 0.4, name="loss"), metric(2, math.nan)], 2)
    assert [len(curve.chart.lines[0].points) for curve in found] == [1, 1]
    assert curves([], 10) == []


@given(st.integers(0, 5000), st.integers(1, 2500))
def test_thinning_keeps_the_ends_the_order_and_the_bound(count: int, most: int) -> None:
    kept = thinned(range(count), most)
    assert len(kept) == min(count, most) and kept == sorted(set(kept))
    if count:
        assert kept[-1] == count - 1
    if count and most > 1:
        assert kept[0] == 0


def test_ten_thousand_scores_are_two_thousand_points_and_a_short_table() -> None:
    (curve,) = curves([metric(step, 0.5) for step in range(1, 10_001)], 10_000)
    assert len(curve.chart.lines[0].points) == MOST_POINTS
    rows = curve.chart.rows
    assert rows[0][1].at == "step 10\u202f000" and len(rows) + curve.chart.left_out == MOST_POINTS


@pytest.mark.parametrize("values", [[0.0], [0.5, 0.5 + 1e-15], [1e6, 1e6], [-3.0]])
def test_a_range_of_almost_nothing_has_a_height(values: list[float]) -> None:
    low, high = around(values)
    assert low < min(values) <= max(values) < high and high - low > 1e-3


def test_a_chart_is_a_document_without_quiet_lines_in_its_table() -> None:
    quiet = Line("front", [Point(1, 2, "", "")], quiet=True)
    chart = Chart(
        "c", "t", Axis("x", 0, 1), Axis("y", 0, 1), [quiet, Line("a", [Point(0, 1, "at", "value", 0.5, 1.5)])]
    )
    assert [name for name, _ in chart.rows] == ["a"] and chart.left_out == 0
    assert chart.document["lines"][1]["points"] == [[0, 1, 0.5, 1.5, "at", "value"]]  # type: ignore[index]


def paid(number: int, epsilon: float, score: float, dataset: str = "ds_1", delta: float = 1e-5) -> Paid:
    spent = Epsilon(value=epsilon, delta=delta, accountant="gdp", unit="example", relation="add_or_remove_one")
    quote = type("Q", (), {"epsilon": spent})()
    job = type("J", (), {"dataset": dataset, "quote": quote, "name": str(number)})()
    return Paid(Compared(number, job, dataset, []), epsilon, metric(1, score))


def test_the_pareto_front_has_what_no_job_beats() -> None:
    jobs = [paid(0, 1.0, 0.80), paid(1, 2.0, 0.78), paid(2, 2.0, 0.85), paid(3, 0.5, 0.60), paid(4, 3.0, 0.85)]
    (front,) = pareto_fronts(jobs, larger_is_better=True)
    assert [each.of.number for each in front] == [3, 0, 2]


def test_a_front_of_losses_falls() -> None:
    jobs = [paid(0, 1.0, 0.5), paid(1, 2.0, 0.6), paid(2, 3.0, 0.4)]
    (front,) = pareto_fronts(jobs, larger_is_better=False)
    assert [each.of.number for each in front] == [0, 2]


def test_a_front_joins_no_jobs_whose_epsilons_do_not_compare() -> None:
    assert pareto_fronts([paid(0, 1.0, 0.5), paid(1, 2.0, 0.6, delta=1e-6)], larger_is_better=True) == []
    assert pareto_fronts([paid(0, 1.0, 0.5), paid(1, 2.0, 0.6, dataset="ds_2")], larger_is_better=True) == []


def balances(*states: tuple[int, int, int, int]) -> list[Balance]:
    return [Balance(BEGAN + timedelta(days=at), spent, held, budget) for at, spent, held, budget in states]


def test_a_cap_that_was_raised_is_a_step_of_its_line() -> None:
    states = balances((0, 0, 0, 50), (1, 0, 20, 50), (2, 20, 0, 50), (3, 20, 0, 100))
    settled = [Settled(BEGAN + timedelta(days=2), "job_1", "key_1", 20)]
    picture = drawn("train", 100, states, History(settled, settled, {"key_1": "Ada"}), states[-1].at)
    held, spent, cap, coming = picture.over_time.lines
    began = BEGAN.timestamp()
    steps = [[((point.x - began) / 86_400, point.y) for point in line.points] for line in (held, spent, cap)]
    # Where an amount changes, and now: what is between says nothing.
    assert steps == [[(0, 0), (1, 20), (3, 20)], [(0, 0), (2, 20), (3, 20)], [(0, 50), (3, 100), (3, 100)]]
    assert picture.percent == 20.0 and coming.dashed and coming.points[-1].y <= 100.0
    (dots,) = picture.by_job.lines
    assert dots.points[0].value == "20.0 % · job_1 of Ada"
    (ada,) = picture.by_key.lines
    assert ada.name == "Ada" and [point.y for point in ada.points] == [20, 20]


def test_a_budget_spent_within_moments_has_an_axis_of_a_second() -> None:
    """A shorter one has no ticks: in seconds since 1970 a float resolves a quarter of a microsecond."""
    budget = 10**12
    states = balances((0, 0, 40, budget), (0, budget - 1, 0, budget))
    settled = [Settled(BEGAN, "job_1", "key_1", budget - 1)]
    picture = drawn("train", budget, states, History(settled, settled, {"key_1": "Ada"}), BEGAN)
    assert all(chart.x.high - chart.x.low >= 1.0 for chart in (picture.over_time, picture.by_job, picture.by_key))


def test_many_keys_are_seven_lines_and_one_for_the_rest() -> None:
    settled = [Settled(BEGAN + timedelta(hours=at), f"job_{at}", f"key_{at % 10}", 1 + at % 10) for at in range(5000)]
    names = {f"key_{k}": f"name {k}" for k in range(10)}
    picture = drawn(
        "train",
        10**6,
        balances((0, 0, 0, 10**6), (300, 27500, 0, 10**6)),
        History(settled, settled, names),
        BEGAN + timedelta(days=300),
    )
    assert [line.name for line in picture.by_key.lines] == [f"name {k}" for k in (9, 8, 7, 6, 5, 4, 3)] + [
        "3 other keys"
    ]
    for chart in (picture.by_key, picture.by_job, picture.over_time):
        assert sum(len(line.points) for line in chart.lines) <= MOST_POINTS


def test_a_long_ledger_s_lines_have_few_points() -> None:
    """A point costs 30 µs of each look at a burn-down."""
    states = balances(*((at, at, 0, 10**6) for at in range(300)))
    settled = [Settled(BEGAN + timedelta(hours=at), f"job_{at}", f"key_{at % 10}", 1) for at in range(5000)]
    picture = drawn("train", 10**6, states, History(settled, [], {}), BEGAN + timedelta(days=300))
    assert [len(line.points) for line in picture.over_time.lines[:3]] == [301, 301, 2]
    assert sum(len(line.points) for line in picture.by_key.lines) <= MOST_POINTS / 4


def test_a_forecast_continues_the_last_thirty_days() -> None:
    today = BEGAN + timedelta(days=100)
    settled = [(BEGAN + timedelta(days=10), 40), (today - timedelta(days=20), 15), (today - timedelta(days=1), 15)]
    found = forecast(settled, BEGAN, 70, 100, today)
    assert found is not None and found.percent_per_day == pytest.approx(1.0) and found.days == 30
    assert found.reached == today + timedelta(days=30)


def test_a_young_ledger_s_rate_is_over_its_age_and_at_least_a_day() -> None:
    found = forecast([(BEGAN + timedelta(hours=1), 10)], BEGAN, 10, 100, BEGAN + timedelta(hours=2))
    assert found is not None and found.percent_per_day == pytest.approx(10.0) and found.days == 1
    found = forecast([(BEGAN + timedelta(hours=1), 10)], BEGAN, 10, 100, BEGAN + timedelta(days=5))
    assert found is not None and found.percent_per_day == pytest.approx(2.0)


def test_without_spending_or_without_room_there_is_no_forecast() -> None:
    today = BEGAN + timedelta(days=100)
    assert forecast([(BEGAN, 50)], BEGAN, 50, 100, today) is None
    assert forecast([(today, 50)], BEGAN, 100, 100, today) is None
    found = forecast([(today, 1)], BEGAN, 1, 10**15, today)
    assert found is not None and found.reached <= today + timedelta(days=36_525)
