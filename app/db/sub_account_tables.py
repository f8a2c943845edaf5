"""The tables of sub-accounts: what keys and teams may use of a data set's cap, and who asked for more."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import CheckConstraint, ForeignKey, ForeignKeyConstraint, Index, Text
from sqlalchemy.orm import Mapped, mapped_column

from app.db.table_base import Base


class SubAccount(Base):
    """The balances of one sub-account: moved only by conditional updates, with the data set's own account.

    Rows are never deleted: a hold goes back to the sub-account that it was taken from, and what was spent stays spent.
    """

    __tablename__ = "sub_accounts"
    __table_args__ = (
        CheckConstraint("train_spent >= 0 and train_held >= 0", name="train_not_negative"),
        CheckConstraint("holdout_spent >= 0 and holdout_held >= 0", name="holdout_not_negative"),
        CheckConstraint("train_spent + train_held <= train_budget", name="train_within_budget"),
        CheckConstraint("holdout_spent + holdout_held <= holdout_budget", name="holdout_within_budget"),
    )

    dataset_id: Mapped[str] = mapped_column(ForeignKey("accounts.dataset_id"), primary_key=True)
    name: Mapped[str] = mapped_column(primary_key=True)  # a key's id, or a team's name
    id: Mapped[str] = mapped_column(unique=True)  # in the ledger's entries, which more keys read than may see the name
    epsilon: Mapped[float]  # the ε that the budget was made from, at the cap's δ
    train_budget: Mapped[int]
    train_spent: Mapped[int] = mapped_column(default=0)
    train_held: Mapped[int] = mapped_column(default=0)
    holdout_budget: Mapped[int]  # 0 without a private hold-out
    holdout_spent: Mapped[int] = mapped_column(default=0)
    holdout_held: Mapped[int] = mapped_column(default=0)
    version: Mapped[int]  # counts changes of the budget and of its keys, not of the balances
    changed_at: Mapped[datetime]
    changed_by: Mapped[str]
    closed_at: Mapped[datetime | None]  # no key uses it any more


class SubAccountKey(Base):
    """A key that may spend within one sub-account of a data set, and not beyond it."""

    __tablename__ = "sub_account_keys"
    __table_args__ = (
        ForeignKeyConstraint(["dataset_id", "name"], ["sub_accounts.dataset_id", "sub_accounts.name"]),
        Index("ix_sub_account_keys_name", "dataset_id", "name"),
    )

    dataset_id: Mapped[str] = mapped_column(primary_key=True)
    key_id: Mapped[str] = mapped_column(ForeignKey("api_keys.id"), primary_key=True)
    name: Mapped[str]


class BudgetAlert(Base):
    """A threshold of a cap, or of a budget within it, that was announced: once for each size."""

    __tablename__ = "budget_alerts"

    dataset_id: Mapped[str] = mapped_column(ForeignKey("accounts.dataset_id"), primary_key=True)
    budget_id: Mapped[str] = mapped_column(primary_key=True)  # "" for the cap
    account: Mapped[str] = mapped_column(primary_key=True)  # train | holdout
    threshold: Mapped[int] = mapped_column(primary_key=True)  # percent
    size: Mapped[int] = mapped_column(primary_key=True)  # in the filter's units
    created_at: Mapped[datetime]


class BudgetRequest(Base):
    """A key's request for a sub-account, or for a larger one, and its owner's answer."""

    __tablename__ = "budget_requests"
    __table_args__ = (
        CheckConstraint("status in ('open', 'approved', 'denied')", name="status"),
        Index("ix_budget_requests_dataset_created", "dataset_id", "created_at", "id"),
    )

    id: Mapped[str] = mapped_column(primary_key=True)
    dataset_id: Mapped[str] = mapped_column(ForeignKey("accounts.dataset_id"))
    key_id: Mapped[str] = mapped_column(ForeignKey("api_keys.id"))
    epsilon: Mapped[float]
    reason: Mapped[str] = mapped_column(Text)
    status: Mapped[str]
    created_at: Mapped[datetime]
    expires_at: Mapped[datetime]  # an open request can no longer be approved after this
    decided_at: Mapped[datetime | None]
    decided_by: Mapped[str | None]
    answer: Mapped[str | None] = mapped_column(Text)  # the owner's words
