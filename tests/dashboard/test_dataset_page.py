"""The page of a data set: what was declared, each cap with its reason, and the entries that are asked for."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from sqlalchemy import select

from app.db.models import Dataset, LedgerEntry
from app.ledger import accounts
from core.contracts.slots import PartSlots, Slots
from tests.dashboard.conftest import Browser
from tests.dashboard.scene import XSS, Everything, Scene
from tests.factories import add_dataset

Whole = tuple[Scene, Everything]
SignedIn = Callable[[str], Browser]
SEQUENCES = {
    "format": "interactions",
    "task": {"kind": "next_item"},
    "features": {"kind": "interactions", "layout": "inter", "items": {"kind": "numbered", "count": 50}},
}
USERS = {"sensitivity": "private", "unit": "user", "records": 900, "cap": {"epsilon": 4.0}, "filter": "gdp"}


def shown(browser: Browser, address: str) -> list[int]:
    return [int(each) for each in re.findall(r'<tr id="entry-(\d+)">', browser.get(address).text)]


def test_a_last_item_is_no_public_file(scene: Scene, visit: Callable[[], Browser]) -> None:
    """Scores on it are charged: a page that calls them free misleads whoever plans a job."""
    dataset = add_dataset(
        scene.db, owner=scene.owner.id, name="visits", privacy=USERS, holdout={"kind": "last_item"}, **SEQUENCES
    )
    browser = visit()
    browser.sign_in(scene.owner)
    text = browser.get(f"/dashboard/datasets/{dataset}").text
    said = text.split("<dt>Hold-out</dt>")[1].split("</dd>")[0]
    assert "each user's last item" in said and "charged to the training part" in said
    assert "free" not in said and "public file" not in said


def test_a_graph_s_page_says_what_is_stored_of_its_nodes(scene: Scene, visit: Callable[[], Browser]) -> None:
    nodes = {"kind": "nodes", "columns": ["a", "b"], "keep": 12}
    dataset = add_dataset(scene.db, owner=scene.owner.id, name="pages", features=nodes)
    browser = visit()
    browser.sign_in(scene.owner)
    said = browser.get(f"/dashboard/datasets/{dataset}").text.split("<dt>Features</dt>")[1].split("</dd>")[0]
    assert "2 columns of a graph's nodes, and 12 of each one's list" in said


def test_records_of_a_user_and_the_version_of_a_declaration_are_told(
    scene: Scene, visit: Callable[[], Browser]
) -> None:
    bounded = USERS | {"user_column": "patient", "max_records_per_user": 8}
    dataset = add_dataset(scene.db, owner=scene.owner.id, name="patients", privacy=bounded, declaration=3)
    browser = visit()
    browser.sign_in(scene.owner)
    text = browser.get(f"/dashboard/datasets/{dataset}").text
    assert "at most 8 records of each, by <code>patient</code>" in text
    assert "<dt>Declaration</dt><dd>version 3" in text


def test_slots_are_told_and_those_that_are_not_stated(scene: Scene, visit: Callable[[], Browser]) -> None:
    bounded = USERS | {"user_column": "patient", "max_records_per_user": 8}
    dataset = add_dataset(scene.db, owner=scene.owner.id, name="stays", slots=False, privacy=bounded)
    browser = visit()
    browser.sign_in(scene.owner)

    def told() -> str:
        text = browser.get(f"/dashboard/datasets/{dataset}").text
        return " ".join(text.split("<dt>Slots</dt>")[1].split("</dd>")[0].split())

    assert "twice the declared number and 64" in told() and "scrimp datasets slots stays" in told()
    with scene.db.write() as session:
        row = session.get_one(Dataset, dataset)
        slots = Slots(train=PartSlots(units=300, rows=900), holdout=PartSlots(units=100, rows=100))
        row.shape = row.shape.model_copy(update={"slots": slots})
    assert "300 training (900 records), 100 hold-out" in told()


def test_each_cap_has_its_reason(scene: Scene, visit: Callable[[], Browser]) -> None:
    dataset = scene.dataset("reviews")
    with scene.db.write() as session:
        for epsilon, reason in ((6.0, f"a second study {XSS}"), (5.0, "it needs less")):
            accounts.change_cap(session, dataset_id=dataset, cap_epsilon=epsilon, actor=scene.owner.id, reason=reason)
    browser = visit()
    browser.sign_in(scene.owner)
    text = browser.get(f"/dashboard/datasets/{dataset}").text
    caps = text.split('id="all-caps"')[1].split("</details>")[0]
    rows = re.findall(r"<tr>.*?</tr>", caps.split("<tbody>")[1], flags=re.DOTALL)
    assert [re.findall(r'class="num">ε ([\d.]+)', row) for row in rows] == [["5"], ["6"], ["4"]], "newest first"
    assert "it needs less" in rows[0] and "a second study" in rows[1] and "registration" in rows[2]
    assert XSS not in text


def test_entries_are_filtered_by_kind_and_job(
    whole: Whole, signed_in: SignedIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene, ids = whole
    browser, page = signed_in("owner"), f"/dashboard/datasets/{ids.reviews}"
    with scene.db.read() as session:
        query = select(LedgerEntry).where(LedgerEntry.dataset_id == ids.reviews).order_by(LedgerEntry.seq.desc())
        every = [(each.seq, each.kind, each.job_id) for each in session.scalars(query)]
    holds = [seq for seq, kind, _ in every if kind == "hold"]
    of_job = [seq for seq, _, job in every if job == ids.succeeded]
    assert len(holds) > 2 and len(of_job) == 2
    assert shown(browser, f"{page}?kind=hold") == holds
    assert shown(browser, f"{page}?kind=&job={ids.succeeded}") == of_job
    assert shown(browser, f"/dashboard/live{page.removeprefix('/dashboard')}?kind=hold") == holds, "as the page asks"
    assert 'data-live="/dashboard/live/datasets/' in browser.get(f"{page}?kind=hold").text
    monkeypatch.setattr("app.dashboard.entry_pages.ENTRIES_SHOWN", 2)
    address, seen = f"{page}?kind=hold", []
    while address:
        text = browser.get(address).text
        seen += shown(browser, address)
        older = re.search(r'href="([^"]+)#entries">Older', text)
        address = older.group(1).replace("&amp;", "&") if older else ""
    assert seen == holds, "the filter stays from page to page"
    assert "No entry matches" in browser.get(f"{page}?kind=void&job={ids.succeeded}").text
    assert browser.get(f"{page}?kind=nonsense").status_code == 422
