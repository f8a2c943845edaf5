"""A data set's owner does in the browser what the API lets an owner do, and nobody else sees that page."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from app.budgets import service as budgets
from app.budgets.schemas import BudgetSetting
from app.db.models import Account, Dataset
from tests.dashboard.conftest import Browser, token_of
from tests.dashboard.scene import Everything, Key, Scene
from tests.factories import dataset_spec

Whole = tuple[Scene, Everything]
SignedIn = Callable[[str], Browser]
PEOPLE = {
    "features": {"kind": "columns", "columns": ["age", "height"]},
    "task": {"kind": "classification", "label": "outcome", "classes": [0, 1]},
    "privacy": {"sensitivity": "private", "records": 210, "cap": {"epsilon": 2.0}, "filter": "gdp"},
}


def month(first: int) -> bytes:
    """The file of a month: 200 rows that no other month has."""
    rows = (f"{20 + at % 60},{first + at}.5,{at % 2}\n" for at in range(200))
    return ("age,height,outcome\n" + "".join(rows)).encode()


class Page:
    """The page of a data set, as one key uses it."""

    def __init__(self, browser: Browser, dataset: str) -> None:
        self.browser, self.address = browser, f"/dashboard/datasets/{dataset}/manage"

    @property
    def text(self) -> str:
        return self.browser.get(self.address).text

    def send(self, to: str, **fields: str) -> tuple[int, str]:
        sent = {"csrf": token_of(self.browser.get(self.address)), **fields}
        answer = self.browser.client.post(f"{self.address}/{to}", data=sent)
        return answer.status_code, answer.text


def page_of(visit: Callable[[], Browser], key: Key, dataset: str) -> Page:
    browser = visit()
    browser.sign_in(key)
    return Page(browser, dataset)


def test_the_owner_reads_who_spent_what_by_name_and_team(scene: Scene, visit: Callable[[], Browser]) -> None:
    dataset = scene.dataset("reviews")
    with scene.db.write() as session:
        setting = BudgetSetting(epsilon=2.0, keys=[scene.analyst.id])
        budgets.put(session, scene.owner.caller, dataset, "research", setting, None)
    scene.succeeded(dataset, "first", [0.7], privacy={"target_epsilon": 1.0})
    page = page_of(visit, scene.owner, dataset)
    row = re.search(r"<tr><th[^>]*>Anand</th><td>research</td>(.*?)</tr>", page.text)
    assert row is not None and re.search(r">1</td>.*>\d\.\d %</td>.*>\d\.\d %</td>", row[1])
    assert f"{page.address}" in page.browser.get(f"/dashboard/datasets/{dataset}").text
    stranger = page_of(visit, scene.analyst, dataset)
    assert stranger.browser.get(stranger.address).status_code == 404


def test_the_cap_changes_with_a_reason_and_by_the_version_that_the_page_showed(
    scene: Scene, visit: Callable[[], Browser]
) -> None:
    dataset = scene.dataset("reviews")
    page = page_of(visit, scene.owner, dataset)
    shown = re.search(r'name="version" value="([^"]*)"', page.text)
    assert shown is not None
    version = shown[1]
    status, text = page.send("cap", epsilon="6", reason=" ", version=version)
    assert status == 422 and "reason" in text
    assert page.send("cap", epsilon="six", reason="more", version=version)[0] == 422
    assert page.send("cap", epsilon="6", reason="a second year", version=version)[0] == 303
    assert page.send("cap", epsilon="7", reason="a third", version=version)[0] == 412, "another version"
    with scene.db.read() as session:
        assert session.scalars(select(Account.cap_epsilon).where(Account.dataset_id == dataset)).one() == 6.0


def test_a_data_set_is_taken_back_unused_and_not_once_a_job_was_admitted(
    scene: Scene, visit: Callable[[], Browser]
) -> None:
    unused, used = scene.dataset("unused"), scene.dataset("used")
    scene.job(used, "one", privacy={"target_epsilon": 0.5})
    assert page_of(visit, scene.owner, unused).send("retire")[0] == 303
    status, text = page_of(visit, scene.owner, used).send("retire")
    assert status == 409 and 'role="alert"' in text
    assert page_of(visit, scene.analyst, used).browser.get(f"/dashboard/datasets/{used}/manage").status_code == 404


def registered(browser: Browser, scene: Scene, name: str, first: int) -> str:
    """A data set of people's rows, registered by its owner."""
    spec = json.dumps(dataset_spec(name=name, **PEOPLE))
    files: Any = {"spec": (None, spec), "file": ("people.csv", month(first))}
    headers = {"Authorization": f"Bearer {scene.owner.token}"}
    answer = browser.client.post("/v1/datasets", files=files, headers=headers)
    assert answer.status_code == 201, answer.text
    return str(answer.json()["id"])


def test_a_declaration_and_blocks_change_and_data_are_deleted(whole: Whole, signed_in: SignedIn) -> None:
    scene, _ids = whole
    browser = signed_in("owner")
    dataset = registered(browser, scene, "monthly", 1000)
    page = Page(browser, dataset)
    assert page.send("declaration", records="220")[0] == 303
    assert "version 2" in page.text
    status, text = page.send("declaration", others='{"unit": "user"}')
    assert status == 422 and "Unit" in text
    assert page.send("declaration", others="[")[0] == 422
    files: Any = {"spec": (None, '{"label": "2026-10", "records": 200}'), "file": ("october.csv", month(2000))}
    headers = {"X-CSRF-Token": token_of(browser.get(page.address))}
    assert browser.client.post(f"{page.address}/blocks", files=files).status_code == 403, "without the form's token"
    added = browser.client.post(f"{page.address}/blocks", files=files, headers=headers)
    assert added.status_code == 200 and "200 records were read" in added.text
    again = browser.client.post(f"{page.address}/blocks", files=files, headers=headers)
    assert again.json()["type"] == "/problems/duplicate-label"
    assert 'value="2026-10"' in page.text
    assert page.send("blocks/retire", label="2026-10")[0] == 303
    assert 'value="2026-10"' not in page.text
    assert page.send("delete")[0] == 303
    with scene.db.read() as session:
        assert session.get_one(Dataset, dataset).content_deleted_at is not None


@pytest.mark.browser
def test_a_block_is_added_from_the_page(
    open_page: Callable[..., Any], signed_in: SignedIn, whole: Whole, tmp_path: Path
) -> None:
    scene, _ids = whole
    dataset = registered(signed_in("owner"), scene, "by-month", 3000)
    page = open_page(f"/dashboard/datasets/{dataset}/manage", scene.owner, viewport={"width": 375, "height": 800})
    page.get_by_label("Label").fill("2026-11")
    page.locator("#block-records").fill("200")
    file = tmp_path / "november.csv"
    file.write_bytes(month(4000))
    page.locator("#block-file").set_input_files(file)
    page.get_by_role("button", name="Add the block").click()
    page.get_by_text("Block 2026-11 is added").wait_for()
    assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
