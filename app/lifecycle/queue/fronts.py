"""Reads the front of the queue: of each key with queued jobs on a data set, the first ones that a worker may take.

One statement, built once for each shape of worker. A line has a key's jobs on a data set in one lane: all ask for the
same device and ranks. The statement steps through the queue's index from line to line. Where the worker serves the
lane it reads the first job, and those before it that wait after a crash, for a release or for a record. With
each job come the limit, the weights and the last claims that decide whose turn it is.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from types import SimpleNamespace
from typing import Any, NamedTuple

from sqlalchemy import (
    CTE,
    BindParameter,
    ColumnElement,
    Integer,
    Select,
    String,
    and_,
    bindparam,
    case,
    cast,
    exists,
    false,
    func,
    literal_column,
    or_,
    select,
    true,
)
from sqlalchemy.orm import aliased

from app.db.clock import Ago
from app.db.models import ApiKey, ClaimTurn, Dataset, Job, LedgerEntry, Worker
from app.db.trip import Reply, Trip
from app.lifecycle.queue.presence import LEASE_S
from app.lifecycle.queue.room import Room
from app.lifecycle.queue.turns import Pair, Turn, Turns
from app.lifecycle.states import IN_ORDER, IS_DUE, NEEDS_GPU, among, due_for, in_queue, lanes
from core.contracts.devices import Kind

PATIENCE = 20  # leases that a job waits at least for the release that began it
EVERY_KEY = ""  # in place of a key: the latest claim of an owner's keys
ROOM_FOR_ONE = Room(1)
ONE = literal_column("1", Integer)  # PostgreSQL plans for a tenth of all rows where the limit is a parameter


@dataclass(frozen=True)
class Able:
    """What a worker may run.

    Attributes:
        room: see `fair.claim_next`.
        full: the kinds of device for which it has no room now.
    """

    room: Room = ROOM_FOR_ONE
    full: frozenset[str] = frozenset()

    @property
    def lanes(self) -> list[str]:
        """The lanes whose jobs it takes."""
        limits: dict[Kind, int] = {"cpu": self.room.ranks, "cuda": self.room.gpus}
        return [lane for kind, limit in limits.items() if kind not in self.full for lane in lanes(kind, limit)]


class Candidate(NamedTuple):
    """The first queued job of a key on an owner's data."""

    owner: str
    key: str
    dataset_id: str
    job_id: str
    created_at: datetime
    study: str | None = None

    @property
    def pair(self) -> Pair:
        """Who waits with it."""
        return (self.owner, self.key)

    @property
    def holder(self) -> str:
        """Whose hold it draws on: its own, or its study's."""
        return self.study or self.job_id


@dataclass(frozen=True)
class Fronts:
    """Who waits.

    Attributes:
        waiting: the first job of each pair that the worker may take.
        limits: of running jobs, by key.
        weights: of the keys and owners that wait.
        turns: the last claims of those who wait, and of their owners.
    """

    waiting: list[Candidate]
    limits: Mapping[str, int | None]
    weights: Mapping[str, int]
    turns: Turns

    @classmethod
    def of(cls, rows: Iterable[SimpleNamespace]) -> Fronts:
        """Reads the rows of a `front`: one for each line. A key's lines on an owner's data sets are one pair."""
        best: dict[Pair, tuple[int, datetime, str, Candidate]] = {}
        limits, weights = dict[str, int | None](), dict[str, int]()
        last, latest = dict[Pair, Turn](), (0, 0)
        for row in rows:
            candidate = Candidate(row.owner, row.key, row.dataset_id, row.job_id, row.created_at, row.study)
            place = (-row.priority, candidate.created_at, candidate.job_id, candidate)
            best[candidate.pair] = min(place, best.get(candidate.pair, place), key=lambda entry: entry[:3])
            limits[row.key], weights[row.key], weights[row.owner] = row.most, row.weight, row.owner_weight
            if row.of_owner is not None:
                last[row.owner, EVERY_KEY] = Turn(row.of_owner, row.of_owner_start, row.of_owner_key_start)
            if row.turn is not None:
                last[candidate.pair] = Turn(row.turn, row.owner_start, row.key_start)
            latest = (row.latest or 0, row.latest_start or 0)
        return cls([each[3] for each in best.values()], limits, weights, Turns(last, latest))


