"""A data set's owner does in the browser what the API lets an owner do, and nobody else sees that page."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from fastapi.routing import APIRoute
from sqlalchemy import select

from app.budgets import service as budgets
from app.budgets.schemas import BudgetSetting
from app.dashboard.manage import router
from app.datasets.reader import Reader
from app.db.models import Account, AuditEntry, Dataset, DatasetReading, Declaration, LedgerEntry, table_of
from app.grants import service as access
from app.ledger import accounts
from app.web.body_limits import SMALL_BODY_BYTES
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


def month(first: int, rows: int = 200) -> bytes:
    """The file of a month: rows that no other month has."""
    lines = (f"{20 + at % 60},{first + at}.5,{at % 2}\n" for at in range(rows))
    return ("age,height,outcome\n" + "".join(lines)).encode()


class Page:
    """The page of a data set, as one key uses it."""

    def __init__(self, browser: Browser, dataset: str) -> None:
        self.browser, self.dataset = browser, dataset
        self.address = f"/dashboard/datasets/{dataset}/manage"

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
    assert stranger.browser.get(stranger.address).status_code == 403


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
    assert page_of(visit, scene.analyst, used).browser.get(f"/dashboard/datasets/{used}/manage").status_code == 403


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
    status, text = page.send("declaration", records="220")
    assert status == 200 and "Version 2 is declared" in text and "version 2" in page.text
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


def test_models_mostly_becomes_mixed_from_the_page(whole: Whole, signed_in: SignedIn) -> None:
    scene, _ids = whole
    browser = signed_in("owner")
    spec = dataset_spec(name="planned", **PEOPLE)
    privacy = {name: value for name, value in spec["privacy"].items() if name != "filter"} | {"plan": "models mostly"}
    files: Any = {"spec": (None, json.dumps(spec | {"privacy": privacy})), "file": ("people.csv", month(7000))}
    headers = {"Authorization": f"Bearer {scene.owner.token}"}
    made = browser.client.post("/v1/datasets", files=files, headers=headers)
    assert made.status_code == 201, made.text
    page = Page(browser, made.json()["id"])
    assert 'name="mixed"' in page.text and "frees its name and content for another plan" in page.text
    status, text = page.send("declaration", mixed="yes")
    assert status == 200 and "Version 2 is declared" in text and 'name="mixed"' not in page.text
    with scene.db.read() as session:
        assert session.get_one(Dataset, made.json()["id"]).spec["privacy"]["plan"] == "mixed"


def add_block(page: Page, label: str, content: bytes, records: int = 200) -> Any:
    spec = json.dumps({"label": label, "records": records})
    files: Any = {"spec": (None, spec), "file": ("month.csv", content)}
    headers = {"X-CSRF-Token": token_of(page.browser.get(page.address))}
    return page.browser.client.post(f"{page.address}/blocks", files=files, headers=headers)


@contextmanager
def settings_of(browser: Browser, **changes: Any) -> Iterator[None]:
    """Other settings of the browser's service, for a while."""
    state: Any = browser.client.app.state  # type: ignore[attr-defined]
    before = state.settings
    state.settings = before.model_copy(update=changes)
    yield
    state.settings = before


def test_a_file_of_a_block_has_the_bounds_of_uploads(whole: Whole, signed_in: SignedIn) -> None:
    scene, _ids = whole
    browser = signed_in("owner")
    page = Page(browser, registered(browser, scene, "large-months", 50_000))
    large = month(200_000, rows=90_000)
    assert len(large) > scene.settings.max_body_bytes > SMALL_BODY_BYTES
    added = add_block(page, "2026-10", large, records=90_000)
    assert added.status_code == 200 and "is added" in added.text


def test_a_block_that_was_rejected_says_why(scene: Scene, visit: Callable[[], Browser]) -> None:
    """In a home of its own: the server of this file's browser reads what waits in the shared one."""
    browser = visit()
    browser.sign_in(scene.owner)
    page = Page(browser, registered(browser, scene, "slow-months", 80_000))
    with settings_of(browser, read_at_once_bytes=10):
        arrived = add_block(page, "2026-10", month(80_000))  # the rows of the registration
        assert arrived.status_code == 200 and "is being read" in arrived.text
    assert "reading" in page.text
    Reader(scene.db, scene.settings).run_once()
    items = browser.client.get(
        f"/v1/datasets/{page.dataset}/blocks", headers={"Authorization": f"Bearer {scene.owner.token}"}
    ).json()["items"]
    problem = items[1]["reading"]["problem"]
    assert items[1]["state"] == "rejected" and unescape(page.text).count(problem["detail"]) == 1


def test_a_grown_data_set_ends_block_by_block(whole: Whole, signed_in: SignedIn) -> None:
    scene, _ids = whole
    browser = signed_in("owner")
    page = Page(browser, registered(browser, scene, "ended", 90_000))
    assert "Take it back" in page.text and "the block first" not in page.text.split('id="end"')[1]
    assert add_block(page, "2026-10", month(91_000)).status_code == 200
    end = page.text.split('id="end"')[1]
    assert "Delete the data of the block first?" in end and "Take it back" not in end
    assert 'value="first"' in page.text
    assert page.send("blocks/retire", label="first")[0] == 303
    assert 'value="first"' not in page.text and 'value="2026-10"' in page.text


