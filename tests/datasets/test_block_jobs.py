"""Jobs, charges, caps and budgets on a data set that has grown: each block pays, or nothing is admitted."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event, select

from app.admission import hold
from app.db.models import Account, Dataset, Job, LedgerCheck, SubAccount, SubAccountKey
from app.keys.recent import RecentKeys
from app.ledger import accounts, block_accounts
from app.ledger.transparency.heads import Heads
from app.ledger.verification import verify
from app.lifecycle import restore
from app.lifecycle.queue import fair
from app.lifecycle.settle import settle, settlement_of
from app.retention import service as retention
from app.storage.objects import of as objects_of
from tests.datasets.conftest import Api, spec
from tests.datasets.test_blocks import append, grant, retire, rows
from tests.factories import job_spec

SMALL: dict[str, Any] = {"privacy": {"target_epsilon": 0.1}, "evaluation": None}
FULL: dict[str, Any] = {"privacy": {"target_epsilon": 0.5}, "length": {"steps": 5}}


def grown(api: Api, **changes: Any) -> tuple[str, str]:
    """A data set and its second block."""
    made = api.upload(spec(**changes)).json()["id"]
    found = append(api, made, rows(range(60, 160)), "two", 100)
    assert found.status_code == 201, found.text
    grant(api, made)
    return made, found.json()["id"]


def submit(api: Api, dataset: str, once: str = "once", who: str = "owner", **changes: Any) -> Any:
    headers = api.headers(who) | {"Idempotency-Key": once}
    return api.client.post("/v1/jobs", json=job_spec(dataset, **(FULL | changes)), headers=headers)


def post(api: Api, path: str, body: Any, who: str = "owner", **headers: str) -> Any:
    return api.client.post(path, json=body, headers=api.headers(who) | headers)


def account(api: Api, dataset: str) -> Account:
    with api.db.read() as session:
        return accounts.account_of(session, dataset)


def exhaust(api: Api, dataset: str) -> None:
    """Holds all that is left of an account."""
    free = accounts.remaining_of(account(api, dataset))
    with api.db.write() as session:
        accounts.hold(session, dataset_id=dataset, job_id=f"all-of-{dataset}", **free, actor="test")


def held(api: Api, job: str) -> list[str]:
    with api.db.read() as session:
        return block_accounts.held_on(session, job)


def test_all_blocks_pay_and_their_declared_sizes_add_up(api: Api) -> None:
    first, two = grown(api)
    quoted = post(api, "/v1/quotes", job_spec(first, **FULL)).json()
    assert quoted["expected_batch_size"] == 48 + 80
    job = submit(api, first).json()
    assert sorted(job["spec"]["blocks"]) == ["first", "two"]
    assert held(api, job["id"]) == sorted((first, two))
    charge = job["quote"]["charge"]
    for each in (first, two):
        found = account(api, each)
        assert (found.train_held, found.holdout_held) == (charge["train"], charge["holdout"])


def test_a_job_on_a_subset_spends_nothing_elsewhere(api: Api) -> None:
    first, two = grown(api)
    job = submit(api, first, blocks=["two"]).json()
    assert held(api, job["id"]) == [two] and account(api, first).train_held == 0
    assert job["quote"]["expected_batch_size"] == 80


def test_all_means_those_that_can_pay(api: Api) -> None:
    first, two = grown(api)
    exhaust(api, first)
    quoted = post(api, "/v1/quotes", job_spec(first, **FULL)).json()
    assert quoted["fits"] and quoted["expected_batch_size"] == 80
    assert submit(api, first).json()["spec"]["blocks"] == ["two"]
    named = submit(api, first, "named", blocks=["two", "first"])
    assert (named.status_code, named.json()["type"]) == (409, "/problems/budget-exceeded")
    assert named.json()["block"] == "first" and named.json()["remaining"] == {"train": 0, "holdout": 0}
    exhaust(api, two)
    refused = submit(api, first, "none")
    assert refused.status_code == 409 and refused.json()["block"] in ("first", "two")
    assert account(api, two).train_held == account(api, two).train_budget


def test_a_job_pays_for_the_blocks_of_its_price_or_is_refused(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    """A block is emptied after the price was made: the job does not go on with fewer records than its rate says."""

    first, two = grown(api)
    real = hold.new_job

    def race(*args: Any) -> Any:
        exhaust(api, max(first, two))
        return real(*args)

    monkeypatch.setattr(hold, "new_job", race)
    refused = submit(api, first)
    assert (refused.status_code, refused.json()["type"]) == (409, "/problems/budget-exceeded")
    assert account(api, min(first, two)).train_held == 0
    with api.db.read() as session:
        assert session.scalars(select(Job.id)).all() == []


@pytest.mark.parametrize(
    ("named", "detail"), [(["three"], "not open"), (["two", "two"], "twice"), (["ds_x"], None), ([], None)]
)
def test_blocks_that_cannot_be_read(api: Api, named: list[str], detail: str | None) -> None:
    first, two = grown(api)
    refused = submit(api, first, blocks=named)
    assert refused.status_code == 422
    assert detail is None or detail in refused.json()["detail"]
    assert submit(api, two, "as a data set").status_code == 422
    alone = api.upload(spec("alone"), rows(range(300, 360))).json()["id"]
    assert submit(api, alone, "alone", blocks=["two"]).status_code == 422
    assert submit(api, alone, "first", blocks=["first"]).status_code == 201


def test_a_rewound_block_is_refused_and_its_jobs_are_not_run(api: Api) -> None:
    first, two = grown(api)
    heads = Heads.of(api.settings)
    job = submit(api, first).json()["id"]
    with api.db.read() as session:
        head = Heads.of(api.settings).read(two)
        assert head is not None
        ahead = head.model_copy(update={"seq": session.get_one(Account, two).entries + 3, "head": "f" * 64})
    heads.write(ahead, heads.known(two))
    refused = submit(api, first, "again")
    assert (refused.status_code, refused.json()["type"]) == (409, "/problems/ledger-behind")
    assert submit(api, first, "named", blocks=["two"]).json()["type"] == "/problems/ledger-behind"
    assert submit(api, first, "other", blocks=["first"]).status_code == 201, "the other block is sound"
    listed = api.get(f"/v1/datasets/{first}/blocks").json()["items"]
    assert [each["state"] for each in listed] == ["ready", "behind"]
    claimed = fair.claim_next(api.db, heads, "worker", 30.0)
    assert claimed is not None and claimed.job_id != job, "only the job that reads the sound block"
    assert fair.claim_next(api.db, heads, "worker", 30.0) is None
    posted = restore.post(api.db, heads, objects_of(api.settings), two, "the backup was older")
    assert posted.train >= 0
    with api.db.read() as session:
        ended = session.get_one(Job, job)
        assert (ended.status, block_accounts.held_on(session, job)) == ("cancelled", sorted((first, two)))
        assert verify(session, two).valid and verify(session, first).valid


def test_a_lost_hold_reads_nothing(api: Api) -> None:
    """What a job reads is what it holds on: it cannot read a block whose hold is not there."""
    first, two = grown(api)
    job = submit(api, first, blocks=["two"]).json()["id"]
    with api.db.write() as session:
        row = session.get_one(Job, job)
        row.spec = row.spec | {"blocks": ["first", "two"]}
        session.flush()
        assert [each.id for each in block_accounts.read_by(session, row)] == [two]
    assert account(api, first).train_held == 0


def statements_of(api: Api, dataset: str, once: str, **changes: Any) -> tuple[int, int]:
    """How many statements an admission makes, and how many of them move or write a ledger."""
    said: list[str] = []

    def note(_connection: object, _cursor: object, statement: str, *_: object) -> None:
        said.append(statement)

    app: Any = api.client.app
    app.state.recent_keys = RecentKeys(lambda: 0.0)  # the first submission reads the key, however long it takes
    submit(api, dataset, f"{once}: its price", **(SMALL | changes))
    event.listen(app.state.db.engine, "before_cursor_execute", note)
    answer = submit(api, dataset, once, **(SMALL | changes))
    event.remove(app.state.db.engine, "before_cursor_execute", note)
    assert answer.status_code == 201, answer.text
    moved = ("UPDATE accounts", "INSERT INTO ledger_entries")
    return len(said), sum(each.startswith(moved) for each in said)


def test_an_admission_costs_as_much_as_the_blocks_that_it_reads(api: Api) -> None:
    """Not as the data set has blocks: balances are read and moved for those that are read."""
    first, _two = grown(api)
    alone = statements_of(api, first, "one of two", blocks=["two"])
    both = statements_of(api, first, "two of two")
    for number in range(3, 7):
        assert append(api, first, rows(range(100 * number, 100 * number + 60)), f"b{number}").status_code == 201
    assert statements_of(api, first, "one of six", blocks=["two"]) == alone
    every = statements_of(api, first, "six of six")
    assert (both[1], every[1]) == (2 * alone[1], 6 * alone[1]) and alone[1] > 0
    assert every[0] - both[0] == 4 * (both[0] - alone[0])


def test_a_settlement_is_the_same_on_every_block(api: Api) -> None:
    first, two = grown(api)
    job = submit(api, first).json()["id"]
    with api.db.write() as session:
        row = session.get_one(Job, job)
        row.steps_started = 2
        settle(session, settlement_of(session, row, "cancelled"))
    spent = {account(api, each).train_spent for each in (first, two)}
    assert len(spent) == 1 and 0 < spent.pop() < api.get(f"/v1/jobs/{job}").json()["quote"]["charge"]["train"]
    assert account(api, first).train_held == account(api, two).train_held == 0


def test_a_cap_is_every_blocks(api: Api) -> None:
    first, two = grown(api)
    path = f"/v1/datasets/{first}/ledger/cap"
    assert post(api, path, {"epsilon": 6.0, "reason": "agreed"}, **{"If-Match": "*"}).status_code == 200
    assert account(api, first).cap_epsilon == account(api, two).cap_epsilon == 6.0
    exhaust(api, two)
    lowered = post(api, path, {"epsilon": 2.0, "reason": "less"}, **{"If-Match": "*"})
    assert (lowered.status_code, lowered.json()["type"]) == (409, "/problems/cap-too-low")
    assert account(api, first).cap_epsilon == 6.0, "on all blocks or on none"
    retire(api, first, "first")
    assert post(api, path, {"epsilon": 7.0, "reason": "agreed"}, **{"If-Match": "*"}).status_code == 200
    assert (account(api, first).cap_epsilon, account(api, two).cap_epsilon) == (6.0, 7.0)
    third = append(api, first, rows(range(160, 220)), "three").json()
    assert third["ledger"]["cap"]["value"] == 7.0


def test_a_budget_bounds_its_keys_on_every_block(api: Api) -> None:
    first, _two = grown(api)
    key = api.key_ids["analyst"]
    path, headers = f"/v1/datasets/{first}/budgets/{key}", api.headers("owner")
    made = api.client.put(path, json={"epsilon": 1.0}, headers=headers)
    assert made.status_code == 200, made.text
    three = append(api, first, rows(range(160, 220)), "three").json()["id"]
    big = {"privacy": {"target_epsilon": 2.0}}
    for label in ("first", "two", "three"):
        refused = submit(api, first, label, "analyst", blocks=[label], **big)
        assert (refused.status_code, refused.json()["budget"]) == (409, key), label
    assert submit(api, first, "fits", "analyst", blocks=["three"]).status_code == 201
    with api.db.read() as session:
        assert session.get_one(SubAccount, (three, key)).train_held > 0
        assert session.get_one(SubAccount, (first, key)).train_held == 0
        assert verify(session, three).valid
    wider = api.client.put(path, json={"epsilon": 3.0}, headers=headers | {"If-Match": made.headers["etag"]})
    assert wider.status_code == 200, wider.text
    assert submit(api, first, "now", "analyst", blocks=["two"], **big).status_code == 201
    gone = api.client.delete(path, headers=headers | {"If-Match": "*"})
    assert gone.status_code == 204
    with api.db.read() as session:
        assert session.scalars(select(SubAccountKey.key_id)).all() == []


def test_budgets_of_a_retired_first_block_are_those_of_the_open_ones(api: Api) -> None:
    """What a closed block spent, and the cap that it had, bound no budget of the blocks that are open."""
    first, two = grown(api)
    team, headers = f"/v1/datasets/{first}/budgets/team", api.headers("owner") | {"If-Match": "*"}
    body = {"epsilon": 3.0, "keys": [api.key_ids["analyst"]]}
    assert api.client.put(team, json=body, headers=api.headers("owner")).status_code == 200
    spent = submit(api, first, "spent", "analyst", blocks=["first"], privacy={"target_epsilon": 2.0})
    assert spent.status_code == 201, spent.text
    assert retire(api, first, "first").status_code == 200
    cap = {"epsilon": 6.0, "reason": "agreed"}
    assert post(api, f"/v1/datasets/{first}/ledger/cap", cap, **{"If-Match": "*"}).status_code == 200
    seen = api.client.get(team, headers=api.headers("analyst")).json()
    assert seen["accounts"]["train"]["held"] == 0, "the figures are an open block's"
    for epsilon, status in ((7.0, 422), (5.5, 200), (1.0, 200)):
        found = api.client.put(team, json={"epsilon": epsilon}, headers=headers)
        assert found.status_code == status, found.text
    assert (found.json()["version"], found.json()["epsilon"]["value"]) == (seen["version"] + 2, 1.0)
    asked = post(api, "/v1/budget-requests", {"dataset": first, "epsilon": 5.0, "reason": "x"}, "analyst").json()
    approved = post(
        api, f"/v1/budget-requests/{asked['id']}/approve", {}, **{"If-Match": f'"team.{seen["version"] + 2}"'}
    )
    assert approved.status_code == 200, approved.text
    with api.db.read() as session:
        assert session.get_one(SubAccount, (two, "team")).epsilon == 5.0
        assert verify(session, first).valid and verify(session, two).valid


def test_a_block_after_all_others_were_retired_has_the_newest_terms(api: Api) -> None:
    """Never the cap or the budgets that a block had when it closed, if they were changed since."""
    first, _two = grown(api)
    key, headers = api.key_ids["analyst"], api.headers("owner") | {"If-Match": "*"}
    path = f"/v1/datasets/{first}/budgets/{key}"
    assert api.client.put(path, json={"epsilon": 3.0}, headers=api.headers("owner")).status_code == 200
    assert retire(api, first, "first").status_code == 200
    assert api.client.put(path, json={"epsilon": 1.0}, headers=headers).status_code == 200
    cap = {"epsilon": 2.0, "reason": "less"}
    assert post(api, f"/v1/datasets/{first}/ledger/cap", cap, **{"If-Match": "*"}).status_code == 200
    assert retire(api, first, "two").status_code == 200
    assert api.get(f"/v1/datasets/{first}/ledger").json()["cap"]["value"] == 2.0
    three = append(api, first, rows(range(160, 220)), "three").json()
    assert three["ledger"]["cap"]["value"] == 2.0
    with api.db.read() as session:
        assert session.get_one(SubAccount, (three["id"], key)).epsilon == 1.0
    refused = submit(api, first, "big", "analyst", privacy={"target_epsilon": 1.5})
    assert (refused.status_code, refused.json()["budget"]) == (409, key)


def test_a_new_block_has_the_budgets_of_the_open_ones_whatever_versions_closed_ones_had(api: Api) -> None:
    """Earlier versions counted a budget's changes on each block by itself: a closed block's count may be higher."""
    first, two = grown(api)
    key, headers = api.key_ids["analyst"], api.headers("owner") | {"If-Match": "*"}
    path = f"/v1/datasets/{first}/budgets/{key}"
    assert api.client.put(path, json={"epsilon": 3.0}, headers=api.headers("owner")).status_code == 200
    assert retire(api, first, "first").status_code == 200
    with api.db.write() as session:
        session.get_one(SubAccount, (first, key)).version += 5
    assert api.client.put(path, json={"epsilon": 1.0}, headers=headers).status_code == 200
    three = append(api, first, rows(range(160, 220)), "three").json()["id"]
    with api.db.read() as session:
        assert [session.get_one(SubAccount, (each, key)).epsilon for each in (two, three)] == [1.0, 1.0]


def test_a_declaration_outlives_the_first_block(api: Api) -> None:
    """Classes are those of all blocks: they may still change; the records of a block that is gone are not counted."""
    first, _two = grown(api)
    path = f"/v1/datasets/{first}/declarations"
    assert post(api, path, {"classes": [0, 1, 2]}).json()["read"]["units"] == 60
    assert retire(api, first, "first").status_code == 200
    found = post(api, path, {"classes": [0, 1, 2, 3]})
    assert found.status_code == 201, found.text
    assert (found.json()["declaration"], found.json()["shape"]["outputs"]) == (3, 4)
    assert (found.json()["read"], found.json()["suggested_records"]) == (None, None)
    quoted = post(api, "/v1/quotes", job_spec(first, **FULL)).json()
    assert (quoted["declaration"], quoted["expected_batch_size"]) == (3, 80)
    refused = post(api, path, {"records": 50})
    assert (refused.status_code, refused.json()["errors"][0]["pointer"]) == (422, "/records")
    assert retire(api, first, "two").status_code == 200
    assert post(api, path, {"classes": [0, 1, 2, 3, 4]}).status_code == 409, "no block is left"


def test_another_systems_charge_is_on_every_open_block(api: Api) -> None:
    first, two = grown(api)
    three = append(api, first, rows(range(160, 220)), "three").json()["id"]
    retire(api, first, "two")
    body = {"dataset": first, "mechanism": {"kind": "gdp", "mu": 0.5}, "unit": "example", "attested": "OpenDP"}
    charge = post(api, "/v1/charges", body, **{"Idempotency-Key": "a"})
    assert charge.status_code == 201, charge.text
    assert held(api, charge.json()["id"]) == sorted((first, three))
    assert post(api, f"/v1/charges/{charge.json()['id']}/post", None).status_code == 200
    assert account(api, first).train_spent == account(api, three).train_spent > 0
    assert account(api, two).train_spent == 0
    exhaust(api, three)
    refused = post(api, "/v1/charges", body, **{"Idempotency-Key": "b"})
    assert (refused.status_code, refused.json()["block"]) == (409, "three")
    assert account(api, first).train_held == 0
    voided = append(api, first, rows(range(220, 280)), "four")
    assert voided.status_code == 201


def test_a_charge_names_the_blocks_that_the_other_system_reads(api: Api) -> None:
    first, two = grown(api)
    body = {"dataset": first, "mechanism": {"kind": "gdp", "mu": 0.5}, "unit": "example", "attested": "OpenDP"}
    charge = post(api, "/v1/charges", body | {"blocks": ["two"]}, **{"Idempotency-Key": "a"})
    assert charge.status_code == 201, charge.text
    assert held(api, charge.json()["id"]) == [two] and account(api, first).train_held == 0
    assert post(api, "/v1/charges", body, **{"Idempotency-Key": "a"}).status_code == 409, "another request"
    for place, named in enumerate((["three"], ["two", "two"], [])):
        refused = post(api, "/v1/charges", body | {"blocks": named}, **{"Idempotency-Key": f"b{place}"})
        assert refused.status_code == 422, refused.text
    retire(api, first, "two")
    assert post(api, f"/v1/charges/{charge.json()['id']}/post", None).status_code == 200, "its hold stays good"
    gone = post(api, "/v1/charges", body | {"blocks": ["two"]}, **{"Idempotency-Key": "c"})
    assert (gone.status_code, gone.json()["errors"][0]["pointer"]) == (422, "/blocks/0")
    alone = api.upload(spec("alone"), rows(range(300, 360))).json()["id"]
    known = post(api, "/v1/charges", body | {"dataset": alone, "blocks": ["first"]}, **{"Idempotency-Key": "d"})
    assert known.status_code == 201 and held(api, known.json()["id"]) == [alone]


def test_a_retired_block_keeps_its_content_until_its_last_job_ends(api: Api) -> None:
    first, two = grown(api)
    job = submit(api, first).json()["id"]
    gone = retire(api, first, "two").json()
    assert (gone["state"], gone["content_deleted_at"]) == ("retired", None)
    with api.db.read() as session:
        assert {each.id for each in block_accounts.read_by(session, session.get_one(Job, job))} == {first, two}
    assert submit(api, first, "next").json()["spec"]["blocks"] == ["first"]
    assert api.client.post(f"/v1/jobs/{job}/cancel", headers=api.headers("owner")).status_code == 202
    retention.sweep(api.db, api.settings)
    with api.db.read() as session:
        assert session.get_one(Dataset, two).content_deleted_at is not None
        assert session.get_one(Dataset, first).content_deleted_at is None


def test_a_join_and_blocks_exclude_each_other(api: Api) -> None:
    """A join charges one ledger for records that could be in any block; a block could have the joined records."""
    first, _two = grown(api)
    other, third = (
        api.upload(spec(name), rows(range(start, start + 60))).json()["id"] for name, start in (("o", 300), ("t", 400))
    )
    for one, into in ((first, other), (other, first)):
        refused = post(api, f"/v1/datasets/{one}/ledger/join", {"into": into, "reason": "the same"}, "admin")
        assert (refused.status_code, refused.json()["type"]) == (409, "/problems/wrong-state")
    joined = post(api, f"/v1/datasets/{third}/ledger/join", {"into": other, "reason": "the same"}, "admin")
    assert joined.status_code == 200, joined.text
    for each in (other, third):
        refused = append(api, each, rows(range(500, 560)))
        assert (refused.status_code, refused.json()["type"]) == (409, "/problems/wrong-state")


def test_a_study_and_its_trials_are_on_the_same_blocks(api: Api) -> None:
    first, two = grown(api)
    study = submit(
        api, first, hpo={"strategy": "linear_scaling"}, length={"steps": 20}, privacy={"target_epsilon": 3.0}
    )
    assert study.status_code == 201, study.text
    assert held(api, study.json()["id"]) == sorted((first, two))
    with api.db.read() as session:
        trials = session.scalars(select(Job).where(Job.parent_id == study.json()["id"])).all()
        assert trials
        for trial in trials:
            assert [each.id for each in block_accounts.read_by(session, trial)] == sorted((first, two))


def test_a_block_that_is_behind_delays_no_job_on_another(api: Api) -> None:
    first, _two = grown(api)
    behind, sound = (submit(api, first, each, blocks=[each]).json()["id"] for each in ("first", "two"))
    with api.db.write() as session:
        session.merge(LedgerCheck(dataset_id=first, behind="lost"))
    heads = Heads.of(api.settings)
    taken = fair.claim_next(api.db, heads, "w", 60.0)
    assert taken is not None and taken.job_id == sound != behind
    assert fair.claim_next(api.db, heads, "w", 60.0) is None


def test_a_retired_block_is_restored_as_one(api: Api, tmp_path: Path) -> None:
    """Its data set lives on: it is not the data set that was retired."""
    first, _two = grown(api)
    database = api.settings.effective_database_url.removeprefix("sqlite:///")
    with closing(sqlite3.connect(database)) as now, closing(sqlite3.connect(tmp_path / "old.db")) as kept:
        now.backup(kept)
        assert retire(api, first, "first").status_code == 200
        kept.backup(now)
    restore.post(api.db, Heads.of(api.settings), objects_of(api.settings), first, "the disk died")
    with api.db.read() as session:
        assert session.get_one(Account, first).joined_into == accounts.RETIRED
        assert session.get_one(Dataset, first).retired_at is None
    assert append(api, first, rows(range(300, 360)), "three").status_code == 201
