"""/v1/keys: made, listed and revoked by admins. A token is shown once, in the answer that makes it."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from fastapi import APIRouter, Request
from pydantic import StringConstraints

from app.contracts.base import NO_NUL, Document
from app.db.models import ApiKey
from app.keys import service
from app.keys.auth import AdminKey
from app.web.deps import Db

router = APIRouter(prefix="/v1/keys", tags=["keys"])


class KeyRequest(Document):
    name: Annotated[str, StringConstraints(min_length=1, max_length=100, pattern=NO_NUL)]
    role: service.Role


class KeyView(Document):
    id: str
    name: str
    role: str
    created_at: datetime
    created_by: str | None
    revoked_at: datetime | None

    @classmethod
    def of(cls, key: ApiKey) -> KeyView:
        return cls(
            id=key.id,
            name=key.name,
            role=key.role,
            created_at=key.created_at,
            created_by=key.created_by,
            revoked_at=key.revoked_at,
        )


class NewKey(Document):
    key: KeyView
    token: str


class KeyList(Document):
    items: list[KeyView]
    next: None = None


@router.post("", status_code=201)
def create_key(request: Request, body: KeyRequest, db: Db, caller: AdminKey) -> NewKey:
    """A new key. Its token is in this answer and nowhere else."""
    with db.write() as session:
        key, token = service.create(
            session, request.app.state.pepper, name=body.name, role=body.role, created_by=caller.id
        )
        return NewKey(key=KeyView.of(key), token=token)


@router.get("")
def list_keys(db: Db, _caller: AdminKey) -> KeyList:
    with db.read() as session:
        return KeyList(items=[KeyView.of(key) for key in service.list_keys(session)])


@router.delete("/{key_id}")
def revoke_key(key_id: str, db: Db, _caller: AdminKey) -> KeyView:
    """Revokes a key, at once and for good. Its jobs go on."""
    with db.write() as session:
        return KeyView.of(service.revoke(session, key_id))
