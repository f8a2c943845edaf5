"""The persons of a data set, kept outside the database: a backup that is restored does not forget the rule of two.

Their record lies beside the ledger's (app.ledger.transparency.heads). Whatever asks who decides first compares the two:
a database that has forgotten persons gets them back from the record.
"""

from __future__ import annotations

import contextlib
import logging

from sqlalchemy import select
from sqlalchemy.orm import Session

from app.approvals import service
from app.audit import record as audit
from app.db.database import Database
from app.db.models import ApiKey, Dataset
from app.grants.service import require_job
from app.keys.service import Caller
from app.ledger.behind import refusal
from app.ledger.transparency.heads import Heads, NamedPersons, SupersededError, UnreadableHeadError
from app.settings import Settings
from core.contracts.approvals import FEWEST
from core.errors import Unavailable

logger = logging.getLogger(__name__)


def current(db: Database, heads: Heads, dataset_id: str) -> None:
    """Brings the database's persons of a data set, and their record, to those who were named last.

    Raises:
        Conflict: `ledger-behind`: the record cannot be read, or the database knows the keys of fewer than two of them.
        Unavailable: the record cannot be written, or the bucket of records does not answer.
    """
    try:
        recorded = heads.named(dataset_id)  # before the snapshot: what is recorded later may be of a later commit
    except UnreadableHeadError as error:
        raise refusal(str(error)) from None
    with db.read() as session:
        version = session.get_one(Dataset, dataset_id).persons_version
        same = recorded is None or _is_here(session, recorded)
    stored_version = 0 if recorded is None else recorded.version
    if stored_version < version:
        _record(db, heads, dataset_id)
    elif recorded is not None and (
        stored_version > version or not same
    ):  # another database named others by the same number
        with db.write() as session:
            _adopt(session, recorded)


def of_job(db: Database, settings: Settings, caller: Caller, job_id: str) -> None:
    """As `current`, for the data set of a job.

    Raises:
        NotFound: there is no such job, or the caller may not see it.
        Conflict, Unavailable: as `current`.
    """
    with db.read() as session:
        dataset_id = require_job(session, caller, job_id).dataset_id
    current(db, Heads.of(settings), dataset_id)


def keep(db: Database, heads: Heads, dataset_id: str) -> None:
    """Records the persons after a commit. If that fails, nothing is decided until `current` has recorded them."""
    with contextlib.suppress(Unavailable):
        _record(db, heads, dataset_id)


def _record(db: Database, heads: Heads, dataset_id: str) -> None:
    with db.read() as session:
        version = session.get_one(Dataset, dataset_id).persons_version
        persons = service.named(service.persons_of(session, dataset_id))
    if not version:
        return
    try:
        heads.keep_named(NamedPersons(dataset=dataset_id, version=version, persons=persons))
    except (OSError, UnreadableHeadError, SupersededError, Unavailable) as error:
        logger.error("the persons of %s could not be recorded yet: %s", dataset_id, type(error).__name__)
        raise Unavailable("the persons who decide on this data set cannot be recorded: try again later") from None


def _adopt(session: Session, recorded: NamedPersons) -> None:
    row = session.get_one(Dataset, recorded.dataset, with_for_update={"key_share": True}, populate_existing=True)
    if row.persons_version > recorded.version or (
        row.persons_version == recorded.version and _is_here(session, recorded)
    ):
        return
    persons = _known(session, recorded)
    if recorded.persons.persons and len(set(persons.values())) < FEWEST:
        raise refusal("it does not know the keys of two of the persons who decide on this data set")
    service.replace_persons(session, row.id, persons)
    row.persons_version = recorded.version
    audit.record(session, "persons.set", row.id, persons=sorted(recorded.persons.persons), because="restored")
    logger.error("the persons of %s were not in the database: they are taken from their record", row.id)


def _known(session: Session, recorded: NamedPersons) -> dict[str, str]:
    """The person of each recorded key that this database knows."""
    by_key = recorded.persons.by_key()
    keys = select(ApiKey.id).where(ApiKey.id.in_(by_key)).order_by(ApiKey.id)
    return {key: by_key[key] for key in session.scalars(keys)}


def _is_here(session: Session, recorded: NamedPersons) -> bool:
    return service.persons_of(session, recorded.dataset) == _known(session, recorded)
