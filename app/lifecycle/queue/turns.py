"""Weighted turns: of those who always wait, one of weight 3 gets three claims for each of one of weight 1.

Start-time fair queueing (Goyal, Vin and Cheng, 1996), once among the owners of data and once among the keys on each
owner's data. A claim starts at a virtual time. The next one of the same owner starts 1/weight later, or at the start of
the latest claim of all, whichever is later: who was idle has saved nothing up, and who is new waits no longer than
others. The earliest start is next; of equal ones the one with the oldest turn.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import cache
from typing import NamedTuple

from sqlalchemy import Insert, bindparam, func, literal_column, select, true
from sqlalchemy.orm import Session

from app.db.models import ClaimTurn, table_of
from app.db.trip import Trip
from app.db.upsert import insert_of

Pair = tuple[str, str]  # owner of the data, key of the job
# The virtual time of one claim at weight 1. All weights up to 20 divide it, so their shares are exact; others have
# less than a millionth too little.
ROUND = 232_792_560
# PostgreSQL's until the transaction ends, with an arbitrary number of ours; SQLite has one writer at a time anyway.
# Planning the queue's statement takes as long as running it.
LINE = 6062748
NEXT_IN_LINE = select(
    func.pg_advisory_xact_lock(literal_column(f"{LINE}")).label("place"),
    func.set_config("plan_cache_mode", "force_generic_plan", true()).label("plan_cache_mode"),
)


class Turn(NamedTuple):
    """The last claim of a pair: its number among all claims, and its starts among the owners and the owner's keys."""

    number: int
    owner_start: int
    key_start: int


class Turns:
    """Tells where the next claim of each pair would start.

    Args:
        last: the last claim of each pair; all pairs of an owner who waits.
        latest: the largest number and the latest start among the owners, over all pairs.
    """

    def __init__(self, last: Mapping[Pair, Turn], latest: tuple[int, int]) -> None:
        self._last = last
        self._number, self._owners_now = latest
        self._of_owner: dict[str, Turn] = {}  # the latest of its pairs' numbers and starts
        for (owner, _key), turn in last.items():
            last_turn = self._of_owner.get(owner, turn)
            number, start = max(last_turn.number, turn.number), max(last_turn.owner_start, turn.owner_start)
            self._of_owner[owner] = Turn(number, start, max(last_turn.key_start, turn.key_start))

    def next(self, pair: Pair, weights: Mapping[str, int]) -> Turn:
        """The turn that the pair's next claim would be. Weights are those of the owners' and the jobs' keys."""
        owner, key = pair
        latest, mine = self._of_owner.get(owner), self._last.get(pair)
        owner_start, key_start = self._owners_now, 0
        if latest is not None:
            owner_start = max(owner_start, latest.owner_start + _length(weights[owner]))
            key_start = latest.key_start
        if mine is not None:
            key_start = max(key_start, mine.key_start + _length(weights[key]))
        return Turn(self._number + 1, owner_start, key_start)

    def after(self, pair: Pair, turn: Turn) -> Turns:
        """The turns once a pair has taken this one."""
        return Turns({**self._last, pair: turn}, (turn.number, max(self._owners_now, turn.owner_start)))

    def oldest(self, pair: Pair) -> tuple[int, int]:
        """The numbers of the owner's and of the pair's last claim; 0 for none."""
        latest, mine = self._of_owner.get(pair[0]), self._last.get(pair)
        return latest.number if latest else 0, mine.number if mine else 0


def _length(weight: int) -> int:
    """The virtual time of one claim, rounded up."""
    return -(-ROUND // weight)


def turns_of(session: Session, owners: Collection[str]) -> Turns:
    """Reads the turns of these owners' pairs, and the latest ones of all."""
    columns = (ClaimTurn.owner_key, ClaimTurn.key_id, ClaimTurn.turn, ClaimTurn.owner_start, ClaimTurn.key_start)
    rows = session.execute(select(*columns).where(ClaimTurn.owner_key.in_(owners)))
    last = {(owner, key): Turn(turn, owner_start, key_start) for owner, key, turn, owner_start, key_start in rows}
    # Each is the end of an index.
    number, start = (select(func.max(column)).scalar_subquery() for column in (ClaimTurn.turn, ClaimTurn.owner_start))
    latest = session.execute(select(number, start)).one()
    return Turns(last, (latest[0] or 0, latest[1] or 0))


def rounds(running: int, weight: int, lowest: int) -> int:
    """How many whole rounds of jobs somebody runs: in a round each runs as many as its weight in units of the least one
    that waits. So equal weights compare the numbers of jobs, and weight 3 may run three for one of weight 1."""
    return running * lowest // weight


def wait_in_line(trip: Trip) -> None:
    """Waits for the end of every claim before this one, so that what is read next knows their turns. Claims choose and
    take one after the other; the claim's locks of rows come after this one."""
    if trip.connection.dialect.name == "postgresql":
        trip.send(NEXT_IN_LINE, {})


def note_turn(trip: Trip, pair: Pair, turn: Turn) -> None:
    """Records a pair's claim, which has waited in line."""
    values = {"turn": turn.number, "owner_start": turn.owner_start, "key_start": turn.key_start}
    trip.send(_noted(trip.connection.dialect.name), {"owner_key": pair[0], "key_id": pair[1], **values})


@cache
def _noted(dialect: str) -> Insert:
    new = insert_of(dialect, table_of(ClaimTurn))
    values = {name: new.excluded[name] for name in ("turn", "owner_start", "key_start")}
    new = new.values({name: bindparam(name) for name in ("owner_key", "key_id", *values)})
    return new.on_conflict_do_update(index_elements=["owner_key", "key_id"], set_=values)
