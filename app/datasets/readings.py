"""Registrations whose files are read in the background: their rows, and who may read one at a time.

accept ──▶ reading ──(store)──▶ ready      the data set exists, with the same id; the row tells its owner what was read
              │  ▲ lease expired
              │  └── the next claim     after `max_attempts` deaths: rejected
              ├──(refused)──▶ rejected   with the problem that a request would have been answered
              └──(withdrawn by its owner)──▶ gone

Owners take turns, also within a long file: it gives its reader up while another owner's waits, and begins again with a
slice of twice the time, so that all its slices take at most as long again as reading it once. A claim counts the
attempt. Every later write names the attempt and needs the state `reading`, so that of two processes that read one file,
one at most writes an end. Ended rows are deleted after a day. Only the owner
and admins see a row: for everybody else the data set does not exist before it is ready. A large block is a row too, and
that it was rejected its owner alone sees.
"""

from __future__ import annotations

import shutil
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from sqlalchemy import ColumnElement, Select, and_, case, delete, exists, func, or_, select, update
from sqlalchemy.orm import Session, aliased

from app.audit import record as audit
from app.datasets import storing, volume
from app.datasets.declaring import Declared
from app.datasets.sources import Arrived, Source
from app.datasets.storing import Block
from app.db.clock import ClockName, has_passed, in_seconds, now_there
from app.db.database import Database
from app.db.models import Dataset, DatasetReading, Worker
from app.db.newest import newest
from app.formats.row_faults import without_value
from app.grants.service import NO_SUCH_DATASET
from app.keys.service import Caller
from app.settings import Settings
from app.storage.folder import stale
from core.contracts.dataset_spec import DatasetSpec
from core.contracts.stored_documents import ReadingOutcome
from core.disk import keep
from core.errors import InvalidRequest, NotFound, ServiceError
from core.ids import new_id, now

KIND = "reading"  # the folder under the storage root
KEPT = timedelta(days=1)  # how long the owner sees the outcome
READ = DatasetReading
ANY_READING = select(READ.id).where(READ.state == "reading").limit(1)
# That a block was refused is told to its owner alone: a count of such rows, too, is a function of one unit.
TOLD_TO_ADMINS = or_(READ.parent_id.is_(None), READ.state != "rejected")
TAKEN = ("id", "attempt", "deaths", "slices", "owner_key", "name", "parent_id", "label", "spec", "sources")


class Lost(Exception):
    """Another process reads the file now, or its owner has withdrawn it."""


@dataclass(frozen=True)
class Claimed:
    """A registration that this process reads."""

    id: str
    attempt: int
    deaths: int
    slices: int
    owner_key: str
    spec: DatasetSpec
    sources: dict[str, Source]
    block: Block | None = None

    @property
    def mine(self) -> ColumnElement[bool]:
        """The condition that nobody else has claimed it since."""
        return and_(READ.id == self.id, READ.state == "reading", READ.attempt == self.attempt)


def begin(
    session: Session,
    settings: Settings,
    owner_key: str,
    spec: DatasetSpec,
    arrived: Arrived,
    block: Block | None = None,
) -> DatasetReading:
    """Writes the row of an accepted registration, or block, and keeps its files."""
    name = spec.name if block is None else block.name
    row = DatasetReading(
        id=new_id("ds"),
        name=name,
        holds_name=name,
        owner_key=owner_key,
        parent_id=None if block is None else block.parent_id,
        label=None if block is None else block.label,
        state="reading",
        spec=spec.model_dump(mode="json"),
        sources={name: each.model_dump(mode="json") for name, each in arrived.sources.items()},
        bytes=arrived.size,
        created_at=now(),
        volume=volume.ensure(settings),
    )
    session.add(row)
    session.flush()
    keep(settings.arrivals_root, arrived.folder, row.id, KIND)
    return row


def folder_of(settings: Settings, dataset_id: str) -> Path:
    """Where the files of a registration wait."""
    return settings.arrivals_root / KIND / dataset_id