@pytest.mark.parametrize("others", ["[1]", "5", "null", '"a"', "[" * 5000, '{"slots": NaN}', '{"a": 1, "a": 2}', "{"])
def test_what_is_no_declaration_is_refused_in_words(scene: Scene, visit: Callable[[], Browser], others: str) -> None:
    page = page_of(visit, scene.owner, scene.dataset("reviews"))
    status, text = page.send("declaration", others=others)
    assert status in (413, 422) and 'role="alert"' in text


def test_a_new_declaration_says_what_the_stored_records_say(whole: Whole, signed_in: SignedIn) -> None:
    scene, _ids = whole
    browser = signed_in("owner")
    page = Page(browser, registered(browser, scene, "declared", 95_000))
    status, text = page.send("declaration", others='{"dry_run": true, "records": 24000}')
    assert status == 200 and "Nothing was changed" in text and "version 1" in text
    assert "200 records are stored" in text and "Slots: " in text and "alert-warn" in text
    status, text = page.send("declaration", records="24,000")
    assert status == 200 and "Version 2 is declared" in text and "version 2" in text and "alert-warn" in text
    assert 'placeholder="24000"' in text
    for wrong in ("many", "9" * 5000):
        status, text = page.send("declaration", records=wrong)
        assert status == 422 and "is not a whole number" in text and "int()" not in text


def test_a_charge_of_another_system_is_of_the_key_that_reserved_it(scene: Scene, visit: Callable[[], Browser]) -> None:
    dataset = scene.dataset("reviews")
    with scene.db.write() as session:
        amount: Any = {"dataset_id": dataset, "job_id": "chg_one", "train": 5, "holdout": 0}
        accounts.hold(session, **amount, actor=scene.analyst.id)
        accounts.post(session, **amount, actor=scene.owner.id)
    text = page_of(visit, scene.owner, dataset).text
    spent = text.split('id="spent"')[1].split("</section>")[0]
    assert re.findall(r"<th scope=\"row\"[^>]*>(\w+)<", spent) == ["Anand"]


ACTIONS = {
    "cap": {"epsilon": "9", "reason": "more"},
    "declaration": {"records": "30000"},
    "blocks": {},
    "blocks/retire": {"label": "first"},
    "retire": {},
    "delete": {},
}


def test_the_actions_are_those_that_the_service_has() -> None:
    posts = {route.path for route in router.routes if isinstance(route, APIRoute) and "POST" in (route.methods or ())}
    assert {path.partition("/manage/")[2] for path in posts} == set(ACTIONS)


@pytest.mark.parametrize("action", ACTIONS)
def test_only_the_owner_with_the_form_changes_anything(scene: Scene, visit: Callable[[], Browser], action: str) -> None:
    dataset = scene.dataset("reviews")
    other = scene.key("owner")
    viewer = scene.key("viewer")
    with scene.db.write() as session:
        access.give(session, scene.owner.caller, dataset, viewer.id, "view", None)
        access.give(session, scene.owner.caller, dataset, scene.analyst.id, "train", None)
    pages = {key.id: page_of(visit, key, dataset) for key in (scene.owner, scene.analyst, viewer, other)}
    before = state_of(scene)
    for key, page in pages.items():
        own = token_of(page.browser.get("/dashboard/keys"))
        for token in ("", "0" * 64) if key == scene.owner.id else ("", own):
            files: Any = {"spec": (None, '{"label": "2026-10", "records": 200}'), "file": ("a.csv", month(1))}
            sent: Any = {"files": files} if action == "blocks" else {"data": {"csrf": token, **ACTIONS[action]}}
            answer = page.browser.client.post(f"{page.address}/{action}", headers={"X-CSRF-Token": token}, **sent)
            assert answer.status_code in (403, 404), answer.text
            assert ("this form is out of date" in answer.text.lower()) == (token != own), answer.text
    assert state_of(scene) == before


def state_of(scene: Scene) -> list[Any]:
    """What an action of an owner would change."""
    tables = [table_of(each) for each in (Dataset, Account, LedgerEntry, Declaration, DatasetReading)]
    with scene.db.read() as session:
        return [session.execute(select(table)).all() for table in tables]


def test_each_action_is_in_the_audit_log(whole: Whole, signed_in: SignedIn) -> None:
    scene, _ids = whole
    browser = signed_in("owner")
    page = Page(browser, registered(browser, scene, "audited", 100_000))
    unused = Page(browser, registered(browser, scene, "unused", 110_000))
    shown = re.search(r'name="version" value="([^"]*)"', page.text)
    assert shown is not None
    assert page.send("cap", epsilon="3", reason="more", version=shown[1])[0] == 303
    assert page.send("declaration", records="220")[0] == 200
    assert page.send("declaration", others='{"dry_run": true}')[0] == 200, "which is no action"
    assert add_block(page, "2026-10", month(101_000)).status_code == 200
    assert page.send("blocks/retire", label="2026-10")[0] == 303
    assert page.send("delete")[0] == 303
    assert unused.send("retire")[0] == 303
    with scene.db.read() as session:
        blocks = set(session.scalars(select(Dataset.id).where(Dataset.parent_id == page.dataset)))
        entries = session.execute(
            select(AuditEntry.action, AuditEntry.actor).where(
                AuditEntry.target.in_({page.dataset, unused.dataset} | blocks)
            )
        ).all()
    assert {each.actor for each in entries} == {scene.owner.id}
    assert sorted(each.action for each in entries) == [
        "block.appended",
        "block.retired",
        "dataset.cap_changed",
        "dataset.content_deleted",
        "dataset.redeclared",
        "dataset.registered",
        "dataset.registered",
        "dataset.retired",
    ]


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
