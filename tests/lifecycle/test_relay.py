"""The relay: messages may be lost, doubled or refused; jobs are not."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from sqlalchemy import event, func, select
from sqlalchemy.dialects import postgresql

from app.db.database import Database
from app.db.models import Account, Certificate, DatasetTerms, JobEvent, LedgerCheckpoint, Outbox, SignedDigest
from app.ledger.certificates import verify
from app.ledger.signer import Signer
from app.ledger.signing_keys import signing_key
from app.ledger.transparency import checkpoints
from app.ledger.transparency.heads import Heads
from app.lifecycle.relay import SWEPT, Relay
from app.lifecycle.wakeups import WakeUp
from app.settings import Settings
from app.storage.objects import Folder
from core.contracts.stored_documents import ArtifactFile
from core.errors import TransientError, Unavailable
from core.ids import now
from tests.factories import add_dataset
from tests.lifecycle.conftest import Submit, claimed, job_row


@dataclass
class Notifier:
    """A broker in this process: what is notified, and how many messages it says are waiting."""

    heard: Callable[[str], None]
    messages: int = 0

    def notify(self, due: Sequence[WakeUp]) -> Iterator[WakeUp]:
        for each in due:
            self.heard(each.id)
            yield each

    def waiting(self, *, gpu: bool = False) -> int:
        return self.messages


def relay_of(db: Database, settings: Settings, notify: Callable[[str], None], messages: int = 0) -> Relay:
    """A relay that sweeps in each pass and takes each message that was not claimed at once for lost."""
    eager = settings.model_copy(update={"notify_again_s": 0.0, "sweep_s": 0.0})
    return Relay(db, eager, signing_key(settings), Notifier(notify, messages))


def test_every_job_runs_once_though_a_third_of_the_messages_is_lost_and_a_third_doubled(
    db: Database, settings: Settings, submit: Submit
) -> None:
    jobs = [submit() for _ in range(12)]
    chance = random.Random(7)
    runs: dict[str, int] = dict.fromkeys(jobs, 0)

    def notify(job_id: str) -> None:
        fate = chance.random()
        for _ in range(0 if fate < 0.3 else 2 if fate < 0.6 else 1):
            if job_row(db, job_id).status == "queued":
                claimed(db, job_id)
                runs[job_id] += 1

    relay = relay_of(db, settings, notify)
    for _ in range(50):
        relay.run_once()
    assert set(runs.values()) == {1}


def test_a_broker_that_is_down_loses_nothing(db: Database, settings: Settings, submit: Submit) -> None:
    job_id = submit()
    notified: list[str] = []

    def down(_job: str) -> None:
        raise ConnectionError

    with pytest.raises(ConnectionError):
        relay_of(db, settings, down).run_once()
    with db.read() as session:
        assert session.scalar(select(func.count()).select_from(Outbox)) == 1
    Relay(db, settings, signing_key(settings), Notifier(notified.append)).run_once()
    assert notified == [job_id]
    assert job_row(db, job_id).status == "queued"


@dataclass(frozen=True)
class Picky:
    """A program that signs all but what names this job: too much for it, or too slow."""

    key: Signer
    job_id: str

    def public_key(self) -> Ed25519PublicKey:
        return self.key.public_key()

    def sign(self, data: bytes) -> bytes:
        if self.job_id.encode() in data:
            raise Unavailable("SCRIMP_SIGN_COMMAND failed")
        return self.key.sign(data)


def test_a_certificate_that_a_program_does_not_sign_keeps_no_other_waiting(
    db: Database, settings: Settings, submit: Submit
) -> None:
    jobs = [submit(once=str(number)) for number in range(3)]
    for job_id in jobs:
        log = claimed(db, job_id)
        log.start_block(1, 50)
        log.record_digest(50, "ab" * 32)
        log.succeed([], 50, [])
    relay = relay_of(db, settings, lambda _job: None)
    relay.signing_key = Picky(relay.signing_key, jobs[0])
    with pytest.raises(Unavailable):
        relay.run_once()
    relay.run_once()  # those that were not tried yet
    with db.read() as session:
        assert {each for each in jobs if session.get(Certificate, each) is not None} == set(jobs[1:])


@pytest.mark.parametrize("error", [Unavailable("SCRIMP_SIGN_COMMAND failed"), OSError("no file")])
def test_a_page_of_certificates_that_fail_keeps_no_other_waiting(
    db: Database, settings: Settings, submit: Submit, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """A hundred were read at once, the oldest: as many that cannot be issued were all that was ever tried."""
    monkeypatch.setattr("app.lifecycle.relay.CERTIFICATES", 2)
    jobs = [submit(once=str(number)) for number in range(4)]
    for job_id in jobs:
        log = claimed(db, job_id)
        log.start_block(1, 50)
        log.record_digest(50, "ab" * 32)
        log.succeed([], 50, [])
    relay, certify, tried = relay_of(db, settings, lambda _job: None), Relay._certify, list[str]()

    def fails(self: Relay, row_id: int, job_id: str) -> None:
        tried.append(job_id)
        if job_id in jobs[:3]:
            raise error
        certify(self, row_id, job_id)

    monkeypatch.setattr(Relay, "_certify", fails)
    passes = 4 if isinstance(error, Unavailable) else 1  # what is away ends a pass
    for _ in range(passes):
        with pytest.raises(type(error)) if len(tried) < 3 else nullcontext():
            relay.run_once()
    assert tried == jobs
    with db.read() as session:
        assert session.get(Certificate, jobs[3]) is not None
    with pytest.raises(type(error)):
        relay.run_once()
    assert tried[4] == jobs[0], "those that failed are tried again"


def test_a_pass_that_ended_with_the_last_certificate_does_not_spin(
    db: Database, settings: Settings, submit: Submit, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program took all of a pass's time for one: a later pass, with none that waits, pauses."""
    relay, job_id = relay_of(db, settings, lambda _job: None), submit()
    relay.run_once()
    with db.write() as session:
        session.add(Outbox(topic="certificate", job_id=job_id, created_at=now()))

    def certify(row_id: int, _job_id: str) -> None:
        with db.write() as session:
            session.delete(session.get_one(Outbox, row_id))

    monkeypatch.setattr(relay, "_certify", certify)
    monkeypatch.setattr("app.lifecycle.relay.SIGNING_S", 0.0)
    relay.run_once()
    assert relay.certified > 0 and not any(relay.run_once() for _ in range(3))


