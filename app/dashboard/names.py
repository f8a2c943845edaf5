"""The names behind ids that a page shows."""

from __future__ import annotations

from sqlalchemy import select
from sqlalchemy.orm import Session

from app.db.models import ApiKey, Dataset
from app.grants.service import Access, visible
from app.keys.service import Caller


def dataset_names(session: Session, caller: Caller) -> dict[str, str]:
    """The names of the caller's visible data sets by their ids, in the order of names."""
    rows = select(Dataset.id, Dataset.name).where(visible(caller), Dataset.parent_id.is_(None)).order_by(Dataset.name)
    return {row.id: row.name for row in session.execute(rows)}


def key_names(session: Session, caller: Caller, access: Access, key_ids: set[str]) -> dict[str, str]:
    """Who acted on a data set: names for its owner and admins; others see the ids of keys, as in the API."""
    names = dict[str, str]()
    if access.level == "own":
        rows = select(ApiKey.id, ApiKey.name).where(ApiKey.id.in_(key_ids))
        names = {row.id: row.name for row in session.execute(rows)}
    return {key_id: "you" if key_id == caller.id else names.get(key_id, key_id) for key_id in key_ids}
