"""/v1/keys: admins make, list, change and revoke keys; each key may show and rotate itself.

A token is shown once, in the response that makes it.
"""

from __future__ import annotations

import re
import unicodedata
from datetime import datetime
from typing import Annotated

from fastapi import APIRouter, Request
from pydantic import AfterValidator, AwareDatetime, Field, StringConstraints

from app.audit import record as audit
from app.db.models import ApiKey
from app.db.row_view import Whole
from app.keys import service
from app.keys.auth import AdminKey, CurrentKey
from app.keys.key_limits import OwnLimits
from app.settings import Settings
from app.web.deps import Db, ServiceSettings
from app.web.route_operation import Operation
from core import leaves
from core.contracts.base import NO_NUL, Document

router = APIRouter(prefix="/v1/keys", tags=["keys"])


A_PERSON = re.compile(r"\(person[0-9a-f]{8}\)")  # how app.identity.provider ends a person's name, without spaces


def _of_no_person(name: str) -> str:
    """Refuses a name that readers would take for a person's, whatever its case, width or invisible characters."""
    letters = filter(lambda letter: letter.isalnum() or letter in "()", unicodedata.normalize("NFKC", name).casefold())
    if A_PERSON.search("".join(letters)):
        raise ValueError(
            '"(person …)" with eight digits ends the name of a person who signs in: name the key otherwise'
        )
    return name


class KeyRequest(OwnLimits):
    """A key to make. A limit that is left out takes the setting's value; running jobs then have no limit.

    * `max_queued_jobs` counts paused ones too; above `max_running_jobs` jobs stay queued.
    * `max_job_s`: a job that runs longer fails with `time-limit`, and its whole hold is spent.
    * `weight`: a key of 3 gets three claims for each one of a key of 1 on the same owner's data; an owner's key counts
      likewise for all jobs on its data. Claims are counted, not their duration.
    * `max_priority`: the highest `priority` of its jobs, which orders its queued jobs alone; no price depends on it.
    """

    name: Annotated[str, StringConstraints(min_length=1, max_length=100, pattern=NO_NUL), AfterValidator(_of_no_person)]
    role: service.Role
    expires_at: AwareDatetime | None = None


class KeyChange(OwnLimits):
    """What to change of a key. A limit that is left out stays; null takes the setting's value again."""


class Rotation(Document):
    """How a key's rotation treats the old token."""

    overlap_s: Annotated[
        int, Field(strict=True, ge=0, le=86_400, description="How long the old token still works.")
    ] = 0


class KeyLimits(Document):
    """A key's limits: its own, or else the settings'."""

    requests_per_minute: int
    max_queued_jobs: int
    max_running_jobs: int | None
    max_job_s: float | None  # how long a job may run
    max_stored_bytes: int | None  # of its data sets and uploads; null: `max_stored_percent` applies
    max_stored_percent: int | None  # of the disk that is free and its own; null: a number of bytes, or no limit
    weight: int  # turns of its jobs, compared with others'
    max_priority: int  # of its jobs, among themselves


class KeyView(Document):
    """A key and its limits, without any token."""

    id: str
    name: str
    role: str
    created_at: datetime
    created_by: str | None
    expires_at: datetime | None
    rotated_at: datetime | None
    revoked_at: datetime | None
    subject: str | None  # the person at the identity provider; null: a key with a token
    limits: KeyLimits

    @classmethod
    def of(cls, key: ApiKey, settings: Settings) -> KeyView:
        """Shows a key with the settings' limits where it has none of its own."""
        stored = key.max_stored_bytes or settings.max_stored_bytes or None
        percent = round(100 * settings.stored_share) if stored is None and settings.stored_share < 1.0 else None
        return cls(
            id=key.id,
            name=key.name,
            role=key.role,
            created_at=key.created_at,
            created_by=key.created_by,
            expires_at=key.expires_at,
            rotated_at=key.rotated_at,
            revoked_at=key.revoked_at,
            subject=key.subject,
            limits=KeyLimits(
                requests_per_minute=key.requests_per_minute or settings.requests_per_minute,
                max_queued_jobs=key.max_queued_jobs or settings.max_queued_jobs,
                max_running_jobs=key.max_running_jobs,
                max_job_s=key.max_job_s or settings.max_job_s or None,
                max_stored_bytes=stored,
                max_stored_percent=percent,
                weight=key.weight,
                max_priority=key.max_priority,
            ),
        )