def test_a_settled_job_gets_its_certificate_once(db: Database, settings: Settings, submit: Submit) -> None:
    job_id = submit()
    log = claimed(db, job_id)
    log.start_block(1, 50)
    log.record_digest(50, "ab" * 32)
    model = ArtifactFile(name="model.safetensors", sha256="cd" * 32, size_bytes=3, path="jobs/x/model.safetensors")
    log.succeed([model], 50, [])
    relay = relay_of(db, settings, lambda _job: None)
    relay.run_once()
    relay.run_once()
    with db.read() as session:
        document = session.get_one(Certificate, job_id).body
    assert verify(document)
    assert document["certificate"]["job"] == job_id
    assert document["certificate"]["steps"] == {"planned": 50, "started": 50, "effective": 50}


def test_a_backlog_is_not_notified_again_while_messages_wait(db: Database, settings: Settings, submit: Submit) -> None:
    """Each sweep used to add a message for every job that waited for a busy worker: a broker filled up in a night."""
    jobs = [submit() for _ in range(4)]
    notified: list[str] = []
    relay_of(db, settings, notified.append).run_once()
    assert sorted(notified) == sorted([*jobs, *jobs])  # from the outbox, and then none was waiting
    notified.clear()
    relay = relay_of(db, settings, notified.append, messages=4)
    for _ in range(5):
        relay.run_once()
    assert notified == []
    # One is lost: one more is sent, for the job that has waited longest.
    relay_of(db, settings, notified.append, messages=3).run_once()
    assert notified == jobs[:1]


def test_a_broker_that_fails_half_way_is_sent_the_rest_later(db: Database, settings: Settings, submit: Submit) -> None:
    jobs = [submit() for _ in range(3)]
    notified: list[str] = []

    def notify(job_id: str) -> None:
        if len(notified) == 2:
            raise ConnectionError
        notified.append(job_id)

    with pytest.raises(ConnectionError):
        relay_of(db, settings, notify).run_once()
    with db.read() as session:
        assert session.scalars(select(Outbox.job_id)).all() == jobs[2:]


def test_two_relays_at_once_issue_one_certificate(db: Database, settings: Settings, submit: Submit) -> None:
    jobs = [submit() for _ in range(3)]
    for job_id in jobs:
        log = claimed(db, job_id)
        log.start_block(1, 50)
        log.succeed([], 50, [])
    failures: list[Exception] = []

    def work(relay: Relay) -> None:
        try:
            relay.run_once()
        except Exception as error:
            failures.append(error)

    relays = [relay_of(db, settings, lambda _job: None) for _ in range(4)]
    threads = [threading.Thread(target=work, args=(each,)) for each in relays]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    with db.read() as session:
        assert sorted(session.scalars(select(Certificate.job_id))) == sorted(jobs)
        assert session.scalar(select(func.count()).select_from(Outbox)) == 0
        issued = select(func.count()).select_from(JobEvent).where(JobEvent.type == "certificate_issued")
        assert session.scalar(issued) == len(jobs)


def test_a_slow_relay_takes_nothing_from_the_outbox_but_what_it_read(
    db: Database, settings: Settings, submit: Submit
) -> None:
    """SQLite numbers a new row as the last deleted one: a certificate was dropped for another job's, and never came."""
    jobs = [submit() for _ in range(2)]
    slow, quick = (relay_of(db, settings, lambda _job: None) for _ in range(2))
    quick.run_once()

    def succeed(job_id: str) -> None:
        log = claimed(db, job_id)
        log.start_block(1, 50)
        log.succeed([], 50, [])

    succeed(jobs[0])
    seen = slow._due("certificate", 10)
    quick.run_once()
    succeed(jobs[1])
    for row_id, job_id in seen:
        slow._certify(row_id, job_id)
    quick.run_once()
    with db.read() as session:
        assert sorted(session.scalars(select(Certificate.job_id))) == sorted(jobs)


