"""What left a job is recorded outside the database: a backup that was taken while it ran forgets nothing of it."""

from __future__ import annotations

import fcntl
import json
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from sqlalchemy import event, select

from app.db.models import Block, Job, Metric
from app.ledger import accounts, behind
from app.ledger.verification import verify
from app.lifecycle import study_states
from app.lifecycle.attempts import AttemptLog
from app.lifecycle.cadence import Cadence
from app.lifecycle.mark_survey import Comparison, Forgotten, compare, problems, survey, sweep
from app.lifecycle.marks import REWOUND, Mark, Marks, name_of
from app.lifecycle.restore import post
from app.lifecycle.settle import settle, settlement_of
from app.lifecycle.sweeper import expire_all_leases, reap_expired
from app.storage import objects
from core.errors import StaleAttempt, TransientError
from core.ids import new_id
from tests.factories import AT_ONCE, add_dataset, job_spec, release
from tests.hpo.conftest import study_spec
from tests.lifecycle.conftest import claimed, job_row
from tests.lifecycle.test_restore import CAP, World, scrimp_restore, world
from tests.locks import until_waits_for_file

__all__ = ["world"]
STEPS, SCORES = 60, 6


def admitted(world: World, steps: int = 480) -> tuple[str, str]:
    """A data set and a job of so many steps, which scores every ten of them on its hold-out."""
    dataset = add_dataset(world.db, privacy=CAP)
    spec = job_spec(
        dataset,
        length={"steps": steps},
        privacy={"target_epsilon": 0.5},
        evaluation={"metrics": ["accuracy"], "noise_mu": 0.01, "points": steps // 10},
    )
    with world.api() as client:
        made = client.post("/v1/jobs", json=spec, headers={"Idempotency-Key": new_id("once")})
    assert made.status_code == 201, made.text
    return dataset, str(made.json()["id"])


def begun(world: World, job: str) -> AttemptLog:
    log = claimed(world.db, job)
    log.marks = Marks.of(world.settings)
    log.begin()
    return log


def forgotten(world: World) -> list[Forgotten]:
    return compare(world.db, Marks.of(world.settings)).forgotten


def problems_of(world: World) -> dict[str, str]:
    return survey(world.db, world.heads, objects.of(world.settings), compare(world.db, Marks.of(world.settings)))


def sweep_all(world: World) -> None:
    marks = Marks.of(world.settings)
    sweep(world.db, world.heads, marks, compare(world.db, marks))


def resumed(world: World, job: str) -> AttemptLog:
    """Another attempt of a job whose lease lapsed."""
    expire_all_leases(world.db)
    reap_expired(world.db, 9, Marks.of(world.settings))
    return begun(world, job)


def threads_of_begin(log: AttemptLog, mark: Path) -> Thread:
    """An attempt that begins, once it waits for the mark."""
    thread = Thread(target=log.begin)
    thread.start()
    until_waits_for_file(mark, waiting=2)
    return thread


def before_a_score(world: World, job: str) -> AttemptLog:
    """An attempt that has run 20 steps, and has a score to release after the last."""
    log = begun(world, job)
    run(log, 1, 10)
    assert log.start_block(11, 20)
    log.record_digest(20, "ab" * 32)
    return log


@contextmanager
def waiting(log: AttemptLog, mark: Path) -> Iterator[Future[None]]:
    """A score after step 20 that waits for its mark, which another process has locked, until the block ends."""
    with ThreadPoolExecutor(1) as threads, mark.open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        try:
            scored = threads.submit(score, log, 20)
            until_waits_for_file(mark)
            yield scored
        finally:
            fcntl.flock(file, fcntl.LOCK_UN)


def run(log: AttemptLog, first: int, last: int, digest: str = "ab") -> None:
    """Runs blocks of ten steps, with a score after each."""
    for step in range(first, last + 1, 10):
        assert log.start_block(step, step + 9)
        log.record_digest(step + 9, digest * 32)
        score(log, step + 9)


def score(log: AttemptLog, step: int) -> None:
    said = {"name": "accuracy", "step": step, "value": step / 1000, "std": 0.01}
    release(log, said | {"on": "holdout", "released_by": "noisy_count"})


def charge(world: World, dataset: str) -> tuple[int, int]:
    account = world.account(dataset)
    assert (account.train_held, account.holdout_held) == (0, 0)
    return account.train_spent, account.holdout_spent


def api_cancel(world: World, job: str) -> None:
    with world.api() as client:
        assert client.post(f"/v1/jobs/{job}/cancel").status_code == 202


def reaped(world: World, job: str) -> None:
    """Cancelled while its worker ran, which then died."""
    api_cancel(world, job)
    expire_all_leases(world.db)
    reap_expired(world.db, 3, Marks.of(world.settings))


def taken_up(world: World, job: str) -> None:
    """Another worker takes it up, and is told to stop."""
    expire_all_leases(world.db)
    reap_expired(world.db, 3, Marks.of(world.settings))
    log = begun(world, job)
    api_cancel(world, job)
    log.cancelled()


def posted(world: World, job: str) -> None:
    dataset = job_row(world.db, job).dataset_id
    post(world.db, world.heads, objects.of(world.settings), dataset, "the disk died")


ENDS: dict[str, Callable[[World, str], None]] = {"reaped": reaped, "taken up": taken_up, "posted": posted}


@pytest.mark.parametrize("end", ENDS)
def test_what_left_a_job_is_charged_though_a_backup_forgot_it(world: World, end: str) -> None:
    """6 scores and 60 steps left; the restored database knew 1 and 10, charged those, and said that all was well.

    Attack (Reliability): A backup is taken while a job runs, and restored
    Now: a mark of the job, on disk before anything leaves: the larger is charged; the job goes on under fresh keys
    Also: tests/lifecycle/test_marks.py::test_a_job_that_goes_on_after_a_backup_has_fresh_keys_and_the_rest_of_its_hold
    """
    dataset, job = admitted(world)
    other, twin = admitted(world)
    log = begun(world, job)
    behind.record(world.db, world.heads, dataset)
    run(log, 1, 10)
    backup = world.backup()
    run(log, 11, STEPS)
    same = begun(world, twin)
    run(same, 1, STEPS)
    same.cancelled()
    expected = charge(world, other)
    world.restore(backup)
    assert job_row(world.db, job).steps_started == 10
    assert problems_of(world) == {}, "the heads do not tell"
    (found,) = [each for each in forgotten(world) if each.job_id == job]
    assert (found.steps, found.scores, found.marked_steps, found.marked_scores) == (10, 1, STEPS, SCORES)
    shown = scrimp_restore(world)
    assert shown.returncode == 1
    assert f"{job} ({dataset}): {STEPS} steps and {SCORES} scores left it; the database knows 10 and 1" in shown.stdout
    ENDS[end](world, job)
    row = job_row(world.db, job)
    assert (row.status, row.steps_started) == ("cancelled", STEPS)
    assert charge(world, dataset) == expected
    with world.db.read() as session:
        assert verify(session, dataset).valid
        assert len(session.scalars(select(Metric).where(Metric.job_id == job)).all()) == SCORES
    assert all(each.job_id != job for each in forgotten(world))


def test_a_paused_job_that_a_backup_forgot_is_cancelled_for_what_left_it(world: World) -> None:
    dataset, job = admitted(world)
    log = begun(world, job)
    run(log, 1, 10)
    with world.api() as client:
        client.post(f"/v1/jobs/{job}/pause")
    log.stopped()
    backup = world.backup()
    with world.api() as client:
        client.post(f"/v1/jobs/{job}/resume")
    again = begun(world, job)
    run(again, 1, STEPS)
    world.restore(backup)
    api_cancel(world, job)
    assert job_row(world.db, job).steps_started == STEPS
    assert charge(world, dataset)[0] > 0


def test_a_job_that_goes_on_after_a_backup_has_fresh_keys_and_the_rest_of_its_hold(world: World) -> None:
    _, job = admitted(world, steps=STEPS + 60)
    log = begun(world, job)
    run(log, 1, 10)
    backup = world.backup()
    run(log, 11, STEPS)
    salt = job_row(world.db, job).segments[0].salt
    world.restore(backup)
    expire_all_leases(world.db)
    reap_expired(world.db, 3)
    again = begun(world, job)
    row = job_row(world.db, job)
    assert [each.from_step for each in row.segments] == [0, 11]
    assert row.segments[0].salt == salt != row.segments[1].salt
    assert REWOUND in row.warnings
    known, _blocks, released = again.recorded()
    assert known.steps_started == STEPS and {each.step for each in released} == set(range(10, STEPS + 1, 10))
    for step in range(11, 71, 10):
        assert again.start_block(step, step + 9)
    with pytest.raises(Exception, match="more steps than the job's hold covers"):
        again.start_block(71, 80)
    again.gone("lost")
    begun(world, job)
    assert len(job_row(world.db, job).segments) == 2, "the loss is known: no more fresh keys"


def test_digests_that_a_backup_forgot_give_fresh_keys(world: World) -> None:
    _, job = admitted(world)
    log = begun(world, job)
    run(log, 1, 10)
    assert log.start_block(11, 20)
    backup = world.backup()
    log.record_digest(20, "cd" * 32)
    release(
        log, {"name": "accuracy", "step": 20, "value": 0.5, "std": 0.01, "on": "holdout", "released_by": "noisy_count"}
    )
    world.restore(backup)
    expire_all_leases(world.db)
    reap_expired(world.db, 3)
    begun(world, job)
    row = job_row(world.db, job)
    assert row.steps_started == 20 and [each.from_step for each in row.segments] == [0, 11]


def test_salts_that_a_backup_forgot_are_counted(world: World) -> None:
    _, job = admitted(world)
    log = begun(world, job)
    run(log, 1, 10)
    backup = world.backup()
    log.resalt(10, "key")
    run(log, 11, 20)
    forgotten_salt = job_row(world.db, job).segments[1].salt
    world.restore(backup)
    expire_all_leases(world.db)
    reap_expired(world.db, 3)
    begun(world, job)
    with world.db.read() as session:
        salts = set(session.scalars(select(Block.salt).where(Block.job_id == job, Block.last_step > 0)))
    assert name_of(forgotten_salt) in salts


def test_a_crash_without_a_restore_changes_no_keys(world: World) -> None:
    _, job = admitted(world)
    log = begun(world, job)
    run(log, 1, 20)
    assert log.start_block(21, 30)
    expire_all_leases(world.db)
    reap_expired(world.db, 3, Marks.of(world.settings))
    begun(world, job)
    row = job_row(world.db, job)
    assert (len(row.segments), row.steps_started, row.warnings) == (1, 30, [])
    assert forgotten(world) == []


def test_interruptions_of_the_first_block_are_no_restores(world: World) -> None:
    """An attempt that repeats says the digest of step 0 first, which no mark knows."""
    _, job = admitted(world)
    for _ in range(3):
        log = begun(world, job)
        log.record_digest(0, "aa" * 32)
        assert log.start_block(1, 10)
        expire_all_leases(world.db)
        reap_expired(world.db, 9, Marks.of(world.settings))
    row = job_row(world.db, job)
    assert (len(row.segments), row.steps_started, row.warnings) == (1, 10, [])


def test_an_attempt_that_never_began_ends_no_job_without_its_mark(world: World) -> None:
    _, job = admitted(world)
    run(begun(world, job), 1, 10)
    expire_all_leases(world.db)
    reap_expired(world.db, 9, Marks.of(world.settings))
    log = claimed(world.db, job)
    log.marks = Marks.of(world.settings)
    api_cancel(world, job)
    mark = world.heads.folder / f"{job}.mark"
    content = mark.read_text()
    mark.write_text("{}")
    with pytest.raises(TransientError):
        log.gone("lost")
    assert job_row(world.db, job).status == "cancelling"
    mark.write_text(content.replace('"steps_started":10', f'"steps_started":{STEPS}'))
    log.gone("lost")
    assert (job_row(world.db, job).status, job_row(world.db, job).steps_started) == ("cancelled", STEPS)


def test_nothing_starts_and_nothing_is_released_if_the_mark_cannot_be_written(world: World) -> None:
    _, job = admitted(world)
    log = begun(world, job)
    run(log, 1, 10)
    (world.heads.folder / f"{job}.mark").write_text("{}")
    with pytest.raises(TransientError):
        log.start_block(11, 20)
    with pytest.raises(TransientError):
        release(
            log,
            {"name": "accuracy", "step": 20, "value": 0.5, "std": 0.1, "on": "holdout", "released_by": "noisy_count"},
        )
    assert len(log.recorded()[2]) == 1
    with world.api() as client:
        assert client.post(f"/v1/jobs/{job}/cancel").json()["type"] == "/problems/ledger-behind"


def test_others_write_while_a_mark_waits_for_its_disk(world: World) -> None:
    """It was written within the transaction: with SQLite everybody waited for its fsync, or for a bucket.

    Attack (Reliability): A job with many scores, on SQLite
    Now: a line more, outside transactions
    Also: tests/lifecycle/test_marks.py::test_a_mark_grows_by_what_is_new
    """
    _, job = admitted(world)
    log = before_a_score(world, job)
    with waiting(log, world.heads.folder / f"{job}.mark") as scored:
        with world.db.write(urgent=True) as session:
            session.get_one(Job, job).notified_at = None
        assert not scored.done() and len(log.recorded()[2]) == 1, "nothing leaves before its mark is on disk"
    scored.result()
    assert [each.step for each in log.recorded()[2]] == [10, 20]


def test_an_attempt_that_loses_its_job_while_it_writes_the_mark_tells_nothing(world: World) -> None:
    _, job = admitted(world)
    log = before_a_score(world, job)
    with waiting(log, world.heads.folder / f"{job}.mark") as scored:
        expire_all_leases(world.db)
        reap_expired(world.db, 3)
    with pytest.raises(StaleAttempt):
        scored.result()
    assert [each.step for each in log.recorded()[2]] == [10]


def test_a_mark_grows_by_what_is_new(world: World) -> None:
    """It was written whole for each score: with 50,000 numbers in it, 0.7 s each."""
    _, job = admitted(world)
    log = begun(world, job)
    mark = world.heads.folder / f"{job}.mark"
    run(log, 1, 10)
    before, file = mark.read_bytes(), mark.stat().st_ino
    run(log, 11, STEPS)
    after = mark.read_bytes()
    assert after.startswith(before) and mark.stat().st_ino == file
    lines = after.splitlines()
    assert len(lines) == 1 + 2 * SCORES and max(map(len, lines[3:])) <= max(map(len, lines[:3])) + 20
    whole = Marks.of(world.settings).read([job])[job]
    assert (whole.steps_started, len(whole.released), set(whole.salts.values())) == (STEPS, SCORES, {STEPS})


@pytest.mark.parametrize("cut", range(4))
def test_the_line_that_a_crash_cut_off_does_not_count(world: World, cut: int) -> None:
    """An append returns with its line whole on disk, and only then something leaves."""
    _, job = admitted(world)
    log = begun(world, job)
    run(log, 1, 20)
    marks, mark = Marks.of(world.settings), world.heads.folder / f"{job}.mark"
    before = marks.read([job])
    line = mark.read_bytes().splitlines()[-1]
    torn = [line, line[:-1], line[:7], b"\0" * 300][cut]
    with mark.open("ab") as file:
        file.write(torn)
    assert marks.read([job]) == before
    score(log, 30)
    after = marks.read([job])[job]
    assert [each.step for each in after.released] == [10, 20, 30]
    assert b"\0" not in mark.read_bytes() and mark.read_bytes().endswith(b"}\n")


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "another's end": lambda content: content + b'{"version":1,"job":"job_-',  # as no job's begins
    "not whole": lambda content: content + b"{}",
    "a line of another job": lambda content: content + content.replace(b"job_", b"job_x"),
    "a byte of the last line": lambda content: content[:-9] + b'"' + content[-8:],
    "no end of a line": lambda content: content.replace(b"\n", b" ") + b"\n",
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_anything_else_at_a_mark_s_end_is_damage(world: World, damage: str) -> None:
    _, job = admitted(world)
    log = begun(world, job)
    run(log, 1, 20)
    marks, mark = Marks.of(world.settings), world.heads.folder / f"{job}.mark"
    content = DAMAGES[damage](mark.read_bytes())
    mark.write_bytes(content)
    with pytest.raises(TransientError):
        marks.read([job])
    with pytest.raises(TransientError):
        score(log, 30)
    assert mark.read_bytes() == content and len(log.recorded()[2]) == 2


@pytest.mark.parametrize("damage", [b"{}\n", b"", None], ids=["damaged", "unreadable", "in the middle"])
def test_a_damaged_mark_closes_its_own_data_set_alone(world: World, damage: bytes | None) -> None:
    """One damaged mark stopped `scrimp restore` for all data sets.

    Attack (Reliability): A crash or a hand changes a mark
    Now: a cut last line does not count; else that job's data sets alone close, until `--post` spends the whole hold
    Also: tests/lifecycle/test_marks.py::test_the_line_that_a_crash_cut_off_does_not_count,
    tests/lifecycle/test_marks.py::test_anything_else_at_a_mark_s_end_is_damage
    """
    dataset, job = admitted(world)
    sound, twin = admitted(world)
    for each in (job, twin):
        behind.record(world.db, world.heads, job_row(world.db, each).dataset_id)
        run(begun(world, each), 1, 10)
    backup = world.backup()
    run(resumed(world, twin), 11, STEPS)
    world.restore(backup)
    mark = world.heads.folder / f"{job}.mark"
    if damage == b"":
        mark.unlink()
        mark.mkdir()
    else:
        mark.write_bytes(damage or mark.read_bytes().replace(b'"steps_started":10', b'"steps_started":x0', 1))
    shown = scrimp_restore(world)
    assert shown.returncode == 1 and f"the mark of {job} " in shown.stdout
    assert f"{twin} ({sound}): {STEPS} steps and {SCORES} scores left it" in shown.stdout, "the others go on"
    with world.api() as client:
        states = {each["id"]: each["state"] for each in client.get("/v1/datasets").json()["items"]}
        assert states == {dataset: "behind", sound: "ready"}
    assert world.submit(dataset, 0.2, "one").json()["type"] == "/problems/ledger-behind"
    assert world.submit(sound, 0.2, "two").status_code == 201
    assert scrimp_restore(world, "--post", sound).returncode == 1, "what is damaged stays"
    assert job_row(world.db, twin).steps_started == STEPS and job_row(world.db, job).status == "running"
    held = world.account(dataset)
    if damage == b"":
        mark.rmdir()
        mark.write_bytes(b"\xff")
    assert scrimp_restore(world, "--post", dataset).returncode == 0
    row = job_row(world.db, job)
    assert (row.status, charge(world, dataset)) == ("failed", (held.train_held, held.holdout_held))
    assert world.submit(dataset, 0.2, "three").status_code == 201
    assert [path.suffix[:8] for path in world.heads.folder.glob(f"{job}.mark*")] == [".damaged"[:8]]


def test_a_trial_with_a_damaged_mark_ends_with_its_study(world: World) -> None:
    dataset = add_dataset(world.db)
    with world.api() as client:
        made = client.post("/v1/jobs", json=study_spec(dataset), headers={"Idempotency-Key": "study"})
    assert made.status_code == 201, made.text
    study = str(made.json()["id"])
    with world.db.read() as session:
        trial = session.scalars(select(Job.id).where(Job.parent_id == study).order_by(Job.trial_number)).first()
    assert trial is not None
    behind.record(world.db, world.heads, dataset)
    held = world.account(dataset)
    (world.heads.folder / f"{trial}.mark").write_bytes(b"?")
    assert scrimp_restore(world, "--post", dataset).returncode == 0
    assert (job_row(world.db, trial).status, job_row(world.db, study).status) == ("failed", "cancelled")
    assert charge(world, dataset) == (held.train_held, held.holdout_held), "a trial failed: the study's rest is spent"
    with world.db.read() as session:
        assert verify(session, dataset).valid


def test_an_older_attempt_writes_nothing_to_a_newer_one_s_mark(world: World) -> None:
    """Attack (Reliability): An attempt that lost its job writes its mark late
    Now: refused after the next one's first line, also where a restored database counts anew, or the mark is removed
    Also: tests/lifecycle/test_marks.py::test_after_a_restore_a_new_attempt_writes_though_its_number_was_there_before,
    tests/lifecycle/test_marks.py::test_a_late_attempt_makes_no_mark_of_a_job_that_has_ended
    """
    _, job = admitted(world)
    old, mark = before_a_score(world, job), world.heads.folder / f"{job}.mark"
    with waiting(old, mark) as late:
        expire_all_leases(world.db)
        reap_expired(world.db, 9)
        new = claimed(world.db, job)
        new.marks = Marks.of(world.settings)
        began = threads_of_begin(new, mark)
    began.join()
    with pytest.raises(StaleAttempt):
        late.result()
    before = mark.read_bytes()
    with pytest.raises(StaleAttempt):
        Marks.of(world.settings).append(Mark(job=job, dataset="ds_x", attempt=1, steps_started=999))
    assert mark.read_bytes() == before
    run(new, 21, 30)


def test_after_a_restore_a_new_attempt_writes_though_its_number_was_there_before(world: World) -> None:
    """The restored database counts attempts anew; those of before the restore write no more."""
    _, job = admitted(world)
    run(begun(world, job), 1, 10)
    backup = world.backup()
    for first in (11, 21):
        run(resumed(world, job), first, first + 9)
    world.restore(backup)
    again = resumed(world, job)
    assert again.held.attempt == 2 and [each.step for each in again.recorded()[2]] == [10, 20, 30]
    run(again, 31, 40)
    with pytest.raises(StaleAttempt):
        Marks.of(world.settings).append(Mark(job=job, dataset="ds_x", attempt=3))
    assert Marks.of(world.settings).read([job])[job].attempt == 4


def test_a_job_that_ended_for_less_than_its_mark_is_named_and_charged(world: World) -> None:
    """As in a database that was set back and whose job was ended by a version without marks.

    Attack (Reliability): A job or a waiting trial ends in a restored database for less than left it
    Now: trials by their marks; an ended job is named, closes its data sets and keeps its mark until the rest is posted
    Also: tests/lifecycle/test_marks.py::test_two_short_trials_of_one_study_are_charged_its_hold_once,
    tests/lifecycle/test_marks.py::test_a_trial_that_a_restore_forgot_is_charged_when_another_ends_its_study
    """
    dataset, job = admitted(world)
    log = begun(world, job)
    behind.record(world.db, world.heads, dataset)
    run(log, 1, 10)
    held = world.account(dataset)
    backup = world.backup()
    run(log, 11, STEPS)
    world.restore(backup)
    with world.db.write() as session:
        row = session.get_one(Job, job)
        row.status = "queued"
        settle(session, settlement_of(session, row, "cancelled"))
    behind.record(world.db, world.heads, dataset)
    sweep_all(world)
    shown = scrimp_restore(world)
    assert shown.returncode == 1
    assert f"{job} ({dataset}): {STEPS} steps and {SCORES} scores left it; the database knows 10 and 1" in shown.stdout
    assert world.submit(dataset, 0.2, "one").json()["type"] == "/problems/ledger-behind"
    assert scrimp_restore(world, "--post", dataset).returncode == 0
    assert charge(world, dataset) == (held.train_held, held.holdout_held)
    assert world.submit(dataset, 0.2, "two").status_code == 201
    with world.db.read() as session:
        assert verify(session, dataset).valid


def ended_short(world: World, job: str) -> None:
    """Ended for less than its mark, as by a version without marks."""
    with world.db.write() as session:
        row = session.get_one(Job, job)
        if row.study is not None:
            study_states.cancel(session, row)
        else:
            row.status = "queued"
            settle(session, settlement_of(session, row, "cancelled"))
    behind.record(world.db, world.heads, row.dataset_id)


def test_two_short_trials_of_one_study_are_charged_its_hold_once(world: World) -> None:
    """The second took the study's hold again: `restore --post` failed for ever."""
    dataset = add_dataset(world.db)
    with world.api() as client:
        made = client.post("/v1/jobs", json=study_spec(dataset), headers={"Idempotency-Key": "study"})
    study = str(made.json()["id"])
    with world.db.read() as session:
        trials = session.scalars(select(Job.id).where(Job.parent_id == study).order_by(Job.trial_number)).all()
    held = world.account(dataset)
    backup = world.backup()
    for each in trials[:2]:
        begun(world, each).start_block(1, job_row(world.db, each).steps)
    lines = (world.heads.folder / f"{trials[1]}.mark").read_bytes()
    world.restore(backup)
    ended_short(world, study)
    assert [each.ended for each in forgotten(world)] == [True, True]
    shown = scrimp_restore(world, "--post", dataset)
    assert shown.returncode == 0, shown.stderr
    whole = (held.train_held, held.holdout_held)
    assert charge(world, dataset) == whole
    (world.heads.folder / f"{trials[1]}.mark").write_bytes(lines)  # another restore, of the folder of marks
    assert scrimp_restore(world, "--post", dataset).returncode == 0
    assert charge(world, dataset) == whole, "nothing is left of the hold to charge"
    assert Marks.of(world.settings).jobs() == []
    assert world.submit(dataset, 0.2, "again").status_code == 201
    with world.db.read() as session:
        assert verify(session, dataset).valid


def test_a_later_mark_is_charged_what_an_earlier_restore_had_no_budget_for(world: World) -> None:
    dataset, job = admitted(world)
    log = begun(world, job)
    run(log, 1, 10)
    held = world.account(dataset)
    backup = world.backup()
    run(log, 11, STEPS)
    lines = (world.heads.folder / f"{job}.mark").read_bytes()
    world.restore(backup)
    ended_short(world, job)
    spent = charge(world, dataset)
    with world.db.write() as session:
        free = accounts.remaining_of(accounts.account_of(session, dataset))
        taken = {each: left - (held.train_held - spent[0]) // 2 for each, left in free.items()}
        other: dict[str, Any] = {"dataset_id": dataset, "job_id": "chg_other", "actor": "key_a", **taken}
        accounts.hold(session, **other)
        accounts.post(session, **other)
    behind.record(world.db, world.heads, dataset)
    assert scrimp_restore(world, "--post", dataset).returncode == 0
    account = world.account(dataset)
    assert account.train_spent == account.train_budget, "as far as the budget goes"
    with world.db.write() as session:
        accounts.change_cap(session, dataset_id=dataset, cap_epsilon=4.0, actor="key_a", reason="more")
    behind.record(world.db, world.heads, dataset)
    (world.heads.folder / f"{job}.mark").write_bytes(lines)
    assert scrimp_restore(world, "--post", dataset).returncode == 0
    assert charge(world, dataset) == (held.train_held + taken["train"], held.holdout_held + taken["holdout"])
    with world.db.read() as session:
        assert verify(session, dataset).valid


def test_a_trial_that_a_restore_forgot_is_charged_when_another_ends_its_study(world: World) -> None:
    """The other trial's failure ended it, queued in the restored database, for nothing."""
    dataset = add_dataset(world.db)
    with world.api() as client:
        made = client.post("/v1/jobs", json=study_spec(dataset), headers={"Idempotency-Key": "study"})
    study = str(made.json()["id"])
    with world.db.read() as session:
        trials = session.scalars(select(Job.id).where(Job.parent_id == study).order_by(Job.trial_number)).all()
    first, second = trials[:2]
    backup = world.backup()
    steps = job_row(world.db, second).steps
    begun(world, second).start_block(1, steps)
    world.restore(backup)
    begun(world, first).fail("internal", "a test")
    row = job_row(world.db, second)
    assert (row.status, row.steps_started) == ("cancelled", steps)
    with world.db.read() as session:
        assert accounts.find(session, dataset, f"settle:{second}") is not None, "its draw"


@pytest.mark.parametrize("words", [(STEPS, "ab" * 32), (STEPS + 1, STEPS + 10), (STEPS + 1, STEPS + 10, "ab" * 32)])
def test_a_live_attempt_notices_that_the_database_was_set_back(world: World, words: Any) -> None:
    log = begun(world, job := admitted(world)[1])
    run(log, 1, 10)
    backup = world.backup()
    run(log, 11, STEPS)
    world.restore(backup)
    log.db = world.db
    with pytest.raises(TransientError, match="a backup was restored"):
        (log.record_digest if words[0] == STEPS else log.start_block)(*words)
    log.gone("lost")
    row = job_row(world.db, job)
    assert (row.status, row.steps_started, len(row.segments)) == ("queued", STEPS, 2)


def test_a_mark_shows_only_what_callers_see(world: World) -> None:
    _, job = admitted(world)
    log = begun(world, job)
    run(log, 1, 10)
    lines: list[dict[str, Any]] = list(map(json.loads, (world.heads.folder / f"{job}.mark").read_text().splitlines()))
    row = job_row(world.db, job)
    names = {"version", "job", "dataset", "attempt", "steps_started", "salts", "released"}
    assert all(each.keys() == names for each in lines)
    assert lines[-1]["steps_started"] == row.steps_started and row.segments[0].salt not in json.dumps(lines)


def test_the_mark_of_an_ended_job_goes_once_its_settlement_is_in_the_head(world: World) -> None:
    dataset, job = admitted(world)
    marks = Marks.of(world.settings)
    log = begun(world, job)
    behind.record(world.db, world.heads, dataset)
    run(log, 1, 10)
    sweep_all(world)
    assert marks.jobs() == [job]
    log.cancelled()
    sweep_all(world)
    assert marks.jobs() == [job], "a database that is set back now would not be noticed by its head"
    behind.record(world.db, world.heads, dataset)
    sweep_all(world)
    assert marks.jobs() == []


def test_a_damaged_mark_of_an_ended_job_closes_nothing_whatever_is_wrong_with_it(world: World) -> None:
    """It was told from a job that ended for too little by the beginning of an error's text."""
    dataset, job = admitted(world)
    begun(world, job).cancelled()
    behind.record(world.db, world.heads, dataset)
    assert problems(world.db, Comparison([], {job: f"{job} has a mark that cannot be read"})) == {}
    assert set(problems(world.db, Comparison([Forgotten(job, dataset, True, True, 0, 0, 1, 0)], {}))) == {dataset}


def test_many_marks_are_compared_in_as_many_statements_as_one(world: World) -> None:
    marks, said, counts = Marks.of(world.settings), list[str](), list[int]()
    event.listen(world.db.engine, "before_cursor_execute", lambda *told: said.append(told[2]))
    for number in range(12):
        marks.append(Mark(job=f"job_{number}", dataset="ds_a", steps_started=1), after=0)
        said.clear()
        assert len(compare(world.db, marks).forgotten) == number + 1
        counts.append(sum("SELECT" in each for each in said))
    assert set(counts) == {2}


def test_a_late_attempt_makes_no_mark_of_a_job_that_has_ended(world: World) -> None:
    """It hung until the job had ended and its mark was removed. The mark that it made anew closed the data set."""
    dataset, job = admitted(world)
    marks, mark = Marks.of(world.settings), world.heads.folder / f"{job}.mark"
    old = before_a_score(world, job)
    with waiting(old, mark) as late:
        reaped(world, job)
        behind.record(world.db, world.heads, dataset)
        sweep_all(world)
        assert marks.jobs() == []
    with pytest.raises(StaleAttempt):
        late.result()
    with pytest.raises(StaleAttempt, match="was removed"):
        marks.append(Mark(job=job, dataset=dataset, attempt=1, steps_started=30))
    assert marks.jobs() == []
    assert problems_of(world) == {}
    assert world.submit(dataset, 0.1, "next").status_code == 201


def test_the_mark_of_a_private_job_on_public_data_goes_with_its_end(world: World) -> None:
    """It has no ledger, so its settlement was in no head, and its mark stayed for ever."""
    dataset = add_dataset(world.db, privacy={"sensitivity": "public"})
    with world.api() as client:
        spec = job_spec(dataset, privacy={"noise_multiplier": 1.0}, evaluation=None)
        made = client.post("/v1/jobs", json=spec, headers={"Idempotency-Key": "public"})
    assert made.status_code == 201, made.text
    marks, job = Marks.of(world.settings), str(made.json()["id"])
    assert job_row(world.db, job).mechanism is not None
    log = begun(world, job)
    assert log.start_block(1, 10)
    sweep_all(world)
    assert marks.jobs() == [job]
    log.fail("internal", "a test")
    sweep_all(world)
    assert marks.jobs() == []


def test_the_mark_of_a_trial_that_spent_nothing_goes_with_its_study_s(world: World) -> None:
    dataset = add_dataset(world.db)
    with world.api() as client:
        made = client.post("/v1/jobs", json=study_spec(dataset), headers={"Idempotency-Key": "study"})
    study, marks = str(made.json()["id"]), Marks.of(world.settings)
    with world.db.read() as session:
        first, second = session.scalars(select(Job.id).where(Job.parent_id == study).order_by(Job.trial_number)).all()[
            :2
        ]
    begun(world, second)
    running = begun(world, first)
    assert running.start_block(1, 2)
    running.fail("internal", "a test")
    behind.record(world.db, world.heads, dataset)
    sweep_all(world)
    assert marks.jobs() == [second], "its attempt still runs"
    expire_all_leases(world.db)
    reap_expired(world.db, 9, marks)
    assert job_row(world.db, second).status == "cancelled"
    behind.record(world.db, world.heads, dataset)
    sweep_all(world)
    assert marks.jobs() == []


def test_a_cancel_leaves_what_a_live_attempt_will_say_at_the_next_second_to_it(world: World) -> None:
    _, job = admitted(world)
    log = begun(world, job)
    log.cadence = Cadence(3600.0)
    log.heartbeat()
    run(log, 1, 10)
    assert log.recorded()[2] == [], "news until the next tick"
    api_cancel(world, job)
    assert log.recorded()[2] == []
    log.cadence = AT_ONCE
    log.cancelled()
    assert [each.step for each in log.recorded()[2]] == [10]


def test_a_score_that_a_crash_kept_from_callers_is_released_by_the_next_attempt(world: World) -> None:
    _, job = admitted(world)
    log = begun(world, job)
    log.cadence = Cadence(3600.0)
    log.heartbeat()
    run(log, 1, 10)
    expire_all_leases(world.db)
    reap_expired(world.db, 3)
    assert [each.step for each in begun(world, job).recorded()[2]] == [10]
    assert len(job_row(world.db, job).segments) == 1
