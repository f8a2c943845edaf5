"""/v1/datasets/{id}/ledger over HTTP, with the real pricing process behind it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import event

from app.db.database import Database
from app.db.models import Dataset, LedgerCheck
from app.keys import service as keys
from app.ledger import summary, verifications
from app.ledger.transparency.heads import Heads
from app.main import create_app
from app.secrets import ensure_secrets, load_secret
from app.settings import Settings
from core.ids import now
from tests.conftest import Api
from tests.ledger import support
from tests.ledger.support import (
    DELTA,
    ENTRIES,
    a_history,
    add_owner,
    held_job,
    hold,
    mechanism,
    open_ledger,
    post,
)


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory, migrated_database: Path) -> Settings:
    """One service for the module: tests have data sets of their own, and the pricing process takes seconds to start."""
    home = tmp_path_factory.mktemp("home")
    shutil.copy(migrated_database, home / "scrimp.db")
    made = Settings(home=home, allowed_hosts=["testserver"])
    ensure_secrets(made)
    return made


@pytest.fixture(scope="module")
def db(settings: Settings) -> Iterator[Database]:
    database = Database.of(settings)
    add_owner(database)
    yield database
    database.close()


@pytest.fixture(scope="module")
def api(settings: Settings, db: Database) -> Iterator[Api]:
    pepper = load_secret(settings, "api_key_pepper")
    with db.write() as session:
        made = {
            role: keys.create(session, pepper, name=role, role=role, created_by=None)
            for role in ("admin", "owner", "analyst")
        }
    tokens = {role: token for role, (_, token) in made.items()}
    with TestClient(create_app(settings), raise_server_exceptions=False) as client:
        yield Api(client, tokens, {role: key.id for role, (key, _) in made.items()})


def get(api: Api, path: str, role: str = "analyst", **query: Any) -> Any:
    answer = api.client.get(path, headers=api.headers(role), params=query)
    assert answer.status_code == 200, answer.text
    return answer.json()


def ledger_of(dataset_id: str) -> str:
    return f"/v1/datasets/{dataset_id}/ledger"


def own(api: Api, db: Database, dataset_id: str) -> str:
    """Makes the API's owner key the one that registered the data set."""
    with db.write() as session:
        session.get_one(Dataset, dataset_id).owner_key = api.key_ids["owner"]
    return dataset_id


def test_a_fresh_ledger_is_all_cap(api: Api, db: Database) -> None:
    dataset_id = open_ledger(db)
    shown = get(api, ledger_of(dataset_id))
    budget = support.balances(db, dataset_id)["train"]["budget"]
    account = {"filter": "gdp", "order": None, "unit": "mu^2 * 1e-12", "budget": budget, "spent": 0, "held": 0}
    account |= {"remaining": budget, "share_spent": 0.0, "share_held": 0.0}

    def epsilon(value: float, accountant: str) -> dict[str, Any]:
        meaning = {"accountant": accountant, "unit": "example", "relation": "add_or_remove_one"}
        return {"value": value, "delta": DELTA} | meaning

    assert shown["accounts"] == {"train": account, "holdout": account}
    assert shown["cap"] == shown["largest_cap"] == epsilon(4.0, "gdp")
    assert shown["epsilon_spent"] == shown["epsilon_spent_and_held"] == shown["epsilon_filter"] == epsilon(0.0, "gdp")
    assert shown["epsilon_remaining"]["value"] == pytest.approx(4.0, abs=1e-6)
    assert shown["comparison"] == {
        "basic": epsilon(0.0, "gdp"),
        "rdp_best_order": epsilon(0.0, "rdp"),
        "pld_if_fixed_in_advance": epsilon(0.0, "pld"),
    }
    assert shown["entries"] == 1
    assert len(shown["head"]) == 64


