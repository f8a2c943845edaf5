"""The table of worker processes."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import JSON, Index, String
from sqlalchemy.orm import Mapped, mapped_column

from app.db.table_base import Base


class Worker(Base):
    """A worker process, by its last report. For people: claims and leases say who runs what. One with a volume reads
    data files and runs no jobs."""

    __tablename__ = "workers"
    __table_args__ = (Index("ix_workers_seen", "seen_at"),)

    name: Mapped[str] = mapped_column(primary_key=True)  # host:pid, as in jobs and attempts
    host: Mapped[str]
    pid: Mapped[int]
    started_at: Mapped[datetime]
    seen_at: Mapped[datetime]  # by the database's clock
    sandbox: Mapped[dict[str, Any] | None]  # the isolation of its attempts
    skew_s: Mapped[float | None]  # how far its own clock is ahead of the database's
    devices: Mapped[list[Any] | None] = mapped_column(JSON(none_as_null=True))  # what it computes on
    release: Mapped[str | None]  # of its code and libraries; null: unknown, or it stops
    finishes: Mapped[bool | None]  # it takes only jobs that its release began
    card: Mapped[str | None]  # its GPU, driver and cuDNN; null: it has no GPU, or they are unknown
    volume: Mapped[str | None] = mapped_column(String(200))  # where it reads data files; null: it runs jobs