class NewKey(Document):
    """A key with its token, which is shown only once."""

    key: KeyView
    token: str


class KeyList(Document, Whole[KeyView]):
    """Every key."""


@router.post("", status_code=201)
@Operation(
    "The key, with its token: shown in this response only.",
    audience="admins",
    leaves=leaves.NO_DATA,
    command="keys create",
    audit="key.created",
    problems=("forbidden",),
    requests={"an analyst's key": {"name": "ada's notebook", "role": "analyst"}},
)
def create_key(request: Request, body: KeyRequest, db: Db, settings: ServiceSettings, caller: AdminKey) -> NewKey:
    """Creates a key. Its token appears in this response only."""
    limits = OwnLimits(**body.model_dump(include=set(OwnLimits.model_fields)))
    with db.write() as session:
        key, token = service.create(
            session,
            request.app.state.peppers[0],
            name=body.name,
            role=body.role,
            created_by=caller.id,
            expires_at=body.expires_at,
            limits=limits,
        )
        audit.record(session, "key.created", key.id, role=key.role)
        return NewKey(key=KeyView.of(key, settings), token=token)


@router.get("")
@Operation("All keys.", audience="admins", leaves=leaves.NO_DATA, command="keys list", problems=("forbidden",))
def list_keys(db: Db, settings: ServiceSettings, _caller: AdminKey) -> KeyList:
    """Lists every key, including revoked ones. For admins."""
    with db.read() as session:
        return KeyList(items=[KeyView.of(key, settings) for key in service.list_keys(session)])


@router.get("/self")
@Operation("The calling key.", audience="every key", leaves=leaves.NO_DATA, command="keys self")
def show_own_key(db: Db, settings: ServiceSettings, caller: CurrentKey) -> KeyView:
    """Shows the calling key and its limits."""
    with db.read() as session:
        return KeyView.of(session.get_one(ApiKey, caller.id), settings)


@router.post("/{key_id}/rotate")
@Operation(
    "The key, with its new token: shown in this response only.",
    audience="admins, or the key itself",
    leaves=leaves.NO_DATA,
    command="keys rotate",
    audit="key.rotated",
    problems=("forbidden", "wrong-state"),
    requests={"the old token works for one more hour": {"overlap_s": 3600}},
)
def rotate_key(
    request: Request,
    key_id: str,
    db: Db,
    settings: ServiceSettings,
    caller: CurrentKey,
    body: Rotation = Rotation(),
) -> NewKey:
    """Gives a key a new token; the key itself or an admin may ask. Grants and jobs stay; dashboard sessions of the old
    one end."""
    with db.write() as session:
        key, token = service.rotate(session, request.app.state.peppers[0], caller, key_id, body.overlap_s)
        audit.record(session, "key.rotated", key_id)
        new_key = NewKey(key=KeyView.of(key, settings), token=token)
    service.renew_admin_file(settings, key_id, token)
    return new_key


@router.patch("/{key_id}")
@Operation(
    "The key, changed.",
    audience="admins",
    leaves=leaves.NO_DATA,
    command="keys set",
    audit="key.changed",
    problems=("forbidden",),
    requests={"three turns for each of others'": {"weight": 3}, "as the settings say": {"max_running_jobs": None}},
)
def change_key(key_id: str, body: KeyChange, db: Db, settings: ServiceSettings, _caller: AdminKey) -> KeyView:
    """Changes a key's limits and its weight, at once; what is left out stays. Jobs that run go on. For admins."""
    with db.write() as session:
        return KeyView.of(service.change(session, key_id, body.model_dump(exclude_unset=True)), settings)


@router.delete("/{key_id}")
@Operation(
    "The key, revoked.",
    audience="admins",
    leaves=leaves.NO_DATA,
    command="keys revoke",
    audit="key.revoked",
    problems=("forbidden", "last-admin-key"),
)
def revoke_key(key_id: str, db: Db, settings: ServiceSettings, _caller: AdminKey) -> KeyView:
    """Revokes a key for good: at once in this API process, within a second in others. Its jobs continue. The last admin
    key without an expiry cannot be revoked: 409."""
    with db.write() as session:
        return KeyView.of(service.revoke(session, key_id), settings)
