"""The pages in a real browser, against a real server: what moves, what is pressed, and how it looks on each screen."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import select

from app.db.models import Job, WebhookDelivery
from app.keys import service as keys
from tests.by_night import but
from tests.dashboard.scene import XSS, Everything, Scene

pytestmark = pytest.mark.browser

Whole = tuple[Scene, Everything]
Open = Callable[..., Any]

# The smallest contrast of any text on the page with what is behind it (WCAG 2.2, 1.4.3).
CONTRAST = """() => {
  const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const rgba = (colour) => {
    canvas.clearRect(0, 0, 1, 1);
    canvas.fillStyle = colour;
    canvas.fillRect(0, 0, 1, 1);
    return [...canvas.getImageData(0, 0, 1, 1).data];
  };
  const light = (colour) => {
    const [r, g, b] = colour.map((c) => (c / 255 <= 0.04045 ? c / 255 / 12.92 : ((c / 255 + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const behind = (element) => {
    for (; element; element = element.parentElement) {
      const colour = rgba(getComputedStyle(element).backgroundColor);
      if (colour[3] === 255) return colour;
    }
    return [255, 255, 255, 255];
  };
  let worst = [21, ""];
  for (const element of document.body.querySelectorAll("*")) {
    const says = [...element.childNodes].some((node) => node.nodeType === 3 && node.nodeValue.trim());
    if (!says || !element.checkVisibility() || element.closest(".hidden, .skip, option")) continue;
    const style = getComputedStyle(element);
    const [a, b] = [light(rgba(element.closest("svg") ? style.fill : style.color)), light(behind(element))];
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (ratio < worst[0]) worst = [ratio, element.outerHTML.slice(0, 120)];
  }
  return worst;
}"""


LOOKS = [[(390, "dark"), (1440, "light")], [(390, "light"), (1440, "dark")]]


@pytest.mark.parametrize("looks", but(LOOKS, lambda looks: looks is LOOKS[0]))
def test_every_page_fits_the_screen_and_can_be_read(
    open_page: Open, whole: Whole, looks: list[tuple[int, str]]
) -> None:
    """On a phone, and then turned into a wide screen, with the other colours."""
    scene, ids = whole
    page = open_page("/dashboard", scene.admin)
    jobs = [ids.succeeded, ids.running, ids.failed, ids.public, ids.evil]
    datasets = [ids.reviews, ids.incomes, ids.digits]
    paths = ["/dashboard", "/dashboard/datasets", "/dashboard/submit", "/dashboard/register"]
    paths += ["/dashboard/compare?" + "&".join(f"job={each}" for each in (*jobs, ids.poisson))]
    paths += [f"/dashboard/jobs/{each}" for each in jobs]
    for path in paths + [f"/dashboard/datasets/{each}?check=true" for each in datasets]:
        turned(page, *looks[0])
        page.goto(path)
        if f"{ids.reviews}?" in path or f"{ids.incomes}?" in path:
            page.locator("#compared > summary").click()
            page.get_by_text("as if all jobs had been fixed in advance").wait_for()
        for width, scheme in looks:
            turned(page, width, scheme)
            dark = page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(16, 19, 26)"
            assert dark == (scheme == "dark")
            assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0, (path, width)
            ratio, where = page.evaluate(CONTRAST)
            assert ratio >= 4.5, (path, scheme, where)


def turned(page: Any, width: int, scheme: str) -> None:
    page.set_viewport_size({"width": width, "height": 800})
    page.emulate_media(color_scheme=scheme)


def test_names_are_text_whatever_they_say(open_page: Open, whole: Whole) -> None:
    scene, ids = whole
    page = open_page(f"/dashboard/jobs/{ids.evil}", scene.admin)
    assert page.get_by_role("heading", level=1).inner_text() == XSS
    assert page.title() == f"{XSS} · Scrimp"
    assert page.locator("main img, main script").count() == 0


def test_progress_moves_without_a_reload_and_leaves_an_open_dialog_alone(open_page: Open, whole: Whole) -> None:
    scene, ids = whole
    job_id = scene.job(ids.reviews, "watched", privacy={"target_epsilon": 0.05}, evaluation=None)
    log = scene.start(job_id)
    scene.step(log, 10)
    page = open_page("/dashboard", scene.analyst)
    other = open_page(f"/dashboard/jobs/{job_id}", scene.analyst)
    for each in (page, other):
        each.evaluate("window.sameDocument = true")
    bar = page.get_by_role("progressbar", name="Progress of watched")
    assert bar.get_attribute("value") == "10"
    other.get_by_role("button", name="Cancel…").click()
    dialog = other.get_by_role("dialog", name="Cancel this job?")
    dialog.wait_for()
    scene.step(log, 25)
    page.locator(f"#{job_id} progress[value='25']").wait_for()
    other.get_by_text("Step 25 of 50").wait_for()
    assert dialog.is_visible()
    scene.step(log, 50)
    scene.finish(log)
    other.get_by_role("link", name="Download (JSON)").wait_for()
    assert other.get_by_role("status").filter(has_text="succeeded").is_visible()
    assert not dialog.is_visible()
    page.locator(f"#{job_id} .chip-succeeded").wait_for()
    assert page.evaluate("window.sameDocument") and other.evaluate("window.sameDocument")
    with other.expect_download() as download:
        other.get_by_role("link", name="Download (JSON)").click()
    assert download.value.suggested_filename == f"certificate-{job_id}.json"


@pytest.mark.nightly  # by day progress on an open page, above; lists in test_lists.py
def test_a_new_job_appears_on_top_and_a_score_on_the_curve(open_page: Open, whole: Whole) -> None:
    scene, ids = whole
    page = open_page("/dashboard", scene.analyst)
    evaluation = {"on": "holdout", "noise_mu": 0.01, "points": 2, "metrics": ["accuracy"]}
    job_id = scene.job(ids.reviews, "appears", privacy={"target_epsilon": 0.05}, evaluation=evaluation)
    page.locator(f"tbody tr:first-child#{job_id}").wait_for()
    page.get_by_role("link", name="appears").click()
    page.get_by_text("Nothing released yet").wait_for()
    log = scene.start(job_id)
    scene.step(log, 25)
    scene.release(log, 25, 0.7, 0.02)
    chart = page.get_by_role("group", name="accuracy by training step")
    chart.locator("canvas").wait_for()
    page.locator("#released-numbers summary").click()
    scene.step(log, 50)
    scene.release(log, 50, 0.75, 0.02)
    page.get_by_role("cell", name="0.75", exact=True).wait_for()
    chart.focus()
    said = page.locator("#curve-accuracy-readout")
    for key, what in (("Home", "step 25 · 0.700 ± 0.020"), ("ArrowRight", "step 50 · 0.750 ± 0.020")):
        page.keyboard.press(key)
        assert said.inner_text() == f"accuracy · {what}"
    page.keyboard.press("Escape")
    assert said.inner_text() == ""
    box = chart.locator(".u-over").bounding_box()
    page.mouse.move(box["x"] + box["width"] * 25 / 51, box["y"] + box["height"] / 2)
    assert said.inner_text() == "accuracy · step 25 · 0.700 ± 0.020"
    scene.finish(log)


def test_a_person_cancels_a_job(open_page: Open, whole: Whole) -> None:
    scene, ids = whole
    job_id = scene.job(ids.reviews, "wrong", privacy={"target_epsilon": 0.05}, evaluation=None)
    page = open_page(f"/dashboard/jobs/{job_id}", scene.analyst)
    page.get_by_role("button", name="Cancel…").focus()
    page.keyboard.press("Enter")
    dialog = page.get_by_role("dialog", name="Cancel this job?")
    dialog.get_by_role("button", name="Keep it running").click()
    assert not dialog.is_visible()
    page.get_by_role("button", name="Cancel…").click()
    dialog.get_by_role("button", name="Cancel the job").click()
    page.get_by_role("status").filter(has_text="cancelled").wait_for()
    assert page.get_by_role("button", name="Cancel…").count() == 0
    with scene.db.read() as session:
        assert session.get_one(Job, job_id).status == "cancelled"


@pytest.mark.nightly  # by day tests/webhooks, and the pages by tests/dashboard/test_pages.py
def test_a_person_adds_tests_disables_and_deletes_a_webhook(open_page: Open, whole: Whole) -> None:
    scene, _ids = whole
    page = open_page("/dashboard/webhooks", scene.key("analyst"), viewport={"width": 375, "height": 800})
    page.get_by_text("No webhooks yet").wait_for()
    page.get_by_label("Address").fill("https://93.184.216.34/hook")
    page.get_by_label("job.queued").check()
    page.get_by_label("Description").fill(XSS)
    page.get_by_role("button", name="Add").click()
    page.get_by_text("Its secret is shown only once").wait_for()
    secret = page.locator("#secret").inner_text()
    assert secret.startswith("whsec_")
    card = page.get_by_role("region", name="Webhook to https://93.184.216.34/hook")
    assert XSS in card.inner_text() and "job.queued" in card.inner_text()
    assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
    ratio, where = page.evaluate(CONTRAST)
    assert ratio >= 4.5, where
    card.get_by_role("button", name="Send a test").click()
    card.get_by_role("cell", name="webhook.test").wait_for()
    assert secret not in page.content(), "shown once"
    assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
    card.get_by_role("button", name="Disable").click()
    card.get_by_text("Disabled").wait_for()
    card.get_by_role("button", name="Enable").click()
    card.get_by_role("button", name="Disable").wait_for()
    # What the relay does appears by itself.
    with scene.db.write() as session:
        for delivery in session.scalars(select(WebhookDelivery)):
            delivery.status, delivery.status_code, delivery.attempts = "delivered", 204, 1
    card.get_by_role("cell", name="delivered").wait_for()
    card.get_by_text("Change its events").click()
    card.get_by_label("job.queued").uncheck()
    card.get_by_label("Description").fill("for the team")
    card.get_by_role("button", name="Save").click()
    card.get_by_text("for the team · ").wait_for()
    assert "job.queued," not in card.locator("p.muted").first.inner_text()
    card.get_by_role("button", name="New secret…").click()
    page.get_by_role("button", name="Make a new secret").click()
    page.locator("#secret").wait_for()
    assert page.locator("#secret").inner_text() not in ("", secret)
    card.get_by_role("button", name="Delete…").click()
    page.get_by_role("button", name="Delete the webhook").click()
    page.get_by_text("No webhooks yet").wait_for()


def test_nothing_is_asked_while_the_tab_is_hidden(open_page: Open, whole: Whole) -> None:
    scene, _ids = whole
    page = open_page("/dashboard", scene.analyst)
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    hide = """hidden => {
      Object.defineProperty(document, "hidden", { value: hidden, configurable: true });
      document.dispatchEvent(new Event("visibilitychange"));
    }"""
    with page.expect_response(re.compile("/dashboard/live/jobs")):
        pass
    page.evaluate(hide, True)
    before = len(asked)
    page.wait_for_timeout(2_500)
    assert len(asked) == before
    with page.expect_response(re.compile("/dashboard/live/jobs")):
        page.evaluate(hide, False)


def test_a_revoked_key_leads_an_open_page_to_the_login(open_page: Open, whole: Whole, server: str) -> None:
    scene, _ids = whole
    key = scene.key("analyst")
    page = open_page("/dashboard", key)
    with scene.db.write() as session:
        keys.revoke(session, key.id)
    page.wait_for_url(f"{server}/dashboard/login**")
    assert page.get_by_label("API key").is_visible()


def test_filters_apply_on_change_and_the_keyboard_reaches_the_content(open_page: Open, whole: Whole) -> None:
    scene, ids = whole
    page = open_page("/dashboard", scene.owner)
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the content"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"
    page.get_by_label("Data set").select_option("digits")
    page.wait_for_url(f"**/dashboard?dataset={ids.digits}")
    assert page.locator("tbody tr").count() == 1
    page.get_by_role("button", name="Sign out").click()
    page.wait_for_url("**/dashboard/login")


@pytest.mark.nightly  # by day each page is looked at in one of both schemes
def test_the_colours_are_chosen_and_remembered(open_page: Open, whole: Whole) -> None:
    scene, ids = whole
    page = open_page(f"/dashboard/jobs/{ids.succeeded}", scene.analyst, color_scheme="light")
    back = "getComputedStyle(document.body).backgroundColor"
    assert page.evaluate(back) == "rgb(246, 247, 249)"
    page.get_by_label("Colours").select_option("dark")
    assert page.evaluate(back) == "rgb(16, 19, 26)"
    page.goto("/dashboard")
    assert page.evaluate(back) == "rgb(16, 19, 26)" and page.get_by_label("Colours").input_value() == "dark"
    page.get_by_label("Colours").select_option("system")
    page.emulate_media(color_scheme="dark")
    assert page.evaluate(back) == "rgb(16, 19, 26)"
    page.emulate_media(color_scheme="light")
    assert page.evaluate(back) == "rgb(246, 247, 249)"


def test_names_under_a_chart_do_not_touch(open_page: Open, whole: Whole) -> None:
    scene, ids = whole
    page = open_page(f"/dashboard/jobs/{ids.succeeded}", scene.analyst)
    page.locator(".chart canvas").first.wait_for()
    names = ["below 13.75", *(f"{13.75 * at:g} to {13.75 * at + 13.75:g}" for at in range(1, 7)), "from 96.25"]
    plot = "{ ctx: document.createElement('canvas').getContext('2d'), width: %d }"
    drawn = {width: page.evaluate(f"fitting({plot % width}, {names!r})") for width in (300, 720, 1600)}
    assert drawn[1600] == names
    assert drawn[720] == [name if at % 2 == 0 else "" for at, name in enumerate(names)]
    assert [name for name in drawn[300] if name] == [names[0], names[4]]


def test_a_logarithmic_axis_may_begin_right_below_a_power_of_ten(open_page: Open, whole: Whole) -> None:
    """The drawing library's own ticks never ended from 0.0097 on."""
    scene, ids = whole
    page = open_page(f"/dashboard/jobs/{ids.succeeded}", scene.analyst)
    page.locator(".chart canvas").first.wait_for()
    page.evaluate(
        """() => {
          const box = document.querySelector(".chart[data-chart]");
          const chart = JSON.parse(box.dataset.chart);
          box.dataset.chart = JSON.stringify({ ...chart, y: { ...chart.y, scale: "log", low: 0.0097, high: 2 } });
        }"""
    )
    axis = "plots.get(document.querySelector('.chart[data-chart]')).plot.axes[1]"
    page.wait_for_function(f"() => {axis}._splits?.includes(0.01)")
    ticks = page.evaluate(f"{axis}._splits")
    assert ticks[:3] == [0.01, 0.02, 0.03] and ticks[-2:] == [1, 2] and len(ticks) == 20


def test_without_javascript_the_numbers_stand_open(open_page: Open, whole: Whole) -> None:
    scene, ids = whole
    address = f"/dashboard/compare?job={ids.succeeded}&job={ids.running}"
    page = open_page(address, scene.analyst, java_script_enabled=False)
    assert page.locator("details.numbers[open]").count() == 2 and page.locator("canvas").count() == 0
    assert page.get_by_role("cell", name="0.8246 ± 0.0040").first.is_visible()
    assert not page.get_by_label("Colours").is_visible()
    drawn = open_page(address, scene.analyst, viewport={"width": 390, "height": 800})
    drawn.locator(".chart canvas").first.wait_for()
    assert drawn.locator("details.numbers[open]").count() == 0
    chart = drawn.locator(".chart").first
    box, shown = chart.bounding_box(), chart.locator("canvas").bounding_box()
    assert shown["x"] + shown["width"] <= box["x"] + box["width"] + 1 <= 391, "the last points are in view"
