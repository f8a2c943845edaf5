"""How far this process' own clock is from the database's."""

from __future__ import annotations

from sqlalchemy import select

from app.db.clock import Reading
from app.db.database import Database
from core.ids import now


def skew_s(db: Database) -> float:
    """How far this process' own clock is ahead of the database's, to a tenth of a second: finer digits would reveal how
    busy the machine is. 0 with SQLite: one machine has one clock.

    Leases do not need it. Displayed times and the expiry of keys use each process' own clock.
    """
    if db.engine.dialect.name == "sqlite":
        return 0.0
    with db.quick_read() as connection:
        earlier = now().timestamp()
        database_time = connection.execute(select(Reading())).scalar_one()
        return round((earlier + now().timestamp()) / 2 - database_time, 1)
