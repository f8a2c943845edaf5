"""A plan: a ledger begins in the exact currency, and moves to the other one with all that was spent (decision 53)."""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select
from typer.testing import CliRunner

from app.charges import service
from app.charges.charge_cost import amounts
from app.db.models import Account, Dataset, Job
from app.ledger import accounts, behind, block_accounts, signed_terms, sub_accounts
from app.ledger.block_accounts import ledgers_of
from app.ledger.certificates import issue
from app.ledger.evidence import of as evidence_of
from app.ledger.evidence import pieces
from app.ledger.signer import public_key
from app.ledger.transparency import checkpoints, notes
from app.ledger.transparency.heads import Head, Heads
from app.ledger.transparency.notes import Checkpoint
from app.ledger.verification import verify
from app.lifecycle.settle import settle, settlement_of
from core.errors import BudgetError
from core.privacy.filters import GdpFilter, RdpFilter, filter_of
from scrimp import statement as reader
from scrimp.cli import app as command_line
from scrimp.statement import NotProven, Statement, checked
from scrimp.statement_words import told
from scrimp.transparency import leaf_of, root_of
from tests.chaos.tamper import roll_back, unprotected
from tests.datasets.conftest import CSV, Api, spec
from tests.datasets.test_block_jobs import account, exhaust, held, post, submit
from tests.datasets.test_blocks import append, grant, retire, rows
from tests.datasets.test_people import WHOLE, month, of_users
from tests.factories import job_spec
from tests.ledger.issued import KEY
from tests.ledger.test_anchors import unheard
from tests.node import by_node, needs_node

POISSON = {"sampling": {"kind": "poisson", "expected_batch_size": 16}, "length": {"steps": 40}, "evaluation": None}
ZCDP = {"kind": "zcdp", "rho": 0.001}
OTHER = CSV.replace("\n1,", "\n1.5,")
HALF = {"kind": "gdp", "mu": 0.1}


def declared(plan: str, **changes: Any) -> dict[str, Any]:
    """A declaration with a cap of ε = 4 at δ = 1e-5."""
    whole = spec(**changes)
    privacy = {name: value for name, value in whole["privacy"].items() if name != "filter"}
    return whole | {"privacy": privacy | {"plan": plan}}


def planned(api: Api, plan: str = "mixed", file: str = CSV, **changes: Any) -> str:
    made = api.upload(declared(plan, **changes), file)
    assert made.status_code == 201, made.text
    grant(api, made.json()["id"])
    return str(made.json()["id"])


def charge(api: Api, dataset: str, mechanism: dict[str, Any], once: str = "charge", **changes: Any) -> Any:
    body = {"dataset": dataset, "mechanism": mechanism, "unit": "example", "attested": "a histogram", **changes}
    return post(api, "/v1/charges", body, **{"Idempotency-Key": once})


def spend(api: Api, dataset: str, mechanism: dict[str, Any], once: str = "charge", **changes: Any) -> str:
    made = charge(api, dataset, mechanism, once, **changes)
    assert made.status_code == 201, made.text
    assert post(api, f"/v1/charges/{made.json()['id']}/post", None).status_code == 200
    return str(made.json()["id"])


def ledgers(api: Api, dataset: str) -> list[str]:
    with api.db.read() as session:
        return ledgers_of(session, dataset)


def shown(api: Api, dataset: str) -> Any:
    return api.get(f"/v1/datasets/{dataset}/ledger").json()


def statement(api: Api, dataset: str) -> Any:
    checkpoints.sign_due(api.db, Heads.of(api.settings), KEY, unheard)
    signed_terms.sign_due(api.db, KEY)
    with api.db.read() as session:
        found = evidence_of(session, session.get_one(Dataset, dataset))
    return json.loads("".join(pieces(api.db, found)))


def proven(document: Any) -> Statement:
    return checked(document, KEY.public_key().public_bytes_raw())


def said(document: Any, section: str) -> str:
    return " ".join(dict(told(proven(document)))[section])


