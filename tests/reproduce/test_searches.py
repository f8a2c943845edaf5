"""How experiments choose and compare: validation splits, searches past a grid's end, pairs of seeds, kept rows."""

from __future__ import annotations

import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks import extractors
from benchmarks.reproduce import correlated
from benchmarks.reproduce.correlated import RATES, STRIDE, Cell, Way, gain, searched
from benchmarks.reproduce.dp2_data import validating
from benchmarks.reproduce.runs import Data, paired, uphill
from core.parts.stored_records import StoredPart
from scrimp_server.extractor_bench import Row, Score
from worker.data.records import DenseRecords


def records(count: int) -> DenseRecords:
    """Each with a number of its own."""
    return DenseRecords(torch.arange(count, dtype=torch.float32)[:, None], torch.arange(count))


def test_a_validation_split_shares_no_record_with_training_and_sees_no_held_out_one() -> None:
    whole = Data({"kind": "classification"}, {}, records(100), records(7), 1, 1)
    split = validating(whole)
    trained, held = (set(part.labels.tolist()) for part in (split.train, split.holdout))
    assert trained | held == set(range(100)) and not trained & held
    assert len(held) == 20 and max(np.diff(sorted(held))) <= 6, "of all places: the file is sorted by label"


@pytest.mark.parametrize("best", [RATES[0] / STRIDE**2, RATES[0], RATES[2], RATES[-1], RATES[-1] * STRIDE])
def test_a_search_goes_on_past_its_grid_s_end(best: float, monkeypatch: pytest.MonkeyPatch) -> None:
    def accuracy(name: str, way: Way, epsilon: float, rate: float, seed: int) -> float:
        assert seed in correlated.SEARCHED
        return -abs(float(np.log(rate / best)))

    monkeypatch.setattr(correlated, "accuracy", accuracy)
    assert searched("a set", Way("poisson"), 1.0) == pytest.approx(best, rel=1e-3)


def test_a_decay_is_chosen_by_validation_and_not_by_the_scores_that_are_shown() -> None:
    found = {way: Cell(1.0, 50.0, (70.0, 72.0)) for way in correlated.WAYS}
    found[Way("cyclic", 0.5)] = Cell(1.0, 60.0, (80.0, 81.0))
    found[Way("cyclic", 0.9)] = Cell(1.0, 55.0, (90.0, 90.0))
    said = gain("a set", 1.0, found)
    assert "λ = 0.5" in said and "+9.50 ± 0.50 from poisson" in said


@pytest.mark.parametrize("lost", [math.nan, -math.inf])
def test_a_walk_uphill_ends_at_a_fall_and_a_loss_that_is_not_finite_is_one(lost: float) -> None:
    rates = (1.0, 2.0, 4.0, 8.0, 16.0)
    scores = dict(zip(rates, (1.0, 2.0, 3.0, lost, 9.0), strict=True))
    for first in range(4):
        assert uphill(scores.__getitem__, rates, first) == (4.0 if first < 3 else 16.0)
    assert uphill(lambda rate: rate, rates, 4) == 16.0, "the grid's end"


def test_differences_are_of_pairs() -> None:
    """The deviation between seeds, which both share, does not blur them."""
    assert paired([10.0, 50.0, 90.0], [9.0, 49.0, 89.0]) == "+1.00 ± 0.00"
    assert paired([1.0, 3.0], [0.0, 0.0]) == "+2.00 ± 1.00"
    assert paired([1.0], [3.0]) == "-2.00"
    assert paired([1.0], [3.0], 1) == "-2.0"
    with pytest.raises(ValueError, match="shorter"):
        paired([1.0, 2.0], [1.0])


def test_rows_of_extractors_are_kept_and_the_missing_ones_are_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[list[str]] = []

    def bench(public: Any, root: Path, names: list[str], *_: Any) -> Any:
        asked.append(names)
        return (Row(name, 8, 1.0, (Score(None, 0.5, 0.1),)) for name in names)

    monkeypatch.setattr(extractors, "RESULTS", tmp_path / "kept.json")
    monkeypatch.setattr(extractors, "bench", bench)
    monkeypatch.setattr(extractors, "fitting", lambda *_: {"words": None, "one": None, "two": None})
    monkeypatch.setattr(extractors, "table", lambda rows: [row.extractor for row in rows])
    public: Any = SimpleNamespace(part=StoredPart(np.zeros((3, 2)), np.zeros(3)), spec=SimpleNamespace(name="reviews"))
    kept: dict[str, Any] = {"folds": 5}
    extractors.completed(kept, public, tmp_path, ["one"])
    extractors.completed(kept, public, tmp_path, [])
    extractors.completed(kept, public, tmp_path, [])
    assert asked == [["one"], ["words", "two"]]
    rows = json.loads((tmp_path / "kept.json").read_text())["reviews"]["rows"]
    assert [row["extractor"] for row in rows] == ["one", "words", "two"]
    public.part = StoredPart(np.zeros((4, 2)), np.zeros(4))
    extractors.completed(kept, public, tmp_path, ["one"])
    assert [row["extractor"] for row in kept["reviews"]["rows"]] == ["one"], "rows of another number of records go"
