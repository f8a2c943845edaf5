"""The page of a data set shows the budgets within its cap; the page of a job pauses and resumes it."""

from __future__ import annotations

import re
from collections.abc import Callable

from sqlalchemy import update

from app.budgets import service
from app.budgets.schemas import BudgetSetting
from app.db.models import Dataset, Job
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


def test_the_page_shows_a_bar_for_each_block(scene: Scene, visit: Callable[[], Browser]) -> None:
    dataset, block = (add_dataset(scene.db, owner=scene.owner.id, name=name) for name in ("grown", "grown-two"))
    job = scene.job(block, by=scene.owner, privacy={"target_epsilon": 1.0}, evaluation=None)
    with scene.db.write() as session:
        session.execute(update(Dataset).where(Dataset.id == block).values(parent_id=dataset, label="two"))
        session.execute(update(Job).where(Job.id == job).values(dataset_id=dataset))
    browser = visit()
    browser.sign_in(scene.owner)
    text = browser.get(f"/dashboard/datasets/{dataset}").text
    assert 'aria-label="Block first: 0 % spent, 0 % held"' in text
    assert re.search(r'aria-label="Block two: 0 % spent, \d\.\d+ % held"', text)
    listed = browser.get("/dashboard/datasets").text
    assert dataset in listed and block not in listed, "a block is shown with its data set"
    assert browser.get(f"/dashboard/jobs/{job}").status_code == 200