def test_a_mixed_ledger_begins_exact_at_half_of_delta(api: Api) -> None:
    first = planned(api)
    found = account(api, first)
    assert (found.filter, found.cap_epsilon, found.cap_delta, found.whole_delta) == ("gdp", 4.0, 5e-6, 1e-5)
    assert found.train_budget == GdpFilter().budget(4.0, 5e-6)
    view = shown(api, first)
    assert (view["cap"]["value"], view["cap"]["delta"]) == (4.0, 1e-5), "the guarantee has all of δ"
    assert submit(api, first).status_code == 201 and ledgers(api, first) == [first]
    spend(api, first, {"kind": "laplace", "scale": 100.0})
    assert ledgers(api, first) == [first], "what gdp bounds does not move it"


def test_any_mechanism_is_the_filter_rdp(api: Api) -> None:
    first = planned(api, "any mechanism")
    found = account(api, first)
    assert (found.filter, found.cap_delta, found.whole_delta) == ("rdp", 1e-5, None)
    spend(api, first, ZCDP)
    assert ledgers(api, first) == [first]


@pytest.mark.parametrize(
    "privacy", [{"filter": "rdp"}, {"sensitivity": "public", "records": None, "cap": None}], ids=["a filter", "public"]
)
def test_a_plan_chooses_the_filter(api: Api, privacy: dict[str, Any]) -> None:
    whole = declared("mixed")
    refused = api.upload(whole | {"privacy": whole["privacy"] | privacy})
    assert refused.status_code == 422 and "plan" in refused.text


def test_a_sampled_job_moves_the_ledger_with_all_that_was_spent(api: Api) -> None:
    first = planned(api)
    spend(api, first, HALF)
    running = submit(api, first).json()["id"]
    before = account(api, first)
    quoted = post(api, "/v1/quotes", submit_spec(api, first)).json()
    assert ledgers(api, first) == [first], "a quote moves nothing"
    job = submit(api, first, "two", **POISSON)
    assert job.status_code == 201, job.text
    assert job.json()["quote"]["charge"] == quoted["charge"] and quoted["charge"]["unit"].startswith("rdp")
    _, second = ledgers(api, first)
    assert held(api, job.json()["id"]) == [second] and account(api, first).joined_into == second
    after = account(api, second)
    to = RdpFilter(after.order or 0.0)
    assert after.train_spent == GdpFilter().carried(before.train_spent + before.train_held, to)
    assert after.holdout_spent == GdpFilter().carried(before.holdout_spent + before.holdout_held, to)
    assert (after.cap_epsilon, after.cap_delta, after.train_budget) == (4.0, 5e-6, to.budget(4.0, 5e-6))
    assert [each["id"] for each in api.get("/v1/datasets").json()["items"]] == [first]
    with api.db.write() as session:
        sampled = session.get_one(Job, job.json()["id"])
        assert [each.id for each in block_accounts.read_by(session, sampled)] == [first]
        settle(session, settlement_of(session, session.get_one(Job, running), "cancelled"))
    assert account(api, first).train_held == 0, "what ran settles where it was held"
    full = submit(api, first, "three")
    assert held(api, full.json()["id"]) == [second], "one ledger is open"
    with api.db.read() as session:
        for ledger in (first, second):
            assert verify(session, ledger).valid


def submit_spec(api: Api, dataset: str) -> dict[str, Any]:
    return job_spec(dataset, **({"privacy": {"target_epsilon": 0.5}} | POISSON))


def test_a_charge_moves_it_too(api: Api) -> None:
    first = planned(api)
    spend(api, first, HALF, "one")
    wrong = charge(api, first, ZCDP, "two", unit="user")
    assert wrong.status_code == 422 and ledgers(api, first) == [first], "a refused charge moves nothing"
    made = spend(api, first, ZCDP, "three")
    _, second = ledgers(api, first)
    assert held(api, made) == [second]
    view = shown(api, first)
    assert view["epsilon_spent"]["value"] == pytest.approx(
        RdpFilter(account(api, second).order or 0.0).epsilon(account(api, second).train_spent, 5e-6), rel=1e-9
    )
    (item,) = api.get(f"/v1/datasets/{first}/spending").json()["items"]
    assert item["train"]["amount"] == account(api, second).train_spent


