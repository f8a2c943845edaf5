"""axe-core finds nothing on any page: wide and narrow, light and dark, full and empty."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from app.admission.hold import submit
from app.admission.service import Admission
from app.budgets import service as budgets
from app.budgets.schemas import BudgetSetting
from app.jobs.labels import JobLabels, edit
from app.ledger.transparency.heads import Heads
from core.contracts.job_spec import JobSpec
from tests.dashboard.conftest import PATIENCE_MS
from tests.dashboard.scene import Everything, Scene
from tests.dashboard.test_browser import CONTRAST
from tests.hpo.conftest import PlainPricing, play, runs_of, study_spec

pytestmark = pytest.mark.browser

Whole = tuple[Scene, Everything]
Open = Callable[..., Any]
AXE = (Path(__file__).parent / "vendor" / "axe-4.12.1.min.js").read_text()
# What axe finds, in short: the rule, and where.
FINDINGS = """(contrast) => axe.run(document, {
  resultTypes: ["violations"], rules: { "color-contrast": { enabled: contrast } }
}).then((found) => found.violations.flatMap(
  (rule) => rule.nodes.map((node) => `${rule.id}: ${node.target.join(" ")} ${node.html.slice(0, 120)}`)))"""
FILLED = "() => [...document.querySelectorAll('[data-once]')].every((each) => each.innerText.trim() !== '…')"
DRAWN = "() => [...document.querySelectorAll('.chart')].every((each) => !each.clientWidth || each.firstChild)"
SCREENS = [(1440, "light"), (768, "dark"), (390, "light")]
REST = [(1440, "dark"), (768, "light"), (390, "dark")]
ALONE = (
    "",
    "/datasets",
    "/submit",
    "/graphs",
    "/register",
    "/compare",
    "/workers",
    "/usage",
    "/webhooks",
    "/keys",
    "/audit",
)


@pytest.fixture(scope="module")
def study(whole: Whole) -> str:
    """A study with scores, r* and a final trial, and labels; and a budget on its data set."""
    scene, ids = whole
    spec = JobSpec.model_validate(
        study_spec(ids.reviews, runs_per_level=1) | {"name": "a search", "privacy": {"target_epsilon": 0.5}}
    )
    heads, other = Heads.of(scene.settings), scene.key("analyst")
    admission = Admission(scene.db, PlainPricing(), heads)  # type: ignore[arg-type]
    made = submit(admission, scene.analyst.caller, spec, "axe").id
    for score in (0.7, 0.8):
        for run in runs_of(scene.db, made, "queued"):
            play(scene.db, run, score)
    with scene.db.write() as session:
        edit(session, scene.admin.caller, made, JobLabels(tags=["paper", "second try"], notes="Two\nlines."))
        budgets.put(session, scene.admin.caller, ids.reviews, "team", BudgetSetting(epsilon=1.0, keys=[other.id]), None)
    return made


def settled(page: Any, condition: str) -> None:
    """Waits until a condition holds. Playwright's own wait evaluates text, which the pages forbid."""
    page.wait_for_load_state("load")
    for _ in range(PATIENCE_MS // 100):
        if page.evaluate(condition):
            return
        page.wait_for_timeout(100)
    raise AssertionError((page.url, condition))


def findings(page: Any, *, contrast: bool = True) -> list[str]:
    """What axe finds on a page that has come to rest. Its own look at contrasts takes four fifths of its time."""
    settled(page, DRAWN)
    page.evaluate(AXE)
    found: list[str] = page.evaluate(FINDINGS, contrast)
    return found


def look(page: Any, paths: list[str], *, contrast: bool = True) -> None:
    found = {}
    for path in paths:
        page.goto(f"/dashboard{path}")
        settled(page, FILLED)
        page.evaluate("document.querySelectorAll('details').forEach((each) => { each.open = true })")
        if said := findings(page, contrast=contrast):
            found[path] = said
        ratio, where = page.evaluate(CONTRAST)
        assert ratio >= 4.5, (path, where)
    assert found == {}


def full(ids: Everything, study: str) -> list[str]:
    jobs = [ids.succeeded, ids.running, ids.failed, ids.public, study]
    compared = "/compare?" + "&".join(f"job={each}" for each in jobs)
    datasets = [f"/datasets/{ids.reviews}?check=true", f"/datasets/{ids.reviews}/budgets", f"/datasets/{ids.digits}"]
    datasets += [f"/datasets/{ids.reviews}/manage", f"/datasets/{ids.reviews}/statement"]
    return [*ALONE, *(f"/jobs/{each}" for each in jobs), *datasets, compared]


@pytest.mark.parametrize(("width", "scheme"), SCREENS[:1])
def test_axe_finds_nothing_on_the_main_pages(
    open_page: Open, whole: Whole, study: str, width: int, scheme: str
) -> None:
    scene, ids = whole
    page = open_page("/dashboard", scene.admin, color_scheme=scheme, viewport={"width": width, "height": 900})
    datasets = [f"/datasets/{ids.reviews}{tail}" for tail in ("?check=true", "/budgets", "/manage", "/statement")]
    look(page, ["", "/usage", f"/jobs/{study}", *datasets], contrast=False)  # CONTRAST alone, which is stricter


@pytest.mark.nightly
@pytest.mark.parametrize(("width", "scheme"), SCREENS + REST)
def test_axe_finds_nothing_on_any_page(open_page: Open, whole: Whole, study: str, width: int, scheme: str) -> None:
    scene, ids = whole
    page = open_page("/dashboard", scene.admin, color_scheme=scheme, viewport={"width": width, "height": 900})
    look(page, full(ids, study))


@pytest.mark.nightly
@pytest.mark.parametrize(("width", "scheme"), [(390, "dark")])
def test_axe_finds_nothing_where_there_is_nothing(open_page: Open, whole: Whole, width: int, scheme: str) -> None:
    newcomer = whole[0].key("owner")
    page = open_page("/dashboard", newcomer, color_scheme=scheme, viewport={"width": width, "height": 900})
    look(page, ["", "/datasets", "/submit", "/register", "/compare", "/webhooks", "/workers", "/usage"])
    page.get_by_role("button", name="Sign out").click()
    page.get_by_label("API key").wait_for()
    assert findings(page) == []


def look_at_docs(page: Any) -> None:
    """The API's documentation as it opens, and with a "Try it out" open."""
    page.locator(".opblock").last.wait_for()
    as_it_opens = findings(page)
    page.locator("#operations-jobs-quote_job .opblock-summary-control").press("Enter")
    page.get_by_role("button", name="Try it out").press("Enter")
    page.get_by_role("textbox", name="Request body").wait_for()
    assert (as_it_opens, findings(page)) == ([], [])
    assert page.url.endswith("/docs#/jobs/quote_job"), "the address leads to what is open"


@pytest.mark.nightly  # by day its document: tests/contract; the page is a vendored one
@pytest.mark.parametrize(("width", "scheme"), SCREENS + REST)
def test_axe_finds_nothing_in_the_api_s_documentation(open_page: Open, whole: Whole, width: int, scheme: str) -> None:
    page = open_page("/docs", whole[0].admin, color_scheme=scheme, viewport={"width": width, "height": 900})
    look_at_docs(page)
