"""What callers see of a private attempt changes at whole seconds, and at no other moment."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import select

from app.db.database import Database
from app.db.models import Attempt, Certificate, Job, JobEvent, LedgerEntry, Metric
from app.jobs.repository import PARTS
from app.jobs.schemas import JobView
from app.ledger import certificates
from app.ledger.signing_keys import publish, signing_key
from app.ledger.verification import verify
from app.lifecycle.attempts import AttemptLog
from app.lifecycle.cadence import Cadence
from app.lifecycle.queue.presence import GpuWorkers
from app.lifecycle.sweeper import expire_all_leases, reap_expired
from app.settings import Settings
from core.errors import PrivacyError
from tests.factories import add_dataset, numerics, release
from tests.lifecycle.conftest import Submit, balances, claimed, job_row
from tests.lifecycle.test_attempts import DIGEST, METRIC


class Clock:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.at = 1_000.25
        self.waited: list[float] = []

    def time(self) -> float:
        return self.at

    def sleep(self, seconds: float) -> None:
        self.waited.append(seconds)
        self.at += seconds


@pytest.fixture
def clock() -> Clock:
    return Clock()


def attempt(db: Database, job_id: str, clock: Clock) -> AttemptLog:
    log = claimed(db, job_id)
    log.cadence = Cadence(clock=clock.time, sleep=clock.sleep)
    return log


def seen(db: Database, job_id: str) -> tuple[int, list[str], int]:
    """What callers see: the progress, the events so far, how many numbers are released."""
    with db.read() as session:
        kinds = session.scalars(select(JobEvent.type).where(JobEvent.job_id == job_id).order_by(JobEvent.seq))
        metrics = session.scalars(select(Metric).where(Metric.job_id == job_id)).all()
        return session.get_one(Job, job_id).step, list(kinds), len(metrics)


def test_a_cadence_ticks_at_whole_seconds(clock: Clock) -> None:
    cadence = Cadence(clock=clock.time, sleep=clock.sleep)
    assert (cadence.left_s(), cadence.ticked()) == (0.75, False)
    cadence.wait()
    assert (clock.at, clock.waited) == (1_001.0, [0.75])
    assert (cadence.left_s(), cadence.ticked(), cadence.ticked()) == (1.0, True, False)
    at_once = Cadence(0.0, clock.time, clock.sleep)
    at_once.wait()
    assert (at_once.left_s(), at_once.ticked(), at_once.ticked(), clock.at) == (0.0, True, True, 1_001.0)


def test_news_wait_for_the_next_second(db: Database, submit: Submit, clock: Clock) -> None:
    """Claim: events have a cadence of one second
    Now: whole seconds
    """
    job_id = submit()
    log = attempt(db, job_id, clock)
    before = ["queued", "attempt_started"]
    log.ready("cpu", numerics())
    log.record_digest(0, DIGEST)
    for step in (10, 20):
        assert log.start_block(step - 9, step)
        clock.at += 0.3
        log.record_digest(step, DIGEST)
        assert log.heartbeat() is False
        assert seen(db, job_id) == (0, before, 0), "the lease is renewed, and nothing is told"
    release(log, METRIC | {"step": 20})
    clock.at = 1_001.0
    assert seen(db, job_id) == (0, before, 0)
    log.heartbeat()
    told = [*before, "ready", "progress", "metric"]
    assert seen(db, job_id) == (20, told, 1), "all of it, and of progress the last step alone"
    clock.at = 1_001.9
    log.start_block(21, 30)
    log.record_digest(30, DIGEST)
    log.heartbeat()
    assert seen(db, job_id) == (20, told, 1)


@pytest.mark.parametrize("how", ["succeed", "fail", "cancelled", "gone"])
def test_an_end_waits_for_it_too_and_tells_the_rest_before(
    db: Database, submit: Submit, clock: Clock, how: str
) -> None:
    job_id = submit()
    log = attempt(db, job_id, clock)
    log.record_digest(0, DIGEST)
    assert log.start_block(1, 50)
    log.record_digest(50, DIGEST)
    release(log, METRIC)
    held = balances(db, job_id)[3]
    if how == "cancelled":
        with db.write() as session:
            session.get_one(Job, job_id).status = "cancelling"
    arguments: dict[str, Any] = {"succeed": ([], 50, []), "fail": ("internal", "it failed"), "gone": ("lost",)}
    getattr(log, how)(*arguments.get(how, ()))
    assert (clock.at, clock.waited) == (1_001.0, [0.75])
    last = {"succeed": "succeeded", "fail": "failed", "gone": "attempt_lost"}.get(how, how)
    assert seen(db, job_id) == (50, ["queued", "attempt_started", "progress", "metric", last], 1)
    assert balances(db, job_id)[2:] == ((0, held) if how == "gone" else (held, 0)), "the score is on the bill"


def test_a_step_is_not_news_if_its_digest_was_not_recorded(db: Database, submit: Submit, clock: Clock) -> None:
    """The next block was refused, in the transaction that would have recorded it."""
    job_id = submit()
    log = attempt(db, job_id, clock)
    steps = job_row(db, job_id).steps
    assert log.start_block(1, steps)
    with pytest.raises(PrivacyError, match="covers"):
        log.start_block(steps + 1, steps + 1, DIGEST)
    log.fail("privacy-invariant", "a test")
    (only,) = log.recorded()[1].values()
    assert only[0].digest is None and seen(db, job_id)[0] == 0 and "progress" not in seen(db, job_id)[1]


def test_what_nobody_saw_before_a_crash_is_not_charged(db: Database, submit: Submit, clock: Clock) -> None:
    job_id = submit()
    log = attempt(db, job_id, clock)
    log.record_digest(0, DIGEST)
    log.start_block(1, 25)
    log.record_digest(25, DIGEST)
    release(log, METRIC | {"step": 25})
    expire_all_leases(db)
    reap_expired(db, 3)
    again = attempt(db, job_id, clock)
    assert again.recorded()[2] == [], "a replay releases it again: the same number"
    with db.write() as session:
        session.get_one(Job, job_id).status = "cancelling"
    again.cancelled()
    assert balances(db, job_id)[2:] == (0, 0)


def test_what_waits_counts_as_released(db: Database, submit: Submit, clock: Clock) -> None:
    """The mechanism was charged for one score: a second one is refused, the same one again is no second one."""
    log = attempt(db, submit(), clock)
    log.record_digest(0, DIGEST)
    log.start_block(1, 50)
    log.record_digest(50, DIGEST)
    release(log, METRIC)
    release(log, METRIC)
    with pytest.raises(PrivacyError, match="more numbers would be released"):
        release(log, METRIC | {"step": 40})
    log.cadence.wait()
    log.heartbeat()
    assert seen(db, log.held.job_id)[2] == 1


def test_a_wish_to_cancel_counts_from_the_next_second(db: Database, submit: Submit, clock: Clock) -> None:
    """How many steps had started at a moment that a caller chose would tell the time of a step."""
    job_id = submit()
    log = attempt(db, job_id, clock)
    log.record_digest(0, DIGEST)
    assert log.start_block(1, 10)
    with db.write() as session:
        session.get_one(Job, job_id).status = "cancelling"
    assert log.heartbeat() is False
    assert log.start_block(11, 20), "of this second"
    clock.at = 1_001.0
    assert log.heartbeat() is True
    assert not log.start_block(21, 30)


def test_public_data_wait_for_nothing(db: Database, submit: Submit, clock: Clock) -> None:
    public = add_dataset(db, privacy={"sensitivity": "public", "records": 100})
    log = attempt(db, job_id := submit(public, privacy=None, evaluation=None), clock)
    log.ready("cpu", numerics())
    log.record_digest(0, DIGEST)
    log.start_block(1, 50)
    log.record_digest(50, DIGEST)
    assert seen(db, job_id) == (50, ["queued", "attempt_started", "ready", "progress"], 0)
    log.succeed([], 50, [])
    assert (clock.waited, seen(db, job_id)[1][-1]) == ([], "succeeded")


def test_times_are_whole_seconds(db: Database, submit: Submit, clock: Clock, settings: Settings) -> None:
    job_id = submit()
    log = attempt(db, job_id, clock)
    log.record_digest(0, DIGEST)
    log.start_block(1, 50)
    log.record_digest(50, DIGEST)
    log.succeed([], 50, [])
    publish(db, signing_key(settings))
    assert certificates.issue(db, job_id, signing_key(settings), "0.1.0")
    job = job_row(db, job_id)
    with db.read() as session:
        times = [
            job.started_at,
            job.finished_at,
            *session.scalars(select(JobEvent.created_at).where(JobEvent.job_id == job_id)),
            *session.scalars(select(LedgerEntry.created_at)),
            *session.scalars(select(Certificate.issued_at)),
        ]
        attempts = list(session.scalars(select(Attempt).where(Attempt.job_id == job_id)))
        issued = session.scalars(select(Certificate)).one().body["certificate"]["issued_at"]
        assert verify(session, job.dataset_id).valid
    times += [moment for each in attempts for moment in (each.started_at, each.ended_at)]
    view = JobView.of_job(job, {part: [] for part in PARTS} | {"attempts": attempts}, GpuWorkers(db, 30.0))
    times.append(view.created_at)
    assert [moment.microsecond for moment in times if moment] == [0] * len(times)
    assert issued.endswith(".000000Z")
    progress = view.progress
    assert progress.elapsed_s is not None and progress.elapsed_s.is_integer()


def test_epsilon_is_planned_from_the_claim_on_not_from_the_first_step(db: Database, submit: Submit) -> None:
    """When the first step starts depends on how long the data took to load."""
    job_id = submit()
    nothing: dict[str, list[Any]] = {part: [] for part in PARTS}

    def spent() -> float:
        epsilon = JobView.of_job(job_row(db, job_id), nothing, GpuWorkers(db, 30.0)).epsilon_spent
        assert epsilon is not None
        return epsilon.value

    assert spent() == 0.0
    log = claimed(db, job_id)
    planned = spent()
    assert planned > 0.0
    log.fail("data-damaged", "the file is gone")
    assert spent() == 0.0


def test_a_time_limit_ends_at_a_whole_second(db: Database, submit: Submit, clock: Clock) -> None:
    """Between two of them a caller who chose the limit would learn to a fraction when the work was done."""
    log = attempt(db, submit(runtime={"max_duration_s": 3.3}), clock)
    log.begin()
    for seconds in (3.3, 0.01, 0.0, -5.0):
        left = log.may_run_s(seconds)
        assert max(seconds, 0.0) <= left <= max(seconds, 0.0) + 1.0
        assert clock.at + left == pytest.approx(round(clock.at + left), abs=1e-6)
    assert log.may_run_s(float("inf")) == float("inf")
    public = submit(add_dataset(db, privacy={"sensitivity": "public"}, holdout=None), privacy=None, evaluation=None)
    free = attempt(db, public, clock)
    free.begin()
    assert free.may_run_s(3.3) == 3.3