def adopt(db: Database, settings: Settings) -> None:
    """Names the volume of registrations that the last release accepted, if their files are here."""
    with db.read() as session:
        nameless = session.scalars(select(READ.id).where(READ.state == "reading", READ.volume.is_(None))).all()
    ids = [each for each in nameless if folder_of(settings, each).exists()]
    if ids:
        naming = update(READ).where(READ.id.in_(ids)).values(volume=volume.ensure(settings))
        with db.write() as session:
            session.execute(naming, execution_options={"synchronize_session": False})


def elsewhere(db: Database, settings: Settings) -> int:
    """How many registrations wait on volumes that this process does not see."""
    count = select(func.count()).where(READ.state == "reading", READ.volume != volume.of(settings))
    with db.read() as session:
        return session.scalar(count) or 0


def _is_served(session: Session, at: str | None, lease_s: float) -> bool:
    """Whether an ingest worker of this volume was seen within a lease's time."""
    since = now_there(session) - timedelta(seconds=lease_s)
    living = select(Worker.name).where(Worker.volume == at, Worker.seen_at > since).limit(1)
    return session.scalar(living) is not None


def claim(
    db: Database,
    lease_s: float,
    passed: Collection[str] = (),
    at: str | None = None,
    *,
    spare: bool = False,
) -> Claimed | None:
    """Takes the registration whose turn it is, of those that nobody reads; None if there is none.

    Owners take turns, so that one with many slow files delays another's by one of them at most: first comes the owner
    with the fewest files being read, then the one whose last turn ended longest ago. Among an owner's files it is the
    one with the fewest attempts, then the oldest.

    Args:
        passed: owners whose turn it is not.
        at: the volume whose files this process sees; None: any.
        spare: it reads only where no living ingest worker does.
    """
    with db.quick_read() as connection:
        if connection.scalar(ANY_READING) is None:
            return None
    free = _free(at)
    other = aliased(DatasetReading)
    is_read = and_(other.lease_until.is_not(None), ~has_passed(other.lease_until, other.lease_clock))
    of_owner = other.owner_key == READ.owner_key
    busy = select(func.count()).where(of_owner, other.state == "reading", is_read).scalar_subquery()
    last = select(func.max(func.coalesce(other.ended_at, other.turn_ended_at))).where(of_owner).scalar_subquery()
    turns = (busy, last.asc().nulls_first(), READ.attempt, READ.created_at, READ.id)
    next_one = select(READ.id, READ.attempt).where(free, READ.owner_key.not_in(passed)).order_by(*turns).limit(1)
    with db.read() as session:
        if spare and _is_served(session, at, lease_s):
            return None
        claimed_row = session.execute(next_one).one_or_none()
    if claimed_row is None:
        return None
    died = case((READ.lease_until.is_(None), 0), else_=1)
    taken = (
        update(READ)
        .where(READ.id == claimed_row.id, READ.attempt == claimed_row.attempt, free)
        .values(
            attempt=READ.attempt + 1,
            deaths=READ.deaths + died,
            bytes_read=0,
            lease_until=in_seconds(lease_s),
            lease_clock=ClockName(),
        )
        .returning(*(getattr(READ, name) for name in TAKEN))
    )
    with db.write() as session:
        row = session.execute(taken, execution_options={"synchronize_session": False}).one_or_none()
    if row is None:
        return None
    sources = {name: Source.model_validate(each) for name, each in row.sources.items()}
    spec = DatasetSpec.model_validate(row.spec)
    block = None if row.parent_id is None else Block(row.parent_id, row.label, row.name)
    return Claimed(row.id, row.attempt, row.deaths, row.slices, row.owner_key, spec, sources, block)


def _free(at: str | None) -> ColumnElement[bool]:
    """The condition that nobody reads a registration. `at`: as in `claim`."""
    free = and_(
        READ.state == "reading", or_(READ.lease_until.is_(None), has_passed(READ.lease_until, READ.lease_clock))
    )
    return free if at is None else and_(free, READ.volume == at)


def others_wait(db: Database, claimed: Claimed, at: str | None) -> bool:
    """True if another owner's registration waits for a reader. `at`: as in `claim`."""
    waiting = select(READ.id).where(_free(at), READ.owner_key != claimed.owner_key).limit(1)
    with db.read() as session:
        return session.scalar(waiting) is not None


