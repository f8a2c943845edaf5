"""The table of jobs' tags, one row for each. Trials, which no list shows, have none."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import ForeignKey, Index
from sqlalchemy.orm import Mapped, mapped_column

from app.db.table_base import Base


class JobTag(Base):
    """A tag of a job, with what a list orders and filters by, so that it walks these rows alone. Triggers write it from
    `jobs.tags` in the statement that changes them; nothing else does."""

    __tablename__ = "job_tags"
    __table_args__ = (Index("ix_job_tags_job", "job_id"), Index("ix_job_tags_name", "tag", "name", "job_id"))

    tag: Mapped[str] = mapped_column(primary_key=True)
    created_at: Mapped[datetime] = mapped_column(primary_key=True)  # the job's
    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id"), primary_key=True)
    name: Mapped[str]
    dataset_id: Mapped[str]