def ask(
    trip: Trip, worker: str, lease_s: float, able: Able, passed: Collection[str] = (), behind: Collection[str] = ()
) -> Reply:
    """Asks for the fronts of all lines; read them by `Fronts.of`.

    Args:
        worker: its name; its release is that of its row in the list of workers.
        passed: jobs to skip.
        behind: data sets whose jobs to skip.
    """
    jobs, data_sets = _filled("passed", passed), _filled("behind", behind)
    values = {"worker": worker, "lease_s": lease_s} | jobs | data_sets
    return trip.send(_front(able, len(jobs), len(data_sets)), values)


def _filled(name: str, ids: Collection[str]) -> dict[str, str]:
    """A statement's parameters for some ids. The last fills up the next power of two, so that there are few statements
    however many ids there are."""
    listed = list(ids)
    listed += listed[-1:] * ((1 << (len(listed) - 1).bit_length()) - len(listed))
    return {f"{name}_{n}": each for n, each in enumerate(listed)}


def _parameters(name: str, count: int) -> list[BindParameter[str]]:
    return [bindparam(f"{name}_{n}", type_=String) for n in range(count)]


def _lines() -> CTE:
    """The keys with queued jobs, on which data sets and in which lanes: a few look-ups of the queue's index for each
    line."""
    job, later = aliased(Job), aliased(Job)
    queued = in_queue(later)
    line, parts = (later.key_id, later.dataset_id, later.lane), (job.key_id, job.dataset_id, job.lane)

    def first(*conditions: ColumnElement[bool]) -> Select[str]:
        return select(later.id).where(*queued, *conditions).order_by(*line).limit(ONE)

    lines = select(*parts).where(job.id == first().scalar_subquery()).cte("lines", recursive=True)
    of_key, of_data_set = later.key_id == lines.c.key_id, later.dataset_id == lines.c.dataset_id
    # SQLite would pass over a whole line to compare the columns at once.
    nearest = (
        first(of_key, of_data_set, later.lane > lines.c.lane),
        first(of_key, later.dataset_id > lines.c.dataset_id),
        first(later.key_id > lines.c.key_id),
    )
    following = func.coalesce(*(each.correlate(lines).scalar_subquery() for each in nearest))
    return lines.union_all(select(*parts).select_from(lines).join(job, job.id == following))


# Built once: an alias has a column for each of a job's.
LINES, FIRST = _lines(), aliased(Job)
KEY, OWNER, OTHERS = aliased(ApiKey), aliased(ApiKey), aliased(ClaimTurn)


