"""Whole flows in a real browser, by keyboard: from an empty service to a job, on a wide screen and on a phone."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from app.settings import Settings
from tests.by_night import but
from tests.dashboard.conftest import PATIENCE_MS
from tests.dashboard.scene import Everything, Scene
from tests.dashboard.test_register import table
from tests.factories import job_spec
from tests.graphs.small import small_graph

pytestmark = pytest.mark.browser

Whole = tuple[Scene, Everything]
Open = Callable[..., Any]
SUBMIT, REGISTER = "/dashboard/submit", "/dashboard/register"


@pytest.mark.parametrize("width", but([1440, 390], lambda width: width == 1440))
def test_a_person_composes_and_submits_a_job_by_keyboard_alone(open_page: Open, whole: Whole, width: int) -> None:
    scene, ids = whole
    page = open_page(f"{SUBMIT}?dataset={ids.reviews}", scene.analyst, viewport={"width": width, "height": 900})
    assert page.locator("[aria-invalid]").count() == 0, "no red on arrival"
    page.get_by_role("button", name="Submit: hold").wait_for()
    unfold(page)
    keyboard = page.keyboard
    page.get_by_label("Name").focus()
    keyboard.type(f"by keyboard {width}")
    page.get_by_label("Target ε").focus()
    keyboard.press("Control+A")
    keyboard.type("0.27")
    page.get_by_role("status").get_by_text(re.compile(r"^ε 0\.27")).wait_for()
    assert page.evaluate("document.activeElement.id") == "f-privacy-target_epsilon", "the focus stays"
    assert json.loads(page.get_by_role("textbox", name="The same as JSON").input_value())["privacy"] == {
        "target_epsilon": 0.27
    }
    page.get_by_label("ε, on a logarithmic scale").focus()
    keyboard.press("End")
    page.get_by_text("it does not fit the budget").wait_for()
    keyboard.press("Home")
    page.get_by_text("the evaluation alone costs").first.wait_for()
    page.get_by_label("Target ε").fill("0.2")
    page.get_by_role("button", name="Price the variations").press("Enter")
    page.get_by_role("button", name="Use ε 0.4").press("Enter")
    page.get_by_role("status").get_by_text(re.compile(r"^ε 0\.40")).wait_for()
    assert page.get_by_role("button", name="Use ε 0.4").count() == 0, "it belonged to other settings"
    page.get_by_label("Change").select_option("n, training records")
    page.get_by_label("to these values").focus()
    keyboard.type("5000, 20000")
    keyboard.press("Enter")
    page.get_by_role("rowheader", name="n 20000").wait_for()
    page.get_by_label("Model", exact=True).select_option("mlp")
    page.get_by_label("Hidden").wait_for()
    page.get_by_role("link", name="Hidden").press("Enter")
    keyboard.type("8, 4")
    rate = page.locator("dt", has_text="Learning rate").locator("xpath=..").get_by_text("stands for “auto”")
    page.locator("#quote-more summary").click()
    rate.wait_for()  # a rule knows the rate of this model too
    page.get_by_label("Optimizer", exact=True).select_option("dp_sgd")
    page.get_by_label("Learning rate", exact=True).fill("0.5")
    rate.wait_for(state="detached")
    page.get_by_role("button", name="Submit: hold").wait_for()
    assert page.get_by_label("Model", exact=True).input_value() == "mlp"
    assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
    page.get_by_role("button", name="Submit: hold").press("Enter")
    page.get_by_role("heading", name=f"by keyboard {width}").wait_for()
    page.get_by_role("link", name="Submit again").press("Enter")
    page.get_by_role("button", name="Submit: hold").wait_for()
    assert page.get_by_label("Hidden").input_value() == "8, 4"


def test_the_form_follows_the_json(open_page: Open, whole: Whole) -> None:
    scene, ids = whole
    page = open_page(f"{SUBMIT}?dataset={ids.reviews}", scene.analyst)
    spec = job_spec("digits", privacy=None, length={"steps": 33}, evaluation=None)
    unfold(page)
    text = page.get_by_role("textbox", name="The same as JSON")
    text.fill(json.dumps(spec))
    page.get_by_text("It costs nothing").wait_for()
    assert page.get_by_label("Steps").input_value() == "33"
    assert page.get_by_label("Privacy", exact=True).input_value() == ""
    text.fill("{")
    page.get_by_text("this is not JSON").wait_for()
    assert text.input_value() == "{"


def unfold(page: Any) -> None:
    """Opens all that a page folds."""
    page.evaluate("document.querySelectorAll('details').forEach((each) => { each.open = true })")


def refusing(status: int | None) -> Callable[[Any], None]:
    """Answers a request with a status; None: the connection breaks."""
    return lambda asked: asked.fulfill(status=status) if status else asked.abort()


def test_only_what_is_quoted_can_be_submitted_and_a_failure_is_told(chromium: Any, server: str, whole: Whole) -> None:
    from playwright.sync_api import expect

    scene, ids = whole
    context = chromium.new_context(base_url=server)
    context.set_default_timeout(PATIENCE_MS)
    page = context.new_page()
    page.goto(f"{SUBMIT}?dataset={ids.reviews}")
    page.get_by_label("API key").fill(scene.analyst.token)
    page.get_by_role("button", name="Sign in").click()
    click = page.get_by_role("button", name="Submit: hold")
    vary = page.get_by_role("button", name="Price the variations")
    expect(click).to_be_enabled()
    unfold(page)
    text = page.get_by_role("textbox", name="The same as JSON")
    spec = json.loads(text.input_value()) | {"privacy": {"target_epsilon": 0.31}}
    for status, said in ((429, "Too many requests"), (413, "too large"), (500, "failed at this"), (None, "not answer")):
        page.route("**/submit/draft", refusing(status))
        text.fill(json.dumps(spec | {"name": str(status)}))
        expect(page.locator("#connection")).to_contain_text(said)
        expect(click).to_be_disabled()
        page.evaluate("document.querySelector('button[value=submit]').disabled = false")
        click.click()  # however it is pressed
        expect(page).to_have_url(re.compile("/submit"))
        vary.click()
        expect(page.locator("#whatif")).to_contain_text("No quotes")
        page.unroute("**/submit/draft")
    text.fill(json.dumps(spec))
    page.get_by_role("status").get_by_text(re.compile(r"^ε 0\.31")).wait_for()
    expect(click).to_be_enabled()
    for status, said in ((503, "busy"), (None, "not answer")):
        page.route("**/what-if", refusing(status))
        vary.click()
        expect(page.locator("#whatif")).to_contain_text(said)
        page.unroute("**/what-if")
    context.clear_cookies()
    vary.click()
    page.get_by_label("API key").wait_for()
    page.wait_for_url("**/login?next=*")
    context.close()


@pytest.mark.parametrize("width", but([1440, 390], lambda width: width == 390))
def test_an_owner_comes_from_an_empty_service_to_a_job_by_keyboard(
    open_page: Open, whole: Whole, tmp_path: Path, width: int
) -> None:
    from playwright.sync_api import expect

    scene, _ids = whole
    page = open_page("/dashboard", scene.key("owner"), viewport={"width": width, "height": 900})
    page.get_by_role("link", name="register a data set").press("Enter")
    file = table(tmp_path / f"patients-{width}.csv", 240, ";", seed=width)
    page.get_by_label("Data file").set_input_files(file)
    page.get_by_label("Which column is predicted?").select_option("outcome")
    page.get_by_role("button", name="Use these rows").press("Enter")
    page.get_by_text("The declaration is complete").wait_for()
    assert page.get_by_label("Name").input_value() == f"patients-{width}"
    assert page.locator("#f-task-classes").input_value() == "0, 1"
    assert page.locator("#f-csv-separator").input_value() == ";"
    page.get_by_label("Records", exact=True).fill("270")
    page.get_by_role("button", name="Check, store nothing").press("Enter")
    page.get_by_text("Nothing was stored").wait_for()
    page.get_by_role("button", name="Declare").press("Enter")
    expect(page.get_by_label("Records", exact=True)).to_have_value("240")
    expect(page.locator("#json")).to_have_value(re.compile('"records": 240,'))
    page.get_by_role("button", name="Register", exact=True).press("Enter")
    assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
    page.get_by_role("link", name=f"Open patients-{width}").press("Enter")
    page.get_by_role("link", name="New job on it").press("Enter")
    page.get_by_role("button", name="Submit: hold").press("Enter")
    page.get_by_role("status").filter(has_text="queued").wait_for()


def test_a_file_that_does_not_fit_says_so_at_its_field(
    chromium: Any, server: str, whole: Whole, tmp_path: Path
) -> None:
    from playwright.sync_api import expect

    page = chromium.new_context(base_url=server).new_page()
    page.set_default_timeout(PATIENCE_MS)
    page.goto(REGISTER)
    page.get_by_label("API key").fill(whole[0].owner.token)
    page.get_by_role("button", name="Sign in").click()
    asked = page.get_by_text("Choose a data file first")
    for _ in range(600):  # a click before the page's script runs does nothing; a person clicks again
        page.get_by_role("button", name="Check, store nothing").click()
        page.wait_for_timeout(500)
        if asked.is_visible():
            break
    asked.wait_for()
    arrow, huge = tmp_path / "people.feather", tmp_path / "huge.csv"
    arrow.write_bytes(b"ARROW1\0\0" + bytes(64))
    page.get_by_label("Data file").set_input_files(arrow)
    page.get_by_role("button", name="Declare the format arrow").click()
    expect(page.locator("#json")).to_have_value(re.compile('"format": "arrow"'))
    with huge.open("wb") as file:
        file.truncate(Settings().max_upload_bytes + 1)  # a hole: it takes no room
    page.get_by_label("Data file").set_input_files(huge)
    page.get_by_text("cannot be read as CSV").wait_for()
    page.get_by_role("button", name="Check, store nothing").click()
    page.get_by_text("sends at most 512.0 MiB").wait_for()
    huge.unlink()
    page.get_by_label("Data file").set_input_files(table(tmp_path / "people.csv", 100))
    page.get_by_label("Which column is predicted?").select_option("outcome")
    page.get_by_role("button", name="Use these rows").click()
    page.get_by_text("The declaration is complete").wait_for()
    page.get_by_label("Label").fill("nope")
    expect(page.locator("#json")).to_have_value(re.compile("nope"))
    page.get_by_role("button", name="Check, store nothing").click()
    page.locator("#f-task-label-error", has_text="there is no column 'nope'").wait_for()
    assert page.get_by_label("Data file").evaluate("input => input.files[0].name") == "people.csv", "the file stays"
    page.context.close()


@pytest.mark.parametrize("width", but([1440, 390], lambda width: width == 390))
def test_an_analyst_sends_a_graph_and_deletes_it(
    chromium: Any, server: str, whole: Whole, tmp_path: Path, width: int
) -> None:
    scene, ids = whole
    context = chromium.new_context(base_url=server, viewport={"width": width, "height": 900})
    page = context.new_page()
    page.set_default_timeout(PATIENCE_MS)
    page.goto(f"{SUBMIT}?dataset={ids.reviews}")
    page.get_by_label("API key").fill(scene.key("analyst").token)
    page.get_by_role("button", name="Sign in").click()
    page.goto("/dashboard/submit")
    page.get_by_role("link", name="Own models").press("Enter")
    page.get_by_role("heading", name="None yet").wait_for()
    send = page.get_by_role("button", name="Send", exact=True)
    send.click()
    page.get_by_text("Choose a graph file first").wait_for()
    wrong, graph = tmp_path / "wrong.pt2", tmp_path / "small.pt2"
    wrong.write_bytes(b"PK no graph")
    graph.write_bytes(small_graph())
    page.get_by_label("Graph file").set_input_files(wrong)
    send.press("Enter")
    page.get_by_text("not a zip archive").wait_for()  # the verdict
    page.get_by_label("Graph file").set_input_files(graph)
    send.press("Enter")
    page.get_by_text(hashlib.sha256(graph.read_bytes()).hexdigest()).wait_for()
    assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
    page.get_by_role("button", name="Delete the graph").press("Enter")
    page.get_by_role("heading", name="None yet").wait_for()
    context.close()


@pytest.mark.nightly  # by day the same addresses without a browser: test_compare.py
def test_a_person_searches_chooses_and_compares(open_page: Open, whole: Whole) -> None:
    scene, _ids = whole
    page = open_page("/dashboard", scene.analyst, viewport={"width": 768, "height": 900})
    page.get_by_label("Search").fill("e")
    page.get_by_label("Search").press("Enter")
    page.wait_for_url("**/dashboard?q=e*")
    page.get_by_label("Compare logistic regression").focus()
    page.keyboard.press("Space")
    page.get_by_label("Compare finer curve").check()
    with page.expect_response(re.compile("/dashboard/live/jobs")):
        pass
    assert page.get_by_label("Compare logistic regression").is_checked(), "an update leaves the choice alone"
    page.get_by_role("button", name="Compare the chosen jobs").press("Enter")
    page.get_by_role("heading", name="Settings that differ").wait_for()
    assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
    page.locator(".chart canvas").first.wait_for()
    assert page.locator(".chart canvas").count() == 2
