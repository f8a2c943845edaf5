"""Every query on data sets."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from types import SimpleNamespace
from typing import Any

from sqlalchemy import ColumnElement, Row, and_, exists, or_, select, tuple_
from sqlalchemy.orm import InstrumentedAttribute, Session, aliased

from app.db.models import Account, ApiKey, Dataset, DatasetContent, DatasetReading, Job, LedgerEntry
from app.formats.asked import EARLIER_KINDS
from app.grants.service import Access, access_of, visible, with_grants
from app.keys.service import Caller
from core.errors import Conflict

SECOND = aliased(Dataset)


def name_is_taken(session: Session, name: str, dataset_id: str | None = None) -> bool:
    """Returns True if a data set has this name, or will have it once its file is read.

    Args:
        dataset_id: the data set that asks: its own reading holds the name for it.
    """
    reading = select(DatasetReading.id).where(
        DatasetReading.holds_name == name, DatasetReading.id != (dataset_id or "")
    )
    has = select(Dataset.id).where(Dataset.name == name)
    return session.scalar(has) is not None or session.scalar(reading) is not None


def with_content(session: Session, owner_key: str, hmacs: Iterable[str]) -> list[tuple[str, Dataset]]:
    """An owner's data sets with a file, or with records, that have one of these keyed hashes; oldest first, each with
    the part that has it ("data" or "holdout")."""
    same = (
        select(DatasetContent.part, Dataset)
        .join(Dataset, Dataset.id == DatasetContent.dataset_id)
        .where(DatasetContent.owner_key == owner_key, DatasetContent.hmac.in_(list(hmacs)))
        .order_by(Dataset.created_at, DatasetContent.id)
    )
    return [(part, dataset) for part, dataset in session.execute(same).all()]


def has_earlier_hashes(session: Session, owner_key: str) -> bool:
    """Returns True if an owner has content that is named by hashes of before."""
    earlier = exists().where(DatasetContent.owner_key == owner_key, DatasetContent.kind.in_(EARLIER_KINDS))
    return session.scalar(select(earlier)) or False


def has_blocks(session: Session, dataset_id: str) -> bool:
    """Returns True if blocks were appended to this data set."""
    appended = exists().where(Dataset.parent_id == dataset_id, Dataset.pays_for.is_(None))
    return session.scalar(select(appended)) or False


def uses(dataset_id: str | InstrumentedAttribute[str]) -> ColumnElement[bool]:
    """The condition that a job reads a data set: as its own, as one of its blocks, or for its optimizer's side
    information."""
    holds = (LedgerEntry.job_id == Job.id, LedgerEntry.kind == "hold")
    ledgers = select(SECOND.id).where(SECOND.pays_for == dataset_id)
    is_here = or_(LedgerEntry.dataset_id == dataset_id, LedgerEntry.dataset_id.in_(ledgers))
    pays_here, pays = exists().where(*holds, is_here), exists().where(*holds)
    side = Job.spec["optimizer"]["public_dataset"].as_string() == dataset_id
    return or_(pays_here, and_(Job.dataset_id == dataset_id, ~pays), side)


def check_content(session: Session, dataset_ids: Iterable[str]) -> None:
    """Makes a deletion of the content wait until this transaction ends.

    Raises:
        Conflict: `content-deleted`: it is gone already.
    """
    rows = select(Dataset).where(Dataset.id.in_(list(dataset_ids))).order_by(Dataset.id).with_for_update(read=True)
    for dataset in session.scalars(rows.execution_options(populate_existing=True)):
        check_there(dataset)


def check_there(dataset: Dataset | Row[Any] | SimpleNamespace) -> None:
    """Raises Conflict, `content-deleted`, if the content is gone and nothing can be trained on it."""
    if dataset.retired_at is not None:
        raise Conflict("content-deleted", f"{dataset.name!r} was retired: its owner may have registered it anew")
    if dataset.content_deleted_at is not None:
        raise Conflict(
            "content-deleted", f"the content of {dataset.name!r} was deleted: no job can train on it; register it again"
        )


def take_turns(session: Session) -> None:
    """Holds other registrations back until this transaction ends.

    If two transactions register one content at once, the second must see the first. No constraint can express this,
    since public content may be registered twice. The oldest key's row always exists and serves as the lock, of a kind
    that does not delay that key's jobs. (SQLite has one writer.)
    """
    session.execute(select(ApiKey.id).order_by(ApiKey.created_at, ApiKey.id).limit(1).with_for_update(key_share=True))


def add(session: Session, dataset: Dataset, contents: Iterable[DatasetContent]) -> None:
    """Adds a data set with the keyed hashes of its content."""
    session.add(dataset)
    session.flush()
    session.add_all(contents)
    session.flush()


def page(
    session: Session, caller: Caller, *, after: tuple[datetime, str] | None, limit: int
) -> list[tuple[Dataset, Account | None, Access]]:
    """The caller's data sets, newest first; one more than requested, to know if there is a next page. Blocks are listed
    with their data set."""
    query = (
        with_grants(caller)
        .add_columns(Account)
        .outerjoin(Account, Account.dataset_id == Dataset.id)
        .where(visible(caller), Dataset.parent_id.is_(None))
        .order_by(Dataset.created_at.desc(), Dataset.id.desc())
        .limit(limit + 1)
    )
    if after is not None:
        query = query.where(tuple_(Dataset.created_at, Dataset.id) < after)
    rows = session.execute(query).all()
    rows_with_access = [(dataset, account, access_of(caller, dataset, grant)) for dataset, grant, account in rows]
    return [(dataset, account, access) for dataset, account, access in rows_with_access if access is not None]
