"""/v1/webhooks: thin routes over app.webhooks.service. The relay delivers."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Response

from app.keys.auth import CurrentKey
from app.web import examples
from app.web.deps import Db, of_state
from app.web.pagination import After, Limit, cut, decode_row
from app.web.route_operation import LOCATION, Operation
from app.webhooks import service
from app.webhooks.addresses import Addresses
from app.webhooks.schemas import (
    DeliveryList,
    DeliveryView,
    NewSecret,
    WebhookChange,
    WebhookList,
    WebhookRequest,
    WebhookView,
)
from core import leaves

router = APIRouter(prefix="/v1/webhooks", tags=["webhooks"])


Targets = Annotated[Addresses, of_state("webhook_addresses")]
SecretKey = Annotated[bytes, of_state("webhook_key")]  # that secrets are encrypted with


@router.post("", status_code=201)
@Operation(
    "The webhook, with its secret: shown in this response only.",
    audience="every key",
    leaves=leaves.WEBHOOKS,
    command="webhooks create",
    audit="webhook.created",
    problems=("not-found", "too-many-webhooks"),
    headers=LOCATION,
    requests={
        "events of a data set's jobs": {
            "url": "https://hooks.example.org/scrimp",
            "events": ["job.succeeded", "job.failed"],
            "dataset": examples.DATASET,
        }
    },
)
def create_webhook(
    body: WebhookRequest, db: Db, targets: Targets, key: SecretKey, caller: CurrentKey, response: Response
) -> NewSecret:
    """Creates a webhook. Its signing secret appears in this response only."""
    targets.check(body.url)
    with db.write() as session:
        webhook, secret = service.create(session, key, caller, **body.model_dump())
    response.headers["Location"] = f"/v1/webhooks/{webhook.id}"
    return NewSecret(webhook=WebhookView.of(webhook), secret=secret)


@router.get("")
@Operation("A page of webhooks.", audience="every key", leaves=leaves.WEBHOOKS, command="webhooks list")
def list_webhooks(db: Db, caller: CurrentKey, after: After = None, limit: Limit = 50) -> WebhookList:
    """Lists the key's own webhooks, newest first; an admin sees all."""
    with db.read() as session:
        page = service.page(session, caller, after=decode_row(after), limit=limit)
    page, following = cut(page, limit)
    return WebhookList(items=[WebhookView.of(each) for each in page], next=following)


@router.get("/{webhook_id}")
@Operation("The webhook.", audience="every key", leaves=leaves.WEBHOOKS, command="webhooks show")
def show_webhook(webhook_id: str, db: Db, caller: CurrentKey) -> WebhookView:
    """Shows a webhook: its address, events and state."""
    with db.read() as session:
        return WebhookView.of(service.get(session, caller, webhook_id))


@router.patch("/{webhook_id}")
@Operation(
    "The webhook, changed.",
    audience="every key",
    leaves=leaves.WEBHOOKS,
    command="webhooks change",
    audit="webhook.changed",
    requests={"a pause": {"enabled": False}},
)
def change_webhook(webhook_id: str, body: WebhookChange, db: Db, targets: Targets, caller: CurrentKey) -> WebhookView:
    """Changes a webhook's address, events or description, or enables or disables it."""
    with db.read() as session:
        service.get(session, caller, webhook_id)  # before the lookup of a name for another key's webhook
    if body.url is not None:
        targets.check(body.url)
    with db.write() as session:
        return WebhookView.of(service.change(session, caller, webhook_id, **body.model_dump()))


@router.delete("/{webhook_id}", status_code=204)
@Operation(
    "The webhook and its deliveries are gone.",
    audience="every key",
    leaves=leaves.WEBHOOKS,
    command="webhooks delete",
    audit="webhook.deleted",
)
def delete_webhook(webhook_id: str, db: Db, caller: CurrentKey) -> None:
    """Deletes a webhook and its deliveries."""
    with db.write() as session:
        service.remove(session, caller, webhook_id)


@router.post("/{webhook_id}/rotate-secret")
@Operation(
    "The webhook, with its new secret: shown in this response only.",
    audience="every key",
    leaves=leaves.WEBHOOKS,
    command="webhooks rotate-secret",
    audit="webhook.secret_rotated",
)
def rotate_webhook_secret(webhook_id: str, db: Db, key: SecretKey, caller: CurrentKey) -> NewSecret:
    """Gives a webhook a new secret, which appears in this response only. For 24 h messages carry signatures by both."""
    with db.write() as session:
        webhook, secret = service.rotate_secret(session, key, caller, webhook_id)
    return NewSecret(webhook=WebhookView.of(webhook), secret=secret)


@router.post("/{webhook_id}/test", status_code=202)
@Operation(
    "The message that will be sent.",
    audience="every key",
    leaves=leaves.WEBHOOKS,
    command="webhooks test",
    audit="webhook.tested",
    problems=("wrong-state",),
)
def test_webhook(webhook_id: str, db: Db, caller: CurrentKey) -> DeliveryView:
    """Sends a `webhook.test` now, once. The deliveries show its result a moment later."""
    with db.write() as session:
        return DeliveryView.of(service.test(session, caller, webhook_id))


@router.get("/{webhook_id}/deliveries")
@Operation("A page of deliveries.", audience="every key", leaves=leaves.WEBHOOKS, command="webhooks deliveries")
def list_deliveries(
    webhook_id: str, db: Db, caller: CurrentKey, after: After = None, limit: Limit = 50
) -> DeliveryList:
    """Lists a webhook's deliveries and their results, newest first. They are kept for 30 days."""
    with db.read() as session:
        page = service.deliveries(session, caller, webhook_id, after=decode_row(after), limit=limit)
    page, following = cut(page, limit)
    return DeliveryList(items=[DeliveryView.of(each) for each in page], next=following)
