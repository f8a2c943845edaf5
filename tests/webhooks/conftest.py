"""A receiver process, webhooks that point at it, and a deliverer that may send there."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select, update

from app.db.database import Database
from app.db.models import Webhook, WebhookDelivery
from app.keys.service import Caller
from app.secrets import load_secret, load_secrets
from app.settings import Settings
from app.webhooks import sending, service, targets
from app.webhooks.addresses import Addresses
from app.webhooks.delivery import Deliverer
from app.webhooks.sending import trust
from app.webhooks.targets import Policy
from core.ids import now
from tests.factories import add_key
from tests.lifecycle.conftest import submit

__all__ = ["submit"]
EVENTS = ["job.queued", "job.started", "job.succeeded", "job.failed", "job.cancelled", "job.certificate_issued"]


class Receiver:
    def __init__(self, folder: Path, port: int) -> None:
        self.folder, self.port = folder, port

    def url(self, path: str = "/ok", host: str = "127.0.0.1") -> str:
        return f"http://{host}:{self.port}{path}"

    def trusts(self, secret: str) -> None:
        with (self.folder / "secrets").open("a") as secrets:
            secrets.write(secret + "\n")

    def received(self) -> list[dict[str, Any]]:
        """What came, of which the signature was valid."""
        file = self.folder / "received"
        return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


@pytest.fixture(scope="module")
def receiver_process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Receiver]:
    folder = tmp_path_factory.mktemp("receiver")
    program = [sys.executable, str(Path(__file__).with_name("receiver.py")), str(folder)]
    with subprocess.Popen(program, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield Receiver(folder, int(process.stdout.readline()))
        process.terminate()


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A receiver on a slow machine is not late."""
    for module, name in ((sending, "CONNECT_S"), (sending, "TOTAL_S"), (targets, "LOOKUP_S")):
        monkeypatch.setattr(module, name, 300.0)


@pytest.fixture
def receiver(receiver_process: Receiver) -> Receiver:
    for name in ("received", "secrets"):
        (receiver_process.folder / name).unlink(missing_ok=True)
    return receiver_process


@pytest.fixture
def deliverer(db: Database, settings: Settings) -> Deliverer:
    return a_deliverer(db, settings)


def a_deliverer(db: Database, settings: Settings, policy: Policy | None = None) -> Deliverer:
    policy = policy or Policy(allow_http=False, allow_private=["127.0.0.0/8"])
    addresses = Addresses(policy, settings)
    return Deliverer(db, load_secrets(settings, "webhook_key"), addresses, trust(None))


Hook = Callable[..., Webhook]


@pytest.fixture
def hook(db: Database, settings: Settings, receiver: Receiver) -> Hook:
    """Makes webhooks that the receiver knows the secret of."""

    def make(path: str = "/ok", *, key: str | None = None, url: str | None = None, **more: Any) -> Webhook:
        with db.write() as session:
            caller = Caller(key or add_key(session), "test", "admin")
            asked = {"url": url or receiver.url(path), "events": EVENTS, "dataset": None, "description": ""} | more
            webhook, secret = service.create(session, load_secret(settings, "webhook_key"), caller, **asked)
        receiver.trusts(secret)
        return webhook

    return make


def deliveries(db: Database) -> list[WebhookDelivery]:
    with db.read() as session:
        return list(session.scalars(select(WebhookDelivery).order_by(WebhookDelivery.created_at)))


def webhook_of(db: Database, webhook_id: str) -> Webhook:
    with db.read() as session:
        return session.get_one(Webhook, webhook_id)


def wait_over(db: Database) -> None:
    """As if the time until the next try had passed."""
    with db.write() as session:
        past = now() - timedelta(seconds=1)
        session.execute(update(WebhookDelivery).where(WebhookDelivery.status == "pending").values(next_at=past))


def send_a_test(db: Database, webhook: Webhook) -> None:
    with db.write() as session:
        service.test(session, Caller(webhook.key_id, "test", "admin"), webhook.id)