def test_nothing_moves_for_what_would_not_fit(api: Api) -> None:
    first = planned(api)
    exhaust(api, first)
    for refused in (submit(api, first, **POISSON), charge(api, first, ZCDP)):
        assert refused.status_code == 409 and ledgers(api, first) == [first], refused.text
    large = charge(api, planned(api, file=OTHER, name="another"), {"kind": "zcdp", "rho": 5.0}, "two")
    assert large.status_code == 409 and "stays as it is" in large.json()["detail"]


def test_models_mostly_moves_once_its_owner_says_so(api: Api) -> None:
    first = planned(api, "models mostly")
    for refused in (submit(api, first, **POISSON), charge(api, first, ZCDP)):
        assert refused.status_code == 422, refused.text
    assert "plan `mixed`" in submit(api, first, **POISSON).json()["detail"]
    path = f"/v1/datasets/{first}/declarations"
    changed = post(api, path, {"plan": "mixed"})
    assert changed.status_code == 201, changed.text
    assert submit(api, first, **POISSON).status_code == 201 and len(ledgers(api, first)) == 2
    other = planned(api, "any mechanism", OTHER, name="another")
    assert post(api, f"/v1/datasets/{other}/declarations", {"plan": "mixed"}).status_code == 422


def test_cap_and_budgets_go_along(api: Api) -> None:
    first, key = planned(api), api.key_ids["owner"]
    budget = api.client.put(f"/v1/datasets/{first}/budgets/{key}", json={"epsilon": 3.0}, headers=api.headers("owner"))
    assert budget.status_code in (200, 201), budget.text
    path = f"/v1/datasets/{first}/ledger/cap"
    assert post(api, path, {"epsilon": 6.0, "reason": "agreed"}, **{"If-Match": "*"}).status_code == 200
    spend(api, first, ZCDP)
    _, second = ledgers(api, first)
    assert account(api, second).cap_epsilon == 6.0
    (item,) = api.get(f"/v1/datasets/{first}/budgets").json()["items"]
    assert item["epsilon"]["value"] == 3.0 and item["unit"].startswith("rdp") and item["epsilon_spent"]["value"] > 0.0
    assert post(api, path, {"epsilon": 5.0, "reason": "less"}, **{"If-Match": "*"}).status_code == 200
    assert (account(api, first).cap_epsilon, account(api, second).cap_epsilon) == (6.0, 5.0)
    assert shown(api, first)["cap"] == shown(api, first)["cap"] | {"value": 5.0, "delta": 1e-5}


def test_what_a_budget_spent_and_holds_goes_along(api: Api, tmp_path: Path) -> None:
    """Decision 62: else a team would have its budget once under each filter."""
    first, key = planned(api), api.key_ids["owner"]
    path = f"/v1/datasets/{first}/budgets/{key}"
    assert api.client.put(path, json={"epsilon": 3.0}, headers=api.headers("owner")).status_code in (200, 201)
    spend(api, first, HALF, "one")
    assert charge(api, first, HALF, "two").status_code == 201  # held
    with api.db.read() as session:
        (own,) = sub_accounts.all_of(session, first)
    assert own.train_spent > 0 and own.train_held > 0
    spend(api, first, ZCDP, "three")
    _, second = ledgers(api, first)
    to = RdpFilter(account(api, second).order or 0.0)
    both = GdpFilter().carried(own.train_spent + own.train_held, to)
    (item,) = api.get(f"/v1/datasets/{first}/budgets").json()["items"]
    spent = item["accounts"]["train"]["spent"]
    assert spent == account(api, second).train_spent > (both or 0) > 0
    with api.db.read() as session:
        assert all(verify(session, each).valid for each in (first, second))
    document = statement(api, first)
    (within,) = proven(document).ledgers[1].within.values()
    assert within["train"] == spent
    again = api.client.put(path, json={"epsilon": 0.1}, headers=api.headers("owner") | {"If-Match": "*"})
    assert again.status_code in (409, 422), "it never goes below what it has spent"


