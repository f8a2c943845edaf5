"""The list of jobs, searched, sorted and counted, and jobs side by side: only what the key may see."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Callable
from typing import Any

import pytest

from tests.dashboard.conftest import Browser
from tests.dashboard.scene import Everything, Scene

Whole = tuple[Scene, Everything]
SignedIn = Callable[[str], Browser]


def listed(browser: Browser, address: str) -> list[str]:
    """The ids of a page's jobs, in its order."""
    return re.findall(r'<tr id="(job_\w+)">', browser.get(address).text)


def answered(browser: Browser, scene: Scene, query: str) -> list[str]:
    """What the API lists."""
    answer = browser.client.get(f"/v1/jobs?{query}", headers={"Authorization": f"Bearer {scene.analyst.token}"})
    assert answer.status_code == 200, answer.text
    return [each["id"] for each in answer.json()["items"]]


def charts_of(text: str) -> list[Any]:
    """The data of a page's charts."""
    return [json.loads(html.unescape(each)) for each in re.findall(r"data-chart='([^']*)'", text)]


def test_jobs_are_searched_and_sorted_as_the_api_does(whole: Whole, signed_in: SignedIn) -> None:
    scene, ids = whole
    browser = signed_in("analyst")
    everyone = listed(browser, "/dashboard")
    assert len(everyone) == 9 and everyone == answered(browser, scene, "")
    assert listed(browser, "/dashboard?sort=oldest") == everyone[::-1] == answered(browser, scene, "sort=oldest")
    for query in ("q=LOGISTIC", "q=batch&sort=name", f"q={ids.queued[:12]}", "q=100%25", "q=_", "sort=name"):
        assert listed(browser, f"/dashboard?{query}") == answered(browser, scene, query)
    assert listed(browser, "/dashboard?q=LOGISTIC") == [ids.succeeded]
    assert listed(browser, "/dashboard?q=batch&sort=name") == [ids.poisson, ids.failed]
    assert listed(browser, "/dashboard?q=100%25") == listed(browser, "/dashboard?q=bat_h") == []
    page = browser.get(f"/dashboard?q=e&dataset={ids.reviews}&status=queued&sort=name")
    assert "2 of 2 jobs" in page.text and f"q=e&amp;dataset={ids.reviews}&amp;sort=name" in page.text
    assert browser.get("/dashboard?sort=size").status_code == 422


@pytest.mark.parametrize("sort", ["newest", "oldest", "name"])
def test_pages_of_each_order_join_without_gap(whole: Whole, signed_in: SignedIn, sort: str) -> None:
    scene, _ids = whole
    browser, found, after = signed_in("analyst"), [], ""
    headers = {"Authorization": f"Bearer {scene.analyst.token}"}
    while after is not None:
        page = browser.client.get(f"/v1/jobs?sort={sort}&limit=2{after and f'&after={after}'}", headers=headers).json()
        found += [each["id"] for each in page["items"]]
        after = page["next"]
    assert found == answered(browser, scene, f"sort={sort}") and len(set(found)) == 9
    assert browser.client.get(f"/v1/jobs?sort={sort}&after=WzFd", headers=headers).status_code == 422


def test_compared_jobs_show_what_differs_and_their_noise(whole: Whole, signed_in: SignedIn) -> None:
    _scene, ids = whole
    page = signed_in("analyst").get(f"/dashboard/compare?job={ids.succeeded}&job={ids.running}&job={ids.public}")
    assert page.status_code == 200
    rows = dict(re.findall(r'<th scope="row">([\w: ]+)</th>(.*?)</tr>', page.text))
    assert "<td>1.0</td><td>1.2</td><td>–</td>" in rows["privacy: target epsilon"]
    assert "<td>0.05</td><td>0.02</td><td>0.05</td>" in rows["evaluation: noise mu"]
    assert "length: steps" not in rows, "the same in all"
    assert list(rows).index("privacy: target epsilon") < list(rows).index("evaluation: noise mu")
    curves, tradeoff = charts_of(page.text)
    assert [line["spread"] for line in curves["lines"]] == ["band"] * 3
    assert [line["shape"] for line in tradeoff["lines"]] == ["dots"] * 2, "two have an ε; neither beats the other"
    assert "<td>1: logistic regression, ε = 1</td><td>step 50</td><td>0.8246 ± 0.0040</td>" in page.text


def test_nobody_compares_what_he_may_not_see(scene: Scene, visit: Callable[[], Browser]) -> None:
    mine, theirs = scene.dataset("mine"), scene.dataset("theirs")
    jobs = [scene.job(each, "a job", privacy={"target_epsilon": 0.3}) for each in (mine, theirs)]
    stranger = scene.key("analyst")
    browser = visit()
    browser.sign_in(stranger)
    assert browser.get(f"/dashboard/compare?job={jobs[0]}&job={jobs[1]}").status_code == 404
    assert browser.get("/dashboard/compare?job=job_nothing").status_code == 404
    assert "Choose two jobs" in browser.get("/dashboard/compare").text
    assert listed(browser, "/dashboard?q=job") == []


def test_a_page_compares_eight_jobs_and_says_how_many_it_left_out(whole: Whole, signed_in: SignedIn) -> None:
    _scene, ids = whole
    jobs = [each for each in vars(ids).values() if each.startswith("job_")]
    page = signed_in("admin").get("/dashboard/compare?" + "&".join(f"job={each}" for each in [*jobs, jobs[0]]))
    assert "1 more job is left out" in page.text and "series-7" in page.text and "series-8" not in page.text
