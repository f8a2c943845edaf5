"""What PostgreSQL promises of a commit when a server is lost, asked of the server itself.

A standby that is promoted before it has all commits is a ledger that was set back. The recorded heads show it, and
close the data sets concerned until `scrimp restore`. A synchronous standby has each commit before it is answered.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from sqlalchemy import text

from app.db.database import Database

QUERY = text(
    "SELECT current_setting('fsync') AS fsync, current_setting('synchronous_commit') AS commits, "
    "current_setting('synchronous_standby_names') AS names, pg_is_in_recovery() AS recovers, "
    "(SELECT count(*) FROM pg_stat_replication) AS followers, "
    "(SELECT count(*) FROM pg_stat_replication WHERE sync_state IN ('sync', 'quorum')) AS waited, "
    "pg_has_role('pg_read_all_stats', 'usage') AS sees"
)
PAGE = "docs/failover.md"
BEHIND = "the data sets whose last entries are lost are closed until `scrimp restore`"


@dataclass(frozen=True)
class Durability:
    """One thing that the server promises or does not.

    Attributes:
        says, advice: as of a finding of the doctor.
    """

    state: Literal["ok", "warning", "fault"]
    says: str
    advice: str = ""


def durability(db: Database) -> Iterator[Durability]:
    """What holds of a commit that PostgreSQL has answered; nothing is said of SQLite, which the service itself sets."""
    if db.engine.dialect.name != "postgresql":
        return
    with db.quick_read() as connection:
        row = connection.execute(QUERY).one()
    if row.recovers:
        advice = "name all servers in SCRIMP_DATABASE_URL, with target_session_attrs=read-write: " + PAGE
        yield Durability("fault", "this server is a standby: nothing can be written", advice)
        return
    if row.fsync == "off":
        advice = "set fsync = on: the service's database is not made for less"
        yield Durability("fault", "fsync is off: a crash may leave a damaged database", advice)
    if row.commits == "off":
        says = f"synchronous_commit is off: a crash of the server loses the last commits, and {BEHIND}"
        yield Durability("warning", says, "set synchronous_commit = on, for this database and role too")
    yield _standbys(row.names, row.commits, row.followers, row.waited if row.sees else None)


def _standbys(names: str, commits: str, followers: int, waited: int | None) -> Durability:
    """What holds when a standby is promoted.

    Args:
        names: `synchronous_standby_names`.
        commits: `synchronous_commit`.
        followers: how many connections read the server's log now: standbys, backups, archives.
        waited: how many of them are synchronous standbys; None if this role may not know.
    """
    if not names:
        if not followers:
            return Durability("ok", "no standby follows this server")
        says = (
            f"no commit waits for the standbys ({followers} read the log): a promoted one may lack some, and {BEHIND}"
        )
        return Durability("warning", says, f"set synchronous_standby_names, if you promote standbys: {PAGE}")
    if commits in ("off", "local"):
        says = f"commits wait for no standby, as synchronous_commit is {commits}: one that is promoted may lack some"
        return Durability("warning", says, f"set synchronous_commit = on, for this database and role too: {PAGE}")
    if waited == 0:
        says = f"no standby of synchronous_standby_names ({names}) is here: commits wait until one is"
        return Durability("fault", says, "start the standby, or change synchronous_standby_names")
    if commits == "remote_write":
        says = "synchronous_commit is remote_write: if both hosts lose power, the standby may lack commits"
        return Durability("warning", says, f"set synchronous_commit = on: {PAGE}")
    return Durability("ok", f"commits wait for standbys: {names}")
