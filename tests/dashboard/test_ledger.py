"""A budget over time and its entries as a file: true to the ledger, and for who may see it."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable

import pytest

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
    monkeypatch.setattr("app.dashboard.entries_csv.BATCH", 3)
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
    assert f"training part&#39;s budget over time: {percent} % spent now" in page
    assert f"{percent} %</td></tr>" in page, "the table says it too"
    assert f"{ids.succeeded} of {scene.analyst.id}" not in page and f"{ids.succeeded} of you" in page
    assert page.count("data-chart=") == 6 and "% a day" in page


def test_an_owner_reads_the_names_of_keys_and_others_their_ids(whole: Whole, signed_in: SignedIn) -> None:
    _scene, ids = whole
    address = f"/dashboard/live/datasets/{ids.reviews}/burndown"
    assert "of Anand" in signed_in("owner").get(address).text
    assert "of Anand" not in signed_in("analyst").get(address).text


def test_a_share_is_rounded_up_and_nothing_is_a_dash() -> None:
    assert [share_of(each, 1000) for each in (0, 1, 84, 1000)] == ["–", "0.1 %", "8.4 %", "100.0 %"]
    assert share_of(1, 10**12) == "0.1 %"
