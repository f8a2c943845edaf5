"""Ratings through the real service: registered, trained privately and publicly, and used as the model's card says."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.by_night import SQLITE_BY_DAY
from tests.e2e.conftest import Service
from tests.e2e.test_spine import finished, submit

USERS, ITEMS = 30, 40


def write_ratings(path: Path, rows: int = 3000, seed: int = 0) -> Path:
    """Ratings that depend on user and item."""
    generator = np.random.default_rng(seed)
    users, items = generator.integers(0, USERS, rows), generator.integers(0, ITEMS, rows)
    taste, quality = np.random.default_rng(1).normal(size=USERS), np.random.default_rng(2).normal(size=ITEMS)
    ratings = np.clip(np.round(3 + taste[users] + quality[items]), 1, 5).astype(int)
    lines = [f"{u + 1}::{i + 1}::{r}::978300760" for u, i, r in zip(users, items, ratings, strict=True)]
    path.write_text("\n".join(lines) + "\n")
    return path


def spec(name: str, sensitivity: str) -> dict[str, Any]:
    numbered = {"users": {"kind": "numbered", "count": USERS}, "items": {"kind": "numbered", "count": ITEMS}}
    privacy: dict[str, Any] = {"sensitivity": sensitivity}
    if sensitivity == "private":
        privacy |= {"records": 3000, "cap": {"epsilon": 8.0, "delta": 1e-5}, "filter": "gdp"}
    return {
        "name": name,
        "format": "interactions",
        "task": {"kind": "rating", "scale": [1, 5]},
        "features": {"kind": "interactions", "layout": "dat"} | numbered,
        "privacy": privacy,
        "holdout": {"kind": "split", "fraction": 0.25},
    }


def job(dataset: str, **changes: Any) -> dict[str, Any]:
    return {
        "dataset": dataset,
        "model": {"kind": "matrix_factorization", "dim": 2},
        "optimizer": {"kind": "dp_sgd", "learning_rate": 2.0, "momentum": 0.9},
        "privacy": {"target_epsilon": 6.0},
        "length": {"steps": 40},
        "evaluation": {"on": "holdout", "noise_mu": 0.3, "points": 2, "loss_bound": 16.0},
    } | changes


@pytest.mark.parametrize("service", SQLITE_BY_DAY, indirect=True)
def test_ratings_from_post_to_prediction(service: Service, tmp_path: Path) -> None:
    with service.client() as client:
        for name, sensitivity, seed in (("r-private", "private", 0), ("r-public", "public", 1)):
            client.create_dataset(spec(name, sensitivity), write_ratings(tmp_path / name, seed=seed))
    jobs = {"private": submit(service, job("r-private")), "public": submit(service, job("r-public", privacy=None))}
    ended = {name: finished(service, each) for name, each in jobs.items()}
    assert {each["status"] for each in ended.values()} == {"succeeded"}
    private, public = (ended[name]["metrics"]["loss"] for name in ("private", "public"))
    assert private["released_by"] == "noisy_sum" and private["std"] > 0
    assert public["released_by"] == "public_data" and public["std"] == 0
    assert "training_loss" not in ended["private"]["metrics"]
    assert public["value"] < 0.5 and private["value"] < 1.2 + 4 * private["std"], "a constant would have 1.7"
    with service.client() as client:
        for artifact in ("model.safetensors", "model.json"):
            (tmp_path / artifact).write_bytes(
                client._http.get(f"/v1/jobs/{jobs['private']}/artifacts/{artifact}").content
            )
    card = json.loads((tmp_path / "model.json").read_text())
    run = subprocess.run(
        [sys.executable, "-c", card["usage"]], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert 1.0 <= ast.literal_eval(run.stdout)[0]["value"] <= 5.0
