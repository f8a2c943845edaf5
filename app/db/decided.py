"""What somebody decides by a day: approvals, and requests for a budget."""

from __future__ import annotations

from typing import Any

from sqlalchemy.orm import Session

from app.db.models import Approval, BudgetRequest
from core.errors import Conflict
from core.ids import now

Decided = Approval | BudgetRequest


def status_of(request: Decided) -> Any:
    """The status as its view names it: an open one ends by itself."""
    return "expired" if request.status == "open" and request.expires_at <= now() else request.status


def require_open(request: Decided, kind: str) -> None:
    """Raises Conflict (`wrong-state`) if it was decided or has expired."""
    status = status_of(request)
    if status != "open":
        raise Conflict("wrong-state", f"this {kind} is {status} already")


def decide(session: Session, request: Decided, status: str, by: str) -> None:
    """Writes who decided, and when."""
    request.status, request.decided_at, request.decided_by = status, now(), by
    session.flush()
