"""The linear scaling experiment, small: what it runs is what the service's search would run, and charge."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks.reproduce import linear_scaling_grid as grid
from benchmarks.reproduce import linear_scaling_runs as runs
from benchmarks.reproduce import linear_scaling_search as search
from benchmarks.reproduce.runs import Data, Kept
from core.privacy.gdp import mu_from_epsilon
from worker.data.records import DenseRecords


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    """400 records of a problem that a line solves, under the name of another."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(500, 4, generator=generator)
    records = DenseRecords(x, (x.sum(dim=1) > 0).long())
    train, test = (records.select(np.arange(first, last)) for first, last in ((0, 400), (400, 500)))
    task = {"kind": "classification", "label": "y", "classes": [0, 1]}
    data = Data(task, {"kind": "tensor", "array": "x"}, train, test, features_count=4, outputs=2)
    monkeypatch.setattr(runs, "data", lambda _name: data)
    monkeypatch.setattr(search, "data", lambda _name: data)
    monkeypatch.setattr(runs, "kept", Kept(tmp_path / "kept.json"))
    return "pixels"


def test_a_search_spends_what_it_was_given(small: str) -> None:
    found = search.linear_scaling(small, 1.0, 0)
    entries = list(runs.kept.entries.values())
    assert len(entries) == 7  # each with its own place in the file
    trained = [mu_from_epsilon(entry["epsilon"], runs.DELTA) ** 2 for entry in entries]
    spent = math.sqrt(sum(trained) + 6 * search.SCORE_MU**2)
    assert spent == pytest.approx(mu_from_epsilon(1.0, runs.DELTA), rel=1e-5)
    assert found.result["epsilon"] == pytest.approx(found.epsilon, rel=1e-5)
    assert found.epsilon == pytest.approx(0.8790, abs=1e-4)
    assert found.decision is not None and found.final.point.r == pytest.approx(found.decision.fit.r_star, rel=1e-6)


def test_what_is_kept_is_not_run_again(small: str, monkeypatch: pytest.MonkeyPatch) -> None:
    first = search.random(small, 1.0, 3)
    monkeypatch.setattr(runs, "run", None)
    assert search.random(small, 1.0, 3) == first
    assert first.result["epsilon"] == pytest.approx(1.0, rel=1e-5)


def test_the_same_search_may_end_with_the_most_steps(small: str) -> None:
    plain, longest = (search.linear_scaling(small, 1.0, 0, final_steps=how) for how in ("drawn", "longest"))
    assert longest.decision == plain.decision
    assert longest.final.point.steps == runs.SETTINGS[small].steps[1] != plain.final.point.steps
    assert len(runs.kept.entries) == 8  # its pilots are the same


def test_the_top_of_a_curve_is_found_between_its_points() -> None:
    points = [(r, 0.8 - 0.01 * (math.log(r) - math.log(20.0)) ** 2) for r in (5.0, 10.0, 17.0, 30.0, 60.0)]
    assert grid._peak(points) == pytest.approx(20.0, rel=1e-6)
    assert grid._peak([(1.0, 0.5), (10.0, 0.6)]) == 10.0


def test_an_ablation_begins_where_it_says(small: str) -> None:
    plain, random = (
        runs.trial(small, 1e-9, 5, 1.0, 0, change) for change in (None, {"init": "he"})
    )  # too small a step to leave the beginning
    assert plain["test"] != random["test"]
