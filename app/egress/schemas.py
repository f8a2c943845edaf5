"""Requests and answers of /v1/jobs/{id}/egress."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import StringConstraints

from app.db.models import Egress
from app.db.row_view import Whole
from core.contracts.base import NO_NUL, Document
from core.ids import rfc3339

# "waiting": for two persons; "pending": for the relay; "deleted": with the job's files.
EgressStatus = Literal["waiting", "pending", "ready", "denied", "expired", "failed", "deleted"]
Recipient = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=200, pattern=NO_NUL)]
Reason = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=1000, pattern=NO_NUL)]


class EgressRequest(Document):
    """Whom the files are for, and why they leave. Both are signed in the folder."""

    recipient: Recipient
    reason: Reason


class EgressView(Document):
    """A signed folder of a job's files with their proof.

    `number` counts the job's egresses; `approval` is what two persons must agree to, where the owner named persons.
    """

    id: str
    job: str
    number: int
    recipient: str
    reason: str
    status: EgressStatus
    approval: str | None
    asked_by: str
    asked_at: str | None
    made_at: str | None
    problem: str | None
    sha256: str | None
    size_bytes: int | None

    @classmethod
    def of_egress(cls, egress: Egress, status: EgressStatus) -> EgressView:
        """Shows an egress."""
        return cls(
            id=egress.id,
            job=egress.job_id,
            number=egress.number,
            recipient=egress.recipient,
            reason=egress.reason,
            status=status,
            approval=egress.approval_id,
            asked_by=egress.asked_by,
            asked_at=rfc3339(egress.asked_at),
            made_at=rfc3339(egress.made_at),
            problem=egress.problem,
            sha256=egress.sha256,
            size_bytes=egress.size_bytes,
        )


class EgressList(Document, Whole[EgressView]):
    """A job's egresses, the newest first."""