@pytest.mark.parametrize("epsilon", [1.5, 2.0], ids=["no units under rdp", "fewer"])
def test_a_budget_that_spent_more_than_it_has_after_the_move_is_used_up(api: Api, epsilon: float) -> None:
    first, key = planned(api), api.key_ids["owner"]
    path = f"/v1/datasets/{first}/budgets/{key}"
    assert api.client.put(path, json={"epsilon": epsilon}, headers=api.headers("owner")).status_code in (200, 201)
    with api.db.read() as session:
        (sub,) = sub_accounts.all_of(session, first)
    spend(api, first, {"kind": "gdp", "mu": math.sqrt(sub.train_budget * 0.999e-12)}, "one")
    moved = charge(api, first, ZCDP, "two")
    assert moved.status_code == 409 and moved.json()["type"] == "/problems/budget-exceeded", moved.text
    _, second = ledgers(api, first)
    with api.db.read() as session:
        (copy,) = sub_accounts.all_of(session, second)
        assert copy.train_spent == copy.train_budget and verify(session, second).valid
        assert account(api, second).train_spent > copy.train_spent


@pytest.mark.parametrize("epsilon", [1.5, 2.0], ids=["no units under rdp", "fewer"])
def test_a_used_up_budget_that_is_raised_counts_all_that_it_had_spent(api: Api, epsilon: float) -> None:
    """Its copy can only say that it is used up: a raise must not begin from there."""
    first, key = planned(api), api.key_ids["owner"]
    path = f"/v1/datasets/{first}/budgets/{key}"
    assert api.client.put(path, json={"epsilon": epsilon}, headers=api.headers("owner")).status_code in (200, 201)
    with api.db.read() as session:
        (sub,) = sub_accounts.all_of(session, first)
    spend(api, first, {"kind": "gdp", "mu": math.sqrt(sub.train_budget * 0.999e-12)}, "one")
    assert charge(api, first, ZCDP, "two").status_code == 409
    _, second = ledgers(api, first)
    raised = api.client.put(path, json={"epsilon": 3.0}, headers=api.headers("owner") | {"If-Match": "*"})
    with api.db.read() as session:
        (before,), (copy,) = sub_accounts.all_of(session, first), sub_accounts.all_of(session, second)
    spent = GdpFilter().carried(before.train_spent + before.train_held, RdpFilter(account(api, second).order or 0.0))
    assert spent is not None
    left = copy.train_budget - copy.train_spent
    assert spent + left <= max(spent, copy.train_budget), (raised.status_code, raised.text)
    assert raised.status_code == 409 and "used up" in raised.json()["detail"], raised.text
    assert charge(api, first, ZCDP, "three").status_code == 409


def test_a_closed_ledger_says_why_and_a_refused_move_says_what_would_do(api: Api) -> None:
    first = planned(api)
    large = charge(api, first, {"kind": "zcdp", "rho": 5.0}, "large").json()["detail"]
    assert f"% of the training account of {first}" in large and "The ledger stays as it is" in large
    spend(api, first, ZCDP)
    _, second = ledgers(api, first)
    with pytest.raises(BudgetError, match="Ask once more") as refusal, api.db.write() as session:
        accounts.hold(session, dataset_id=first, job_id="job_late", train=1, holdout=0, actor="a")
    assert first in str(refusal.value) and second in str(refusal.value) and "joined" not in str(refusal.value)
    other = planned(api, file=OTHER, name="another")
    exhaust(api, other)
    refused = charge(api, other, ZCDP, "full").json()["detail"]
    assert f"% of the training account of {other}" in refused and "raise the cap to about ε = " in refused
    least = float(refused.split("about ε = ")[1].split(",")[0])
    path = f"/v1/datasets/{other}/ledger/cap"
    raised = post(api, path, {"epsilon": least * 1.00001, "reason": "agreed"}, **{"If-Match": "*"})
    assert raised.status_code == 200, raised.text
    assert charge(api, other, ZCDP, "again").status_code == 201, "what was said would do"


def test_nothing_is_declared_or_appended_while_the_second_ledger_is_behind(api: Api) -> None:
    first = planned(api)
    spend(api, first, ZCDP)
    _, second = ledgers(api, first)
    behind.record(api.db, Heads.of(api.settings), second)
    with unprotected(api.db) as session:
        roll_back(session, second, 1)
    declared_anew = post(api, f"/v1/datasets/{first}/declarations", {"records": 70})
    appended = append(api, first, rows(range(60, 160)), "two", 100)
    for refused in (declared_anew, appended):
        assert refused.status_code == 409 and refused.json()["type"] == "/problems/ledger-behind", refused.text