def test_a_sweep_forgets_old_copies_of_a_bucket_s_files(db: Database, settings: Settings) -> None:
    forgotten: list[bool] = []

    class Bucket(Folder):
        def forget(self) -> None:
            forgotten.append(True)

    relay = relay_of(db, settings, lambda _: None)
    relay.objects = Bucket(settings.storage_root)
    relay.run_once()
    relay.run_once()  # the next sweep is not due
    assert forgotten == [True]


def test_an_idle_relays_pass_and_sweep_are_five_looks(db: Database, settings: Settings, submit: Submit) -> None:
    """At the outbox, for jobs and predictions, for new content, for ledgers that grew, and for terms that changed."""
    relay = relay_of(db, settings, lambda _job: None)
    relay.run_once()
    said: list[str] = []
    event.listen(db.engine, "before_cursor_execute", lambda *told: said.append(told[2]))
    relay.run_once()
    assert len([each for each in said if each.startswith("SELECT")]) == 5
    submit()
    said.clear()
    relay.run_once()
    assert any("lease_until" in each for each in said)  # expired leases are looked for again


def test_a_sweep_s_question_names_the_statuses_in_its_text() -> None:
    """As parameters they would let PostgreSQL plan for any status: a million finished jobs were read each second."""
    text = str(SWEPT.compile(dialect=postgresql.dialect(), compile_kwargs={"render_postcompile": True}))
    assert "status IN ('queued', " in text


class Slow:
    """Signs with a key, and takes two seconds of a clock that it moves."""

    def __init__(self, key: Signer, monkeypatch: pytest.MonkeyPatch) -> None:
        self.key, self.now, self.signed = key, 1000.0, 0
        monkeypatch.setattr("app.repeat.time", SimpleNamespace(monotonic=lambda: self.now))

    def public_key(self) -> Ed25519PublicKey:
        return self.key.public_key()

    def sign(self, data: bytes) -> bytes:
        self.now += 2.0
        self.signed += 1
        return self.key.sign(data)


def test_wake_ups_come_between_what_a_slow_program_signs(
    db: Database, settings: Settings, submit: Submit, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each pass signs for five seconds of each kind, and the next one goes on where it was."""
    for _ in range(7):
        add_dataset(db)
    notified: list[str] = []
    relay = relay_of(db, settings, notified.append)
    relay.signing_key = slow = Slow(relay.signing_key, monkeypatch)
    assert relay.run_once() and slow.signed == 6, "three checkpoints, and three data sets' terms"
    job_id = submit()
    relay.settings = settings  # no sweep asks for more
    passes = 1
    while relay.run_once():
        passes += 1
        assert notified == [job_id] and slow.signed <= 6 * (passes + 1)
    with db.read() as session:
        ledgers = session.scalar(select(func.count()).select_from(Account))
        for table in (LedgerCheckpoint, DatasetTerms):
            assert session.scalar(select(func.count()).select_from(table)) == ledgers
    assert not relay.run_once()


def test_wake_ups_come_between_the_logs_that_a_slow_program_signs(
    db: Database, settings: Settings, submit: Submit, monkeypatch: pytest.MonkeyPatch
) -> None:
    with db.write() as session:
        session.add_all(SignedDigest(digest=f"{number:064x}") for number in range(7))
    monkeypatch.setattr("app.ledger.transparency.dates.TILE", 1)
    notified: list[str] = []
    relay = relay_of(db, settings, notified.append)
    relay.signing_key = slow = Slow(relay.signing_key, monkeypatch)
    assert relay.run_once() and slow.signed == 3
    job_id = submit()
    relay.settings = settings  # no sweep asks for more
    assert relay.run_once() and notified == [job_id]
    while relay.run_once():
        pass
    with db.read() as session:
        assert session.scalar(select(func.count()).where(SignedDigest.batch.is_(None))) == 0
    assert not relay.logs.goes_on and not relay.run_once()


def test_a_ledger_that_is_refused_delays_no_other(
    db: Database, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, *_ = sorted(add_dataset(db) for _ in range(4))
    relay = relay_of(db, settings, lambda _job: None)
    relay.ledgers.seconds = 0.0  # one ledger in each pass
    advance = checkpoints.advance

    def refused(db: Database, heads: Heads, dataset_id: str, *more: Any) -> Any:
        if dataset_id == first:
            raise TransientError("it lacks a kept checkpoint")
        return advance(db, heads, dataset_id, *more)

    monkeypatch.setattr(checkpoints, "advance", refused)
    for _ in range(4):
        relay.run_once()
    with db.read() as session:
        assert session.scalar(select(func.count()).select_from(LedgerCheckpoint)) == 3
    assert relay.unsigned == {first}
