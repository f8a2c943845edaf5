"""Which of a ledger's entries a data set's page shows, and each cap with its reason."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Literal

from fastapi import Depends, Query
from sqlalchemy import String, literal_column, select
from sqlalchemy.orm import Session

from app.dashboard.page import address
from app.db.models import LedgerEntry
from app.ledger.entries import Kind
from app.ledger.memos import Memo

ENTRIES_SHOWN = 50
CAPS_SHOWN = 20
REGISTERED = "granted at registration"


class EntriesQuery:
    """The filters of a ledger's entries: those below a number, of a kind, of a job."""

    def __init__(
        self,
        before: Annotated[int | None, Query(ge=2, le=2**53)] = None,
        kind: Kind | Literal[""] | None = None,
        job: Annotated[str | None, Query(pattern=r"^[A-Za-z0-9_]{0,100}$")] = None,
    ) -> None:
        self.before, self.kind, self.job = before, kind or None, job or None

    def url(self, path: str, before: int | None) -> str:
        """The address of another page of these entries; None: of the newest ones."""
        return address(path, {"kind": self.kind, "job": self.job, "before": before})


AskedEntries = Annotated[EntriesQuery, Depends()]


def entry_page(session: Session, dataset_id: str, entries_query: EntriesQuery) -> tuple[list[LedgerEntry], int | None]:
    """The last entries that match, newest first, and where the next page of them begins; None on the last one."""
    query = select(LedgerEntry).where(LedgerEntry.dataset_id == dataset_id)
    if entries_query.before is not None:
        query = query.where(LedgerEntry.seq < entries_query.before)
    if entries_query.kind is not None:
        query = query.where(LedgerEntry.kind == entries_query.kind)
    if entries_query.job is not None:
        query = query.where(LedgerEntry.job_id == entries_query.job)
    page = list(session.scalars(query.order_by(LedgerEntry.seq.desc()).limit(ENTRIES_SHOWN + 1)))
    entries = page[:ENTRIES_SHOWN]
    return entries, entries[-1].seq if len(page) > len(entries) else None


@dataclass(frozen=True)
class CapChange:
    """A cap, as an entry has it.

    Attributes:
        by: the key that granted it.
        closes: the ledger takes nothing more from then on.
    """

    at: datetime
    epsilon: float
    by: str
    reason: str
    closes: bool


def cap_changes(session: Session, dataset_id: str) -> list[CapChange]:
    """The last caps of a ledger with their reasons, newest first."""
    # In the words of the index of caps alone: with bound values SQLite would read the whole ledger.
    is_cap = LedgerEntry.kind.in_([literal_column("'open'", String), literal_column("'cap'", String)])
    query = select(LedgerEntry).where(LedgerEntry.dataset_id == dataset_id, is_cap)
    entries = session.scalars(query.order_by(LedgerEntry.seq.desc()).limit(CAPS_SHOWN))
    return [
        CapChange(
            at=entry.created_at,
            epsilon=memo.cap,
            by=entry.actor,
            reason=memo.reason or REGISTERED,
            closes=memo.joined_into is not None,
        )
        for entry, memo in ((each, Memo.of(each.memo)) for each in entries)
    ]
