"""Workers of a release take its jobs first: only there a job goes on from its checkpoint, to the same bits."""

from __future__ import annotations

import threading
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import update

from app.db.clock import ClockName, in_seconds
from app.db.database import Database
from app.db.models import Job, Worker
from app.lifecycle import pausing
from app.lifecycle.claims import Claim
from app.lifecycle.queue.fair import claim_next
from app.lifecycle.queue.presence import Presence
from core.contracts.devices import Device, Kind
from core.ids import whole_second
from tests.factories import numerics
from tests.lifecycle.conftest import Submit, claimed, job_row
from tests.lifecycle.test_fair import BOTH, CHEAP, NO_RECORDS


def worker(
    db: Database, pid: int, release: str | None, kind: Kind = "cuda", driver: str | None = None, **more: Any
) -> Presence:
    presence = Presence(db, "host", pid, 5.0, devices=[Device(kind=kind, index=0, name=kind, driver=driver)])
    presence.release = release
    for name, value in more.items():
        setattr(presence, name, value)
    presence.beat()
    return presence


def begun_by(db: Database, submit: Submit, presence: Presence, kind: Kind = "cpu") -> str:
    """A job that was ready on this worker, and came back."""
    job_id = submit(**CHEAP)
    log = claimed(db, job_id, presence.name)
    log.ready(kind, numerics())
    log.gone("lost")
    return job_id


def waits_since(db: Database, job_id: str, seconds: float, ran_s: float = 0.0) -> None:
    with db.write() as session:
        since = {"lease_until": in_seconds(-seconds), "lease_clock": ClockName()}
        session.execute(update(Job).where(Job.id == job_id).values(ran_s=ran_s, **since))


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


def test_a_worker_without_the_job_s_kind_of_device_keeps_it_from_nobody(db: Database, submit: Submit) -> None:
    old, new = worker(db, 1, "old", "cpu"), worker(db, 2, "new")
    job_id = begun_by(db, submit, old, "cuda")
    assert claim_next(db, NO_RECORDS, old.name, 30.0) is None
    held = taken(db, new)
    assert held is not None and held.job_id == job_id


def test_a_job_for_the_processor_waits_for_a_worker_with_a_gpu_too(db: Database, submit: Submit) -> None:
    old, new = worker(db, 1, "old"), worker(db, 2, "new", "cpu")
    begun_by(db, submit, old, "cpu")
    assert taken(db, new) is None and taken(db, old) is not None


def test_a_job_on_a_gpu_waits_for_a_worker_with_the_same_driver(db: Database, submit: Submit) -> None:
    """The same GPU with another driver may round otherwise, and the steps would be charged again."""
    old, other = worker(db, 1, "one", driver="550.54"), worker(db, 2, "one", driver="580.65")
    job_id = begun_by(db, submit, old, "cuda")
    assert job_row(db, job_id).card == "cuda None, driver 550.54, cuDNN None"
    assert taken(db, other) is None
    waits_since(db, job_id, 601)
    held = taken(db, other)  # no longer than for a release
    assert held is not None and held.job_id == job_id


def test_once_no_such_driver_lives_any_gpu_of_the_release_takes_it(db: Database, submit: Submit) -> None:
    old, other = worker(db, 1, "one", driver="550.54"), worker(db, 2, "one", driver="580.65")
    jobs = {begun_by(db, submit, old, "cuda"), begun_by(db, submit, old, "cuda")}
    old._leave()
    held = taken(db, other)
    assert held is not None and held.job_id in jobs
    (rest,) = jobs - {held.job_id}
    claimed(db, rest, other.name).ready("cuda", numerics())
    assert job_row(db, rest).card == "cuda None, driver 580.65, cuDNN None"


def test_a_job_on_the_processor_waits_for_no_card(db: Database, submit: Submit) -> None:
    old, other = worker(db, 1, "one", driver="550.54"), worker(db, 2, "one", driver="580.65")
    job_id = begun_by(db, submit, old, "cpu")
    assert job_row(db, job_id).card is None and taken(db, other) is not None


def test_a_finishing_worker_leaves_a_job_to_the_same_card(db: Database, submit: Submit) -> None:
    old, other = worker(db, 1, "one", driver="550.54"), worker(db, 2, "one", driver="580.65", finishes=True)
    job_id = begun_by(db, submit, old, "cuda")
    assert taken(db, other) is None
    old._leave()
    held = taken(db, other)
    assert held is not None and held.job_id == job_id


@pytest.mark.parametrize(("ran_s", "most_s"), [(0.0, 600), (599.0, 600), (7200.5, 7200)])
def test_a_job_waits_no_longer_than_it_has_run(db: Database, submit: Submit, ran_s: float, most_s: int) -> None:
    """Its release's workers live, and are busy or stuck: repeating its steps takes less time from then on."""
    old, new = worker(db, 1, "old"), worker(db, 2, "new")
    job_id = begun_by(db, submit, old)
    waits_since(db, job_id, most_s - 30, ran_s)
    assert taken(db, new) is None
    waits_since(db, job_id, most_s + 1, ran_s)
    held = taken(db, new)
    assert held is not None and held.job_id == job_id


@pytest.mark.parametrize("values", [{"lease_until": None, "lease_clock": None}, {"lease_clock": "a clock of before"}])
def test_a_job_queued_at_an_unknown_moment_waits_for_nobody(
    db: Database, submit: Submit, values: dict[str, Any]
) -> None:
    """It was queued by a service of before such moments, or before the machine started."""
    old, new = worker(db, 1, "old"), worker(db, 2, "new")
    job_id = begun_by(db, submit, old)
    with db.write() as session:
        session.execute(update(Job).where(Job.id == job_id).values(**values))
    assert taken(db, new) is not None


def test_a_resumed_job_waits_for_its_release(db: Database, submit: Submit) -> None:
    old, new = worker(db, 1, "old"), worker(db, 2, "new")
    job_id = begun_by(db, submit, old)
    with db.write() as session:
        pausing.park(session, session.get_one(Job, job_id))
    with db.write() as session:
        pausing.resume(session, session.get_one(Job, job_id))
    assert taken(db, new) is None and taken(db, old) is not None


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