@lru_cache(64)
def _front(able: Able, passed: int, behind: int) -> Select[Any]:
    """The statement: of each line its first job that may be taken, and what decides whose turn it is.

    Args:
        passed, behind: how many jobs and data sets are skipped.
    """
    skipped = [Job.id.not_in(_parameters("passed", passed))] if passed else []
    # PostgreSQL takes plain conditions for rarely true, and would sort a whole line. Of a CASE it knows nothing.
    may = case((and_(IS_DUE, _of_release(), *skipped, ~_pays_on(behind)), true()), else_=false())
    of_line = (Job.key_id == LINES.c.key_id, Job.dataset_id == LINES.c.dataset_id, Job.lane == LINES.c.lane)
    first = (
        select(Job.id)
        .where(*of_line, *in_queue(Job), may)
        .order_by(*IN_ORDER)
        .limit(ONE)
        .correlate(LINES)
        .scalar_subquery()
    )
    serves = among(LINES.c.lane, *able.lanes) if able.lanes else false()
    firsts = select(case((serves, first)).label("id")).select_from(LINES).cte("firsts")
    heads = (
        select(
            *(Dataset.owner_key.label("owner"), FIRST.key_id.label("key"), FIRST.dataset_id, FIRST.id.label("job_id")),
            *(FIRST.created_at, FIRST.parent_id.label("study"), FIRST.priority),
        )
        .select_from(firsts)
        .join(FIRST, FIRST.id == firsts.c.id)
        .join(Dataset, Dataset.id == FIRST.dataset_id)
        .cte("heads")
    )
    owners = select(heads.c.owner).distinct()
    of_owners = (
        select(
            OTHERS.owner_key,
            func.max(OTHERS.turn).label("turn"),
            func.max(OTHERS.owner_start).label("owner_start"),
            func.max(OTHERS.key_start).label("key_start"),
        )
        .where(OTHERS.owner_key.in_(owners))
        .group_by(OTHERS.owner_key)
        .cte("of_owners")
    )
    # Each is the end of an index.
    latest, latest_start = (select(func.max(each)).scalar_subquery() for each in (OTHERS.turn, OTHERS.owner_start))
    mine = and_(ClaimTurn.owner_key == heads.c.owner, ClaimTurn.key_id == heads.c.key)
    return (
        select(
            *heads.c,
            *(KEY.max_running_jobs.label("most"), KEY.weight, OWNER.weight.label("owner_weight")),
            *(ClaimTurn.turn, ClaimTurn.owner_start, ClaimTurn.key_start),
            of_owners.c.turn.label("of_owner"),
            of_owners.c.owner_start.label("of_owner_start"),
            of_owners.c.key_start.label("of_owner_key_start"),
            *(latest.label("latest"), latest_start.label("latest_start")),
        )
        .select_from(heads)
        .join(KEY, KEY.id == heads.c.key)
        .join(OWNER, OWNER.id == heads.c.owner)
        .outerjoin(ClaimTurn, mine)
        .outerjoin(of_owners, of_owners.c.owner_key == heads.c.owner)
    )


def _of_release() -> ColumnElement[bool]:
    """The condition that a job waits for no worker of another release, or with another card.

    A job goes on from its checkpoint, and to the same bits, where the release that began it runs (decision 38). So it
    waits for a living worker of that release with its kind of device: `PATIENCE` leases, or as long as it has run
    (whole seconds), as that is the time that another release needs to repeat its steps. Such a worker may be busy or
    stuck, so no job waits longer. A GPU, its driver and cuDNN round as others do not: a job that ran on one waits for
    a worker with the same, too.
    """
    me = aliased(Worker)
    mine, finishes, card = (
        select(each).where(me.name == bindparam("worker", type_=String)).scalar_subquery()
        for each in (me.release, me.finishes, me.card)
    )
    of_release = Job.release == mine
    began = and_(of_release, or_(Job.card.is_(None), Job.card == card))
    has_device = or_(~NEEDS_GPU, Worker.devices[0]["kind"].as_string() == "cuda")
    same_card = or_(Job.card.is_(None), Worker.card == Job.card)
    able = exists().where(Worker.release == Job.release, Worker.seen_at > Ago(LEASE_S), has_device, same_card)
    least_s, ran_s = PATIENCE * LEASE_S, cast(Job.ran_s, Integer)
    may = or_(Job.release.is_(None), began, ~able, due_for(case((ran_s > least_s, ran_s), else_=least_s)))
    return or_(mine.is_(None), and_(may, or_(~func.coalesce(finishes, false()), of_release)))


def _pays_on(behind: int) -> ColumnElement[bool]:
    """The condition that a job, or its study, holds on one of these data sets: others of the same data set go on."""
    if not behind:
        return false()
    key = "hold:" + func.coalesce(Job.parent_id, Job.id)
    return exists().where(LedgerEntry.dataset_id.in_(_parameters("behind", behind)), LedgerEntry.once == key)
