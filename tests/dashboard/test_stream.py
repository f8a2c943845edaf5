"""Open pages hear of changes by server-sent events, as long as their session holds, and poll where they cannot."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.dashboard.conftest import Browser
from tests.dashboard.scene import Everything, Scene

Whole = tuple[Scene, Everything]
Open = Callable[..., Any]
STREAM = {"Accept": "text/event-stream"}


def test_without_a_session_a_stream_is_not_led_to_the_login(scene: Scene, visit: Callable[[], Browser]) -> None:
    browser = visit()
    assert browser.get("/dashboard/events/jobs", headers=STREAM).status_code == 204
    assert browser.get("/dashboard/events/jobs/job_none", headers=STREAM).status_code == 204
    assert browser.get("/dashboard/events/jobs").status_code == 303
    browser.sign_in(scene.analyst)
    assert browser.get("/dashboard/events/jobs/job_none", headers=STREAM).status_code == 404


def test_without_a_place_the_page_polls(scene: Scene, visit: Callable[[], Browser]) -> None:
    browser = visit()
    browser.sign_in(scene.analyst)
    browser.client.app.state.hub.places_of_key = 0  # type: ignore[attr-defined]
    assert browser.get("/dashboard/events/jobs", headers=STREAM).status_code == 204


def test_a_finished_job_s_stream_ends_after_the_last_event(whole: Whole, signed_in: Callable[[str], Browser]) -> None:
    _scene, ids = whole
    browser = signed_in("analyst")
    answer = browser.get(f"/dashboard/events/jobs/{ids.succeeded}?after=3", headers=STREAM)
    assert answer.status_code == 200 and answer.headers["content-type"].startswith("text/event-stream")
    first, *_, last = answer.text.strip().split("\n\n")
    assert first == "id: 4\ndata: changed" and last.startswith("event: end")
    assert "accuracy" not in answer.text, "no content, only that there is some"
    resumed = browser.get(f"/dashboard/events/jobs/{ids.succeeded}?after=3", headers=STREAM | {"Last-Event-ID": "5"})
    assert resumed.text.startswith("id: 6\n")


@pytest.mark.nightly  # by day test_browser.py sees progress move
@pytest.mark.browser
def test_a_page_asks_when_it_is_told_and_polls_where_it_is_not(open_page: Open, whole: Whole) -> None:
    scene, ids = whole
    job_id = scene.job(ids.reviews, "streamed", privacy={"target_epsilon": 0.05}, evaluation=None)
    log = scene.start(job_id)
    told, polling = (open_page(f"/dashboard/jobs/{job_id}", scene.analyst) for _ in range(2))
    polling.route("**/dashboard/events/**", lambda route: route.fulfill(status=204))
    polling.reload()
    told.wait_for_timeout(500)
    asked: list[str] = []
    told.on("request", lambda request: asked.append(request.url))
    told.wait_for_timeout(2_500)
    assert asked == [], "nothing happened, so nothing is asked"
    scene.step(log, 15)
    for page in (told, polling):
        page.get_by_text("Step 15 of 50").wait_for()
    assert {url.split("?")[0].rsplit("/dashboard/", 1)[1] for url in asked} == {f"live/jobs/{job_id}"}
