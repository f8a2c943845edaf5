"""A statement about a whole data set: its words follow from its evidence, and nothing else is believed."""

from __future__ import annotations

import copy
import json
import re
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from app.budgets import service as budgets
from app.chain import digest
from app.db.database import Database
from app.db.models import Account
from app.ledger import accounts, joining, repository
from app.ledger.accounts import filter_for
from app.ledger.schemas import EntryView
from app.ledger.signer import public_key
from app.ledger.transparency import checkpoints, notes
from app.ledger.transparency.heads import Heads
from scrimp.cli import app
from scrimp.models import LedgerEntry
from scrimp.statement import checked, epsilon_of_mu
from scrimp.statement_words import told
from scrimp.transparency import Note, NotProven, leaf_of, root_of
from tests.ledger.support import DELTA, OWNER, a_history, add_owner, hold, open_ledger, post
from tests.ledger.test_anchors import unheard
from tests.ledger.test_attestations import OTHER
from tests.ledger.test_certificates import KEY

RAW = KEY.public_key().public_bytes_raw()


@pytest.fixture
def db(tmp_path: Path, migrated_database: Path) -> Iterator[Database]:
    database = Database(f"sqlite:///{shutil.copy(migrated_database, tmp_path / 'stated.db')}")
    add_owner(database)
    yield database
    database.close()


def evidence(db: Database, dataset: str, tmp_path: Path, label: str = "first") -> dict[str, Any]:
    checkpoints.sign_due(db, heads := Heads(tmp_path / "heads"), KEY, unheard)
    note = heads.checkpoint(dataset)
    assert note is not None
    with db.read() as session:
        page = repository.page_of_entries(session, dataset, after=0, job=None, limit=1000)
        entries = [LedgerEntry.model_validate(EntryView.of(each).model_dump(mode="json")) for each in page]
    assert len(entries) == Note.parse(note).size
    shown = [each.model_dump(mode="json") for each in entries]
    return {"id": dataset, "label": label, "checkpoint": note, "entries": shown}


def built(dataset: dict[str, str], ledgers: list[dict[str, Any]]) -> dict[str, Any]:
    """The document as services before signed terms wrote it."""
    return {"version": 2, "dataset": dataset, "ledgers": ledgers}


def statement(db: Database, dataset: str, tmp_path: Path, **blocks: str) -> dict[str, Any]:
    """A statement of version 2."""
    said = {"id": dataset, "name": "patients", "unit": "example"}
    ledgers = [evidence(db, dataset, tmp_path), *(evidence(db, of, tmp_path, label) for label, of in blocks.items())]
    document: dict[str, Any] = json.loads(json.dumps(built(said, ledgers)))
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
    whole = checked(statement(db, dataset, tmp_path), RAW)
    (found,) = whole.ledgers
    assert tuple(map(len, (found.jobs, found.charges, found.running))) == (1, 1, 2) and found.entries == 8
    assert (found.spent, found.held) == ({"train": 30_005_000, "holdout": 1_000}, {"train": 2e8, "holdout": 5_000})
    assert (found.cap_epsilon, found.largest_cap_epsilon, found.cap_delta) == (3.5, 4.0, DELTA)
    exact = filter_for(found.filter, order).epsilon(spent, DELTA)
    assert exact * (1 - 1e-9) <= found.epsilon(spent) <= exact * (1 + 1e-6)
    words = {title: " ".join(lines) for title, lines in told(whole)}
    assert "Blocks" not in words and "even if all keys" in words["Guarantee"]
    assert "1 jobs and 1 other charges" in words["What was spent"]
    assert "ε ≤ 3.5 at δ = 1e-05 (once 4" in words["Guarantee"] and "one record" in words["Unit of privacy"]
    assert "α = 0.1 %" in words["How to read it"]


def test_all_blocks_are_stated_and_their_figures_do_not_add_up(db: Database, tmp_path: Path) -> None:
    """Jobs on both blocks count once; a unit is in one block, so the worst block's ε is the data set's."""
    first, two = open_ledger(db), open_ledger(db)
    for each, amount in ((first, 10**9), (two, 10**9)):
        hold(db, each, "job_both", amount)
        post(db, each, "job_both", amount)
    hold(db, two, "job_two", 10**9)
    post(db, two, "job_two", 10**9)
    with db.write() as session:
        joining.close(session, accounts.account_of(session, first), accounts.RETIRED, OWNER, "old")
    found = checked(statement(db, first, tmp_path, two=two), RAW)
    words = {title: " ".join(lines) for title, lines in told(found)}
    assert (found.worst.label, found.entries) == ("two", 9) and found.ledgers[0].closed
    assert found.worst.epsilon(2 * 10**9) == found.worst.epsilon(found.worst.most_spent)
    assert "2 jobs" in words["What was spent"] and "two" in words["What was spent"]
    assert f"first ({first}), closed" in words["Blocks"] and f"two ({two}), open" in words["Blocks"]
    assert "closed" not in words["Guarantee"] and "each record is in one block" in words["Unit of privacy"]
    users = {title: " ".join(lines) for title, lines in told(replace(found, unit="user"))}
    assert "a user in several has a share in each" in users["Unit of privacy"]
    assert "users above may be in them" in users["Not covered"] and users["Guarantee"] == words["Guarantee"]


