"""Thresholds of caps and budgets are announced once, to whoever may see the balances."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from sqlalchemy import select

from app.db.database import Database
from app.db.models import Account, BudgetAlert, Webhook, WebhookDelivery
from app.ledger import accounts, joining
from app.webhooks import alerts
from core.ids import new_id, now
from tests.budgets.test_api import put
from tests.conftest import BACKINGS, Api
from tests.factories import add_dataset, add_key


@pytest.fixture(params=BACKINGS)
def backing(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def dataset(api: Api, db: Database) -> str:
    return add_dataset(db, owner=api.key_ids["owner"])


def listen(db: Database, key: str) -> str:
    with db.write() as session:
        fields: dict[str, Any] = {"url": "https://example.org", "description": "", "enabled": True, "secret": "none"}
        hook = Webhook(
            id=new_id("wh"), key_id=key, dataset_id=None, events=["budget.threshold"], created_at=now(), **fields
        )
        session.add(hook)
        return hook.id


def messages(db: Database, webhook: str) -> list[dict[str, Any]]:
    with db.read() as session:
        mine = select(WebhookDelivery).where(WebhookDelivery.webhook_id == webhook).order_by(WebhookDelivery.created_at)
        return [each.payload["data"] for each in session.scalars(mine)]


def use(db: Database, dataset: str, per_mille: int, *, actor: str = "key_none", within: bool = False) -> str:
    """A hold of so much of the training account's cap."""
    job = new_id("job")
    with db.write() as session:
        account = session.get_one(Account, dataset)
        amount = account.train_budget * per_mille // 1000
        accounts.hold_on(session, dataset, accounts.HoldTerms(job, amount, 0, actor, within=within))
    return job


def thresholds(db: Database, webhook: str) -> list[int]:
    return [each["threshold"] for each in messages(db, webhook)]


def test_each_threshold_is_announced_once(api: Api, db: Database, dataset: str) -> None:
    hook = listen(db, api.key_ids["owner"])
    expected: list[int] = []
    for per_mille, new in ((499, []), (2, [50]), (298, []), (2, [80]), (193, []), (2, [100])):
        use(db, dataset, per_mille)
        alerts.announce_due(db)
        assert alerts.announce_due(db) == 0
        expected += new
        assert thresholds(db, hook) == expected
    said = messages(db, hook)[1]
    with db.read() as session:
        account = session.get_one(Account, dataset)
    assert (said["dataset"], said["block"], said["budget"], said["account"]) == (dataset, None, None, "train")
    assert (said["epsilon"], said["delta"]) == (account.cap_epsilon, account.cap_delta)
    assert 0.8 <= said["share"] < 0.81


def test_a_jump_is_one_message(api: Api, db: Database, dataset: str) -> None:
    hook = listen(db, api.key_ids["owner"])
    use(db, dataset, 850)
    assert alerts.announce_due(db) == 1
    assert thresholds(db, hook) == [80]
    use(db, dataset, 149)
    assert alerts.announce_due(db) == 1
    assert thresholds(db, hook) == [80, 100]


def test_what_was_released_and_is_held_again_is_not_announced_again(api: Api, db: Database, dataset: str) -> None:
    hook = listen(db, api.key_ids["owner"])
    job = use(db, dataset, 600)
    alerts.announce_due(db)
    with db.write() as session:
        accounts.void(session, dataset_id=dataset, job_id=job, actor="key_none")
    use(db, dataset, 600)
    assert alerts.announce_due(db) == 0 and thresholds(db, hook) == [50]


def test_a_raised_cap_has_thresholds_of_its_own(api: Api, db: Database, dataset: str) -> None:
    hook = listen(db, api.key_ids["owner"])
    use(db, dataset, 990)
    alerts.announce_due(db)
    path, owner = f"/v1/datasets/{dataset}/ledger/cap", api.headers("owner")
    with db.read() as session:
        larger = session.get_one(Account, dataset).cap_epsilon * 1.05
    body = {"epsilon": larger, "reason": "a larger budget"}
    changed = api.client.post(path, headers=owner | {"If-Match": "*"}, json=body)
    assert changed.status_code == 200, changed.text
    assert alerts.announce_due(db) == 1 and len(thresholds(db, hook)) == 2


def test_who_hears_of_a_cap_and_of_a_budget(api: Api, db: Database) -> None:
    """Of the cap: who sees the data set. Of a budget: owner, admins and its own keys."""
    with db.write() as session:
        other = add_key(session, "analyst")
    dataset = add_dataset(db, owner=api.key_ids["owner"])  # shared with both analysts
    with db.write() as session:
        stranger = add_key(session, "analyst")
    keys = {role: api.key_ids[role] for role in ("admin", "owner", "analyst")} | {"other": other, "stranger": stranger}
    hooks = {name: listen(db, key) for name, key in keys.items()}
    made = put(api, dataset, "team", {"epsilon": 1.0, "keys": [api.key_ids["analyst"]]}, **{"If-None-Match": "*"})
    assert made.status_code in (200, 201), made.text
    with db.write() as session:
        own = session.scalars(select(alerts.SubAccount)).one()
        terms = accounts.HoldTerms(new_id("job"), own.train_budget * 6 // 10, 0, api.key_ids["analyst"])
        accounts.hold_on(session, dataset, terms)
    alerts.announce_due(db)
    heard = {role: [each["budget"] for each in messages(db, hook)] for role, hook in hooks.items()}
    assert heard == {"admin": ["team"], "owner": ["team"], "analyst": ["team"], "other": [], "stranger": []}
    use(db, dataset, 500)
    alerts.announce_due(db)
    both = ["team", None]
    heard = {role: [each["budget"] for each in messages(db, hook)] for role, hook in hooks.items()}
    assert heard == {"admin": both, "owner": both, "analyst": both, "other": [None], "stranger": []}


def test_a_crash_before_the_commit_leaves_it_for_the_next_time(
    api: Api, db: Database, dataset: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    hook = listen(db, api.key_ids["owner"])
    use(db, dataset, 600)
    with monkeypatch.context() as patched:
        patched.setattr(alerts, "_announce", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            alerts.announce_due(db)
    assert thresholds(db, hook) == []
    assert alerts.announce_due(db) == 1 and thresholds(db, hook) == [50]


def test_several_relays_announce_it_once(api: Api, db: Database, dataset: str) -> None:
    hook = listen(db, api.key_ids["owner"])
    use(db, dataset, 600)
    with ThreadPoolExecutor(6) as pool:
        list(pool.map(lambda _: alerts.announce_due(db), range(24)))
    assert thresholds(db, hook) == [50]


def test_a_closed_ledger_is_silent(api: Api, db: Database, dataset: str) -> None:
    use(db, dataset, 600)
    with db.write() as session:
        joining.close(session, session.get_one(Account, dataset), accounts.RETIRED, "key_none", "a test")
    assert alerts.announce_due(db) == 0
    with db.read() as session:
        assert session.scalars(select(BudgetAlert)).all() == []