def test_a_ledger_with_a_plan_is_joined_to_no_other(api: Api) -> None:
    pair = [planned(api), planned(api, file=OTHER, name="another")]
    body = {"into": pair[1], "reason": "the same"}
    refused = api.client.post(f"/v1/datasets/{pair[0]}/ledger/join", json=body, headers=api.headers("admin"))
    assert refused.status_code == 409 and "retire it instead" in refused.json()["detail"], refused.text


def test_all_blocks_move_and_later_ones_are_there_already(api: Api) -> None:
    first = planned(api)
    two = append(api, first, rows(range(60, 160)), "two", 100).json()["id"]
    exhaust(api, two)  # more than rdp allows: a full gdp budget
    refused = charge(api, first, ZCDP, blocks=["first"])
    assert refused.status_code == 409 and ledgers(api, first) == [first] and ledgers(api, two) == [two]


def test_jobs_on_blocks_pay_on_what_they_moved_to(api: Api) -> None:
    first = planned(api)
    two = append(api, first, rows(range(60, 160)), "two", 100).json()["id"]
    job = submit(api, first, **POISSON)
    assert job.status_code == 201, job.text
    moved = [ledgers(api, each)[1] for each in (first, two)]
    assert held(api, job.json()["id"]) == sorted(moved) and sorted(job.json()["spec"]["blocks"]) == ["first", "two"]
    third = append(api, first, rows(range(160, 220)), "three", 60)
    assert third.status_code == 201, third.text
    assert len(ledgers(api, third.json()["id"])) == 2
    exhaust(api, moved[1])
    named = submit(api, first, "two", blocks=["two"], **POISSON)
    assert named.status_code == 409 and named.json()["block"] == "two"
    assert sorted(submit(api, first, "three", **POISSON).json()["spec"]["blocks"]) == ["first", "three"]
    one = charge(api, first, ZCDP, blocks=["first"]).json()
    assert held(api, one["id"]) == [moved[0]]
    assert retire(api, first, "first").status_code == 200
    assert account(api, moved[0]).joined_into == "retired"
    assert submit(api, first, "four", blocks=["first"], **POISSON).status_code == 422


def test_a_statement_says_the_whole_delta_and_proves_the_move(api: Api) -> None:
    first = planned(api)
    spend(api, first, HALF, "one")
    early = statement(api, first)
    assert early["version"] == 4 and "ε ≤ 4 at δ = 1e-05" in said(early, "Guarantee")
    assert "may move" in said(early, "Guarantee")
    spend(api, first, ZCDP, "two")
    document = statement(api, first)
    found = proven(document)
    assert [each.closed for each in found.ledgers] == [True, False] and found.worst.filter == "rdp"
    assert found.worst.epsilon(found.worst.most_spent) == pytest.approx(
        shown(api, first)["epsilon_spent"]["value"], rel=1e-7
    )
    assert "was carried" in said(document, "Guarantee") and "ε ≤ 4 at δ = 1e-05" in said(document, "Guarantee")
    hidden = document | {"ledgers": document["ledgers"][:1]}
    with pytest.raises(NotProven):
        proven(hidden)


def by_both(document: Any, path: Path) -> tuple[str, str]:
    """What `scrimp.statement` and docs/verify.mjs say against a statement."""
    path.write_text(json.dumps(document, ensure_ascii=False))
    answer = by_node(path, "--public-key", public_key(KEY))
    told = "FAULT" in answer.stdout or "DOUBT" in answer.stdout
    assert (answer.returncode == 0) == (not told), answer.stdout + answer.stderr
    try:
        proven(document)
    except NotProven as error:
        return str(error), answer.stdout + answer.stderr
    return "", answer.stdout + answer.stderr if answer.returncode else ""


