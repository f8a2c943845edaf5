"""The one way to write the audit log: `record(session, action, target)` in the transaction of the act.

An act without its record cannot be, nor a record without its act. Who asks, and from where, comes from the request
(`app.audit.origin`); where there is none, a command of the service itself, both stay empty. An entry is written
unsealed and touches no row that others write; the relay seals it into the chain (`app.audit.chain`) in a second or so.
"""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass
from typing import Literal, TypedDict, Unpack

from sqlalchemy import insert
from sqlalchemy.orm import Session

from app.db.models import AuditEntry, table_of
from app.ids import now

Action = Literal[
    "key.created",
    "key.rotated",
    "key.revoked",
    "dataset.registered",
    "dataset.cap_changed",
    "dataset.same_content",  # as a data set of another owner has
    "ledger.joined",
    "dataset.restored",  # what a restored backup had forgotten was posted
    "grant.set",
    "grant.removed",
    "job.submitted",
    "job.cancelled",
    "job.failed",  # the cause, which callers are not told: it may depend on private data
    "artifact.downloaded",
    "artifacts.deleted",
    "dataset.content_deleted",
    "prediction.asked",
    "certificate.downloaded",
    "certificate.shown",  # on its job's page
    "webhook.created",
    "webhook.changed",
    "webhook.deleted",
    "webhook.secret_rotated",
    "webhook.tested",
    "webhook.disabled",
    "secret.rotated",
    "secret.rotation_finished",
    "dashboard.signed_in",
    "dashboard.signed_out",
    "request.refused",
]
Outcome = Literal["done", "refused", "failed"]
LONGEST = 200  # what a column holds
INSERT = insert(table_of(AuditEntry))


class Details(TypedDict, total=False):
    """All that an entry may say besides its own columns. No secrets, nothing computed from private data but for the
    cause of a failed job: entries are for admins."""

    dataset: str | None
    role: str
    key: str  # whose grant
    access: str
    name: str  # of an artifact
    epsilon: float | None  # a cap; the owner's policy for one job
    enabled: bool
    because: str  # of `job.failed`: the failure's code
    method: str
    route: str  # the template, not the address


@dataclass
class Origin:
    """Where a request comes from; `key_id` is written once it is known whose key was shown."""

    address: str | None = None
    user_agent: str | None = None
    key_id: str | None = None


CURRENT: ContextVar[Origin] = ContextVar("origin")


def authenticated(key_id: str) -> None:
    """Notes who asks. Outside of a request there is nothing to note."""
    origin = CURRENT.get(None)
    if origin is not None:
        origin.key_id = key_id


def record(
    session: Session, action: Action, target: str | None = None, outcome: Outcome = "done", **details: Unpack[Details]
) -> None:
    """Writes an entry in the caller's transaction.

    Args:
        target: the id of what was acted on.
        outcome: "refused": it may not do that; "failed": it did not succeed, such as a sign-in with a wrong key.
    """
    origin = CURRENT.get(None) or Origin()
    session.execute(
        INSERT,
        {
            "at": now(),
            "action": action,
            "actor": origin.key_id,
            "target": target,
            "address": origin.address,
            "user_agent": origin.user_agent,
            "outcome": outcome,
            "details": dict(details),
        },
    )
