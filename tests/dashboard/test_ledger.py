"""A budget over time and its entries as a file: true to the ledger, and for who may see it."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest

from app.dashboard.burndown import Balance, drawn
from app.dashboard.numbers import share_of
from app.db.models import Account
from tests.dashboard.conftest import Browser
from tests.dashboard.scene import Everything, Scene

Whole = tuple[Scene, Everything]
SignedIn = Callable[[str], Browser]


def test_the_file_has_every_entry_with_its_share_and_its_amount(
    whole: Whole, signed_in: SignedIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene, ids = whole
    monkeypatch.setattr("app.dashboard.entries.BATCH", 3)
    browser = signed_in("analyst")
    file = browser.get(f"/dashboard/datasets/{ids.reviews}/entries.csv")
    assert file.headers["content-type"] == "text/csv; charset=utf-8"
    assert file.headers["content-disposition"] == 'attachment; filename="imdb-reviews-entries.csv"'
    rows = list(csv.DictReader(io.StringIO(file.text)))
    listed = browser.client.get(
        f"/v1/datasets/{ids.reviews}/ledger/entries?limit=200",
        headers={"Authorization": f"Bearer {scene.analyst.token}"},
    ).json()["items"]
    names = {"entry": "seq", "at": "created_at", "kind": "kind", "train": "train", "holdout": "holdout", "hash": "hash"}
    for row, entry in zip(rows, listed, strict=True):
        assert {name: row[name] for name in names} == {name: str(entry[of]) for name, of in names.items()}
        assert row["actor"] == entry["actor"]
    with scene.db.read() as session:
        account = session.get_one(Account, ids.reviews)
    spent = sum(float(row["train_share"]) for row in rows if row["kind"] == "post")
    assert abs(spent - account.train_spent / account.train_budget) < 1e-4
    assert signed_in("analyst").get(f"/dashboard/datasets/{ids.digits}/entries.csv").status_code == 404


def test_the_drawing_ends_at_what_is_spent_and_held_today(whole: Whole, signed_in: SignedIn) -> None:
    scene, ids = whole
    page = signed_in("analyst").get(f"/dashboard/live/datasets/{ids.reviews}/burndown").text
    with scene.db.read() as session:
        account = session.get_one(Account, ids.reviews)
    percent = -(-account.train_spent * 1000 // account.train_budget) / 10
    assert f"training part&#39;s budget over time: {percent} % spent now" in page or (
        f"training part's budget over time: {percent} % spent now" in page
    )
    assert f"{ids.succeeded} spent" in page and page.count("<svg") == 2


def test_a_cap_that_was_raised_is_a_step_of_its_line() -> None:
    began = datetime(2026, 1, 1, tzinfo=UTC)
    states = [(0, 0, 0, 50), (1, 0, 20, 50), (2, 20, 0, 50), (3, 20, 0, 100)]
    balances = [
        Balance(at, began + timedelta(hours=at), "job_1" if at else None, spent, held, budget, 20 if at == 2 else 0)
        for at, spent, held, budget in states
    ]
    picture = drawn(balances, "train", 100, balances[-1].at)
    heights = [float(each.split(",")[1]) for each in picture.cap.split()]
    full, half, floor = picture.y_ticks[-1].at, heights[0], picture.y_ticks[0].at
    assert picture.y_ticks[-1].label == "100 %" and heights[-1] == pytest.approx(full, abs=0.1)
    assert half == pytest.approx((full + floor) / 2, abs=0.1)
    assert [(mark.job_id, mark.said) for mark in picture.marks] == [("job_1", "20.0 %")]
    assert picture.percent == 20.0 and picture.x_ticks[0].label == "00:00"


def test_a_share_is_rounded_up_and_nothing_is_a_dash() -> None:
    assert [share_of(each, 1000) for each in (0, 1, 84, 1000)] == ["–", "0.1 %", "8.4 %", "100.0 %"]
    assert share_of(1, 10**12) == "0.1 %"