def signed_anew(ledger: dict[str, Any]) -> None:
    """Chains a statement's entries as they are now, and signs their checkpoint."""
    before = hashlib.sha256(b"scrimp/ledger/v1:" + ledger["id"].encode()).hexdigest()
    for entry in ledger["entries"]:
        bare = {name: value for name, value in entry.items() if name != "hash"} | {"prev_hash": before}
        text = json.dumps(bare, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        before = hashlib.sha256(text.encode()).hexdigest()
        entry.update(prev_hash=bare["prev_hash"], hash=before)
    root = root_of([leaf_of(entry["hash"]) for entry in ledger["entries"]])
    ledger["checkpoint"] = notes.sign(Checkpoint(ledger["id"], len(ledger["entries"]), root), KEY)


def carry_less(ledger: dict[str, Any]) -> None:
    """Takes one unit from the amount that a move carried, in its hold, its post and all balances from there on."""
    spent = held = 0
    for entry in ledger["entries"]:
        if "joined" in entry["memo"]:
            entry["train"] -= 1
            spent, held = (0, 1) if entry["kind"] == "hold" else (1, 0)
        entry["memo"]["balance"]["train"]["spent"] -= spent
        entry["memo"]["balance"]["train"]["held"] -= held


@needs_node
def test_both_verifiers_read_what_moved(api: Api, tmp_path: Path) -> None:
    first = planned(api)
    spend(api, first, HALF, "one")
    assert by_both(statement(api, first), tmp_path / "early") == ("", "")
    spend(api, first, ZCDP, "two")
    document = statement(api, first)
    assert by_both(document, tmp_path / "moved") == ("", "")
    for shown, why in ((slice(0, 1), "moved to one that is not stated"), (slice(1, 2), "not the data set's own")):
        for text in by_both(document | {"ledgers": document["ledgers"][shown]}, tmp_path / "hidden"):
            assert why in text
    earlier = document | {"version": 3}
    assert all("version 4 is of a data set with two filters" in text for text in by_both(earlier, tmp_path / "earlier"))
    with pytest.raises(NotProven, match="moved to one that is not stated"):
        reader._check_together(first, list(proven(document).ledgers[:1]))
    carry_less(document["ledgers"][1])
    signed_anew(document["ledgers"][1])
    for text in by_both(document, tmp_path / "less"):
        assert "less was carried to a ledger than the one before it had spent" in text
    later = document | {"version": 5}
    assert all("of an unknown version" in text for text in by_both(later, tmp_path / "later"))


@needs_node
def test_a_move_is_the_last_word_of_a_ledger(api: Api, tmp_path: Path) -> None:
    """One that said afterwards that it was retired would hide the ledger that it moved to."""
    first = planned(api)
    spend(api, first, ZCDP)
    document = statement(api, first)
    ledger = document["ledgers"][0]
    last = json.loads(json.dumps(ledger["entries"][-1]))
    ledger["entries"].append(last | {"seq": last["seq"] + 1, "memo": last["memo"] | {"joined_into": "retired"}})
    signed_anew(ledger)
    for text in by_both(document, tmp_path / "retired"):
        assert "closes a ledger that is closed" in text


def test_what_a_budget_took_over_is_counted_once(api: Api) -> None:
    """A second word on it would make free what was paid from the budget since."""
    first, key = planned(api), api.key_ids["owner"]
    path = f"/v1/datasets/{first}/budgets/{key}"
    assert api.client.put(path, json={"epsilon": 3.0}, headers=api.headers("owner")).status_code in (200, 201)
    spend(api, first, HALF, "one")
    spend(api, first, ZCDP, "two")
    spend(api, first, ZCDP, "three")
    document = statement(api, first)
    entries = document["ledgers"][1]["entries"]
    carried = next(each["memo"] for each in entries if each["kind"] == "post" and "joined" in each["memo"])
    assert carried["within"] and entries[-1]["kind"] == "post"
    entries[-1]["memo"] |= {"joined": "ds_another", "within": carried["within"]}
    signed_anew(document["ledgers"][1])
    with pytest.raises(NotProven, match="takes over for a budget what it cannot"):
        proven(document)


@needs_node
def test_the_statement_of_one_block_alone_has_what_it_moved_to(api: Api, tmp_path: Path) -> None:
    first = planned(api)
    two = append(api, first, rows(range(60, 160)), "two", 100).json()["id"]
    spend(api, first, HALF, "one")
    assert by_both(statement(api, two), tmp_path / "early") == ("", "")
    spend(api, first, ZCDP, "two")
    document, (_, second) = statement(api, two), ledgers(api, two)
    assert [(each["id"], each["label"]) for each in document["ledgers"]] == [
        (two, "two"),
        (second, "two, any mechanism"),
    ]
    assert by_both(document, tmp_path / "alone") == ("", "")
    for text in by_both(statement(api, second), tmp_path / "second"):
        assert f"{second} goes on from a ledger that is not stated" in text, "what it took over may be too little"
    assert by_node(tmp_path / "second", "--public-key", public_key(KEY)).returncode == 2
    known = CliRunner().invoke(
        command_line, ["ledger", "statement", str(tmp_path / "second"), "--public-key", public_key(KEY)]
    )
    assert known.exit_code == 2 and "goes on from a ledger" in " ".join(known.output.split())
    whole = {each["id"]: each for each in statement(api, first)["ledgers"]}
    for shown in ([two], [two, ledgers(api, first)[1]], [two, second, first]):
        for text in by_both(document | {"ledgers": [whole[each] for each in shown]}, tmp_path / "hidden"):
            assert text, "too few or too many ledgers"
    assert shown_ledgers(api, two) == [two, second]


def shown_ledgers(api: Api, dataset: str) -> list[str]:
    return [each["id"] for each in shown(api, dataset)["blocks"]]


def test_a_statement_with_too_little_carried_is_refused(api: Api) -> None:
    first = planned(api)
    spend(api, first, HALF, "one")
    spend(api, first, ZCDP, "two")
    found = proven(statement(api, first)).ledgers
    reader._check_moved(*found)
    with pytest.raises(NotProven, match="less was carried"):
        reader._check_moved(found[0], replace(found[1], carried={}))


def test_a_job_without_a_hold_is_charged_after_a_move(api: Api) -> None:
    """Somebody took its hold out of the first ledger, which is closed when it ends: the second one pays."""
    first = planned(api)
    made = submit(api, first).json()["id"]
    with unprotected(api.db) as session:
        roll_back(session, first, 1)
    spend(api, first, ZCDP)
    _, second = ledgers(api, first)
    before = account(api, second)
    with api.db.write() as session:
        job = session.get_one(Job, made)
        job.status, job.steps_started = "running", job.steps
        ended = settlement_of(session, job, "succeeded")
        settle(session, ended)
    after, own = account(api, second), filter_of(before.filter, before.order)
    assert ended.unheld and ended.charge is not None
    assert after.train_spent - before.train_spent == GdpFilter().carried(ended.charge.train, own)


def test_a_certificate_names_the_ledger_that_paid(api: Api) -> None:
    first = planned(api)
    made = submit(api, first, **POISSON).json()["id"]
    _, second = ledgers(api, first)
    with api.db.write() as session:
        job = session.get_one(Job, made)
        job.status, job.steps_started = "running", job.steps
        settle(session, settlement_of(session, job, "succeeded"))
    assert issue(api.db, made, KEY, "test")
    body = api.get(f"/v1/jobs/{made}/certificate").json()["certificate"]
    assert [(each["dataset"], each["block"]) for each in body["ledger"]] == [(second, "first, any mechanism")]
    assert body["dataset"]["id"] == first and body["filter"]["kind"] == "rdp"


def test_content_stays_while_a_job_of_either_ledger_needs_it(api: Api) -> None:
    first = planned(api)
    made = submit(api, first, **POISSON).json()["id"]
    _, second = ledgers(api, first)
    path = f"/v1/datasets/{first}/content"
    assert api.client.delete(path, headers=api.headers("owner")).status_code == 409
    with api.db.write() as session:
        settle(session, settlement_of(session, session.get_one(Job, made), "cancelled"))
    assert api.client.delete(path, headers=api.headers("owner")).status_code in (200, 204)
    assert submit(api, first, "two", **POISSON).status_code == 409
    with api.db.read() as session:
        there = select(Dataset.content_deleted_at).where(Dataset.id.in_((first, second)))
        assert None not in session.scalars(there).all()
        assert session.get_one(Account, second).train_held == 0


def test_an_untouched_data_set_may_change_its_plan(api: Api) -> None:
    name = declared("mixed")["name"]
    first = planned(api, name=name)
    gone = api.client.post(f"/v1/datasets/{first}/retire", headers=api.headers("owner"))
    assert gone.status_code == 200, gone.text
    again = planned(api, "any mechanism", name=name)
    assert account(api, again).filter == "rdp"
    spend(api, again, ZCDP)
    assert api.client.post(f"/v1/datasets/{again}/retire", headers=api.headers("owner")).status_code == 409


def test_the_other_blocks_move_after_the_first_is_retired(api: Api) -> None:
    first = planned(api)
    two = append(api, first, rows(range(60, 160)), "two", 100).json()["id"]
    assert retire(api, first, "first").status_code == 200
    job = submit(api, first, **POISSON)
    assert job.status_code == 201, job.text
    _, moved = ledgers(api, two)
    assert held(api, job.json()["id"]) == [moved] and ledgers(api, first) == [first]
    third = append(api, first, rows(range(160, 220)), "three", 60)
    assert third.status_code == 201, third.text
    assert len(ledgers(api, third.json()["id"])) == 2, "all blocks count in one currency"
    before = account(api, moved)
    full = submit(api, first, "full", blocks=["two"])
    assert full.json()["quote"]["charge"]["unit"].startswith("rdp"), full.text
    spend(api, first, HALF)
    half = GdpFilter().carried(round(HALF["mu"] ** 2 * 1e12), RdpFilter(before.order or 0.0))
    assert account(api, moved).train_spent - before.train_spent == pytest.approx(half, abs=1)


def test_a_charge_is_counted_in_the_currency_of_the_ledger_that_pays(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    first, others = planned(api), ["between"]

    def moved_meanwhile(*asked: Any) -> tuple[int, int]:
        found = amounts(*asked)
        if others:
            spend(api, first, ZCDP, others.pop())
        return found

    monkeypatch.setattr(service, "amounts", moved_meanwhile)
    made = charge(api, first, HALF)
    assert made.status_code == 201, made.text
    _, second = ledgers(api, first)
    to = RdpFilter(account(api, second).order or 0.0)
    half = GdpFilter().carried(round(HALF["mu"] ** 2 * 1e12), to)
    assert held(api, made.json()["id"]) == [second]
    assert account(api, second).train_held == pytest.approx(half, abs=1)


def test_what_a_retired_block_paid_counts_for_people_who_return(api: Api) -> None:
    """Decision 37 weighs what each block paid, in one currency: a block that leaves before a move takes none along."""
    first = planned(api, file=of_users(range(20), 1), **WHOLE)
    month(api, first, range(10, 30), 2)
    exhaust(api, first)  # a full gdp budget is more than rdp allows
    assert retire(api, first, "first").status_code == 200
    refused = submit(api, first, **POISSON)
    assert refused.status_code == 409 and "more was spent" in refused.json()["detail"], refused.text


def test_nobody_returns_after_a_charge_on_what_a_ledger_moved_to(api: Api) -> None:
    first = planned(api, file=of_users(range(20), 1), **WHOLE)
    spend(api, first, ZCDP, unit="user")
    refused = append(api, first, of_users(range(10, 30), 2), "m2", records=20)
    assert refused.status_code == 409 and refused.json()["shared"] == {"first": 10}, refused.text


def test_nothing_is_answered_before_the_closed_ledger_is_recorded(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a backup of before the move would open it again, beside what was spent on the other one."""
    first, write = planned(api), Heads.write

    def full(heads: Heads, head: Head, known: Any) -> Any:
        if head.dataset == first:
            raise OSError(28, "No space left on device")
        return write(heads, head, known)

    with monkeypatch.context() as patched:
        patched.setattr(Heads, "write", full)
        refused = charge(api, first, ZCDP)
        assert (refused.status_code, refused.json()["type"]) == (409, "/problems/head-pending"), refused.text
    assert charge(api, first, ZCDP).status_code in (200, 201)
    recorded = Heads.of(api.settings).read(first)
    assert recorded is not None and recorded.joined_into == ledgers(api, first)[1]