def test_what_is_spent_and_held_is_shown_and_compared(api: Api, db: Database) -> None:
    dataset_id = open_ledger(db)
    for _ in range(2):  # ε = 1 each
        job_id, train, holdout = held_job(db, dataset_id, mechanism())
        post(db, dataset_id, job_id, train, holdout)
    held_job(db, dataset_id, mechanism())
    shown = get(api, ledger_of(dataset_id))
    train = shown["accounts"]["train"]
    assert (train["spent"], train["held"]) == (2 * train["held"], train["held"])
    spent, taken = shown["epsilon_spent"]["value"], shown["epsilon_spent_and_held"]["value"]
    assert 1.4 < spent < taken < 2.0
    comparison = {name: epsilon["value"] for name, epsilon in shown["comparison"].items()}
    assert comparison["basic"] == pytest.approx(2.09, abs=1e-2)
    # Full batch: what is enforced is exact, the others are looser.
    assert spent <= comparison["pld_if_fixed_in_advance"] <= comparison["rdp_best_order"]
    assert comparison["pld_if_fixed_in_advance"] == pytest.approx(spent, rel=1e-2)


def test_a_job_that_stopped_early_is_compared_by_what_it_started(api: Api, db: Database) -> None:
    whole, early = open_ledger(db), open_ledger(db)
    short, long = mechanism(steps=25), mechanism(steps=50)
    job_id, train, holdout = held_job(db, whole, short)
    post(db, whole, job_id, train, holdout)
    job_id, _, _ = held_job(db, early, long)
    post(db, early, job_id, train, holdout)
    of_whole, of_early = (get(api, ledger_of(each))["comparison"] for each in (whole, early))
    # The sum of ε's alone has the planned one: no ε of a job is computed at its stopping time.
    assert of_early.pop("basic")["value"] > of_whole.pop("basic")["value"]
    assert of_whole == of_early


def test_a_second_look_is_quick(api: Api, db: Database) -> None:
    dataset_id = open_ledger(db, filter_kind="rdp", order=8.0)
    for _ in range(3):
        job_id, train, holdout = held_job(db, dataset_id, mechanism(sampling="poisson", sigma=4.0, steps=200))
        post(db, dataset_id, job_id, train, holdout)
    first = get(api, ledger_of(dataset_id))
    # Kept: with no time left to compute anything, the answer is the same.
    comparing = api.client.app.state.pricing.comparing  # type: ignore[attr-defined]
    comparing.close()
    comparing.time_s, before = 0.001, comparing.time_s
    assert get(api, ledger_of(dataset_id)) == first
    comparing.time_s = before


def test_entries_page_by_page(api: Api, db: Database) -> None:
    path = ledger_of(a_history(db)) + "/entries"
    whole = get(api, path)
    assert whole["next"] is None
    assert [entry["seq"] for entry in whole["items"]] == list(range(1, ENTRIES + 1))
    paged, after = [], None
    while after is not None or not paged:
        page = get(api, path, limit=3, **({"after": after} if after else {}))
        paged += page["items"]
        after = page["next"]
    assert paged == whole["items"]
    one = get(api, path, job="job_1")["items"]
    assert [entry["kind"] for entry in one] == ["hold", "post"]


NOTHING = {"first_bad_entry": None, "problem": None}
NEVER = {"valid": None, "checked_at": None, "checked_entries": None, "checked_head": None, "stale": True, "heads": 0}
NEVER |= {"went_on_after": None, "in_full_at": None}


def verify(api: Api, dataset_id: str, role: str = "owner") -> Any:
    return api.client.post(ledger_of(dataset_id) + "/verify", headers=api.headers(role))


def test_the_last_verification_is_shown_with_what_it_is_of(api: Api, db: Database, tmp_path: Path) -> None:
    dataset_id = a_history(db)
    head = get(api, ledger_of(dataset_id))["head"]
    current = {"entries": ENTRIES, "head": head} | NOTHING
    assert get(api, ledger_of(dataset_id) + "/verify") == current | NEVER | {"queued": False}
    verifications.check(db, Heads(tmp_path), dataset_id)
    found = get(api, ledger_of(dataset_id) + "/verify")
    of = {"checked_at": found["checked_at"], "checked_entries": ENTRIES, "checked_head": head}
    of |= {"went_on_after": 0, "in_full_at": found["in_full_at"]}
    assert found["in_full_at"] <= found["checked_at"]
    assert found == current | of | {"valid": True, "heads": 0, "stale": False, "queued": False}
    hold(db, dataset_id, "job_later", 1)
    later = get(api, ledger_of(dataset_id) + "/verify")
    assert (later["valid"], later["stale"], later["checked_head"]) == (True, True, head)
    assert (later["entries"], later["head"]) != (ENTRIES, head)