def renew(db: Database, claimed: Claimed, lease_s: float, bytes_read: int) -> None:
    """Extends the lease and writes progress. Raises Lost if the claim is gone."""
    with db.write(urgent=True) as session:
        largest = case((READ.bytes < bytes_read, READ.bytes), else_=bytes_read)
        _mine(session, claimed, lease_until=in_seconds(lease_s), lease_clock=ClockName(), bytes_read=largest)


def release(db: Database, claimed: Claimed) -> None:
    """Lets another process claim it at once: this one stops, and did not die."""
    with db.write() as session:
        _mine(session, claimed, lease_until=None)


def end_turn(db: Database, claimed: Claimed) -> None:
    """Puts the registration behind other owners': it is read from the beginning, with a longer slice."""
    with db.write() as session:
        _mine(session, claimed, lease_until=None, slices=READ.slices + 1, turn_ended_at=now())


def end(session: Session, claimed: Claimed, declaration: Declared) -> None:
    """Writes what was read, in the transaction that stores the data set. Raises Lost if the claim is gone."""
    outcome = ReadingOutcome(read=declaration.findings.value.counts, warnings=declaration.findings.value.warnings)
    session.execute(update(READ).where(READ.id == claimed.id).values(outcome=outcome))


def begin_end(session: Session, claimed: Claimed) -> None:
    """Takes the row for the transaction that stores the data set, before anything is put in place.

    Raises:
        Lost: the claim is gone.
    """
    _mine(session, claimed, state="ready", holds_name=None, bytes_read=READ.bytes, lease_until=None, ended_at=now())


def reject(db: Database, claimed: Claimed, error: ServiceError) -> None:
    """Writes why it is no data set, in the words of a request's answer. Raises Lost if the claim is gone."""
    outcome = ReadingOutcome(problem=_without_values(error.document))
    with db.write() as session:
        _mine(session, claimed, state="rejected", holds_name=None, outcome=outcome, lease_until=None, ended_at=now())
        if claimed.block is None:  # that a block was refused is told to its owner alone (decision 25)
            audit.record(session, "dataset.rejected", claimed.id)


def _without_values(problem: dict[str, Any]) -> dict[str, Any]:
    """A refusal as it is stored: rows, columns and reasons, but no value of a cell."""
    errors = [without_value(entry) for entry in problem.get("errors", ())]
    return problem | {"errors": errors} if errors else problem


def withdraw(db: Database, settings: Settings, caller: Caller, dataset: str) -> DatasetReading | None:
    """Forgets a registration that is being read or was rejected, with its files; None if there is no such one.

    Whoever reads it notices within a heartbeat.
    """
    with db.write() as session:
        row = find(session, caller, dataset)
        if row is None:
            return None
        gone = delete(READ).where(READ.id == row.id, READ.state != "ready").returning(READ.id)
        if session.execute(gone, execution_options={"synchronize_session": False}).one_or_none() is None:
            return None
        audit.record(session, "dataset.withdrawn", row.id)
        session.expunge(row)
    forget(settings, row.id)
    return row


def forget(settings: Settings, dataset_id: str) -> None:
    """Removes all files of a registration that will be no data set."""
    shutil.rmtree(folder_of(settings, dataset_id), ignore_errors=True)
    # An attempt that died before its commit may have put the parts in their place already.
    storing.remove(settings, dataset_id)


def clean_up(db: Database, settings: Settings, dataset_id: str) -> None:
    """Removes what a process that lost its claim may have written after the registration's end."""
    with db.read() as session:
        if session.scalar(select(READ.state).where(READ.id == dataset_id)) == "reading":
            return  # the next one needs the file, and removes the rest
        is_stored = session.get(Dataset, dataset_id) is not None
    if is_stored:
        shutil.rmtree(folder_of(settings, dataset_id), ignore_errors=True)
    else:
        forget(settings, dataset_id)


