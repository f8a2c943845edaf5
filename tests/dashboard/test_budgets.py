"""The page of a data set shows the budgets within its cap; the page of a job pauses and resumes it."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from sqlalchemy import update

from app.budgets import service
from app.budgets.schemas import BudgetSetting
from app.db.models import Dataset, Job
from app.grants import service as grants
from app.keys.service import Caller
from tests.dashboard.conftest import Browser, token_of
from tests.dashboard.scene import Key, Scene
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


class Forms:
    """The page of a data set's budgets as one viewer uses it."""

    def __init__(self, visit: Callable[[], Browser], key: Key, dataset: str) -> None:
        self.browser, self.address = visit(), f"/dashboard/datasets/{dataset}/budgets"
        self.browser.sign_in(key)

    @property
    def page(self) -> str:
        return self.browser.get(self.address).text

    def hidden(self, name: str) -> list[str]:
        return re.findall(rf'name="{name}" value="([^"]*)"', self.page)

    def send(self, to: str = "", **fields: str | list[str]) -> tuple[int, str]:
        answer = self.browser.client.post(
            self.address + to, data={"csrf": token_of(self.browser.get(self.address)), **fields}
        )
        return answer.status_code, answer.text


@pytest.fixture
def shared(scene: Scene) -> str:
    dataset = add_dataset(scene.db, owner=scene.owner.id, name="shared")
    with scene.db.write() as session:
        grants.give(session, Caller(scene.owner.id, "owner", "owner"), dataset, scene.analyst.id, "train", None)
    return dataset


def test_an_owner_sets_changes_and_closes_a_budget(scene: Scene, visit: Callable[[], Browser], shared: str) -> None:
    owner = Forms(visit, scene.owner, shared)
    assert "No budget yet" in owner.page
    status, text = owner.send(epsilon="much", keys=scene.analyst.id)
    assert (status, "Give ε as a number from 0.0001 to 100." in text) == (422, True)
    status, text = owner.send(epsilon="1", name="")
    assert (status, "give the budget of a team a name" in text) == (422, True)
    for name in ("Data team", "a/b", "é", "x" * 101):
        status, text = owner.send(epsilon="1", name=name, keys=scene.analyst.id)
        assert (status, "letters, digits, dots, hyphens and underscores" in text) == (422, True), name
    status, text = owner.send(epsilon="99", keys=scene.analyst.id)
    assert (status, "ask for at most that" in text) == (422, True)
    assert owner.send(epsilon="2", name="research", keys=[scene.analyst.id])[0] == 303
    assert "research" in owner.page and owner.hidden("version") == ["1", "1"]
    # A form of before somebody else's change is refused.
    assert owner.send(epsilon="3", name="research", keys=[scene.analyst.id], version="1")[0] == 303
    status, text = owner.send(epsilon="2.5", name="research", keys=[scene.analyst.id], version="1")
    assert (status, "This was changed since you looked at it" in text) == (412, True)
    assert owner.send("/close", name="research", version="1")[0] == 412
    assert owner.send("/close", name="research", version="2")[0] == 303
    assert "closed" in owner.page and "Open again" in owner.page


def test_an_analyst_asks_and_the_owner_answers(scene: Scene, visit: Callable[[], Browser], shared: str) -> None:
    owner, analyst = Forms(visit, scene.owner, shared), Forms(visit, scene.analyst, shared)
    assert "You have no budget of your own" in analyst.page and "New budget" not in analyst.page
    assert analyst.send("/requests", epsilon="1", reason=" ")[0] == 422
    assert analyst.send("/requests", epsilon="1", reason="<b>a study</b>")[0] == 303
    assert "&lt;b&gt;a study&lt;/b&gt;" in owner.page and "Approve" not in analyst.page
    request = re.search(r'id="(breq_[^"]+)"', owner.page)
    assert request is not None
    to, tag = f"/requests/{request[1]}", owner.hidden("tag")[0]
    assert analyst.send(to, decision="approve", tag=tag)[0] == 403
    assert owner.send(to, decision="approve", tag="another.7")[0] == 412
    assert owner.send(to, decision="approve", tag=tag)[0] == 303
    assert "Training part" in analyst.page and request[1] not in owner.page
    # One's own request can be withdrawn.
    assert analyst.send("/requests", epsilon="2", reason="more")[0] == 303
    again = re.search(r'id="(breq_[^"]+)"', analyst.page)
    assert again is not None and analyst.send(f"/requests/{again[1]}", decision="deny")[0] == 303
    assert again[1] not in owner.page


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
