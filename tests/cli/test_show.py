"""What is printed: an ε with its meaning, a score with its noise, and nothing rounded to the wrong side."""

from __future__ import annotations

import io
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from app.dashboard.page import templates
from scrimp.cli import command_tables, show
from scrimp.errors import BudgetRefused, InvalidRequest, error_of
from scrimp.models import Account, Epsilon, Grant, Job, Metric
from tests.factories import job_answer


def printed(what: object) -> str:
    console = Console(file=io.StringIO(), width=120)
    console.print(what)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def account(**amounts: int) -> Account:
    numbers = {"budget": 1000, "spent": 0, "held": 0} | amounts
    remaining = numbers["budget"] - numbers["spent"] - numbers["held"]
    shares = {f"share_{name}": numbers[name] / numbers["budget"] for name in ("spent", "held")}
    return Account(filter="gdp", unit="mu^2 * 1e-12", remaining=remaining, **numbers, **shares)


def test_an_epsilon_says_what_it_means() -> None:
    assert show.eps(Epsilon(value=1.0, delta=1e-5, accountant="gdp")) == (
        "ε = 1 (δ = 1e-05, gdp, one example added or removed)"
    )
    assert show.eps(None) == "public data: no privacy claimed"


def ended(status: str, share: float | None) -> Job:
    planned = {"value": 3.99941, "delta": 1e-5, "accountant": "pld"}
    quote = {"steps": 2000, "epsilon": planned}
    charged = None if share is None else {"train": 1, "holdout": 0, "share": share}
    progress = {"step": 450, "steps": 2000}
    return Job(**job_answer(quote, status=status, progress=progress, epsilon_spent=planned, charged=charged))


def test_a_job_that_ended_early_says_what_it_was_charged() -> None:
    """Cancelled at 450 of 2,000 steps: its planned ε is a bound, and none is computed at the stopping time."""
    meaning = "(δ = 1e-05, pld, one example added or removed)"
    assert show.cost(ended("cancelled", 0.225)) == (f"at most ε = 3.9994 (planned); 23 % of it was charged {meaning}")
    assert show.cost(ended("failed", 1.0)).endswith(f"100 % of it was charged {meaning}")
    assert show.cost(ended("cancelled", 0.0)) == "nothing was charged: no private step was started"
    for succeeded in (ended("succeeded", 1.0), ended("running", None), ended("failed", None)):
        assert show.cost(succeeded) == f"ε = 3.999 {meaning}"
    assert show.brief_cost(ended("cancelled", 0.225)) == "≤ 3.9994 (δ=1e-05), 23 % charged"
    assert show.brief_cost(ended("failed", 0.0)) == "nothing charged"


@pytest.mark.parametrize(("share", "said"), [(0.0, "0 %"), (0.084, "8.4 %"), (0.08401, "8.5 %"), (1.0, "100 %")])
def test_a_spent_share_is_never_shown_smaller(share: float, said: str) -> None:
    assert show.percent(share) == said


@pytest.mark.parametrize(
    ("status", "step", "spec", "said"),
    [
        ("running", 0, {}, "loading the data"),
        ("running", 0, {"model": {"extractor": {"name": "e"}}}, "loading the data and their features"),
        ("running", 0, {"model": {"extractor": None}}, "loading the data"),
        ("running", 1, {}, ""),
        ("queued", 0, {}, ""),
        ("succeeded", 0, {}, ""),
    ],
)
def test_a_job_before_its_first_step_says_what_it_does(status: str, step: int, spec: Any, said: str) -> None:
    """In the client and on the dashboard; how far it is would tell how many records there are."""
    before = ended(status, None)
    progress = before.progress.model_copy(update={"step": step})
    job = before.model_copy(update={"spec": spec, "progress": progress})
    assert job.doing == said
    console = Console(file=io.StringIO(), width=120)
    show.job(console, job)
    assert isinstance(console.file, io.StringIO)
    assert ("loading" in console.file.getvalue()) == bool(said)
    view = {"status": status, "step": step, "spec": spec, "study": None, "waiting_for": None, "attempts": []}
    more = {"progress": {"step": step, "steps": 2000, "elapsed_s": None, "remaining_s": None}}
    html = str(templates().get_template("_ui.html").module.steps(SimpleNamespace(**view | more)))  # type: ignore[attr-defined]
    assert html.strip() == said or (not said and "loading" not in html)


def test_room_is_said_in_words() -> None:
    assert [show.room(each) for each in (0, 1, 1200)] == [
        "no room for a job like this",
        "room for 1 more job like this",
        "room for 1,200 more jobs like this",
    ]


def test_a_score_says_its_noise() -> None:
    noisy = Metric(name="accuracy", step=1, value=0.8231, std=0.004, on="holdout", released_by="noisy_count")
    assert show.score(noisy) == "0.8231 ± 0.0040"
    assert "exact" in show.score(noisy.model_copy(update={"std": 0.0}))


