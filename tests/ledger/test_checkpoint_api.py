"""/v1/ledger over HTTP, behind a relay that signs; and what webhooks hear."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import select

from app.db.database import Database
from app.db.models import WebhookDelivery
from app.settings import Settings
from scrimp.transparency import ED25519, LOG, Key, Note, decoded, follows, includes, leaf_of
from tests.conftest import Api
from tests.ledger.support import add_owner, hold, open_ledger
from tests.lifecycle.test_relay import relay_of


@pytest.fixture
def db(settings: Settings) -> Iterator[Database]:
    database = Database.of(settings)
    add_owner(database)
    yield database
    database.close()


def test_readers_get_checkpoints_and_proofs_and_webhooks_hear_of_them(
    api: Api, settings: Settings, db: Database
) -> None:
    dataset = open_ledger(db)
    relay = relay_of(db, settings, lambda _job: None)

    def ask(path: str, **params: int) -> Any:
        return api.client.get(path, params={"dataset": dataset, **params}, headers=api.headers("admin"))

    assert ask("/v1/ledger/checkpoint").json()["type"] == "/problems/head-pending"
    hook = {"url": "https://93.184.216.34/", "events": ["ledger.checkpoint"]}
    assert api.client.post("/v1/webhooks", json=hook, headers=api.headers("admin")).status_code == 201
    relay.run_once()
    for number in range(5):
        hold(db, dataset, f"job_{number}", 10)
    relay.run_once()
    key = Key(LOG, ED25519, relay.signing_key.public_key().public_bytes_raw())
    newest = ask("/v1/ledger/checkpoint").json()
    note = Note.parse(newest["checkpoint"])
    assert (newest["size"], note.size, note.signed_by(key)) == (6, 6, 0)
    proof = ask("/v1/ledger/proof", entry=3).json()
    assert includes(2, 6, leaf_of(proof["hash"]), decoded(proof["path"]), note.root)
    proof = ask("/v1/ledger/proof", since=1).json()
    with db.read() as session:
        sent = list(session.scalars(select(WebhookDelivery).order_by(WebhookDelivery.created_at)))
    assert [each.payload["data"]["size"] for each in sent] == [1, 6] and sent[0].type == "ledger.checkpoint"
    first = Note.parse(sent[0].payload["data"]["checkpoint"])
    assert follows(1, first.root, 6, note.root, decoded(proof["path"]))
    assert ask("/v1/ledger/proof").status_code == 422 and ask("/v1/ledger/proof", entry=1, since=1).status_code == 422
    assert ask("/v1/ledger/proof", entry=7).status_code == 404 and ask("/v1/ledger/proof", since=9).status_code == 422
    assert ask("/v1/ledger/proof", entry=1, size=7).status_code == 422
