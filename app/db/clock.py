"""The single clock that writes and judges leases, whatever other clocks say.

    PostgreSQL   the server's clock_timestamp(), evaluated when the statement reads it
    SQLite       the machine's CLOCK_BOOTTIME, which nobody sets and which continues while the machine sleeps

A moment is a pair: the clock's name, and seconds on it. SQLite's clock is named after the boot: it restarts with the
machine, when no earlier worker is alive. So a moment of a clock with another name has passed.
"""

from __future__ import annotations

import time
from datetime import datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Any

from sqlalchemy import BindParameter, ColumnElement, DateTime, Float, String, and_, func, or_, select
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.orm import InstrumentedAttribute, Session
from sqlalchemy.sql.functions import FunctionElement

from core.ids import now

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
EPOCH = "CAST(EXTRACT(EPOCH FROM clock_timestamp()) AS DOUBLE PRECISION)"
Seconds = InstrumentedAttribute[float | None] | ColumnElement[float | None]
Name = InstrumentedAttribute[str | None]


class Reading(FunctionElement[float]):
    """The clock's seconds, in SQL."""

    type = Float(53)
    inherit_cache = True


class ClockName(FunctionElement[str]):
    """The clock's name, in SQL."""

    type = String(200)
    inherit_cache = True


class Ago(FunctionElement[datetime]):
    """The time of day so many seconds ago, by the database's clock, in SQL: as `now_there`."""

    type = DateTime(timezone=True)
    inherit_cache = True


@compiles(Ago)
def _ago_of_server(element: Ago, compiler: Any, **options: Any) -> str:
    return f"(clock_timestamp() - {compiler.process(element.clauses, **options)} * interval '1 second')"


@compiles(Ago, "sqlite")
def _ago_of_machine(element: Ago, compiler: Any, **options: Any) -> str:
    return f"scrimp_ago({compiler.process(element.clauses, **options)})"


@compiles(Reading)
def _reading_of_server(_element: Reading, _compiler: Any, **_: Any) -> str:
    return EPOCH


@compiles(Reading, "sqlite")
def _reading_of_machine(_element: Reading, _compiler: Any, **_: Any) -> str:
    return "scrimp_boottime()"


@compiles(ClockName)
def _name_of_server(_element: ClockName, _compiler: Any, **_: Any) -> str:
    return "'database'"


@compiles(ClockName, "sqlite")
def _name_of_machine(_element: ClockName, _compiler: Any, **_: Any) -> str:
    return "scrimp_boot()"


def in_seconds(seconds: float | BindParameter[float]) -> ColumnElement[float]:
    """The moment this many seconds from now, in SQL."""
    return Reading() + seconds


def has_passed(until: Seconds, clock: Name) -> ColumnElement[bool]:
    """The condition that a moment has passed; it is false for null."""
    return and_(until.is_not(None), _is_over(until, clock))


def none_or_passed(until: Seconds, seconds: ColumnElement[float] | float, clock: Name) -> ColumnElement[bool]:
    """The condition that a moment has passed since so many seconds; it is true for null."""
    return or_(until.is_(None), _is_over(until + seconds, clock))


def _is_over(until: Seconds, clock: Name) -> ColumnElement[bool]:
    return or_(clock.is_distinct_from(ClockName()), until <= Reading())


def now_there(session: Session) -> datetime:
    """The time of day by the database's clock, for comparison with times that other hosts wrote."""
    if session.get_bind().dialect.name == "sqlite":
        return now()
    database_now: datetime = session.execute(select(func.clock_timestamp())).scalar_one()
    return database_now


def ago(seconds: float) -> str:
    """The time of day so many seconds ago, as SQLite stores it."""
    return f"{now() - timedelta(seconds=seconds):%Y-%m-%d %H:%M:%S.%f}"


def boottime() -> float:
    """SQLite's clock: seconds since the machine started, including sleep."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


@cache
def boot() -> str:
    """The name of SQLite's clock."""
    return BOOT_ID.read_text().strip()
