"""A data set that nothing was ever held on is taken back; no content ever has two budgets that can be spent."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from app.admission import standing
from app.db.models import Account, LedgerEntry
from app.ledger import joining
from app.ledger.transparency.heads import Heads
from app.ledger.verification import verify
from tests.datasets.conftest import CSV, PUBLIC, Api, private, spec
from tests.datasets.test_refusals import DIFFERENT, REORDERED
from tests.factories import job_spec


def retire(api: Api, dataset: str, who: str = "owner") -> Any:
    return api.client.post(f"/v1/datasets/{dataset}/retire", headers=api.headers(who))


def submit(api: Api, dataset: str, once: str = "once", **changes: Any) -> Any:
    headers = api.headers("owner") | {"Idempotency-Key": once}
    return api.client.post("/v1/jobs", json=job_spec(dataset, **changes), headers=headers)


def test_an_unused_data_set_is_replaced(api: Api) -> None:
    wrong = api.upload(spec(**private(records=600, filter="rdp", order=8.0))).json()
    gone = retire(api, wrong["id"])
    assert gone.status_code == 200, gone.text
    assert gone.json()["state"] == "retired" and gone.json()["content_deleted_at"] is not None
    assert gone.json()["ledger"]["closed"] and gone.json()["name"].startswith("small-retired-")
    assert api.stored() == set(), "its files are gone"
    right = api.upload(spec())
    assert right.status_code == 201, right.text
    assert right.json()["name"] == "small" and right.json()["state"] == "ready"
    assert submit(api, right.json()["id"]).status_code == 201
    refused = submit(api, wrong["id"], "other")
    assert (refused.status_code, refused.json()["type"]) == (409, "/problems/content-deleted")
    assert retire(api, wrong["id"]).json()["name"] == gone.json()["name"], "again: nothing changes"
    with api.db.read() as session:
        assert verify(session, wrong["id"]).valid
        kinds = session.scalars(select(LedgerEntry.kind).where(LedgerEntry.dataset_id == wrong["id"])).all()
    assert sorted(kinds) == ["cap", "open"]


def test_a_retired_ledger_stays_closed(api: Api) -> None:
    """Its content has another budget now: no raise, hold or join opens this one."""
    made, other = api.upload(spec()).json(), api.upload(spec("other"), DIFFERENT).json()
    retire(api, made["id"])
    raised = api.client.post(
        f"/v1/datasets/{made['id']}/ledger/cap",
        json={"epsilon": 8.0, "reason": "more"},
        headers=api.headers("owner") | {"If-Match": "*"},
    )
    assert (raised.status_code, raised.json()["type"]) == (409, "/problems/wrong-state")
    for path, into in ((made["id"], other["id"]), (other["id"], made["id"])):
        body = {"into": into, "reason": "the same"}
        joined = api.client.post(f"/v1/datasets/{path}/ledger/join", json=body, headers=api.headers("admin"))
        assert joined.status_code == 409 and "retired" in joined.json()["detail"]


@pytest.mark.parametrize("cancelled", [False, True])
def test_a_used_data_set_stays(api: Api, cancelled: bool) -> None:
    """Also where the hold was voided: its analyst saw that the job was admitted, and its certificate may follow."""
    made = api.upload(spec()).json()
    job = submit(api, made["id"]).json()["id"]
    if cancelled:
        assert api.client.post(f"/v1/jobs/{job}/cancel", headers=api.headers("owner")).status_code == 202
    refused = retire(api, made["id"])
    assert (refused.status_code, refused.json()["type"]) == (409, "/problems/wrong-state")
    assert api.get(f"/v1/datasets/{made['id']}").json()["state"] == "ready"
    assert api.upload(spec("again")).json()["type"] == "/problems/duplicate-content"


def test_a_charge_of_a_joined_ledger_counts_as_use(api: Api) -> None:
    """A join charges a ledger without any job of its own."""
    spent, stays = api.upload(spec("spent"), DIFFERENT).json()["id"], api.upload(spec("stays")).json()["id"]
    submit(api, spent)
    with api.db.write() as session:
        joining.join(session, dataset_id=spent, into=stays, actor="admin", reason="the same")
    assert retire(api, stays).status_code == retire(api, spent).status_code == 409


def test_an_admission_that_was_priced_before_is_refused(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between price and hold the data set is retired and registered anew: the hold would be on the first budget."""
    made = api.upload(spec()).json()
    read = standing.behind.read_recorded

    def retired_meanwhile(*asked: Any) -> Any:
        monkeypatch.setattr(standing.behind, "read_recorded", read)
        found = read(*asked)
        assert retire(api, made["id"]).status_code == 200
        assert api.upload(spec("anew")).status_code == 201
        return found

    monkeypatch.setattr(standing.behind, "read_recorded", retired_meanwhile)
    assert submit(api, made["id"]).json()["type"] == "/problems/content-deleted"
    with api.db.read() as session:
        account = session.get_one(Account, made["id"])
        assert (account.train_held, account.holdout_held) == (0, 0)


def test_a_registration_waits_for_the_record_of_the_retirement(api: Api) -> None:
    """Without it a restored backup would open the first budget beside the second."""
    made = api.upload(spec()).json()
    retire(api, made["id"])
    record: Path = Heads.of(api.settings).folder / f"{made['id']}.json"
    kept = record.read_text()
    record.unlink()
    waiting = api.upload(spec())
    assert (waiting.status_code, waiting.json()["type"]) == (503, "/problems/unavailable")
    record.write_text(kept)
    assert api.upload(spec()).status_code == 201


def test_public_content_stays_public(api: Api) -> None:
    """Jobs without privacy may have run on it before a backup was restored."""
    made = api.upload(spec(**PUBLIC)).json()
    assert retire(api, made["id"]).json()["state"] == "retired"
    assert api.upload(spec("anew", **PUBLIC)).status_code == 201
    assert api.upload(spec("private"), REORDERED).json()["type"] == "/problems/duplicate-content"


def test_who_may(api: Api) -> None:
    made = api.upload(spec()).json()
    assert retire(api, made["id"], "other-owner").status_code == 404
    api.share(made["id"])
    assert retire(api, made["id"], "other-owner").status_code == retire(api, made["id"], "analyst").status_code == 403


def test_a_holdout_serves_two_private_sets(api: Api) -> None:
    """It is public: no account pays for scores on it. Private data never become one, in neither order."""
    public = {"holdout": {"kind": "public"}}
    one = api.upload(spec("one", **public), CSV, holdout_file=DIFFERENT)
    two = api.upload(spec("two", **public), CSV + "999,1,1\n", holdout_file=DIFFERENT)
    assert (one.status_code, two.status_code) == (201, 201), two.text
    assert api.upload(spec("three"), DIFFERENT).json()["type"] == "/problems/duplicate-content"
    as_holdout = api.upload(spec("four", **public), CSV + "998,1,1\n", holdout_file=REORDERED)
    assert as_holdout.json()["type"] == "/problems/duplicate-content"
    assert api.upload(spec("five", **PUBLIC), DIFFERENT).status_code == 201, "public data may be public twice"
