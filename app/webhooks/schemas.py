"""Requests and answers of /v1/webhooks."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from pydantic import Field, StringConstraints

from app.db.row_view import Column, Computed, Page, RowView
from core.contracts.base import NO_NUL, Document
from core.contracts.event_kinds import WebhookEventType

Url = Annotated[str, StringConstraints(min_length=1, max_length=2000)]
Events = Annotated[list[WebhookEventType], Field(min_length=1, max_length=20)]
Description = Annotated[str, StringConstraints(max_length=200, pattern=NO_NUL)]


class WebhookRequest(Document):
    """A webhook to create.

    Messages of `job.…` (`job.started` at later attempts too) have `job`, `dataset`, `name`, `status`, and `sequence`,
    the event's number in the job's log. `budget.requested`, `.approved` and `.denied` have `request`, `dataset`, `key`,
    `epsilon` and `status`; they go to the data set's owner, admins and the key that asked.
    """

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


class WebhookView(Document, RowView):
    """A webhook, without its secret."""

    id: str
    key: Annotated[str, Column("key_id")]
    url: str
    events: list[str]
    dataset: Annotated[str | None, Column("dataset_id")]
    description: str
    enabled: bool
    disabled_because: str | None  # gone | failing; null if a person disabled it
    failing_since: datetime | None
    created_at: datetime


class NewSecret(Document):
    """A webhook with its new secret, which is shown only once."""

    webhook: WebhookView
    secret: str


class WebhookList(Document, Page[WebhookView]):
    """A page of webhooks."""


class DeliveryView(Document, RowView):
    """A message and the result of its tries."""

    id: str  # the header webhook-id
    type: str
    job: Annotated[str | None, Computed(lambda row: row.payload["data"].get("job"), "payload")]
    status: str  # pending | delivered | failed | dropped
    attempts: int
    status_code: int | None  # the last answer's
    error: str | None  # the last try's: a name from a fixed list
    created_at: datetime
    next_at: Annotated[
        datetime | None,
        Computed(lambda row: row.next_at if row.status == "pending" else None, "next_at", "status"),
    ]
    ended_at: datetime | None


class DeliveryList(Document, Page[DeliveryView]):
    """A page of deliveries."""
