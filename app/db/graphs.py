"""The table of models that keys uploaded as graphs (app.graphs.uploads)."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import BigInteger, ForeignKey, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column

from app.db.table_base import Base, Documents
from core.contracts.graph import GraphFacts


class Graph(Base):
    """A model that a key uploaded for its jobs."""

    __tablename__ = "graphs"
    __table_args__ = (UniqueConstraint("key_id", "sha256"),)

    id: Mapped[str] = mapped_column(primary_key=True)  # names the place of its file
    key_id: Mapped[str] = mapped_column(ForeignKey("api_keys.id"))
    sha256: Mapped[str]  # the file's: by it jobs name the graph
    bytes: Mapped[int] = mapped_column(BigInteger)
    facts: Mapped[GraphFacts] = mapped_column(Documents(GraphFacts))
    created_at: Mapped[datetime]
    used_at: Mapped[datetime]  # when a job with it was last submitted; before the first, when it was uploaded
