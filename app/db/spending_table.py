"""The table of running sums over a ledger's posts."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import ForeignKey, Index, String
from sqlalchemy.orm import Mapped, mapped_column

from app.db.table_base import Base


class SpentByKey(Base):
    """What the jobs and charges of a key have spent on a ledger: in all, and on each day.

    A trigger on the ledger's entries moves the sums in the statement that writes a post (migration 0036), whichever
    process writes it. Nothing else writes here.
    """

    __tablename__ = "spent_by_key"
    __table_args__ = (Index("ix_spent_by_key_day", "day"),)  # sums of a month, over all ledgers

    dataset_id: Mapped[str] = mapped_column(ForeignKey("accounts.dataset_id"), primary_key=True)
    key_id: Mapped[str] = mapped_column(primary_key=True)  # of the hold that the posts draw on
    day: Mapped[str] = mapped_column(String(10), primary_key=True)  # in UTC; "": all days together
    charges: Mapped[int]  # a job, a study or another system's charge counts once
    family_charges: Mapped[int]  # those that had spent on no other block of the data set before
    train: Mapped[int]
    holdout: Mapped[int]
    last_at: Mapped[datetime]  # when the last of the posts was written