def test_a_fault_is_shown_as_it_was_found(api: Api, db: Database) -> None:
    dataset_id = a_history(db)
    with db.write() as session:
        row = {"problem": "entry 2: its hash does not match its content", "first_bad_entry": 2, "checked_at": now()}
        session.merge(LedgerCheck(dataset_id=dataset_id, **row))
    found = get(api, ledger_of(dataset_id) + "/verify")
    wrong = "its hash does not match its content"
    assert (found["valid"], found["first_bad_entry"], found["problem"]) == (False, 2, wrong)


def test_no_request_reads_the_entries(api: Api, db: Database) -> None:
    """Any viewer held all threads of the API with the verification of a ledger of a million entries.

    Attack (Tenants): Viewers ask for the verification of a ledger of 10⁶ entries
    Now: the last one is shown; the relay makes one at a time
    Also: tests/ledger/test_api.py::test_an_owner_asks_for_one_and_the_relay_makes_one_at_a_time
    """
    dataset_id, statements = own(api, db, a_history(db)), []

    def note(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        statements.append(statement)

    engine = api.client.app.state.db.engine  # type: ignore[attr-defined]
    event.listen(engine, "before_cursor_execute", note)
    get(api, ledger_of(dataset_id) + "/verify")
    assert verify(api, dataset_id).status_code == 202
    event.remove(engine, "before_cursor_execute", note)
    assert statements and not [each for each in statements if "ledger_entries" in each]


def test_jobs_are_composed_once_for_all_who_ask_and_not_in_a_long_ledger(
    api: Api, db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each request read all jobs: of a million entries any viewer held a thread of the API for two minutes.

    Attack (Tenants): Viewers ask for a long ledger's figures
    Now: once for each head, one request at a time; above 10,000 entries the filter's figures alone
    """
    dataset_id, read = own(api, db, a_history(db)), []
    real = summary.posted
    monkeypatch.setattr(summary, "posted", lambda *of: read.append(of) or real(*of))
    shown = [get(api, ledger_of(dataset_id)) for _ in range(3)]
    assert shown == [shown[0]] * 3 and len(read) == 1
    hold(db, dataset_id, "job_4", 10, 1)
    assert get(api, ledger_of(dataset_id))["accounts"] != shown[0]["accounts"] and len(read) == 2
    hold(db, dataset_id, "job_5", 10, 1)
    monkeypatch.setattr(summary, "MOST_COMPOSED", ENTRIES)
    long = get(api, ledger_of(dataset_id))
    assert long["comparison"] is None and len(read) == 2
    assert long["epsilon_spent"]["value"] == long["epsilon_filter"]["value"], "what is enforced is still said"


def test_an_owner_asks_for_one_and_the_relay_makes_one_at_a_time(api: Api, db: Database, tmp_path: Path) -> None:
    first, second, day = own(api, db, a_history(db)), own(api, db, open_ledger(db)), timedelta(days=1)
    heads = Heads(tmp_path)
    while verifications.check_next(db, heads, day):  # each once
        pass
    assert verify(api, first, "analyst").status_code == 403
    assert verify(api, second).json()["queued"] and verify(api, first).json()["queued"]
    assert verify(api, second).status_code == 202, "the same one"

    def queued() -> list[bool]:
        return [get(api, ledger_of(each) + "/verify")["queued"] for each in (first, second)]

    assert queued() == [True, True]
    assert verifications.check_next(db, heads, day) and queued() == [True, False], "in the order of the requests"
    assert verifications.check_next(db, heads, day) and queued() == [False, False]
    assert not verifications.check_next(db, heads, day)


def change_cap(api: Api, dataset_id: str, body: dict[str, Any], role: str = "owner") -> Any:
    return api.client.post(ledger_of(dataset_id) + "/cap", json=body, headers=api.headers(role, **{"If-Match": "*"}))


@pytest.mark.parametrize("role", ["owner", "admin"])
def test_an_owner_changes_the_cap_and_the_ledger_says_who_and_why(api: Api, db: Database, role: str) -> None:
    dataset_id = own(api, db, open_ledger(db))
    answer = change_cap(api, dataset_id, {"epsilon": 6.0, "reason": "the board agreed"}, role)
    assert answer.status_code == 200, answer.text
    assert answer.json()["cap"]["value"] == 6.0
    entry = get(api, ledger_of(dataset_id) + "/entries")["items"][-1]
    assert (entry["kind"], entry["actor"], entry["memo"]["reason"]) == ("cap", api.key_ids[role], "the board agreed")
    lowered = change_cap(api, dataset_id, {"epsilon": 2.0, "reason": "no"}, role).json()
    assert (lowered["cap"]["value"], lowered["largest_cap"]["value"]) == (2.0, 6.0)


@pytest.mark.parametrize(
    ("body", "pointer"),
    [
        ({"epsilon": 0, "reason": "x"}, "/epsilon"),
        ({"epsilon": -1.0, "reason": "x"}, "/epsilon"),
        ({"epsilon": 101.0, "reason": "x"}, "/epsilon"),
        ({"epsilon": "much", "reason": "x"}, "/epsilon"),
        ({"epsilon": 1.0}, "/reason"),
        ({"epsilon": 1.0, "reason": "   "}, "/reason"),
        ({"epsilon": 1.0, "reason": "x", "delta": 1e-3}, "/delta"),
    ],
)
def test_a_bad_cap_is_refused_and_costs_nothing(api: Api, db: Database, body: dict[str, Any], pointer: str) -> None:
    dataset_id = open_ledger(db)
    answer = change_cap(api, dataset_id, body)
    assert answer.status_code == 422
    assert pointer in [error["pointer"] for error in answer.json()["errors"]]
    assert support.check(db, dataset_id).entries == 1


def test_a_cap_below_what_is_taken_is_refused(api: Api, db: Database) -> None:
    dataset_id = own(api, db, open_ledger(db))
    held_job(db, dataset_id, mechanism())
    answer = change_cap(api, dataset_id, {"epsilon": 0.5, "reason": "too much"})
    assert answer.status_code == 409
    assert answer.json()["type"] == "/problems/cap-too-low"
    assert answer.json()["smallest_epsilon"] == pytest.approx(1.0, abs=1e-3)


def test_another_owner_does_not_change_the_cap(api: Api, db: Database) -> None:
    dataset_id = open_ledger(db)
    assert change_cap(api, dataset_id, {"epsilon": 9.0, "reason": "mine now"}, "owner").status_code == 403
    assert support.check(db, dataset_id).entries == 1


def test_an_analyst_does_not_change_the_cap(api: Api, db: Database) -> None:
    dataset_id = open_ledger(db)
    assert change_cap(api, dataset_id, {"epsilon": 9.0, "reason": "please"}, "analyst").status_code == 403
    assert support.check(db, dataset_id).entries == 1


ROUTES = [("GET", ""), ("GET", "/entries"), ("GET", "/verify"), ("POST", "/cap")]
CAP = {"epsilon": 1.0, "reason": "x"}


@pytest.mark.parametrize(("method", "path"), ROUTES)
def test_without_a_key_there_is_no_answer(api: Api, db: Database, method: str, path: str) -> None:
    answer = api.client.request(method, ledger_of(open_ledger(db)) + path, json=CAP if method == "POST" else None)
    assert answer.status_code == 401


@pytest.mark.parametrize(("method", "path"), ROUTES)
def test_public_and_unknown_data_have_no_ledger(api: Api, db: Database, method: str, path: str) -> None:
    with db.write() as session:
        public = support.add_dataset(session, sensitivity="public")
    for dataset_id, says in ((public, "public"), ("ds_nobody", "no such data set")):
        body = CAP if method == "POST" else None
        answer = api.client.request(method, ledger_of(dataset_id) + path, json=body, headers=api.headers("admin"))
        assert answer.status_code == 404
        assert says in answer.json()["detail"]


@pytest.mark.parametrize("query", [{"limit": 0}, {"limit": 1000}, {"after": "not-a-cursor"}, {"after": "WyJhIl0"}])
def test_bad_pages_are_refused(api: Api, db: Database, query: dict[str, Any]) -> None:
    path = ledger_of(open_ledger(db)) + "/entries"
    assert api.client.get(path, params=query, headers=api.headers("analyst")).status_code == 422
