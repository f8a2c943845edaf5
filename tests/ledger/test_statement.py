"""A statement about a whole data set: its words follow from its evidence, and nothing else is believed."""

from __future__ import annotations

import copy
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from app.chain import digest
from app.db.engine import Database
from app.db.models import Account
from app.ledger import accounts, checkpoints, notes, repository
from app.ledger.accounts import filter_for
from app.ledger.heads import Heads
from app.ledger.schemas import EntryView
from app.ledger.signing_keys import public_key
from scrimp.cli import app
from scrimp.errors import ScrimpError
from scrimp.models import LedgerEntry
from scrimp.statement import built, checked, epsilon_of_mu, told
from scrimp.transparency import NotProven, leaf_of, root_of
from tests.ledger.support import DELTA, OWNER, a_history, add_owner, hold, open_ledger, post
from tests.ledger.test_anchors import unheard
from tests.ledger.test_certificates import KEY

RAW = KEY.public_key().public_bytes_raw()


@pytest.fixture
def db(tmp_path: Path, migrated_database: Path) -> Iterator[Database]:
    database = Database(f"sqlite:///{shutil.copy(migrated_database, tmp_path / 'stated.db')}")
    add_owner(database)
    yield database
    database.close()


def statement(db: Database, dataset: str, tmp_path: Path) -> dict[str, Any]:
    """What the command writes to a file."""
    checkpoints.sign_due(db, heads := Heads(tmp_path / "heads"), KEY, unheard)
    note = heads.checkpoint(dataset)
    assert note is not None
    with db.read() as session:
        page = repository.page_of_entries(session, dataset, after=0, job=None, limit=1000)
        entries = [LedgerEntry.model_validate(EntryView.of(each).model_dump(mode="json")) for each in page]
    said = {"id": dataset, "name": "patients", "unit": "example"}
    document: dict[str, Any] = json.loads(json.dumps(built(said, note, entries)))
    return document


@pytest.mark.parametrize("terms", [{}, {"filter_kind": "rdp", "order": 8.0}])
def test_its_numbers_are_the_ledgers(db: Database, tmp_path: Path, terms: dict[str, Any]) -> None:
    dataset = open_ledger(db, **terms)
    for number in (1, 2, 3):
        hold(db, dataset, f"job_{number}", 40_000_000 * number, 1_000 * number)
    post(db, dataset, "job_1", 30_000_000, 1_000)
    hold(db, dataset, "chg_1", 5_000)
    post(db, dataset, "chg_1", 5_000)
    with db.write() as session:
        accounts.change_cap(session, dataset_id=dataset, cap_epsilon=3.5, actor=OWNER, reason="less")
        account = session.get_one(Account, dataset)
        spent, order = account.train_spent, account.order
    found = checked(statement(db, dataset, tmp_path), RAW)
    assert (found.jobs, found.charges, found.running, found.entries) == (1, 1, 2, 8)
    assert (found.spent, found.held) == ({"train": 30_005_000, "holdout": 1_000}, {"train": 2e8, "holdout": 5_000})
    assert (found.cap_epsilon, found.largest_cap_epsilon, found.cap_delta) == (3.5, 4.0, DELTA)
    exact = filter_for(found.filter, order).epsilon(spent, DELTA)
    assert exact * (1 - 1e-9) <= found.epsilon(spent) <= exact * (1 + 1e-6)
    words = {title: " ".join(lines) for title, lines in told(found)}
    assert "1 jobs and 1 other charges" in words["What was spent"]
    assert "ε ≤ 3.5 at δ = 1e-05 (once 4" in words["Guarantee"] and "one record" in words["Unit of privacy"]
    assert "α = 0.1 %" in words["How to read it"]


def test_known_figures() -> None:
    """The demo's: spec and page have the same."""
    assert epsilon_of_mu(0.26805, 1e-5) == pytest.approx(1.0, abs=2e-4)
    assert epsilon_of_mu(1e-3, 0.5) == pytest.approx(0.0, abs=1e-6)


