"""Requests and answers of /v1/approvals, and of a data set's persons."""

from __future__ import annotations

from typing import Annotated, Literal

from app.db.row_view import Column, Given, Moment, Page, RowView
from core.contracts.approvals import Act, Persons
from core.contracts.base import Document

Status = Literal["open", "agreed", "denied", "expired"]


class PersonsView(Persons):
    """The persons of whom two decide together on a data set, each with that person's keys; empty: one is enough."""


class AgreementView(Document, RowView):
    """A person's word, and the key that gave it."""

    person: str
    key_id: str
    at: Annotated[str | None, Moment("at")]


class ApprovalView(Document, RowView):
    """An act that takes effect once two persons have agreed. An open one expires after two weeks."""

    id: str
    dataset: Annotated[str, Column("dataset_id")]
    act: Act
    asked_by: str
    status: Annotated[Status, Given()]
    agreements: Annotated[tuple[AgreementView, ...], Given()]
    created_at: Annotated[str | None, Moment("created_at")]
    expires_at: Annotated[str | None, Moment("expires_at")]
    decided_at: Annotated[str | None, Moment("decided_at")]
    decided_by: str | None


class ApprovalList(Document, Page[ApprovalView]):
    """A page of approvals."""
