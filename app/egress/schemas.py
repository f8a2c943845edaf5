"""Requests and answers of /v1/jobs/{id}/egress."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import StringConstraints

from app.db.row_view import Column, Given, Moment, RowView, Whole
from core.contracts.base import NO_NUL, Document

# "waiting": for two persons; "pending": for the relay; "deleted": with the job's files.
EgressStatus = Literal["waiting", "pending", "ready", "denied", "expired", "failed", "deleted"]
Recipient = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=200, pattern=NO_NUL)]
Reason = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=1000, pattern=NO_NUL)]


class EgressRequest(Document):
    """Whom the files are for, and why they leave. Both are signed in the folder."""

    recipient: Recipient
    reason: Reason


class EgressView(Document, RowView):
    """A signed folder of a job's files with their proof.

    `number` counts the job's egresses; `approval` is what two persons must agree to, where the owner named persons.
    """

    id: str
    job: Annotated[str, Column("job_id")]
    number: int
    recipient: str
    reason: str
    status: Annotated[EgressStatus, Given()]
    approval: Annotated[str | None, Column("approval_id")]
    asked_by: str
    asked_at: Annotated[str | None, Moment("asked_at")]
    made_at: Annotated[str | None, Moment("made_at")]
    problem: str | None
    sha256: str | None
    size_bytes: int | None


class EgressList(Document, Whole[EgressView]):
    """A job's egresses, the newest first."""
