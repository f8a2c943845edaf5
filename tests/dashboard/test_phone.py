"""Every page on a phone, whatever its fonts and whatever its texts: only a box may scroll sideways, never the page."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from app.admission.hold import submit
from app.admission.service import Admission
from app.ledger.transparency.heads import Heads
from core.contracts.job_spec import JobSpec
from tests.dashboard.conftest import PATIENCE_MS
from tests.dashboard.scene import Everything, Scene
from tests.hpo.conftest import PlainPricing, study_spec

pytestmark = pytest.mark.browser

Whole = tuple[Scene, Everything]
Open = Callable[..., Any]
PHONE = {"width": 375, "height": 800}
HOOK = f"https://93.184.216.34/{'hook' * 100}"

# Changes the page, measures it, and names what reaches furthest out: in one turn, so that no live update comes between.
STRETCHED = """([style, word]) => {
  const sheet = new CSSStyleSheet();
  sheet.replaceSync(style);
  document.adoptedStyleSheets = [sheet];
  if (word) {
    const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    while (walker.nextNode()) if (walker.currentNode.nodeValue.trim()) walker.currentNode.nodeValue += word;
  }
  const excess = document.documentElement.scrollWidth - innerWidth;
  const boxed = (element) => {
    for (let at = element.parentElement; at; at = at.parentElement)
      if (getComputedStyle(at).overflowX !== "visible") return true;
    return false;
  };
  const out = [...document.body.querySelectorAll("*")].filter(
    (each) => each.checkVisibility() && each.getBoundingClientRect().right > innerWidth + 0.5 && !boxed(each));
  return [excess, out.slice(0, 5).map((each) => each.outerHTML.slice(0, 160))];
}"""
# Any font: letters far apart are as wide as the widest font's.
STRETCHES = {
    "as shipped": ["", ""],
    "wide font": ['* { font-family: "DejaVu Sans", monospace !important; letter-spacing: .35em !important; }', ""],
    "large letters": [":root { font-size: 26px !important; }", ""],
    "long sentences": ["", " mmmm" * 40],
    "long words": ["", "W" * 120],
}


@pytest.fixture(scope="module")
def study(whole: Whole) -> str:
    """A search, whose page has a table of runs."""
    scene, ids = whole
    changes = {"name": "search", "privacy": {"target_epsilon": 0.5}}
    spec = JobSpec.model_validate(study_spec(ids.reviews) | changes)
    heads = Heads.of(scene.settings)
    admission = Admission(scene.db, PlainPricing(), heads)  # type: ignore[arg-type]
    return submit(admission, scene.analyst.caller, spec, "search").id


@pytest.mark.nightly  # by day test_browser.py looks at each page at 390 pixels
def test_no_page_is_wider_than_a_phone(open_page: Open, whole: Whole, study: str) -> None:
    scene, ids = whole
    page = open_page("/dashboard/webhooks", scene.admin, viewport=PHONE)
    page.get_by_label("Address").fill(HOOK)
    page.get_by_label("Description").fill("D" * 200)
    page.get_by_role("button", name="Add").click()
    page.get_by_text("Its secret is shown only once").wait_for()
    stretch(page, "a webhook's secret")
    page.goto("/dashboard/webhooks")
    page.get_by_role("button", name="Send a test").click()
    page.get_by_role("cell", name="webhook.test").wait_for()
    stretch(page, "webhooks")
    jobs = [ids.succeeded, ids.running, ids.failed, ids.public, ids.poisson, ids.evil, ids.queued, study]
    paths = [
        "/dashboard",
        "/dashboard?status=paused",
        "/dashboard/datasets",
        "/dashboard/submit",
        "/dashboard/register",
        "/dashboard/keys",
        "/dashboard/signing-keys",
        "/dashboard/audit?check=true",
    ]
    paths += [f"/dashboard/jobs/{each}" for each in jobs]
    paths += ["/dashboard/compare?" + "&".join(f"job={each}" for each in jobs)]
    for path in paths + [f"/dashboard/datasets/{each}?check=true" for each in (ids.reviews, ids.incomes, ids.digits)]:
        page.goto(path)
        stretch(page, path)
    page.get_by_role("button", name="Sign out").click()
    page.wait_for_url("**/dashboard/login")
    stretch(page, "the login")


@pytest.mark.nightly
def test_nor_is_an_open_question_or_an_empty_service(open_page: Open, whole: Whole) -> None:
    scene, ids = whole
    page = open_page(f"/dashboard/jobs/{ids.queued}", scene.owner, viewport=PHONE)
    page.get_by_role("button", name="Cancel…").click()
    page.get_by_role("dialog").wait_for()
    stretch(page, "the question")
    newcomer = open_page("/dashboard", scene.key("analyst"), viewport=PHONE)
    for path in ("/dashboard", "/dashboard/datasets", "/dashboard/webhooks", "/dashboard/submit"):
        newcomer.goto(path)
        stretch(newcomer, f"{path} of a newcomer")


@pytest.mark.nightly
def test_nor_is_a_page_that_says_no(chromium: Any, server: str, whole: Whole) -> None:
    page = chromium.new_context(base_url=server, viewport=PHONE).new_page()
    page.set_default_timeout(PATIENCE_MS)
    page.goto("/dashboard/jobs/job_none")
    for key in ("wrong", whole[0].admin.token):
        page.get_by_label("API key").fill(key)
        page.get_by_role("button", name="Sign in").click()
        page.get_by_text("unknown, expired or revoked" if key == "wrong" else "Back to the jobs").wait_for()
        stretch(page, f"signed in with {key[:5]}")
    page.context.close()


def stretch(page: Any, where: str) -> None:
    """Asserts that the page fits under each stretch, one after the other; longer texts stay."""
    page.wait_for_load_state("load")  # a page without its style sheet yet has other widths
    for name, how in STRETCHES.items():
        excess, out = page.evaluate(STRETCHED, how)
        assert excess <= 0 and not out, (where, name, excess, out)
