"""How many bytes an owner's key may have stored: data sets, files that are being read, uploads in pieces.

The key's own limit counts, else the setting's, else a share of what the disk has free. `require` refuses early, before
bytes arrive. `reserve` decides: in the transaction that writes what then counts, while no other registration or upload
of this key is decided. So two requests at once never exceed the limit together.
"""

from __future__ import annotations

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from app.datasets import resumable
from app.db.database import Database
from app.db.models import ApiKey, Dataset, DatasetReading, Graph
from app.settings import Settings
from app.storage import parts
from core.disk import Room
from core.errors import Conflict


def require(db: Database, settings: Settings, owner_key: str, size: int, on_disk: int = 0) -> None:
    """Checks that a key may store so many bytes more, as it looks now.

    Args:
        on_disk: how many of these bytes lie on the disk already.

    Raises:
        Conflict: `quota-exceeded`, with the limit and what is stored; told to this key alone.
        StorageFull: the key has a share of the disk, which has no room for them.
    """
    with db.read() as session:
        _check(session, settings, owner_key, size, on_disk)


def reserve(session: Session, settings: Settings, owner_key: str, size: int, on_disk: int = 0) -> None:
    """Checks it again, and holds back this key's other registrations and uploads until the transaction ends.

    Call it in the transaction that adds what counts: a data set's folder, a registration's row, or an upload's folder.

    Raises:
        Conflict, StorageFull: as `require`.
    """
    # The key's row is the lock, of a kind that does not delay its jobs. (SQLite has one writer.)
    session.execute(select(ApiKey.id).where(ApiKey.id == owner_key).with_for_update(key_share=True))
    _check(session, settings, owner_key, size, on_disk)


def stored_bytes(session: Session, settings: Settings, owner_key: str) -> int:
    """The bytes that a key's data sets, uploaded graphs and unfinished registrations take, features of extractors
    included."""
    mine = (Dataset.owner_key == owner_key, Dataset.content_deleted_at.is_(None))
    query = select(Dataset.id, Dataset.parts).where(*mine)
    part_store = parts.of(settings)
    stored = sum(part_store.stored_bytes(each.id, each.parts) for each in session.execute(query))
    graphs = session.scalar(select(func.coalesce(func.sum(Graph.bytes), 0)).where(Graph.key_id == owner_key)) or 0
    return stored + int(graphs) + _arriving_bytes(session, settings, owner_key)


def _arriving_bytes(session: Session, settings: Settings, owner_key: str) -> int:
    """The bytes of files that are being read, and what uploads have declared: on this machine's disk in any case."""
    reading = (DatasetReading.owner_key == owner_key, DatasetReading.state == "reading")
    waiting = session.scalar(select(func.coalesce(func.sum(DatasetReading.bytes), 0)).where(*reading)) or 0
    return int(waiting) + resumable.declared_bytes(settings, owner_key)


def _check(session: Session, settings: Settings, owner_key: str, size: int, on_disk: int) -> None:
    limit = session.scalar(select(ApiKey.max_stored_bytes).where(ApiKey.id == owner_key)) or settings.max_stored_bytes
    if not limit and settings.stored_share >= 1.0:
        return
    # A share of the disk bounds what lies on it: with a bucket, not what the bucket has.
    counted = _arriving_bytes if not limit and settings.object_store else stored_bytes
    used = counted(session, settings, owner_key)
    if not limit:
        missing = resumable.declared_bytes(settings, owner_key) - resumable.arrived_bytes(settings, owner_key)
        limit = _share(settings, used - missing + on_disk, size - on_disk)
    if used + size > limit:
        detail = f"your key may store {limit} bytes, and {used} are taken: {size} more do not fit; delete a data set's"
        raise Conflict(
            "quota-exceeded", f"{detail} content, or give an upload up", limit_bytes=limit, stored_bytes=used
        )


def _share(settings: Settings, used: int, needed: int) -> int:
    """A key's share: of what the disk has free less the reserve, and of the key's own bytes there.

    Bytes that arrive move from the one to the other. A share of the whole disk would be more than is free on a disk
    that is nearly full: one key could take all of it.

    Raises:
        StorageFull: the disk lacks the needed bytes, whoever asks for them.
    """
    root = settings.arrivals_root
    root.mkdir(mode=0o700, parents=True, exist_ok=True)
    room = Room(settings.disk_reserve_bytes)
    room.require(root, needed)
    return int(settings.stored_share * (room.available(root) + used))
