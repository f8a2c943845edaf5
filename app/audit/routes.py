"""/v1/audit: who did what, when and from where; for admins."""

from __future__ import annotations

from typing import Annotated, Any, get_args

from fastapi import APIRouter, Query
from sqlalchemy import select

from app.audit.audit_chain import AuditVerification, content, verify
from app.audit.record import Action
from app.db.models import AuditEntry
from app.db.row_view import Page
from app.keys.auth import AdminKey
from app.web.deps import Db
from app.web.pagination import After, Limit, decode_cursor, encode_cursor
from app.web.route_operation import Operation
from core import leaves
from core.contracts.base import Document

router = APIRouter(prefix="/v1/audit", tags=["audit"])
ACTIONS: tuple[str, ...] = get_args(Action)
OfKey = Annotated[str | None, Query(max_length=200, description="Only actions of this key.")]
OfAction = Annotated[str | None, Query(max_length=200, description="Only this action, such as `job.submitted`.")]
OfTarget = Annotated[str | None, Query(max_length=200, description="Only actions on this target: an id.")]
Since = Annotated[
    int | None,
    Query(ge=0, le=2**53, description="Sealed entries after this `seq`, oldest first, instead of the newest."),
]


class AuditEntryView(Document):
    """An entry. The hash covers every member but `hash`; `seq` and the hashes are null until it is sealed."""

    version: int
    seq: int | None
    id: int
    at: str  # the hash covers this spelling
    action: str
    actor: str | None
    target: str | None
    address: str | None
    user_agent: str | None
    outcome: str
    details: dict[str, Any]
    prev_hash: str | None
    hash: str | None

    @classmethod
    def of(cls, entry: AuditEntry) -> AuditEntryView:
        """Shows an entry with the spelling that its hash covers."""
        return cls.model_validate(content(entry) | {"hash": entry.hash})


class AuditList(Document, Page[AuditEntryView]):
    """A page of audit entries; `next` is the cursor of the next page, null on the last."""


@router.get("")
@Operation(
    "A page of entries.", audience="admins", leaves=leaves.FOR_ADMINS, command="audit list", problems=("forbidden",)
)
def list_audit(
    db: Db,
    _caller: AdminKey,
    key: OfKey = None,
    action: OfAction = None,
    target: OfTarget = None,
    since: Since = None,
    after: After = None,
    limit: Limit = 50,
) -> AuditList:
    """Lists audit entries, newest first; filters by key, action or target."""
    place = AuditEntry.id if since is None else AuditEntry.seq
    last = decode_cursor(after, int)[0] if after is not None else since
    wanted = {AuditEntry.actor: key, AuditEntry.action: action, AuditEntry.target: target}
    query = select(AuditEntry).where(*(column == value for column, value in wanted.items() if value is not None))
    if since is None:
        query = query.order_by(AuditEntry.id.desc())
        query = query if last is None else query.where(AuditEntry.id < last)
    else:
        query = query.where(AuditEntry.seq > last).order_by(AuditEntry.seq)
    with db.read() as session:
        entries = list(session.scalars(query.limit(limit + 1)))
    has_more, entries = len(entries) > limit, entries[:limit]
    following = encode_cursor(getattr(entries[-1], place.key)) if has_more else None
    return AuditList(items=[AuditEntryView.of(entry) for entry in entries], next=following)


@router.get("/verify")
@Operation(
    "The result of verifying the log against its entries.",
    audience="admins",
    leaves=leaves.FOR_ADMINS,
    command="audit verify",
    problems=("forbidden",),
)
def verify_audit(db: Db, _caller: AdminKey) -> AuditVerification:
    """Recomputes the hash chain; names the first entry that does not fit. Keep the head outside."""
    with db.read() as session:
        return verify(session)
