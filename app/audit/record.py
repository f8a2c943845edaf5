"""The only way to write the audit log: `record(session, action, target)` in the action's transaction, or its row there.

The action and its audit entry commit atomically. The request gives the caller and the address (`app.audit.origin`);
without a request, for a command of the service itself, both stay empty. An entry is written unsealed and touches no row
that others write; the relay seals it into the chain (`app.audit.audit_chain`) in a second or so.
"""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Literal, TypedDict, Unpack

from sqlalchemy import insert
from sqlalchemy.orm import Session

from app.db.models import AuditEntry, table_of
from core.ids import now

Action = Literal[
    "key.created",
    "key.changed",  # its limits or its weight
    "key.rotated",
    "key.revoked",
    "dataset.reading",  # accepted: its file is read in the background
    "dataset.rejected",  # its file did not fit
    "dataset.withdrawn",  # before its file was read
    "dataset.registered",
    "block.reading",  # accepted, whatever is in its file, which is read in the background
    "block.appended",
    "block.retired",
    "dataset.redeclared",
    "dataset.retired",
    "dataset.cap_changed",
    "dataset.same_content",  # the same content as another owner's data set
    "ledger.joined",
    "ledger.sums_rebuilt",  # what keys spent, added up again by an operator's command
    "budget.set",  # what keys or a team may use of a cap
    "budget.closed",
    "budget.requested",
    "budget.approved",
    "budget.denied",
    "persons.set",  # who decide together on a data set
    "approval.asked",  # an act that two persons must agree to
    "approval.agreed",
    "approval.denied",
    "egress.asked",  # a signed folder of a job, for a recipient
    "egress.made",
    "egress.failed",  # for good
    "egress.downloaded",
    "charge.held",  # by another system
    "charge.posted",
    "charge.voided",
    "dataset.restored",  # the missing spending of a restored backup was posted
    "grant.set",
    "grant.removed",
    "job.submitted",
    "job.cancelled",
    "job.paused",
    "job.resumed",
    "job.labelled",  # its tags or notes were changed
    "job.failed",  # the cause is hidden from callers: it may depend on private data
    "artifact.downloaded",
    "artifacts.deleted",
    "dataset.content_deleted",
    "upload.begun",
    "upload.given_up",
    "graph.uploaded",  # a model of a key's own
    "graph.deleted",
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
    "files.sealed",  # what was stored in plaintext, by an operator's command
    "dashboard.signed_in",
    "dashboard.signed_out",
    "request.refused",
]
Outcome = Literal["done", "refused", "failed"]
LONGEST = 200  # the longest text that a column holds
INSERT = insert(table_of(AuditEntry))


class Details(TypedDict, total=False):
    """The further fields of an entry. No secrets, and nothing computed from private data except the cause of a failed
    job: only admins read entries."""

    dataset: str | None
    role: str
    key: str  # the grant's key
    access: str
    name: str  # the artifact's or the budget's name; an egress's recipient
    egress: str  # its id
    joined: list[str]  # the keys that may spend within the budget from now on
    left: list[str]  # those that it bounds no more
    epsilon: float | None  # a cap; the owner's policy for one job
    ends_at: str  # a grant's terms, where it has some
    purpose: str
    permit: str
    persons: list[str]
    limits: dict[str, int | None]  # those of a key that were set; null: no longer its own
    enabled: bool
    files: int  # how many were sealed
    because: str  # for `job.failed`: the failure's code
    method: str
    route: str  # the template, not the address


@dataclass
class Origin:
    """The origin of a request; `key_id` is set once the key is authenticated."""

    address: str | None = None
    user_agent: str | None = None
    key_id: str | None = None


CURRENT: ContextVar[Origin] = ContextVar("origin")


def authenticated(key_id: str) -> None:
    """Notes the calling key. Does nothing outside a request."""
    origin = CURRENT.get(None)
    if origin is not None:
        origin.key_id = key_id


def record(
    session: Session, action: Action, target: str | None = None, outcome: Outcome = "done", **details: Unpack[Details]
) -> None:
    """Writes an entry in the caller's transaction.

    Args:
        target: the id of the object that was acted on.
        outcome: "refused": not allowed; "failed": it did not succeed, such as a sign-in with a wrong key.
    """
    session.execute(INSERT, row_of_entry(action, target, outcome, **details))


def row_of_entry(
    action: Action, target: str | None = None, outcome: Outcome = "done", **details: Unpack[Details]
) -> dict[str, Any]:
    """An entry's row, for a statement that writes it in the action's transaction. Arguments as in `record`."""
    origin = CURRENT.get(None) or Origin()
    return {
        "at": now(),
        "action": action,
        "actor": origin.key_id,
        "target": target,
        "address": origin.address,
        "user_agent": origin.user_agent,
        "outcome": outcome,
        "details": dict(details),
    }
