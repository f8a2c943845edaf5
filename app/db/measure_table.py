"""The table of what processes count."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy.orm import Mapped, mapped_column

from app.db.table_base import Base


class Measure(Base):
    """One series of a metric. Counts have no process: all processes add to one row. A gauge has a row a process."""

    __tablename__ = "measures"

    name: Mapped[str] = mapped_column(primary_key=True)
    labels: Mapped[str] = mapped_column(primary_key=True)  # a JSON list, in the order of the metric's label names
    process: Mapped[str] = mapped_column(primary_key=True)  # "" for a count
    value: Mapped[float]
    written_at: Mapped[datetime]  # by the database's clock
