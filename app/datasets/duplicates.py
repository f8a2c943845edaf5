"""Refuses content that its owner registered before: a second registration would be a second budget.

Other owners' content is not compared (decision 15). A retired registration does not count: its ledger is closed.
"""

from __future__ import annotations

from collections.abc import Iterable

from sqlalchemy.orm import Session

from app.datasets import repository
from app.db.database import Database
from app.db.models import Dataset
from app.formats.asked import ContentHash
from app.ledger import accounts, behind
from app.ledger.transparency.heads import Heads
from app.settings import Settings
from core.contracts.dataset_spec import DatasetSpec
from core.errors import Conflict, InvalidRequest, Unavailable


def check(session: Session, heads: Heads, owner_key: str, spec: DatasetSpec, contents: Iterable[ContentHash]) -> None:
    """Refuses content that this owner registered before, if either registration protects it.

    The files of two public hold-outs may be the same, as no privacy is claimed for them.

    Args:
        contents: with the hashes of before, where `compares_earlier_hashes` said so.

    Raises:
        InvalidRequest: the hold-out file is the data file.
        Conflict: `duplicate-content`.
        Unavailable: as in `_is_retired`; or an earlier release registered content of this owner meanwhile.
    """
    same_content = list(contents)
    if not any(each.is_earlier for each in same_content) and repository.has_earlier_hashes(session, owner_key):
        raise Unavailable("an earlier release of the service registered content of yours meanwhile: try again")
    data, holdout = ({each.hmac for each in same_content if each.part == part} for part in ("data", "holdout"))
    if data & holdout:
        raise InvalidRequest.at(
            "/holdout_file", "the hold-out file is identical to the data file: send different records"
        )
    for part, dataset in repository.with_content(session, owner_key, data):
        protected = spec.privacy.sensitivity == "private" or (part == "data" and dataset.sensitivity == "private")
        if protected and not _is_retired(heads, dataset):
            raise _duplicate(dataset)
    for part, dataset in repository.with_content(session, owner_key, holdout):
        if part == "data" and dataset.sensitivity == "private" and not _is_retired(heads, dataset):
            raise _duplicate(dataset)


def compares_earlier_hashes(db: Database, settings: Settings, owner_key: str) -> bool:
    """Returns True if an owner has content whose only hashes are those of before decision 39: new content is then
    compared by both. So it is while the database lacks a recorded data set, which may be such a one."""
    with db.read() as session:
        has = repository.has_earlier_hashes(session, owner_key)
    return has or behind.lacks_recorded(db, Heads.of(settings))


def _duplicate(dataset: Dataset) -> Conflict:
    detail = "you registered this content before, and one of the two is private: a second registration would be a"
    return Conflict("duplicate-content", f"{detail} second budget", dataset=dataset.id)


def _is_retired(heads: Heads, dataset: Dataset) -> bool:
    """Returns True for private data whose ledger was closed before anything was held on it.

    Public data may have been used by jobs without privacy before a backup was restored: their content stays public.

    Raises:
        Unavailable: its retirement is not recorded outside the database yet: a restored backup could forget it.
    """
    if dataset.retired_at is None or dataset.sensitivity == "public":
        return False
    recorded = behind.read_recorded(heads, dataset.id)
    if recorded is None or recorded.joined_into != accounts.RETIRED:
        raise Unavailable("the retirement of this content is being recorded: try again in a moment")
    return True


def check_forgotten(db: Database, settings: Settings, owner_key: str, hmacs: set[str]) -> None:
    """Raises Conflict, `ledger-behind`, if this owner registered the content and the database has lost it."""
    forgotten = behind.forgotten_content(db, Heads.of(settings), owner_key, hmacs)
    if forgotten is not None:
        detail = f"you registered this content as {forgotten}, and the database lost that entry: restore a newer backup"
        raise Conflict("ledger-behind", detail)
