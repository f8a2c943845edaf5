"""Requests and answers of /v1/approvals, and of a data set's persons."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from app.db.models import Agreement, Approval
from app.db.row_view import Page
from core.contracts.approvals import Act, Persons
from core.contracts.base import Document
from core.ids import rfc3339

Status = Literal["open", "agreed", "denied", "expired"]


class PersonsView(Persons):
    """The persons of whom two decide together on a data set, each with that person's keys; empty: one is enough."""


class AgreementView(Document):
    """A person's word, and the key that gave it."""

    person: str
    key_id: str
    at: str | None


class ApprovalView(Document):
    """An act that takes effect once two persons have agreed. An open one expires after two weeks."""

    id: str
    dataset: str
    act: Act
    asked_by: str
    status: Status
    agreements: tuple[AgreementView, ...]
    created_at: str | None
    expires_at: str | None
    decided_at: str | None
    decided_by: str | None

    @classmethod
    def of_approval(cls, approval: Approval, status: Status, agreements: Sequence[Agreement]) -> ApprovalView:
        """Shows an approval."""
        return cls(
            id=approval.id,
            dataset=approval.dataset_id,
            act=approval.act,
            asked_by=approval.asked_by,
            status=status,
            agreements=tuple(
                AgreementView(person=each.person, key_id=each.key_id, at=rfc3339(each.at)) for each in agreements
            ),
            created_at=rfc3339(approval.created_at),
            expires_at=rfc3339(approval.expires_at),
            decided_at=rfc3339(approval.decided_at),
            decided_by=approval.decided_by,
        )


class ApprovalList(Document, Page[ApprovalView]):
    """A page of approvals."""
