"""What a quote says that more ε, records or steps would buy."""

from __future__ import annotations

import io
import itertools
from typing import Any

import pytest
from rich.console import Console

from app.db.database import Database
from app.hpo.accuracy_outlook import RUNS, told
from scrimp.cli import show
from scrimp.models import Quote
from tests.conftest import Api
from tests.dashboard.conftest import Browser
from tests.dashboard.scene import Key
from tests.factories import add_dataset
from tests.jobs.test_api import post

NUMBERS = [{"kind": "number", "name": name, "range": [0, 9], "bins": 16} for name in "abcd"]
BINS = {"features": {"kind": "table", "columns": NUMBERS}}
FULL = {"sensitivity": "private", "cap": {"epsilon": 40.0, "delta": 1e-5}, "filter": "gdp"}


@pytest.fixture
def backing() -> str:
    return "sqlite"


def quote(api: Api, db: Database, epsilon: float, records: int, job: dict[str, Any], **declared: Any) -> dict[str, Any]:
    privacy = declared.pop("privacy", {})
    dataset = add_dataset(db, privacy=FULL | privacy | {"records": records}, **declared)
    found: dict[str, Any] = post(
        api, "/v1/quotes", {"dataset": dataset, "privacy": {"target_epsilon": epsilon}} | job, key=None
    ).json()
    return found


def test_kept_runs_are_better_with_more_signal() -> None:
    for one, two in itertools.pairwise(RUNS):
        assert one.signal < two.signal and one.below >= two.below and one.low >= two.low and one.high >= two.high
    assert all(each.low <= each.below <= each.high and each.runs >= 5 for each in RUNS)
    assert told(RUNS[0].signal)[0] == RUNS[0].below and told(1e9) == told(RUNS[-1].signal)
    with pytest.raises(ValueError, match="no run"):
        told(RUNS[0].signal / 2)


def test_a_small_table_is_told_what_more_buys(api: Api, db: Database) -> None:
    found = quote(api, db, 0.5, 3000, {}, **BINS)
    now, epsilon, records = found["outlook"]["outcomes"]
    assert (now["epsilon"], epsilon["epsilon"]) == (0.5, 1.0)
    assert (now["records"], records["records"]) == (2400, 4800)  # a fifth is held out
    # μ is less than twice as large at twice the ε.
    assert now["below"] > epsilon["below"] >= records["below"]
    assert "public tables" in found["outlook"]["because"] and "steps" in found["outlook"]["because"]
    assert not any("twice the ε" in each for each in found["warnings"])


def test_a_table_below_all_kept_runs_is_told_nothing(api: Api, db: Database) -> None:
    """There more ε gains the most: a warning that it gains nothing would be untrue."""
    found = quote(api, db, 0.1, 1000, {}, **BINS)
    assert found["outlook"] is None and not any("twice the ε" in each for each in found["warnings"])


def test_where_more_epsilon_gains_nothing_the_quote_warns(api: Api, db: Database) -> None:
    found = quote(api, db, 8.0, 200_000, {}, **BINS)
    assert any("twice the ε" in each for each in found["warnings"])
    job = {"model": {"kind": "gam"}}
    plain = {"features": {"kind": "table", "columns": [each | {"bins": None} for each in NUMBERS]}}
    assert quote(api, db, 8.0, 200_000, job, **plain)["outlook"] == found["outlook"], "the additive model has bins"


def test_page_and_command_line_tell_it(api: Api, db: Database) -> None:
    found = quote(api, db, 1.0, 3000, {}, **BINS, name="readmissions")
    below = f"about {found['outlook']['outcomes'][1]['below']:g} points of AUC below"
    console = Console(file=io.StringIO(), width=200)
    show.quote(console, Quote.model_validate(found))
    assert isinstance(console.file, io.StringIO)
    shown = console.file.getvalue()
    api.client.follow_redirects = False
    browser = Browser(api.client)
    browser.sign_in(Key("", api.tokens["analyst"], "analyst"))
    page = browser.get("/dashboard/submit?dataset=readmissions").text
    for text in (shown, page):
        assert "twice the records" in text.lower() and "fourteen public tables" in " ".join(text.split())
    assert below in shown and "points of AUC below the same model without privacy" in page


@pytest.mark.parametrize(
    ("job", "declared"),
    [
        ({}, {}),
        ({}, BINS | {"task": {"kind": "classification", "label": "y", "classes": [0, 1, 2]}}),
        ({}, BINS | {"privacy": {"unit": "user", "user_column": "u", "max_records_per_user": 3}}),
        ({"optimizer": {"kind": "dp_sgd", "learning_rate": 1.0}}, BINS),
        ({"length": {"steps": 5}}, BINS),
        (
            {"sampling": {"kind": "poisson", "expected_batch_size": 100}},
            BINS | {"privacy": {"filter": "rdp"}, "order": 8.0},
        ),
    ],
)
def test_jobs_unlike_the_kept_runs_have_no_outlook(
    api: Api, db: Database, job: dict[str, Any], declared: dict[str, Any]
) -> None:
    assert quote(api, db, 1.0, 3000, job, **declared)["outlook"] is None