@given(st.floats(min_value=1e-4, max_value=100.0))
def test_what_is_said_to_fit_fits_when_typed_back(value: float) -> None:
    said = float(show.floored(value))
    assert said <= value
    assert said >= value * 0.998


@pytest.mark.parametrize(("unit", "expected"), [("mu^2 * 1e-12", "0.0718 μ²"), ("rdp(6.0) * 1e-9", "71.8 rdp(6.0)")])
def test_amounts_are_in_the_filters_own_unit(unit: str, expected: str) -> None:
    assert show.amount(71_800_000_000, unit) == expected


@given(st.integers(1, 2**60), st.floats(0, 1), st.floats(0, 1))
def test_a_bar_is_always_whole(budget: int, spent_part: float, held_part: float) -> None:
    spent = int(budget * spent_part)
    held = int((budget - spent) * held_part)
    drawn = show.bar(account(budget=budget, spent=spent, held=held)).plain.split("  ")[0]
    assert len(drawn) == show.BAR_WIDTH
    assert ("█" in drawn) == (spent > 0)


def test_a_refusal_says_what_was_asked_what_is_left_and_what_fits() -> None:
    problem = {
        "type": "/problems/budget-exceeded",
        "title": "The privacy budget does not cover this job",
        "status": 409,
        "requested": {"train": 500_000_000_000, "holdout": 0},
        "remaining": {"train": 400_000_000_000, "holdout": 100},
        "largest_epsilon_that_fits": 2.65999,
        "account": "train",
        "unit": "mu^2 * 1e-12",
    }
    refusal = error_of(problem)
    assert isinstance(refusal, BudgetRefused)
    text = printed(show.refusal(refusal))
    for expected in ("0.5 μ²", "0.4 μ²", "does not fit", "2.659", "Nothing was charged"):
        assert expected in text
    assert "2.66" not in text


def test_an_invalid_request_points_at_each_fault() -> None:
    refusal = error_of(
        {"status": 422, "title": "T", "detail": "D", "errors": [{"pointer": "/a/b", "detail": "change it"}]}
    )
    assert isinstance(refusal, InvalidRequest)
    console = Console(file=io.StringIO(), width=120)
    show.error(console, refusal)
    assert isinstance(console.file, io.StringIO)
    assert "/a/b  change it" in console.file.getvalue()


def test_text_of_the_service_is_not_read_as_markup() -> None:
    console = Console(file=io.StringIO(), width=120)
    show.table(console, ("name",), [("[bold]x[/nonsense]",)])
    show.error(console, error_of({"status": 404, "title": "[/oops]", "detail": "[red]"}))
    assert isinstance(console.file, io.StringIO)
    assert "[bold]x[/nonsense]" in console.file.getvalue()
    assert "[/oops]: [red]" in console.file.getvalue()


def test_predictions_are_a_line_each(capsys: pytest.CaptureFixture[str]) -> None:
    found: list[dict[str, Any]] = [
        {"class": "yes", "probabilities": {"yes": 0.9, "[no]": 0.1}},
        {"value": 3.5},
        {"items": [{"item": "50", "row": 49, "score": 1.0}, {"item": None, "row": 7, "score": 0.5}]},
        {"loss": None, "perplexity": None, "tokens": 0, "next": [{"token": " a", "id": 3, "probability": 0.5}]},
    ]
    show.predictions(show.console(), found)
    assert capsys.readouterr().out == "yes  (yes 0.900  [no] 0.100)\n3.5\n50  7\nloss —  next ' a' 0.500\n"


def test_a_column_is_a_member_a_format_or_a_function() -> None:
    """What is missing is an empty cell, a moment is cut to its second, and a name is never markup."""
    told = Console(file=io.StringIO(), width=100)
    key = {"key_id": "key_a", "key_name": "[bold]Ann", "key_role": "analyst", "access": "train"}
    members = key | {"dataset_id": "ds_a", "created_at": "2026-11-24T19:00:00.5Z", "created_by": "key_b"}
    grants = [Grant.model_validate(members | {"max_epsilon_per_job": most}) for most in (None, 0.1234567)]
    columns = ("key=key_id", "key_name", "ε=max_epsilon_per_job:g", "granted=created_at", ("own", lambda each: "yes"))
    command_tables.table(told, columns, grants)
    assert isinstance(told.file, io.StringIO)
    lines = [line.split() for line in told.file.getvalue().splitlines()]
    assert lines[0] == ["key", "key_name", "ε", "granted", "own"]
    assert lines[1] == ["key_a", "[bold]Ann", "2026-11-24", "19:00:00", "yes"]
    assert lines[2] == ["key_a", "[bold]Ann", "0.123457", "2026-11-24", "19:00:00", "yes"]
