"""The statement of a data set in the browser: a page, and files that the client checks on its own."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable
from typing import Any

from app.dashboard.numbers import up
from app.db.models import Dataset
from app.grants import service as access
from app.ledger import signed_terms
from app.ledger.transparency import checkpoints
from app.ledger.transparency.heads import Heads
from core.contracts.governance import Terms
from scrimp.statement import Statement, checked
from tests.dashboard.conftest import Browser
from tests.dashboard.scene import Everything, Scene
from tests.dashboard.test_manage import Page, add_block, month, page_of, registered
from tests.ledger.issued import KEY
from tests.ledger.test_anchors import unheard

Whole = tuple[Scene, Everything]
SignedIn = Callable[[str], Browser]


def evidence(scene: Scene, browser: Browser, dataset: str) -> Statement:
    """The downloaded statement, checked as a stranger does."""
    checkpoints.sign_due(scene.db, Heads.of(scene.settings), KEY, unheard)
    signed_terms.sign_due(scene.db, KEY)
    answer = browser.get(f"/dashboard/datasets/{dataset}/statement.json")
    assert answer.status_code == 200 and "-statement.json" in answer.headers["content-disposition"]
    by_rest = browser.client.get(
        f"/v1/datasets/{dataset}/statement", headers={"Authorization": f"Bearer {scene.owner.token}"}
    )
    assert by_rest.content == answer.content and by_rest.headers["content-type"] == "application/json"
    return checked(answer.json(), KEY.public_key().public_bytes_raw())


def text_of(browser: Browser, dataset: str) -> str:
    return browser.get(f"/dashboard/datasets/{dataset}/statement").text


def figures(browser: Browser, dataset: str) -> list[dict[str, Any]]:
    answer = browser.get(f"/dashboard/datasets/{dataset}/statement.csv")
    assert answer.headers["content-type"].startswith("text/csv")
    return list(csv.DictReader(io.StringIO(answer.text)))


def test_the_page_says_what_the_evidence_proves(scene: Scene, visit: Callable[[], Browser]) -> None:
    dataset = scene.dataset("reviews")
    page = page_of(visit, scene.owner, dataset)
    early = page.browser.get(f"/dashboard/datasets/{dataset}/statement.json")
    assert early.status_code == 409 and "no checkpoint is signed yet" in early.text
    scene.succeeded(dataset, "first", [0.7], privacy={"target_epsilon": 1.0})
    found, text = evidence(scene, page.browser, dataset), text_of(page.browser, dataset)
    spent = found.worst.epsilon(found.worst.most_spent)
    (row,) = figures(page.browser, dataset)
    assert abs(float(row["epsilon_spent"]) - spent) <= 1e-8 * spent and int(row["entries"]) == found.entries
    assert f"ε = {up(float(row['epsilon_spent']))} of 4" in text and len(found.worst.jobs) == 1
    assert re.search(r"<dd>1 job and charges", text) and "ε ≤ 4 at δ = 1e-5" in text
    assert f"/dashboard/datasets/{dataset}/statement" in page.text
    assert f"/dashboard/datasets/{dataset}/statement" in page.browser.get(f"/dashboard/datasets/{dataset}").text


def test_every_block_is_stated_retired_ones_too(whole: Whole, signed_in: SignedIn) -> None:
    scene, _ids = whole
    browser = signed_in("owner")
    dataset = registered(browser, scene, "stated", 120_000)
    page = Page(browser, dataset)
    assert add_block(page, "2026-10", month(121_000)).status_code == 200
    assert page.send("blocks/retire", label="first")[0] == 303
    found = evidence(scene, browser, dataset)
    assert [(each.label, each.closed) for each in found.ledgers] == [("first", True), ("2026-10", False)]
    assert [(row["block"], row["state"]) for row in figures(browser, dataset)] == [
        ("first", "closed"),
        ("2026-10", "open"),
    ]
    text = text_of(browser, dataset)
    assert "the block that spent most" in text and "do not add up" in text


def test_governance_and_grants_are_on_page_and_csv_once_signed(whole: Whole, signed_in: SignedIn) -> None:
    scene, _ids = whole
    browser = signed_in("owner")
    dataset = registered(browser, scene, "governed", 150_000)
    assert "Not signed yet" in text_of(browser, dataset) and figures(browser, dataset)[0]["controller"] == ""
    with scene.db.write() as session:
        row = session.get_one(Dataset, dataset)
        rules = {
            "controller": "A <b>Hospital</b>",
            "purposes": ["care research", "reports"],
            "contact": "dpo@example.org",
        }
        row.spec = row.spec | {"governance": rules}
        use = Terms(purpose="care research", permit="17/2026")
        access.give(session, scene.owner.caller, dataset, scene.analyst.id, "train", None, use)
    found = evidence(scene, browser, dataset)
    assert found.terms is not None and found.terms.governance is not None
    (line,) = figures(browser, dataset)
    assert line["controller"] == found.terms.governance["controller"] == "A <b>Hospital</b>"
    assert line["purposes"] == "care research; reports" and line["legal_basis"] == ""
    text = text_of(browser, dataset)
    assert "A &lt;b&gt;Hospital&lt;/b&gt;" in text and "care research; reports" in text
    for shown in (text, line["grants"]):
        assert f"{scene.analyst.id} may train, for care research, permit 17/2026, without an end" in shown


def test_public_data_have_no_statement(whole: Whole, signed_in: SignedIn) -> None:
    _scene, ids = whole
    for tail in ("", ".json", ".csv"):
        assert signed_in("owner").get(f"/dashboard/datasets/{ids.digits}/statement{tail}").status_code == 404
