"""A standby is promoted: scripts/failover.py, with two real servers and a real service; and what the doctor says."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import pytest

from app.db.database import Database
from scrimp_server.standbys import durability
from scripts.failover import PORTS, Servers, drill, rehearsed, until, wheel


@pytest.mark.nightly  # by day test_drill.py sets databases back, and their address follows the server: below
@pytest.mark.slow
@pytest.mark.parametrize("synchronous", [False, True])
def test_nothing_is_overspent_after_a_failover(synchronous: bool) -> None:
    with rehearsed(wheel()) as (servers, service):
        drill(servers, service, synchronous=synchronous)


@pytest.fixture
def pair() -> Iterator[Servers]:
    with rehearsed(wheel()) as (servers, _):
        servers.start_both(synchronous=True)
        yield servers


def words(url: str) -> list[tuple[str, str]]:
    db = Database(url)
    try:
        return [(each.state, each.says) for each in durability(db)]
    finally:
        db.close()


def shows(pair: Servers, value: str) -> bool:
    return bool(pair.sql("first", "SHOW synchronous_commit") == value)


def test_the_doctor_knows_standbys(pair: Servers) -> None:
    assert words(pair.url) == [("ok", "commits wait for standbys: second")]
    pair.sql("first", "CREATE ROLE scrimp LOGIN")
    assert words(pair.url.replace("postgres@", "scrimp@")) == [("ok", "commits wait for standbys: second")]
    ((state, says),) = words(pair.url.replace("port=5432,5433", "port=5433,5433").replace("read-write", "any"))
    assert state == "fault" and "is a standby" in says
    for value, expected in (("local", "commits wait for no standby"), ("remote_write", "lose power")):
        pair.set("first", "synchronous_commit", value)
        until(partial(shows, pair, value))
        ((state, says),) = words(pair.url)
        assert state == "warning" and expected in says
    pair.set("first", "fsync", "off")
    pair.set("first", "synchronous_commit", "off")
    until(partial(shows, pair, "off"))
    assert [state for state, _ in words(pair.url)] == ["fault", "warning", "warning"]
    assert ["fsync is off" in words(pair.url)[0][1], "`scrimp restore`" in words(pair.url)[1][1]] == [True, True]
    pair.set("first", "fsync", "on")
    pair.set("first", "synchronous_commit", "on")
    pair.set("first", "synchronous_standby_names", "another")
    ((state, says),) = until(lambda: [each for each in words(pair.url) if "another" in each[1] and each[0] == "fault"])
    assert says == "no standby of synchronous_standby_names (another) is here: commits wait until one is"
    pair.set("first", "synchronous_standby_names", "")
    ((state, says),) = until(lambda: [each for each in words(pair.url) if "no commit waits" in each[1]])
    assert state == "warning" and "(1 read the log)" in says
    pair.kill("second")
    until(lambda: pair.sql("first", "SELECT count(*) FROM pg_stat_replication") == 0)
    assert words(pair.url) == [("ok", "no standby follows this server")]


def test_the_url_names_whichever_server_takes_writes(pair: Servers) -> None:
    """What docs/failover.md says of SCRIMP_DATABASE_URL."""
    db = Database(pair.url)
    try:
        for name in PORTS:
            with db.write() as session:
                port = session.connection().exec_driver_sql("SHOW port").scalar()
            assert port == str(PORTS[name])
            if name == "first":
                db.close()
                pair.kill("first")
                pair.promote()
    finally:
        db.close()
