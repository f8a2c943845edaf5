"""What looks for faults finds planted ones, and a campaign goes on where it was killed. The attacks themselves run in
`make nightly-chaos`, the seven worst in `pytest -m attack`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from app.db.database import Database
from app.db.models import LedgerEntry
from app.ledger.transparency.heads import Heads
from app.ledger.verifications import check
from tests.chaos.invariants import dataset_faults, ledger_faults
from tests.chaos.nightly import drawn, kinds
from tests.chaos.report import Journal, Result, text
from tests.conftest import Api
from tests.ledger.support import a_history, add_owner, hold, open_ledger, post, void


def entry(seq: int, kind: str, job: str | None, train: int, released: int = 0) -> dict[str, Any]:
    zero = {"holdout": 0, "holdout_released": 0}
    return {"seq": seq, "kind": kind, "job_id": job, "train": train, "train_released": released, **zero}


HONEST = [
    entry(1, "open", None, 100),
    entry(2, "hold", "a", 60),
    entry(3, "hold", "b", 40),
    entry(4, "post", "a", 50, 10),
    entry(5, "void", "b", 0, 40),
    entry(6, "hold", "c", 50),
    entry(7, "post", "c", 50),
]
PLANTED = {
    "overspent": [*HONEST[:3], entry(4, "hold", "x", 1), entry(5, "void", "x", 0, 1), *HONEST[3:]],
    "settled twice": [*HONEST, entry(8, "post", "a", 0, 0)],
    "held twice": [*HONEST[:5], entry(6, "hold", "a", 1), *HONEST[5:]],
    "never held": [*HONEST, entry(8, "post", "x", 0, 0)],
    "another amount": [*HONEST[:3], entry(4, "post", "a", 50, 0), *HONEST[4:]],
    "not settled": HONEST[:6],
}


def test_an_honest_ledger_has_no_faults() -> None:
    assert ledger_faults(HONEST) == []
    raised = [HONEST[0], entry(2, "cap", None, 200), entry(3, "hold", "a", 150), entry(4, "post", "a", 150)]
    assert ledger_faults(raised) == []


@pytest.mark.parametrize("fault", PLANTED)
def test_a_planted_fault_is_found(fault: str) -> None:
    assert any(fault in each for each in ledger_faults(PLANTED[fault]))


def test_the_ledgers_own_entries_are_understood(db: Database) -> None:
    add_owner(db)
    dataset = open_ledger(db)
    hold(db, dataset, "job_1", 1000, 10)
    post(db, dataset, "job_1", 600, 10)
    hold(db, dataset, "job_2", 500)
    void(db, dataset, "job_2")
    with db.read() as session:
        rows = session.scalars(select(LedgerEntry).order_by(LedgerEntry.seq)).all()
    assert ledger_faults([vars(row) for row in rows]) == []


def test_a_data_set_is_asked_about_page_by_page(api: Api, db: Database, tmp_path: Path) -> None:
    add_owner(db)
    dataset = a_history(db)

    class Asked:
        def get(self, path: str) -> Any:
            return api.client.get(path.replace("limit=100", "limit=2"), headers=api.headers("admin")).json()

        def content(self, path: str) -> bytes:
            raise AssertionError(path)

        def verification(self, dataset: str) -> Any:
            check(db, Heads(tmp_path), dataset)
            return self.get(f"/v1/datasets/{dataset}/ledger/verify")

    faults = dataset_faults(Asked(), dataset, [])
    assert all("is not settled" in each or "nothing held" in each for each in faults), faults
    assert faults, "a job of this history is still held"


def test_a_seed_says_what_a_round_does() -> None:
    first = [drawn(7, number)[:2] for number in range(1, len(kinds()) + 1)]
    assert first == kinds() and ("sqlite", "kills") in first, "each attack on each database, before any comes again"
    assert drawn(7, 3)[2].random() == drawn(7, 3)[2].random() != drawn(8, 3)[2].random()


def test_a_campaign_that_was_killed_goes_on(tmp_path: Path) -> None:
    journal = Journal.begin(tmp_path / "chaos.jsonl", 7)
    journal.add(Result(1, "sqlite", "kills", 2.0, {"jobs": 4}, []))
    journal.add(Result(2, "postgres", "kills", 3.0, {"jobs": 4}, ["job_1: failed"]))
    with journal.path.open("a") as file:
        file.write('{"number": 3, "back')  # killed in the middle of a line
    again = Journal.resume(journal.path)
    assert (again.seed, again.next_number, again.took_s, again.results) == (7, 3, 5.0, journal.results)
    again.add(Result(3, "sqlite", "races", 1.0))
    assert [each.number for each in Journal.resume(journal.path).results] == [1, 2, 3]
    said = text(again, ["a note"])
    assert "| kills | postgres | 1 | 4 jobs | 1 |" in said and "| kills | sqlite | 1 | 4 jobs | 0 |" in said
    assert "--seed 7 --round 2" in said and "* job_1: failed" in said and "* a note" in said
