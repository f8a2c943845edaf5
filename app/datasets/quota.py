"""How many bytes an owner's key may have stored: data sets, files that are being read, uploads in pieces.

The key's own limit counts, else the setting's, else a share of the disk. `require` refuses
early, before bytes arrive. `reserve` decides: in the transaction that writes what then counts, while no other
registration or upload of this key is decided. So two requests at once never exceed the limit together.
"""

from __future__ import annotations

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from app.datasets import resumable
from app.db.engine import Database
from app.db.models import ApiKey, Dataset, DatasetReading
from app.disk import share_bytes
from app.errors import Conflict
from app.settings import Settings
from app.storage import parts


def require(db: Database, settings: Settings, owner_key: str, more: int) -> None:
    """Checks that a key may store so many bytes more, as it looks now.

    Raises:
        Conflict: `quota-exceeded`, with the limit and what is stored; told to this key alone.
    """
    with db.read() as session:
        _check(session, settings, owner_key, more)


def reserve(session: Session, settings: Settings, owner_key: str, more: int) -> None:
    """Checks it again, and holds back this key's other registrations and uploads until the transaction ends.

    Call it in the transaction that adds what counts: a data set's folder, a registration's row, or an upload's folder.

    Raises:
        Conflict: as `require`.
    """
    # The key's row is the lock, of a kind that does not delay its jobs. (SQLite has one writer.)
    session.execute(select(ApiKey.id).where(ApiKey.id == owner_key).with_for_update(key_share=True))
    _check(session, settings, owner_key, more)


def stored_bytes(session: Session, settings: Settings, owner_key: str) -> int:
    """The bytes that a key's data sets and unfinished registrations take, features of extractors included."""
    own = (Dataset.owner_key == owner_key, Dataset.content_deleted_at.is_(None))
    there = select(Dataset.id, Dataset.parts).where(*own)
    kept = parts.of(settings)
    stored = sum(kept.stored_bytes(each.id, each.parts) for each in session.execute(there))
    return stored + _arriving_bytes(session, settings, owner_key)


def _arriving_bytes(session: Session, settings: Settings, owner_key: str) -> int:
    """The bytes of files that are being read, and what uploads have declared: on this machine's disk in any case."""
    reading = (DatasetReading.owner_key == owner_key, DatasetReading.state == "reading")
    waiting = session.scalar(select(func.coalesce(func.sum(DatasetReading.bytes), 0)).where(*reading)) or 0
    return int(waiting) + resumable.declared_bytes(settings, owner_key)


def _check(session: Session, settings: Settings, owner_key: str, more: int) -> None:
    own = session.scalar(select(ApiKey.max_stored_bytes).where(ApiKey.id == owner_key))
    limit = own or settings.max_stored_bytes or share_bytes(settings.storage_root, settings.stored_share)
    if limit is None:
        return
    # A share of the disk bounds what lies on it: with a bucket, not what the bucket has.
    is_share = not (own or settings.max_stored_bytes)
    counted = _arriving_bytes if is_share and settings.object_store else stored_bytes
    used = counted(session, settings, owner_key)
    if used + more > limit:
        detail = f"your key may store {limit} bytes, and {used} are taken: {more} more do not fit; delete a data set's"
        raise Conflict(
            "quota-exceeded", f"{detail} content, or give an upload up", limit_bytes=limit, stored_bytes=used
        )
