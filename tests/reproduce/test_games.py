"""Amazon video games for DPFormer: popular items, users with enough of them, held-out events, the search of a rate."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.reproduce import games
from benchmarks.reproduce.games import RATES, Setting, searched
from benchmarks.reproduce.games_data import games as read
from benchmarks.reproduce.games_data import popularity

# User 1: items 7 8 9 7 8 9; user 2: four events of kept items and a rare one; user 3: 9 9 9 9 9 8.
EVENTS = [(1, 7), (1, 8), (1, 9), (1, 7), (2, 7), (2, 8), (1, 8), (1, 9), (2, 5), (2, 9), (2, 9)]
EVENTS += [(3, 9)] * 5 + [(3, 8)]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "events.txt"
    path.write_text("".join(f"{user} {item}\n" for user, item in EVENTS))
    return path


def sequences(records: Any) -> list[list[int]]:
    return [[int(each) - 1 for each in row if each] for row in records.padded(9)]


def test_popular_items_and_users_with_enough_of_them(file: Path) -> None:
    """Item 9 is the most popular, then 8, then 7; user 2 has four events of them."""
    data = read(file, 3, validation=False)
    assert sequences(data.holdout) == [[2, 1, 0, 2, 1, 0], [0, 0, 0, 0, 0, 1]]
    assert sequences(data.train) == [[2, 1, 0, 2, 1], [0, 0, 0, 0, 0]]
    validation = read(file, 3, validation=True)
    assert sequences(validation.holdout) == sequences(data.train), "the last event is in neither part"
    assert sequences(validation.train) == [[2, 1, 0, 2], [0, 0, 0, 0]]


def test_popularity_ranks_with_ties_against_it(file: Path) -> None:
    data = read(file, 3, validation=False)
    # Counts of 9, 8, 7: 6, 2, 2. Held out: 9 (rank 1) and 8 (rank 3, tied with 7).
    assert popularity(data, 3) == pytest.approx(((1.0 + 0.5) / 2, 1.0))
    assert popularity(data, 1, last=1) == pytest.approx((0.0, 0.0)), "9 and 8 are tied as last items"


@pytest.mark.parametrize("best", range(1, len(RATES) - 1))
def test_a_rate_is_searched_uphill(best: int) -> None:
    asked: list[float] = []

    class Peak:
        def ndcg_and_hit(self, setting: Setting, name: str, rate: float, seed: int) -> tuple[float, float]:
            asked.append(rate)
            assert seed == games.SEARCHED
            return -abs(np.log(rate / RATES[best])), 0.0

    peak: Any = Peak()
    assert searched(peak, Setting(3, 8.0), "GRU") == RATES[best]
    assert len(asked) == len(set(asked)), "no run is made twice"
    assert searched(peak, Setting(3, 8.0), "DPFormer, logits") == RATES[best], "the tied transformer's"


def test_nothing_is_begun_when_time_is_up() -> None:
    """Neither a round nor the search before it."""

    class Lab:
        def ndcg_and_hit(self, setting: Setting, name: str, rate: float, seed: int) -> tuple[float, float]:
            raise AssertionError("a run was made")

    lab: Any = Lab()
    assert not list(games.made(lab, Setting(3, 8.0), time.monotonic()))


def test_a_setting_runs_its_own_models_alone() -> None:
    names = set()

    class Lab:
        def ndcg_and_hit(self, setting: Setting, name: str, rate: float, seed: int) -> tuple[float, float]:
            names.add(name)
            return -abs(np.log(rate / RATES[3])), 0.0

        def rare_ndcg(self, setting: Setting, name: str, rate: float, seed: int) -> float | None:
            return None

        def popular(self, items: int, last: int | None = None) -> tuple[float, float]:
            return 0.0, 0.0

    lab: Any = Lab()
    *_, last = games.made(lab, Setting(3, 8.0, games.RE_ATTENTION), float("inf"))
    assert names == set(games.RE_ATTENTION) == set(last.rates)
    assert set(last.rounds) == set(games.JUDGED)


def test_one_rate_for_all_is_the_tied_transformer_s() -> None:
    asked = set()

    class Lab:
        def ndcg_and_hit(self, setting: Setting, name: str, rate: float, seed: int) -> tuple[float, float]:
            asked.add(name)
            return -abs(np.log(rate / RATES[4])), 0.0

    lab: Any = Lab()
    setting = Setting(3, 5.0, games.RE_ATTENTION, one_rate=True)
    assert {searched(lab, setting, name) for name in setting.models} == {RATES[4]}
    assert asked == {games.TIED}, "no other model is searched"
