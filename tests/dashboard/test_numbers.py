"""Numbers are never rounded in the spender's favour."""

from __future__ import annotations

import math
from datetime import timedelta
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.dashboard import balances, numbers
from app.ledger.schemas import AccountView
from core.ids import now

positive = st.floats(min_value=1e-9, max_value=1e9)


@given(st.floats(min_value=0, max_value=1e9))
def test_what_is_spent_is_rounded_up_and_what_is_left_down(value: float) -> None:
    exact = Decimal(repr(value))
    assert Decimal("0.0001") >= Decimal(numbers.up(value)) - exact >= 0
    assert Decimal("0.0001") >= exact - Decimal(numbers.down(value)) >= 0


@given(positive)
def test_noise_is_rounded_against_the_job(value: float) -> None:
    assert Decimal(numbers.down_significant(value)) <= Decimal(repr(value)) <= Decimal(numbers.up_significant(value))
    assert float(numbers.down_significant(value)) == pytest.approx(value, rel=2e-4)


@pytest.mark.parametrize(
    ("value", "up", "down"),
    [
        (0.0, "0.00", "0.00"),
        (1.0, "1.00", "1.00"),
        (0.1, "0.10", "0.10"),
        (1.0000000001, "1.0001", "1.00"),
        (3.99999, "4.00", "3.9999"),
        (0.268051, "0.2681", "0.2680"),
        (1e-9, "0.0001", "0.00"),
        (math.inf, "inf", "inf"),
    ],
)
def test_epsilons_by_example(value: float, up: str, down: str) -> None:
    assert (numbers.up(value), numbers.down(value)) == (up, down)


def test_other_formats() -> None:
    assert numbers.delta(1e-5) == "1e-5"
    assert numbers.delta(2.5e-6) == "2.5e-6"
    assert numbers.exact(20_000.0) == "20000"
    assert numbers.exact(1e-4) == "1e-4"
    assert numbers.amount(71_851_404_655, "mu^2 * 1e-12") == "0.071851404655"
    assert numbers.amount(166_666_667, "rdp(order) * 1e-9") == "0.166666667"
    assert numbers.unit_name("mu^2 * 1e-12") == "μ²"
    assert numbers.with_noise(0.82461, 0.00401) == "0.8246 ± 0.0041"
    assert numbers.with_noise(0.91, 0.0) == "0.91"
    assert numbers.with_noise(math.nan, 0.1) == "nan"
    assert numbers.with_noise(12_345.6, 200.0) == "12346 ± 200"
    assert [numbers.duration(each) for each in (4.24, 33.2, 59.7, 185, 7620)] == [
        "4.2 s",
        "33 s",
        "1 min 00 s",
        "3 min 05 s",
        "2 h 07 min",
    ]
    assert numbers.size(262_272) == "256.1 KiB"
    assert numbers.ago(now() - timedelta(minutes=3)) == "3 min ago"


@given(st.integers(1, 10**18), st.data())
def test_a_budgets_parts_are_the_whole_and_never_too_hopeful(budget: int, data: st.DataObject) -> None:
    spent = data.draw(st.integers(0, budget))
    held = data.draw(st.integers(0, budget - spent))
    account = AccountView(
        filter="rdp",
        order=6.0,
        unit="rdp(order) * 1e-9",
        budget=budget,
        spent=spent,
        held=held,
        remaining=budget - spent - held,
        share_spent=spent / budget,
        share_held=held / budget,
    )
    drawn = balances._budget("train", account, 1e-5)
    assert drawn.spent_percent >= 100 * spent / budget * (1 - 1e-12)
    assert 0 <= drawn.left_percent <= 100 * (budget - spent - held) / budget + 1e-9
    assert drawn.spent_percent + drawn.held_percent + drawn.left_percent == pytest.approx(100)
