"""Claims, fences, the write-ahead record, and what each end of a job costs."""

from __future__ import annotations

import threading
from functools import partial
from typing import Any

import pytest
from sqlalchemy import event, inspect, select, update

from app.db.database import Database
from app.db.models import Account, Attempt, Job, Metric
from app.lifecycle.cadence import Cadence
from app.lifecycle.claims import LEASE, Claim, claim
from app.lifecycle.settle import settlement_of
from app.lifecycle.sweeper import expire_all_leases, reap_expired
from app.lifecycle.wakeups import unclaimed
from core.errors import PrivacyError, StaleAttempt
from core.privacy.filters import filter_of
from core.privacy.mechanism import MechanismConfig
from tests.chaos.tamper import unprotected
from tests.factories import add_dataset, release
from tests.lifecycle.conftest import Submit, balances, claimed, job_row
from tests.work import transactions

DIGEST = "ab" * 32
METRIC: dict[str, Any] = {
    "name": "accuracy",
    "step": 50,
    "value": 0.8,
    "std": 0.01,
    "on": "holdout",
    "released_by": "noisy_count",
}


def test_a_job_is_claimed_once(db: Database, submit: Submit) -> None:
    job_id = submit()
    won: list[Claim | None] = []

    def race(worker: str) -> None:
        with db.write() as session:
            won.append(claim(session, job_id, worker, 30.0))

    threads = [threading.Thread(target=race, args=(f"w{i}",)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len([each for each in won if each is not None]) == 1
    assert job_row(db, job_id).status == "running"


def test_success_posts_the_hold(db: Database, submit: Submit) -> None:
    job_id = submit()
    hold = balances(db, job_id)
    assert hold[0] == hold[2] == 0
    assert hold[1] > 0
    assert hold[3] == 2_500_000_001  # 0.05² in 1e-12 units, rounded up for what floats may hide
    log = claimed(db, job_id)
    assert log.start_block(1, 50)
    log.record_digest(50, DIGEST)
    release(log, METRIC)
    log.succeed([], 50, [])
    assert balances(db, job_id) == (hold[1], 0, hold[3], 0)
    assert job_row(db, job_id).status == "succeeded"


def test_a_block_is_one_transaction_of_five_statements(db: Database, submit: Submit) -> None:
    """Tiny jobs are mostly these: the lease; the digest before; what was started; the count of steps; the block. Two
    transactions and eight statements were needed, two of which loaded the job's documents."""
    log = claimed(db, submit())
    log.cadence = Cadence()  # a service writes news of the step once a second
    assert log.start_block(1, 2)
    said: list[str] = []
    count = partial(_note, said)
    event.listen(db.engine, "before_cursor_execute", count)
    try:
        assert log.start_block(3, 4, DIGEST)
    finally:
        event.remove(db.engine, "before_cursor_execute", count)
    own = [statement.split()[0] for statement in said if not statement.startswith("BEGIN")]
    assert own == ["UPDATE", "UPDATE", "SELECT", "UPDATE", "INSERT"]
    assert not any("mechanism" in statement for statement in said)


def test_no_transaction_of_an_attempt_asks_the_same_twice(db: Database, submit: Submit) -> None:
    """A tiny job is mostly its statements. Its holds, its hold's entry, its blocks and its metrics were each read twice
    in one transaction. The settlement and the move still look for its holds, each by itself."""
    log = claimed(db, submit())
    with transactions(db) as made:
        log.begin()
        job, blocks, numbers = log.name_key("00")
        log.start_block(1, 50)
        log.record_digest(50, DIGEST)
        log.succeed([], 50, [])
    doubled = [each for transaction in made for each, times in transaction.items() if times > 1]
    assert len(made) >= 6 and [each for each in doubled if "hold:" not in each[1]] == []
    assert len(doubled) <= 1
    assert (job.segments[0].key_id, list(blocks.values()), numbers) == ("00", [[]], [])


def test_a_lease_s_renewal_and_a_block_s_start_change_no_index(db: Database) -> None:
    """PostgreSQL then writes the row alone; else an entry in each of the table's indexes, at each block."""
    indexed = {column for index in inspect(db.engine).get_indexes("jobs") for column in index["column_names"]}
    assert not indexed & {*LEASE, "steps_started", "step", "events"}


@pytest.mark.parametrize("digest", [DIGEST, "cd" * 32])
def test_a_block_that_may_not_start_records_the_digest_before_it(db: Database, submit: Submit, digest: str) -> None:
    """A stop does not undo the block before; a digest that contradicts the record undoes all."""
    job_id = submit()
    log = claimed(db, job_id)
    assert log.start_block(1, 2) and log.start_block(3, 4, DIGEST)
    log.record_digest(4, DIGEST)
    if digest != DIGEST:
        with pytest.raises(PrivacyError, match="contin"):
            log.start_block(5, 6, digest)
    with db.write() as session:
        session.get_one(Job, job_id).status = "cancelling"
    assert not log.start_block(5, 6, DIGEST)
    _job, blocks, _numbers = log.recorded()
    assert [(each.last_step, each.digest) for each in next(iter(blocks.values()))] == [(2, DIGEST), (4, DIGEST)]


def test_a_cancelled_job_posts_what_was_started(db: Database, submit: Submit) -> None:
    """Half of the steps at full batch cost half of μ²; no score was released."""
    job_id = submit()
    hold = balances(db, job_id)[1]
    log = claimed(db, job_id)
    assert log.start_block(1, 25)
    log.cancelled()
    spent, held, holdout_spent, holdout_held = balances(db, job_id)
    assert (held, holdout_spent, holdout_held) == (0, 0, 0)
    assert hold / 2 <= spent <= hold / 2 * (1 + 1e-6) + 1


def test_nothing_started_is_voided(db: Database, submit: Submit) -> None:
    job_id = submit()
    claimed(db, job_id).cancelled()
    assert balances(db, job_id) == (0, 0, 0, 0)
    assert job_row(db, job_id).status == "cancelled"


def test_an_own_error_releases_nothing(db: Database, submit: Submit) -> None:
    """That it failed may depend on private lengths: the whole hold is spent."""
    job_id = submit()
    hold = balances(db, job_id)
    log = claimed(db, job_id)
    log.start_block(1, 2)
    log.fail("out-of-memory", "too little memory")
    assert balances(db, job_id) == (hold[1], 0, hold[3], 0)


def test_an_own_error_before_the_first_step_costs_nothing(db: Database, submit: Submit) -> None:
    job_id = submit()
    claimed(db, job_id).fail("data-damaged", "the file is gone")
    assert balances(db, job_id) == (0, 0, 0, 0)


def test_a_stale_attempt_writes_nothing(db: Database, submit: Submit) -> None:
    job_id = submit()
    old = claimed(db, job_id)
    old.start_block(1, 2)
    expire_all_leases(db)
    assert reap_expired(db, 3) == 1
    new = claimed(db, job_id, "other")
    assert new.held.attempt == 2
    for write in (
        lambda: old.start_block(3, 4),
        lambda: old.record_digest(2, DIGEST),
        lambda: release(old, METRIC),
        lambda: old.succeed([], 50, []),
        lambda: old.fail("x", "y"),
        lambda: old.gone("lost"),
        old.heartbeat,
        old.cancelled,
    ):
        with pytest.raises(StaleAttempt):
            write()
    assert job_row(db, job_id).steps_started == 2


def test_a_renewed_lease_is_not_reaped(db: Database, submit: Submit) -> None:
    job_id = submit()
    log = claimed(db, job_id)
    expire_all_leases(db)
    log.heartbeat()
    assert reap_expired(db, 3) == 0
    assert job_row(db, job_id).status == "running"


def test_replayed_steps_are_not_counted_again(db: Database, submit: Submit) -> None:
    job_id = submit()
    log = claimed(db, job_id)
    log.start_block(1, 2)
    log.record_digest(2, DIGEST)
    log.start_block(3, 4)
    log.gone("lost")
    again = claimed(db, job_id)
    assert again.start_block(1, 2)
    again.record_digest(2, DIGEST)
    assert again.start_block(3, 4)
    assert again.start_block(5, 6)
    assert job_row(db, job_id).steps_started == 6


def test_another_digest_is_an_invariant_broken(db: Database, submit: Submit) -> None:
    job_id = submit()
    log = claimed(db, job_id)
    log.start_block(1, 2)
    log.record_digest(2, DIGEST)
    with pytest.raises(PrivacyError):
        log.record_digest(2, "cd" * 32)
    with pytest.raises(PrivacyError):
        log.record_digest(4, DIGEST)  # never started


def test_a_mismatch_gets_a_fresh_salt_and_is_charged_again(db: Database, submit: Submit) -> None:
    job_id = submit()
    log = claimed(db, job_id)
    for first in range(1, 31, 2):
        log.start_block(first, first + 1)
        log.record_digest(first + 1, DIGEST)
    log.gone("lost")
    again = claimed(db, job_id)
    before = job_row(db, job_id).segments[0].salt
    fresh = again.resalt(10, "key")
    assert fresh.segment.from_step == 11
    assert fresh.segment.salt != before
    assert fresh.allowed_steps == 20
    assert job_row(db, job_id).segments[0].salt == before
    for first in range(11, 31, 2):
        assert again.start_block(first, first + 1)
    assert job_row(db, job_id).steps_started == 50
    with pytest.raises(PrivacyError):
        again.start_block(31, 32)


def test_a_mismatch_without_privacy_repeats_all_steps(db: Database, submit: Submit) -> None:
    """On fewer processes the sums of a job that pays for nothing round otherwise: it begins again and ends whole."""
    dataset = add_dataset(db, privacy={"sensitivity": "public"})
    log = claimed(db, job_id := submit(dataset, privacy=None, evaluation=None))
    steps = job_row(db, job_id).steps
    assert log.start_block(1, steps)
    log.gone("lost")
    again = claimed(db, job_id)
    assert again.resalt(0, "key").allowed_steps == steps
    assert again.start_block(1, steps) and job_row(db, job_id).steps_started == 2 * steps


EXTRA_QUERY = {
    "kind": "dp2_rmsprop",
    "learning_rate": 1.0,
    "learning_rate_adaptive": 0.1,
    "max_grad_norm_adaptive": 3.0,
    "delay": 5,
    "variant": "extra_query",
}


def test_a_stopped_job_of_two_queries_posts_what_its_steps_cost(db: Database, submit: Submit) -> None:
    """Of 50 steps 10 make one query and 40 make two: 90. The first 7 cost 1 + 4·2 + 1 + 2 = 12."""
    job_id = submit(optimizer=EXTRA_QUERY, evaluation=None)
    hold = balances(db, job_id)[1]
    log = claimed(db, job_id)
    log.start_block(1, 7)
    log.cancelled()
    assert balances(db, job_id)[:2] == (pytest.approx(hold * 12 / 90, rel=1e-6), 0)


def test_repeated_steps_of_two_queries_never_cost_more_than_the_hold(db: Database, submit: Submit) -> None:
    """The repeated ones may be the dear ones: the hold covers 40 steps of them, however they are counted."""
    job_id = submit(optimizer=EXTRA_QUERY, evaluation=None)
    hold = balances(db, job_id)[1]
    log = claimed(db, job_id)
    for first in range(1, 31, 2):
        log.start_block(first, first + 1)
        log.record_digest(first + 1, DIGEST)
    log.gone("lost")
    again = claimed(db, job_id)
    assert again.resalt(10, "key").allowed_steps == 10
    for first in range(11, 21, 2):
        assert again.start_block(first, first + 1)
    with pytest.raises(PrivacyError):
        again.start_block(21, 22)
    again.cancelled()
    spent, held = balances(db, job_id)[:2]
    assert held == 0 and spent == pytest.approx(hold * 80 / 90, rel=1e-6)


CORRELATED = {
    "sampling": {"kind": "cyclic", "batches": 10},
    "noise": {"kind": "correlated", "decay": 0.5},
    "optimizer": {"kind": "dp_sgd", "learning_rate": 1.0},
    "evaluation": None,
}


@pytest.mark.parametrize(("steps", "taken"), [(7, 1), (10, 1), (11, 2), (50, 5)])
def test_a_stopped_cyclic_job_posts_what_a_record_s_steps_cost(
    db: Database, submit: Submit, steps: int, taken: int
) -> None:
    """A record takes part in 5 of 50 steps; in at most ⌈7/10⌉ of the first 7."""
    job_id = submit(**CORRELATED)
    hold = balances(db, job_id)[1]
    log = claimed(db, job_id)
    log.start_block(1, steps)
    log.cancelled()
    assert balances(db, job_id)[:2] == (pytest.approx(hold * taken / 5, rel=1e-6), 0)


def test_repeated_cyclic_steps_never_cost_more_than_the_hold(db: Database, submit: Submit) -> None:
    """Under fresh keys groups are drawn anew, so that a record may take part once more than 40 steps in a row allow."""
    job_id = submit(**CORRELATED)
    hold = balances(db, job_id)[1]
    log = claimed(db, job_id)
    for first in range(1, 31, 2):
        log.start_block(first, first + 1)
        log.record_digest(first + 1, DIGEST)
    log.gone("lost")
    again = claimed(db, job_id)
    assert again.resalt(10, "key").allowed_steps == 10
    for first in range(11, 21, 2):
        assert again.start_block(first, first + 1)
    with pytest.raises(PrivacyError):
        again.start_block(21, 22)
    again.cancelled()
    assert balances(db, job_id)[:2] == (pytest.approx(hold, rel=1e-6), 0)


def test_no_more_steps_than_the_hold(db: Database, submit: Submit) -> None:
    log = claimed(db, submit())
    with pytest.raises(PrivacyError):
        log.start_block(1, 51)


def test_no_more_metrics_than_were_charged(db: Database, submit: Submit) -> None:
    log = claimed(db, submit())
    log.start_block(1, 50)
    log.record_digest(50, DIGEST)
    release(log, METRIC)
    release(log, METRIC | {"value": 0.1})  # the same step again: dropped
    with pytest.raises(PrivacyError):
        release(log, METRIC | {"step": 49})


def test_a_release_and_its_groups_are_recorded_together_or_not_at_all(db: Database, submit: Submit) -> None:
    job_id = submit(evaluation={"noise_mu": 0.05, "groups": {"a": [0]}})
    log = claimed(db, job_id)
    log.start_block(1, 50)
    log.record_digest(50, DIGEST)
    of_a = {"name": "accuracy:a", "value": 0.5, "std": 0.1}
    for refused in (
        METRIC | {"parts": [{**of_a, "name": "accuracy:b"}]},  # not declared
        METRIC | {"name": "accuracy:a", "released_by": "post_processing"},  # without its whole
        METRIC | {"name": "clipping_norm", "released_by": "post_processing"},  # C does not move
    ):
        with pytest.raises(PrivacyError):
            release(log, refused)
    release(log, METRIC | {"parts": [of_a]})
    release(log, METRIC | {"value": 0.1, "parts": [of_a | {"value": 0.2}]})  # a second one: dropped, all of it
    with db.read() as session:
        found = session.execute(select(Metric.name, Metric.value, Metric.std, Metric.released_by)).all()
    assert sorted(map(tuple, found)) == [
        ("accuracy", METRIC["value"], METRIC["std"], METRIC["released_by"]),
        ("accuracy:a", 0.5, 0.1, "post_processing"),
    ]


def test_a_first_state_under_another_key_repeats_no_step(db: Database, submit: Submit) -> None:
    """The noise secret was changed before the first step: all steps that were paid for are still to be had."""
    job_id = submit(optimizer=EXTRA_QUERY, evaluation=None)
    log = claimed(db, job_id)
    log.record_digest(0, DIGEST)
    assert log.resalt(-1, "key").allowed_steps == job_row(db, job_id).steps


def test_exact_scores_of_a_public_holdout_are_not_on_the_bill(db: Database, submit: Submit) -> None:
    """Private training data, public hold-out: its scores are free, and settling does not take them for releases."""
    job_id = submit(add_dataset(db, holdout={"kind": "public"}))
    hold = balances(db, job_id)
    log = claimed(db, job_id)
    log.start_block(1, 50)
    log.record_digest(50, DIGEST)
    for name in ("accuracy", "loss"):
        release(log, METRIC | {"name": name, "std": 0.0, "released_by": "public_data"})
    log.succeed([], 50, [])
    assert balances(db, job_id) == (hold[1], 0, 0, 0)


def test_after_a_crash_a_cancel_releases_nothing(db: Database, submit: Submit) -> None:
    """That the process died may follow from private data; who then cancels has seen it."""
    job_id = submit()
    hold = balances(db, job_id)
    log = claimed(db, job_id)
    log.start_block(1, 2)
    log.gone("crashed")
    claimed(db, job_id).cancelled()
    assert balances(db, job_id) == (hold[1], 0, hold[3], 0)


def test_one_job_that_can_not_be_settled_does_not_stop_the_reaper(db: Database, submit: Submit) -> None:
    broken, sound = submit(), submit()
    for job_id in (broken, sound):
        claimed(db, job_id)
    with unprotected(db) as session:
        job = session.get_one(Job, broken)
        job.status, job.steps_started = "cancelling", 1
        account = update(Account).where(Account.dataset_id == job.dataset_id)
        session.execute(account.values(train_held=0))  # from outside: there is nothing to post of
    expire_all_leases(db)
    assert reap_expired(db, 3) == 1
    assert job_row(db, sound).status == "queued"
    assert job_row(db, broken).status == "cancelling"


def test_lost_workers_requeue_and_crashes_end(db: Database, submit: Submit) -> None:
    """A process that dies under a living worker three times fails the job, and nothing is released."""
    job_id = submit()
    hold = balances(db, job_id)
    for _ in range(3):
        log = claimed(db, job_id)
        log.start_block(1, 2)
        log.gone("crashed")
    job = job_row(db, job_id)
    assert job.status == "failed"
    assert job.failure is not None
    assert job.failure.code == "internal"
    assert balances(db, job_id) == (hold[1], 0, hold[3], 0)


def test_a_lost_worker_costs_what_was_started(db: Database, submit: Submit) -> None:
    """However often that happens, the job goes on; who cancels it pays for what was started once."""
    job_id = submit()
    hold = balances(db, job_id)
    for _ in range(30):
        log = claimed(db, job_id)
        log.start_block(1, 10)
        log.gone("lost")
    assert job_row(db, job_id).status == "queued"
    claimed(db, job_id).cancelled()
    spent, held, *_ = balances(db, job_id)
    assert held == 0
    assert hold[1] / 5 <= spent <= hold[1] / 5 * (1 + 1e-6) + 1
    with db.read() as session:
        assert session.get_one(Attempt, (job_id, 30)).status == "lost"


def test_a_cancelling_job_whose_worker_died_is_cancelled(db: Database, submit: Submit) -> None:
    job_id = submit()
    log = claimed(db, job_id)
    log.start_block(1, 2)
    with db.write() as session:
        session.get_one(type(job_row(db, job_id)), job_id).status = "cancelling"
    assert log.start_block(3, 4) is False
    assert log.heartbeat() is True
    expire_all_leases(db)
    reap_expired(db, 3)
    assert job_row(db, job_id).status == "cancelled"


def test_unclaimed_jobs_are_notified_again(db: Database, submit: Submit) -> None:
    job_id = submit()
    assert [each.id for each in unclaimed(db, 10.0, 9)] == [job_id]
    claimed(db, job_id)
    assert unclaimed(db, 0.0, 9) == []


def test_scores_on_the_training_account_are_posted_with_the_steps(db: Database, submit: Submit) -> None:
    """Last items of the users who are trained on: of 50 steps and 2 rankings, a half is posted."""
    job_id = submit(evaluation=None)
    whole = balances(db, job_id)[1]
    ranking = {"what": "ranking", "account": "train", "noise_mu": 0.05, "times": 2, "records": 500, "cutoff": 10}
    with db.write() as session:  # as admission would have stored it, with its price
        job = session.get_one(Job, job_id)
        account = session.get_one(Account, job.dataset_id)
        job.mechanism = {**job.mechanism, "releases": [ranking]}
        mechanism = MechanismConfig.model_validate(job.mechanism)
        cost = filter_of(account.filter, account.order).charge_event(mechanism.releases[0].event)
        job.quote = {**job.quote, "charge": {**job.quote["charge"], "train": whole + cost}}
    log = claimed(db, job_id)
    log.start_block(1, 25)
    log.record_digest(25, DIGEST)
    ndcg = METRIC | {"name": "ndcg@10", "step": 25, "parts": [{"name": "hit@10", "value": 0.5, "std": 0.1}]}
    release(log, ndcg)
    with pytest.raises(PrivacyError):
        release(log, ndcg | {"name": "ndcg@5", "parts": []})
    with db.write() as session:
        charge = settlement_of(session, session.get_one(Job, job_id), "cancelled").charge
    assert charge is not None and charge.holdout == 0 and charge.train == pytest.approx((whole + cost) / 2, rel=1e-6)


def _note(said: list[str], _connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
    said.append(statement)