def find(session: Session, caller: Caller, dataset: str) -> DatasetReading | None:
    """A registration of this caller (for admins: of anybody) that is no data set, by its id, or by the name that it
    asks for, unless a data set has it; the one that is being read before those that were rejected."""
    taken = exists().where(Dataset.name == dataset)
    by_name = or_(READ.id == dataset, and_(READ.name == dataset, ~taken))
    order = (READ.holds_name.is_(None), READ.created_at.desc(), READ.id)
    return session.scalars(select(READ).where(by_name, READ.state != "ready", _seen(caller)).order_by(*order)).first()


def require(session: Session, caller: Caller, dataset: str) -> DatasetReading:
    """Like `find`; raises NotFound if there is none."""
    reading = find(session, caller, dataset)
    if reading is None:
        raise NotFound(NO_SUCH_DATASET)
    return reading


def outcome(session: Session, caller: Caller, dataset_id: str) -> DatasetReading | None:
    """What was read of a data set in the background, for its owner, as long as it is kept."""
    return session.scalars(select(READ).where(READ.id == dataset_id, READ.state == "ready", _seen(caller))).first()


def states(caller: Caller, dataset_id: str) -> Select[str, str, int]:
    """Selects the state of a registration, and the bytes that are read, as the caller may see it; "ready" too."""
    columns = select(READ.id, READ.state, READ.bytes_read)
    return columns.where(READ.id == dataset_id, _seen(caller))


def page(session: Session, caller: Caller, *, after: tuple[datetime, str] | None, limit: int) -> list[DatasetReading]:
    """The caller's registrations that are no data sets, newest first; one more than requested. Without blocks."""
    query = select(READ).where(READ.state != "ready", READ.parent_id.is_(None), _seen(caller))
    return newest(session, query, READ, after=after, limit=limit)


def blocks_of(session: Session, caller: Caller, dataset_id: str) -> list[DatasetReading]:
    """The blocks of a data set that are read, or were rejected, in the order of their arrival, as the caller may see
    them."""
    query = select(READ).where(READ.state != "ready", READ.parent_id == dataset_id, _seen(caller))
    return list(session.scalars(query.order_by(READ.created_at, READ.id)))


def sweep(db: Database, settings: Settings) -> None:
    """Deletes ended rows after a day, and the folders that no registration needs."""
    with db.write() as session:
        session.execute(delete(READ).where(READ.ended_at < now() - KEPT))
    adopt(db, settings)
    _reject_lost(db, settings)
    with db.read() as session:
        needed = set(session.scalars(select(READ.id).where(READ.state == "reading")))
    for root in {settings.storage_root, settings.arrivals_root}:  # where the last release left them, too
        for folder in stale(root, KIND):
            if folder.name not in needed:
                shutil.rmtree(folder, ignore_errors=True)


def _reject_lost(db: Database, settings: Settings) -> None:
    """Ends registrations that nobody reads any more: their files were on a machine, or a volume, that is gone."""
    local = volume.of(settings)
    if local is None:  # this process sees no files: it cannot tell
        return
    oldest = now() - timedelta(hours=settings.upload_kept_hours, seconds=settings.read_time_s)
    idle = or_(READ.lease_until.is_(None), has_passed(READ.lease_until, READ.lease_clock))
    unseen = READ.volume.is_distinct_from(local)
    old = select(READ).where(READ.state == "reading", READ.created_at < oldest, idle, unseen)
    with db.read() as session:
        lost = session.scalars(old).all()
    gone = InvalidRequest.at("/file", "the machine that had the file is gone: register it again")
    for row in lost:
        spec = DatasetSpec.model_validate(row.spec)
        with suppress(Lost):
            block = None if row.parent_id is None else Block(row.parent_id, row.label or "", row.name)
            reject(db, Claimed(row.id, row.attempt, row.deaths, row.slices, row.owner_key, spec, {}, block), gone)


def _seen(caller: Caller) -> ColumnElement[bool]:
    if caller.is_admin:
        return or_(TOLD_TO_ADMINS, READ.owner_key == caller.id)
    return and_(READ.owner_key == (caller.id if caller.role == "owner" else None))


def _mine(session: Session, claimed: Claimed, **values: Any) -> None:
    fenced = update(READ).where(claimed.mine).values(**values).returning(READ.id)
    if session.execute(fenced, execution_options={"synchronize_session": False}).one_or_none() is None:
        raise Lost
