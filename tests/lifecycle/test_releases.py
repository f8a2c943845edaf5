"""Workers of a release take its jobs first: only there a job goes on from its checkpoint, to the same bits."""

from __future__ import annotations

import threading
from datetime import timedelta
from typing import Any

from sqlalchemy import update

from app.db.engine import Database
from app.db.models import Worker
from app.ids import whole_second
from app.lifecycle.claims import Claim
from app.lifecycle.queue.fair import claim_next
from app.lifecycle.queue.presence import Presence
from tests.factories import numerics
from tests.lifecycle.conftest import Submit, claimed, job_row, no_wait
from tests.lifecycle.test_fair import BOTH, CHEAP, NO_RECORDS


def worker(db: Database, pid: int, release: str | None, **more: Any) -> Presence:
    presence = Presence(db, "host", pid, 5.0)
    presence.release = release
    for name, value in more.items():
        setattr(presence, name, value)
    presence.beat()
    return presence


def begun_by(db: Database, submit: Submit, presence: Presence) -> str:
    """A job that was ready on this worker, and came back."""
    job_id = submit(**CHEAP)
    log = claimed(db, job_id, presence.name)
    log.ready("cpu", numerics())
    log.gone("lost")
    no_wait(db, job_id)
    return job_id


def taken(db: Database, presence: Presence) -> Claim | None:
    return claim_next(db, NO_RECORDS, presence.name, 30.0, BOTH)


def test_a_job_waits_for_a_living_worker_of_its_release(db: Database, submit: Submit) -> None:
    old, new = worker(db, 1, "old"), worker(db, 2, "new")
    job_id = begun_by(db, submit, old)
    assert job_row(db, job_id).release == "old"
    assert taken(db, new) is None
    held = taken(db, old)
    assert held is not None and held.job_id == job_id


def test_once_none_lives_any_worker_takes_it(db: Database, submit: Submit) -> None:
    old, new = worker(db, 1, "old"), worker(db, 2, "new")
    job_id = begun_by(db, submit, old)
    old._leave()
    held = taken(db, new)
    assert held is not None and held.job_id == job_id
    log = claimed(db, begun_by(db, submit, new), new.name)
    log.ready("cpu", numerics())
    assert job_row(db, log.held.job_id).release == "new"


def test_a_worker_that_is_silent_for_a_lease_does_not_live(db: Database, submit: Submit) -> None:
    old, new = worker(db, 1, "old"), worker(db, 2, "new")
    begun_by(db, submit, old)
    assert taken(db, new) is None
    long_ago = whole_second() - timedelta(seconds=31)
    with db.write() as session:
        session.execute(update(Worker).where(Worker.name == old.name).values(seen_at=long_ago))
    assert taken(db, new) is not None


def test_a_worker_that_stops_keeps_no_job_from_others(db: Database, submit: Submit) -> None:
    stopping = threading.Event()
    old, new = worker(db, 1, "old", stopping=stopping), worker(db, 2, "new")
    begun_by(db, submit, old)
    stopping.set()
    old.beat()
    assert taken(db, new) is not None


def test_a_job_that_nobody_began_is_everybody_s(db: Database, submit: Submit) -> None:
    old, new = worker(db, 1, "old"), worker(db, 2, "new")
    submit(once="one", **CHEAP)
    submit(once="two", **CHEAP)
    assert taken(db, new) is not None and taken(db, old) is not None


def test_a_worker_that_finishes_takes_its_release_s_jobs_alone(db: Database, submit: Submit) -> None:
    old, other = worker(db, 1, "old", finishes=True), worker(db, 2, None)
    submit(**CHEAP)
    assert taken(db, old) is None
    begun_by(db, submit, worker(db, 3, "old"))
    assert taken(db, old) is not None and taken(db, other) is not None  # one of before releases takes any


def test_it_keeps_no_turn(db: Database, submit: Submit) -> None:
    """A job that waits for its release delays no other job of its key."""
    old, new = worker(db, 1, "old"), worker(db, 2, "new")
    begun_by(db, submit, old)
    later = submit(once="later", **CHEAP)
    held = taken(db, new)
    assert held is not None and held.job_id == later