def test_ledgers_of_different_terms_are_no_data_set(db: Database, tmp_path: Path) -> None:
    first, other = open_ledger(db), open_ledger(db, filter_kind="rdp", order=8.0)
    with pytest.raises(NotProven, match="different filters"):
        checked(statement(db, first, tmp_path, two=other), RAW)


def test_budgets_within_the_cap_are_stated(db: Database, tmp_path: Path) -> None:
    """What each paid follows from the entries, on every block apart."""
    first, two = open_ledger(db), open_ledger(db)
    ids: list[str] = []
    with db.write() as session:
        for each in (first, two):
            found = budgets.save(session, accounts.account_of(session, each), "ward", 2.0, OWNER)
            budgets.join_key(session, found, OWNER)
            ids.append(found.id)
    for each, spent in ((first, 10**9), (two, 3 * 10**9)):
        hold(db, each, f"job_{each}", 4 * 10**9)
        post(db, each, f"job_{each}", spent)
    whole = checked(statement(db, first, tmp_path, two=two), RAW)
    assert [each.within for each in whole.ledgers] == [
        {budget: {"train": spent, "holdout": 0}} for budget, spent in zip(ids, (10**9, 3 * 10**9), strict=True)
    ]
    words = {title: " ".join(lines) for title, lines in told(whole)}
    for budget, label in zip(ids, ("first", "two"), strict=True):
        assert re.search(rf"{budget} spent ε = 0\.\d+ on {label}", words["Budgets within the cap"])
    assert "no guarantee about a person" in words["Budgets within the cap"]


def test_a_statement_of_version_1_is_read(db: Database, tmp_path: Path) -> None:
    document = statement(db, a_history(db), tmp_path)
    old = {"version": 1, "dataset": document["dataset"]} | {
        name: document["ledgers"][0][name] for name in ("checkpoint", "entries")
    }
    assert checked(old, RAW).ledgers == checked(document, RAW).ledgers


def test_known_figures() -> None:
    """The demo's: spec and page have the same."""
    assert epsilon_of_mu(0.26805, 1e-5) == pytest.approx(1.0, abs=2e-4)
    assert epsilon_of_mu(1e-3, 0.5) == pytest.approx(0.0, abs=1e-6)


def damaged(document: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    for place, ledger in enumerate(document["ledgers"]):
        for number, entry in enumerate(ledger["entries"]):
            for name in entry.keys() - {"version"}:
                other = copy.deepcopy(document)
                value = entry[name]
                changed = value + 1 if isinstance(value, int) else "x" if value is None else None
                other["ledgers"][place]["entries"][number][name] = changed
                yield f"{name} of entry {number + 1} of ledger {place}", other
            other = copy.deepcopy(document)
            del other["ledgers"][place]["entries"][number]
            yield f"without entry {number + 1} of ledger {place}", other
        note = ledger["checkpoint"]
        for at in range(0, len(note), 7):
            other = copy.deepcopy(document)
            other["ledgers"][place]["checkpoint"] = note[:at] + chr(ord(note[at]) ^ 1) + note[at + 1 :]
            yield f"character {at} of ledger {place}", other
        yield f"{place} is another ledger", _with(document, place, id="ds_other")
        yield f"{place} has no entries", _with(document, place, entries=[])
        yield f"{place} is twice there", document | {"ledgers": [*document["ledgers"], ledger]}
    yield "another data set", document | {"dataset": document["dataset"] | {"id": "ds_other"}}
    yield "no ledger", document | {"ledgers": []}
    yield "an unknown version", document | {"version": 4}
    yield "a version whose terms lack", document | {"version": 3}
    yield "nothing", {}


def _with(document: dict[str, Any], place: int, **changes: Any) -> dict[str, Any]:
    other = copy.deepcopy(document)
    other["ledgers"][place] |= changes
    return other


def test_whatever_was_changed_is_found(db: Database, tmp_path: Path) -> None:
    document = statement(db, a_history(db), tmp_path, two=open_ledger(db))
    assert [len(each.jobs) for each in checked(document, RAW).ledgers] == [1, 0]
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
    ledger = {"id": dataset, "label": "first", "checkpoint": note, "entries": entries}
    return built({"id": dataset, "name": "x", "unit": "example"}, [ledger])


def test_a_service_that_signs_wrong_balances_is_found_too(db: Database, tmp_path: Path) -> None:
    """A chain and a checkpoint that fit, over balances that do not."""
    dataset = a_history(db)
    entries = evidence(db, dataset, tmp_path)["entries"]
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
    entries = evidence(db, dataset, tmp_path)["entries"]
    assert checked(signed_anew(dataset, copy.deepcopy(entries)), RAW).ledgers[0].jobs == {"job_1", "job_2"}
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
    for key, status in ((OTHER, 1), ("AAAA", 2), ("%", 2)):
        assert run(app, ["ledger", "statement", str(path), "--public-key", key]).exit_code == status
    document["ledgers"][0]["entries"][3]["train"] += 1
    path.write_text(json.dumps(document))
    assert run(app, ["ledger", "statement", str(path), "--public-key", public_key(KEY)]).exit_code == 1
