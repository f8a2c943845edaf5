"""The service's responses about keys, the audit log, webhooks, workers and catalogues, typed."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict


class Resource(BaseModel):
    """A response. Fields that a newer service adds are kept, so that an older client still works."""

    model_config = ConfigDict(frozen=True, extra="allow")


class AuditEntry(Resource):
    """Who did what, when, from where. `hash` covers all its other members."""

    version: int
    seq: int | None
    id: int
    at: str
    action: str
    actor: str | None
    target: str | None
    address: str | None
    user_agent: str | None
    outcome: str
    details: dict[str, Any]
    prev_hash: str | None
    hash: str | None


class AuditVerification(Resource):
    """The service's verification of the audit log."""

    valid: bool
    entries: int
    head: str
    unsealed: int
    first_bad_entry: int | None = None
    problem: str | None = None


class Key(Resource):
    """An API key and its limits, without its token."""

    id: str
    name: str
    role: str
    created_at: str
    expires_at: str | None = None
    rotated_at: str | None = None
    revoked_at: str | None = None
    limits: dict[str, int | None] = {}


class NewKey(Resource):
    """A new key with its token, which the service does not keep."""

    key: Key
    token: str


class Webhook(Resource):
    """A webhook, without its secret."""

    id: str
    url: str
    events: list[str]
    dataset: str | None = None
    description: str = ""
    enabled: bool = True
    disabled_because: str | None = None


class NewSecret(Resource):
    """A webhook with its new secret, which the service does not show again."""

    webhook: Webhook
    secret: str


class Delivery(Resource):
    """A webhook's message and the result of its tries."""

    id: str
    type: str
    job: str | None = None
    status: str
    attempts: int
    status_code: int | None = None
    error: str | None = None
    created_at: str


class Worker(Resource):
    """A worker process and what it runs."""

    name: str
    host: str
    alive: bool
    seen_at: str
    job: str | None = None
    devices: list[dict[str, Any]] | None = None


class Kind(Resource):
    """An entry of a catalogue: a model, an extractor, a strategy or a preset; its members are the service's."""
