"""The page of a data set shows the budgets within its cap; the page of a job pauses and resumes it."""

from __future__ import annotations

import re
from collections.abc import Callable

from app.budgets import service
from app.budgets.schemas import BudgetSetting
from app.keys.service import Caller
from tests.dashboard.conftest import Browser, token_of
from tests.dashboard.scene import Scene
from tests.factories import add_dataset


def test_the_page_shows_what_each_budget_spent_and_holds(scene: Scene, visit: Callable[[], Browser]) -> None:
    dataset = add_dataset(scene.db, owner=scene.owner.id, name="shared")
    with scene.db.write() as session:
        asked = BudgetSetting(epsilon=2.0, keys=[scene.analyst.id])
        service.put(session, Caller(scene.owner.id, "owner", "owner"), dataset, "research", asked, None)
    scene.job(dataset, by=scene.analyst, privacy={"target_epsilon": 1.0}, evaluation=None)
    pages = {}
    for key in (scene.owner, scene.analyst):
        browser = visit()
        browser.sign_in(key)
        page = browser.get(f"/dashboard/datasets/{dataset}")
        assert page.status_code == 200
        assert "The cap holds even if all keys share what they learn." in page.text
        pages[key.id] = page.text
    for text in pages.values():
        assert "Budgets within the cap" in text and "research" in text
        assert re.search(r"Training part: – spent, \d\d\.\d % held; the budget is \d\d\.\d % of the cap", text)
    assert "room for" in pages[scene.analyst.id]


def test_a_job_is_paused_and_resumed_on_its_page(scene: Scene, visit: Callable[[], Browser]) -> None:
    dataset = add_dataset(scene.db, owner=scene.owner.id, name="paused")
    job = scene.job(dataset, by=scene.owner, privacy={"target_epsilon": 1.0}, evaluation=None)
    browser = visit()
    browser.sign_in(scene.owner)
    address = f"/dashboard/jobs/{job}"
    for how, then in (("pause", "resume"), ("resume", "pause")):
        sent = {"csrf": token_of(browser.get(address))}
        assert browser.client.post(f"{address}/{how}", data=sent).status_code == 303
        page = browser.get(address).text
        assert f'action="{address}/{then}"' in page and f'action="{address}/{how}"' not in page
    assert "Paused; its hold stays" in page and "Resumed" in page
