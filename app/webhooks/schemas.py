"""Requests and answers of /v1/webhooks."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from pydantic import Field, StringConstraints

from app.contracts.base import NO_NUL, Document
from app.contracts.events import WebhookEventType
from app.db.models import Webhook, WebhookDelivery

Url = Annotated[str, StringConstraints(min_length=1, max_length=2000)]
Events = Annotated[list[WebhookEventType], Field(min_length=1, max_length=20)]
Description = Annotated[str, StringConstraints(max_length=200, pattern=NO_NUL)]


class WebhookRequest(Document):
    """A webhook to create."""

    url: Url
    events: Events
    dataset: Annotated[str, StringConstraints(max_length=100, pattern=NO_NUL)] | None = Field(
        None, description="Only events of jobs on this data set; null: of all jobs that the key may see."
    )
    description: Description = ""


class WebhookChange(Document):
    """Changes to a webhook; members that are left out or null stay."""

    url: Url | None = None
    events: Events | None = None
    description: Description | None = None
    enabled: bool | None = None


class WebhookView(Document):
    """A webhook, without its secret."""

    id: str
    key: str
    url: str
    events: list[str]
    dataset: str | None
    description: str
    enabled: bool
    disabled_because: str | None  # gone | failing; null if a person disabled it
    failing_since: datetime | None
    created_at: datetime

    @classmethod
    def of(cls, webhook: Webhook) -> WebhookView:
        return cls(
            id=webhook.id,
            key=webhook.key_id,
            url=webhook.url,
            events=webhook.events,
            dataset=webhook.dataset_id,
            description=webhook.description,
            enabled=webhook.enabled,
            disabled_because=webhook.disabled_because,
            failing_since=webhook.failing_since,
            created_at=webhook.created_at,
        )


class NewSecret(Document):
    """A webhook with its new secret, which is shown only once."""

    webhook: WebhookView
    secret: str


class WebhookList(Document):
    """A page of webhooks."""

    items: list[WebhookView]
    next: str | None


class DeliveryView(Document):
    """A message and the result of its tries."""

    id: str  # the header webhook-id
    type: str
    job: str | None
    status: str  # pending | delivered | failed | dropped
    attempts: int
    status_code: int | None  # the last answer's
    error: str | None  # the last try's: a name from a fixed list
    created_at: datetime
    next_at: datetime | None
    ended_at: datetime | None

    @classmethod
    def of(cls, delivery: WebhookDelivery) -> DeliveryView:
        return cls(
            id=delivery.id,
            type=delivery.type,
            job=delivery.payload["data"].get("job"),
            status=delivery.status,
            attempts=delivery.attempts,
            status_code=delivery.status_code,
            error=delivery.error,
            created_at=delivery.created_at,
            next_at=delivery.next_at if delivery.status == "pending" else None,
            ended_at=delivery.ended_at,
        )


class DeliveryList(Document):
    """A page of deliveries."""

    items: list[DeliveryView]
    next: str | None
