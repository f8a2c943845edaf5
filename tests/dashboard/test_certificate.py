"""A certificate is checked on its page: the signature, the entry, and the chain of the ledger."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import delete, select, update

from app.db.models import Certificate, LedgerEntry, SigningKey
from app.ledger.signing_keys import publish
from app.ledger.transparency.heads import Heads
from app.ledger.verifications import check
from tests.dashboard.conftest import Browser
from tests.dashboard.scene import Scene


@pytest.fixture
def certified(scene: Scene) -> str:
    publish(scene.db, scene.signing_key)
    return scene.succeeded(scene.dataset("reviews"), "certified", [0.8])


def said(visit: Callable[[], Browser], scene: Scene, job: str) -> list[tuple[bool | None, str]]:
    browser = visit()
    browser.sign_in(scene.analyst)
    before = browser.get(f"/dashboard/jobs/{job}").text
    assert "Check the certificate" in before and "signature holds" not in before
    text = browser.get(f"/dashboard/jobs/{job}?check=true").text
    found = re.findall(r'alert-(good|bad|warn)"><strong>(✓|✗|Not checked yet\.)</strong> (.*?)</p>', text)
    states = {("good", "✓"): True, ("bad", "✗"): False, ("warn", "Not checked yet."): None}
    return [(states[kind, sign], words) for kind, sign, words in found]


def change(scene: Scene, job: str, **members: Any) -> None:
    with scene.db.write() as session:
        row = session.get_one(Certificate, job)
        body = row.body["certificate"] | members
        session.execute(update(Certificate).values(body=row.body | {"certificate": body}))


def test_an_honest_certificate_holds(certified: str, visit: Callable[[], Browser], scene: Scene) -> None:
    found = said(visit, scene, certified)
    assert [holds for holds, _ in found] == [True, True, None] and "not verified since" in found[2][1], "it is no fault"
    with scene.db.read() as session:
        (dataset,) = session.scalars(select(LedgerEntry.dataset_id).distinct())
    check(scene.db, Heads.of(scene.settings), dataset)
    found = said(visit, scene, certified)
    assert [holds for holds, _ in found] == [True] * 3
    assert "signature holds" in found[0][1] and "this job's charge" in found[1][1].replace("&#39;", "'")
    assert "All 3 entries" in found[2][1]


def test_a_changed_document_is_told(certified: str, visit: Callable[[], Browser], scene: Scene) -> None:
    change(scene, certified, charge={"train": 1, "holdout": 1, "unit": "mu^2 * 1e-12"})
    (signature, entry, _) = said(visit, scene, certified)
    assert not signature[0] and "was changed" in signature[1]
    assert not entry[0] and "another amount" in entry[1]


def test_a_key_that_was_never_published_is_told(certified: str, visit: Callable[[], Browser], scene: Scene) -> None:
    with scene.db.write() as session:
        session.execute(delete(SigningKey))
    (signature, entry, _) = said(visit, scene, certified)
    assert not signature[0] and "never published" in signature[1]
    assert entry[0], "the ledger itself has the entry"


def test_a_rewritten_ledger_is_told(certified: str, visit: Callable[[], Browser], scene: Scene) -> None:
    with scene.db.write() as session:
        session.connection().exec_driver_sql("DROP TRIGGER ledger_entries_no_update")
        session.execute(update(LedgerEntry).where(LedgerEntry.seq == 3).values(train=1, hash="0" * 64))
        (dataset,) = session.scalars(select(LedgerEntry.dataset_id).distinct())
    check(scene.db, Heads.of(scene.settings), dataset)
    (signature, entry, chain) = said(visit, scene, certified)
    assert signature[0] and not entry[0] and "not the one that the certificate names" in entry[1]
    assert chain[0] is False and "is not valid" in chain[1]
