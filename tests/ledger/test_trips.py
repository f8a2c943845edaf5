"""Round trips of several statements: what each sees and answers, and what the database refuses in them."""

from __future__ import annotations

import pytest
from sqlalchemy import Integer, bindparam, func, insert, select, update
from sqlalchemy.exc import DBAPIError, IntegrityError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from app.db.database import Database
from app.db.models import Account, ApiKey, table_of
from app.db.statement_batch import Together
from app.db.trip import round_trip
from app.ledger import accounts
from app.ledger.accounts import Hold, HoldTerms
from app.ledger.entries import ENTRIES
from tests.ledger.support import OWNER, balances, check, hold, open_ledger

ACCOUNTS = table_of(Account)
ACCOUNT = select(ACCOUNTS).where(ACCOUNTS.c.dataset_id == bindparam("dataset"))
ALL_ENTRIES = select(ENTRIES).where(ENTRIES.c.dataset_id == bindparam("dataset")).order_by(ENTRIES.c.seq)
KEYS = table_of(ApiKey)
KEY = select(KEYS).where(KEYS.c.id == bindparam("key"))
COUNT = (
    update(KEYS)
    .where(KEYS.c.id == bindparam("key"))
    .values(sign_outs=KEYS.c.sign_outs + bindparam("by", type_=Integer))
    .returning(KEYS.c.sign_outs)
)
MORE = {"key": OWNER, "by": 1}


def counted(db: Database) -> int:
    with db.read() as session:
        return session.get_one(ApiKey, OWNER).sign_outs


def on_postgresql(db: Database) -> None:
    if db.engine.dialect.name != "postgresql":
        pytest.skip("SQLite has no round trips")


def test_rows_are_those_of_single_statements(db: Database) -> None:
    dataset = open_ledger(db)
    hold(db, dataset, "job_1", 10, 20)
    with db.read() as session:
        with round_trip(session.connection()) as trip:
            replies = [trip.send(each, {"dataset": dataset}) for each in (ACCOUNT, ALL_ENTRIES, ACCOUNT)]
            nothing = trip.send(ACCOUNT, {"dataset": "missing"})
        found = [[vars(row) for row in reply.rows()] for reply in replies]
        plain = [session.connection().execute(each, {"dataset": dataset}) for each in (ACCOUNT, ALL_ENTRIES, ACCOUNT)]
        assert found == [[dict(row._mapping) for row in rows] for rows in plain]
        assert nothing.rows() == [] and nothing.one_or_none() is None
    assert len(found[1]) == 2 and replies[0].rows() is replies[0].rows()
    with pytest.raises(ValueError, match="2 rows in place of one"):
        replies[1].one_or_none()


def test_a_statement_sees_those_before_it(db: Database) -> None:
    before = counted(db)
    with db.write() as session, round_trip(session.connection()) as trip:
        first, second, read = (trip.send(*each) for each in ((COUNT, MORE), (COUNT, MORE), (KEY, {"key": OWNER})))
    rows = [reply.one_or_none() for reply in (first, second, read)]
    assert [None if row is None else row.sign_outs for row in rows] == [before + 1, before + 2, before + 2]
    assert counted(db) == before + 2


def test_an_error_is_sqlalchemy_s_and_undoes_all(db: Database) -> None:
    before, twice = (
        counted(db),
        insert(KEYS).from_select(["id"], select(KEYS.c.id).where(KEYS.c.id == bindparam("key"))),
    )
    whole = Together(KEY, twice)
    with pytest.raises(IntegrityError), db.write(in_trips=True) as session, round_trip(session.connection()) as trip:
        trip.send(COUNT, MORE)
        trip.send(whole, {"key": OWNER})
        trip.commit()
    assert counted(db) == before
    with db.write() as session, round_trip(session.connection()) as trip:  # the connection is whole
        trip.send(COUNT, MORE)
    assert counted(db) == before + 1


def test_a_commit_goes_with_the_last_statements(db: Database) -> None:
    before = counted(db)
    with db.write(in_trips=True) as session:
        with round_trip(session.connection()) as trip:
            trip.send(COUNT, MORE)
        with round_trip(session.connection()) as trip:
            trip.send(COUNT, MORE)
            trip.commit()
    assert counted(db) == before + 2


@pytest.mark.parametrize("trips", [1, 2])
def test_an_exception_after_a_trip_undoes_all(db: Database, trips: int) -> None:
    before = counted(db)
    with pytest.raises(PoolTimeout), db.write(in_trips=True) as session:
        for _ in range(trips):
            with round_trip(session.connection()) as trip:
                trip.send(COUNT, MORE)
        raise PoolTimeout
    assert counted(db) == before


def test_nothing_is_committed_by_itself(db: Database) -> None:
    on_postgresql(db)
    before = counted(db)
    with pytest.raises(RuntimeError, match="must be those of a round trip"), db.write(in_trips=True) as session:
        session.execute(COUNT, MORE)
    assert counted(db) == before


def test_a_connection_that_is_lost_between_trips_undoes_all_and_is_not_used_again(db: Database) -> None:
    on_postgresql(db)
    before = counted(db)
    with pytest.raises(OperationalError), db.write(in_trips=True) as session:
        with round_trip(session.connection()) as trip:
            trip.send(COUNT, MORE)
            own = trip.send(select(func.pg_backend_pid().label("pid")), {})
        (row,) = own.rows()
        with db.quick_read() as other:
            other.execute(select(func.pg_terminate_backend(row.pid)))
        with round_trip(session.connection()) as trip:
            trip.send(COUNT, MORE)
            trip.commit()
    for _ in range(3):
        assert counted(db) == before


def test_a_statement_of_a_trip_has_a_fixed_text(db: Database) -> None:
    on_postgresql(db)
    listed = select(ACCOUNTS).where(ACCOUNTS.c.filter.in_(("gdp", "rdp")))
    with pytest.raises(ValueError, match="fixed text"), db.read() as session, round_trip(session.connection()) as trip:
        trip.send(listed, {})


def test_a_hold_on_a_row_that_has_moved_since_is_refused_by_the_database(db: Database) -> None:
    """`place` shares its trip with the commit: no code looks at what the conditional UPDATE did."""
    dataset = open_ledger(db)
    hold(db, dataset, "job_1", 10)
    before = balances(db, dataset)
    terms = HoldTerms("job_2", 5, 0, OWNER)
    with pytest.raises(IntegrityError), db.write(in_trips=True) as session:
        with round_trip(session.connection()) as trip:
            asked = Hold(trip, dataset, terms)
        asked.check(session)
        accounts.hold(session, dataset_id=dataset, job_id="job_3", train=1, holdout=0, actor=OWNER)
        with round_trip(session.connection()) as trip:
            asked.place(trip)
            trip.commit()
    assert balances(db, dataset) == before and check(db, dataset).valid


def test_an_entry_whose_hold_did_not_happen_is_refused_by_the_database(db: Database) -> None:
    dataset = open_ledger(db)
    hold(db, dataset, "job_1", 10)
    before = balances(db, dataset)
    with pytest.raises(DBAPIError), db.write(in_trips=True) as session:
        with round_trip(session.connection()) as trip:
            asked = Hold(trip, dataset, HoldTerms("job_2", 5, 0, OWNER))
        asked.check(session)
        asked.terms = HoldTerms("job_2", 2**62, 0, OWNER)  # the condition fails, the entry goes on
        with round_trip(session.connection()) as trip:
            asked.place(trip)
            trip.commit()
    assert balances(db, dataset) == before and check(db, dataset).valid