def damaged(document: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    for number, entry in enumerate(document["entries"]):
        for name in entry.keys() - {"version"}:
            other = copy.deepcopy(document)
            value = other["entries"][number][name]
            other["entries"][number][name] = value + 1 if isinstance(value, int) else "x" if value is None else None
            yield f"{name} of entry {number + 1}", other
        other = copy.deepcopy(document)
        del other["entries"][number]
        yield f"without entry {number + 1}", other
    note = document["checkpoint"]
    for at in range(0, len(note), 7):
        yield f"character {at}", document | {"checkpoint": note[:at] + chr(ord(note[at]) ^ 1) + note[at + 1 :]}
    yield "another data set", document | {"dataset": document["dataset"] | {"id": "ds_other"}}
    yield "no entries", document | {"entries": []}
    yield "nothing", {}


def test_whatever_was_changed_is_found(db: Database, tmp_path: Path) -> None:
    document = statement(db, a_history(db), tmp_path)
    assert checked(document, RAW).jobs == 1
    for name, other in damaged(document):
        with pytest.raises(NotProven):
            raise AssertionError(f"{name}: {checked(other, RAW)}")
    with pytest.raises(NotProven, match="did not sign"):
        checked(document, bytes(32))


def signed_anew(dataset: str, entries: list[dict[str, Any]]) -> dict[str, Any]:
    """Entries with balances, hashes and a checkpoint that fit: what a service that cheats can sign."""
    zero = dict.fromkeys(("train", "holdout"), 0)
    budget, spent, held = dict(zero), dict(zero), dict(zero)
    for each in entries:
        for name in zero:
            if each["kind"] in ("open", "cap"):
                budget[name] = each[name]
            elif each["kind"] == "hold":
                held[name] += each[name]
            else:
                held[name] -= each[name] + each[f"{name}_released"]
                spent[name] += each[name]
        each["memo"]["balance"] = {
            name: {"budget": budget[name], "spent": spent[name], "held": held[name]} for name in zero
        }
    return signed_as_it_is(dataset, entries)


def signed_as_it_is(dataset: str, entries: list[dict[str, Any]]) -> dict[str, Any]:
    head = ""
    for each in entries:
        each["prev_hash"] = head or each["prev_hash"]
        head = each["hash"] = digest({name: value for name, value in each.items() if name != "hash"})
    root = root_of([leaf_of(each["hash"]) for each in entries])
    note = notes.sign(notes.Checkpoint(dataset, len(entries), root), KEY)
    return {"dataset": {"id": dataset, "name": "x", "unit": "example"}, "checkpoint": note, "entries": entries}


def test_a_service_that_signs_wrong_balances_is_found_too(db: Database, tmp_path: Path) -> None:
    """A chain and a checkpoint that fit, over balances that do not."""
    dataset = a_history(db)
    entries = statement(db, dataset, tmp_path)["entries"]
    entries[2]["memo"]["balance"]["train"]["held"] -= 1
    with pytest.raises(NotProven, match="balances"):
        checked(signed_as_it_is(dataset, entries), RAW)


CHEATS: dict[str, tuple[str, list[tuple[int, dict[str, Any]]]]] = {
    "less than the hold": ("another amount than was held", [(2, {"train": 999})]),
    "released more": ("another amount than was held", [(2, {"train_released": 10**9})]),
    "negative": ("negative", [(1, {"train": -(10**12)}), (2, {"train": -(10**12)})]),
    "no hold": ("does not exist", [(2, {"job_id": "job_other"})]),
    "held twice": ("may not be held", [(3, {"job_id": "job_1"}), (2, {"kind": "hold"})]),
    "opened again": ("opens the ledger again", [(3, {"kind": "open"})]),
    "void that spends": ("gives its hold back", [(2, {"kind": "void"})]),
    "a large budget": ("worth", [(0, {"train": 10**15})]),
}


@pytest.mark.parametrize("cheat", CHEATS)
def test_a_service_that_signs_what_no_ledger_does_is_found(db: Database, tmp_path: Path, cheat: str) -> None:
    """All balances follow from the entries; the entries do not follow from each other."""
    dataset = open_ledger(db)
    for job in ("job_1", "job_2"):
        hold(db, dataset, job, 1_000)
        post(db, dataset, job, 1_000)
    entries = statement(db, dataset, tmp_path)["entries"]
    assert checked(signed_anew(dataset, copy.deepcopy(entries)), RAW).jobs == 2
    problem, changes = CHEATS[cheat]
    for place, change in changes:
        entries[place] |= change
    with pytest.raises(NotProven, match=problem):
        checked(signed_anew(dataset, entries), RAW)


def test_the_command_checks_a_file_offline(db: Database, tmp_path: Path) -> None:
    path, run = tmp_path / "statement.json", CliRunner().invoke
    document = statement(db, a_history(db), tmp_path)
    path.write_text(json.dumps(document))
    shown = run(app, ["ledger", "statement", str(path), "--public-key", public_key(KEY)])
    assert shown.exit_code == 0 and "Guarantee" in shown.output and "7 entries recomputed" in shown.output
    assert run(app, ["ledger", "statement", str(path)]).exit_code == 2
    for key in ("AAAA", "%"):
        assert run(app, ["ledger", "statement", str(path), "--public-key", key]).exit_code == 1
    document["entries"][3]["train"] += 1
    path.write_text(json.dumps(document))
    assert run(app, ["ledger", "statement", str(path), "--public-key", public_key(KEY)]).exit_code == 1
    with pytest.raises(ScrimpError, match="covers 7 entries"):
        built({}, document["checkpoint"], [])
