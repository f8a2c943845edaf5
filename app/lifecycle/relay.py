"""The relay: wakes workers, issues certificates, sweeps. `python -m app.lifecycle.relay` runs it as a process, which
also seals the audit log and sends webhooks.

It sends a job's wake-up from the outbox at once; the sweeper repeats it if no worker claimed the job. With the broker
down, jobs wait in the database. Only the relay holds the signing key.
"""

from __future__ import annotations

import logging
import signal
import threading
import time
from collections.abc import Iterator
from datetime import timedelta
from functools import partial
from importlib.metadata import version

from sqlalchemy import BindParameter, bindparam, delete, exists, literal, select, union_all
from sqlalchemy.orm import Session

from app import logs, tracing
from app.audit import audit_chain, same_content
from app.db.changes import SELDOM_S, Changes
from app.db.database import Database
from app.db.models import Job, Outbox, Prediction
from app.egress import making
from app.ledger import behind, certificates, signed_terms
from app.ledger.block_accounts import held_on
from app.ledger.evidence import members_of
from app.ledger.signer import Signer
from app.ledger.signing_keys import publish, signing_key
from app.ledger.transparency import checkpoints, dates
from app.ledger.transparency.heads import Heads
from app.ledger.transparency.witnesses import configured
from app.ledger.verifications import check_next
from app.lifecycle import mark_survey, saved, spool, wakeups
from app.lifecycle.marks import Marks
from app.lifecycle.states import ACTIVE, append_event
from app.lifecycle.sweeper import count_queued, cut_off_silent, reap_expired, traceparent
from app.lifecycle.wakeups import CeleryNotifier, Notifier, WakeUp, as_read
from app.predictions import prediction_claims as predictions
from app.repeat import Round, in_thread, repeat, told_to_stop
from app.retention import service as retention
from app.settings import Settings, get_settings
from app.storage import objects
from app.webhooks import alerts
from app.webhooks.delivery import Deliverer
from app.webhooks.service import announce_checkpoint
from core.errors import ServiceError, TransientError, Unavailable

logger = logging.getLogger(__name__)
POLL_S = 0.1
RETENTION_S, STATES_S = 600.0, 60.0
SEAL_S = EGRESS_S = 0.5
ALERTS_S = 1.0
JOIN_S = 3.0  # an interrupted delivery is tried again
NOTIFICATIONS, CERTIFICATES = 500, 100  # at most in one pass
SIGNING_S = 5.0  # of certificates, of checkpoints, of terms and of logs in one pass: then wake-ups come between
SURVEY_S, SURVEY_AGAIN_S, CHECK_S, WITNESS_S = 3600.0, 60.0, 1.0, 1.0
DUE = union_all(
    select(Outbox.topic).distinct(),
    select(literal("predict")).where(predictions.UNNOTIFIED.exists()),
    select(literal("date")).where(dates.UNBATCHED.exists()),
)
# What a sweep can be about. An idle service has neither: one statement in place of ten. The statuses stand in its text:
# as parameters of a prepared statement PostgreSQL plans for any status, and reads a million finished jobs each time.
OPEN: BindParameter[str] = bindparam("open", ("queued", *ACTIVE), expanding=True, literal_execute=True)
SWEPT = union_all(
    select(literal("jobs")).where(exists(select(Job.id).where(Job.status.in_(OPEN)))),
    select(literal("predictions")).where(exists(select(Prediction.id))),
)


class Relay:
    """One pass does the due work, of signing a bounded part; `run` repeats passes until `stop` is set."""

    def __init__(self, db: Database, settings: Settings, signing_key: Signer, notifier: Notifier) -> None:
        self.db, self.settings, self.signing_key, self.notifier = db, settings, signing_key, notifier
        self.heads, self.marks, self.objects = Heads.of(settings), Marks.of(settings), objects.of(settings)
        self.unsigned: set[str] = set()
        self.code_version = version("scrimp")
        self.next_sweep = self.next_survey = self.next_states = self.next_retention = 0.0
        self.published = self.signs = False
        self.certified = 0  # the outbox row of the certificate that was tried last; 0: the next is the first one
        self.ledgers, self.terms, self.logs = (Round[str](SIGNING_S) for _ in range(3))

    def run_once(self) -> bool:
        """Does the work that is due now. True if there is more to sign: the next pass goes on where this one was."""
        if not self.published:
            publish(self.db, self.signing_key)
            self.published = True
        due = self._look()
        failed = self._empty_outbox(due)
        if "predict" in due:
            self._notify_predictions()
        if time.monotonic() >= self.next_survey:
            self.next_survey = time.monotonic() + self._survey()
        if time.monotonic() >= self.next_sweep:
            self._sweep()
            self.next_sweep = time.monotonic() + self.settings.sweep_s
            self.signs = True
        if self.signs:
            self.signs = self._sign_checkpoints("date" in due)
        if time.monotonic() >= self.next_states:
            self.next_states = time.monotonic() + STATES_S
            saved.drop_ended(self.db, self.objects)
        if time.monotonic() >= self.next_retention:
            retention.sweep(self.db, self.settings)
            self.objects.forget()
            self.next_retention = time.monotonic() + RETENTION_S
        if failed is not None:
            raise failed  # after the other work, which may not wait for it; the next pass comes later
        return self.signs or self.certified > 0

    def run(self, stop: threading.Event) -> None:
        """Repeats passes until `stop` is set."""
        repeat(self.run_once, stop, POLL_S, Changes(self.db))

    def _sweep(self) -> None:
        """Does what no message asks for: what a clock makes due, and what grew."""
        with self.db.quick_read() as connection:
            about = set(connection.scalars(SWEPT))
        if "jobs" in about:
            cut_off_silent(self.db)
            reap_expired(self.db, self.settings.max_attempts, self.marks)
            self._notify_again()
        if "predictions" in about:
            self._notify_predictions()
            predictions.sweep(self.db)
        same_content.flag(self.db)
        spool.sweep(self.settings.broker_dir)

    def _survey(self) -> float:
        """Compares ledgers with their records. Returns how long to wait for the next time."""
        try:
            compared = mark_survey.compare(self.db, self.marks)
            mark_survey.survey(self.db, self.heads, self.objects, compared)
            mark_survey.sweep(self.db, self.heads, self.marks, compared)
        except Unavailable as error:  # other work goes on while a bucket is away
            logger.error("the ledgers were not compared with their recorded heads: %s", error.message)
            return SURVEY_AGAIN_S
        return SURVEY_S

    def _look(self) -> set[str]:
        """Reads which topics have due work. One statement, as it runs ten times a second and mostly finds nothing."""
        with self.db.quick_read() as connection:
            return set(connection.scalars(DUE))

    def _empty_outbox(self, topics: set[str]) -> Exception | None:
        """Does the messages' work. Returns the last failure of those that are tried again."""
        # Work first, delete after: a crash between the two repeats the work, which is harmless.
        if "notify" in topics:
            self._notify(wakeups.due(self.db, NOTIFICATIONS))
        failed: Exception | None = None
        if "certificate" not in topics:
            self.certified = 0  # none waits: nothing goes on
        for row_id, job_id in self._uncertified() if "certificate" in topics else ():
            try:
                self._certify(row_id, job_id)
            except Unavailable as error:
                failed = error
                break  # what is away, a program that signs or a bucket, would delay wake-ups for each of the others
            except (ServiceError, OSError) as error:
                failed = error  # continues with the others; this one is tried again
        for row_id, job_id in self._due("discard", CERTIFICATES) if "discard" in topics else []:
            self._discard(row_id, job_id)
        return failed

    def _due(self, topic: str, limit: int, after: int = 0) -> list[tuple[int, str]]:
        rows = select(Outbox.id, Outbox.job_id).where(Outbox.topic == topic, Outbox.id > after)
        with self.db.read() as session:
            return [(row.id, row.job_id) for row in session.execute(rows.order_by(Outbox.id).limit(limit))]

    def _uncertified(self) -> Iterator[tuple[int, str]]:
        """Certificates to issue, for a bounded time; at least one.

        It goes on where the last call ended, and begins again after the last one: what fails, however much it is, is
        tried again after all others.
        """
        ends = time.monotonic() + SIGNING_S
        while waiting := self._due("certificate", CERTIFICATES, self.certified):
            for row_id, job_id in waiting:
                self.certified = row_id
                yield row_id, job_id
                if time.monotonic() >= ends:
                    return
        self.certified = 0

    def _notify(self, due: list[WakeUp]) -> None:
        """Sends wake-ups of jobs, then notes the sent ones, even if the broker fails half-way."""
        sent = []
        try:
            for notified in self.notifier.notify(due):
                sent.append(notified)
                with logs.about({"job": notified.id}):
                    logger.debug("a worker is notified")
        finally:
            if sent:
                wakeups.note(self.db, sent)

    def _sign_checkpoints(self, undated: bool) -> bool:
        """Records the heads of ledgers that have grown, and signs their checkpoints; logs each refused one once. Signs
        the logs of what was signed, if any of it is in none.

        Returns True if the time was over before the last one.
        """
        begun = self.ledgers.goes_on
        try:
            _, refused = checkpoints.sign_due(
                self.db, self.heads, self.signing_key, announce_checkpoint, self.ledgers.over
            )
            signed_terms.sign_due(self.db, self.signing_key, self.terms.over)
            if undated or self.logs.goes_on:
                dates.sign_due(self.db, self.signing_key, self.logs.over)
        except Unavailable as error:  # other work goes on while a signing program or a bucket is away
            logger.error("no checkpoint is signed: %s", error.message)
            return False
        for dataset_id in sorted(set(refused) - self.unsigned):
            logger.error("the head of %s is neither recorded nor signed: it lacks a recorded head", dataset_id)
        datasets = self.unsigned if begun or self.ledgers.goes_on else set()
        self.unsigned = datasets | set(refused)
        return self.ledgers.goes_on or self.terms.goes_on or self.logs.goes_on

    def _notify_predictions(self) -> None:
        due = predictions.due(self.db, self.settings.notify_again_s, NOTIFICATIONS)
        sent = [each.id for each in self.notifier.notify([WakeUp(each) for each in due])] if due else []
        if sent:
            predictions.notified(self.db, sent)

    def _notify_again(self) -> None:
        """Repeats wake-ups for jobs whose message must be lost. If as many messages as jobs wait, workers are busy.

        Without this check each sweep would add messages to a backlog that takes days.
        """
        for gpu in (False, True):
            lost = wakeups.unclaimed(self.db, self.settings.notify_again_s, NOTIFICATIONS, gpu=gpu)
            if lost:
                missing = count_queued(self.db, gpu=gpu) - self.notifier.waiting(gpu=gpu)
                self._notify(lost[: max(0, missing)])

    def _certify(self, row_id: int, job_id: str) -> None:
        message = delete(Outbox).where(as_read("certificate", [(row_id, job_id)]))
        with self.db.read() as session:
            charged = held_on(session, job_id)

        def announce(session: Session) -> None:
            append_event(session, job_id, "certificate_issued")
            session.execute(message)

        with tracing.span("certificate", {"job": job_id}, parent=traceparent(self.db, job_id)):
            for charged_id in charged:
                self._advance(charged_id)
            if not certificates.issue(self.db, job_id, self.signing_key, self.code_version, announce):
                with self.db.write() as session:
                    session.execute(message)
        with logs.about({"job": job_id}):
            logger.info("the certificate is issued")

    def let_out(self) -> bool:
        """Makes the next egress that may leave, under checkpoints that this key has signed. False if there is none.

        In a thread of its own: a large model is read for minutes, and delays neither wake-ups nor certificates.
        """
        with self.db.read() as session:
            due = making.next_due(session)
        if due is None:
            return False
        making.make(self.db, self.settings, self.signing_key, due.id, partial(self._sign_ledgers, due.job_id))
        return True

    def _sign_ledgers(self, job_id: str) -> None:
        """Signs checkpoints of all ledgers of a job's data set, and its terms."""
        with self.db.read() as session:
            members = members_of(session, session.get_one(Job, job_id).dataset_id)
        for row, _ in members:
            self._advance(row.id)
        if members:  # a public data set has no statement
            signed_terms.sign(self.db, members[0][0].id, self.signing_key)

    def _advance(self, dataset_id: str) -> None:
        """Signs a checkpoint for a certificate to prove its entries in. If it is refused, or the ledger is behind its
        record, the certificate has none."""
        if behind.problems(self.db, self.heads, [dataset_id]):
            return
        try:
            checkpoints.advance(self.db, self.heads, dataset_id, self.signing_key, announce_checkpoint)
        except TransientError as error:
            logger.warning("a certificate gets no checkpoint: %s", error)

    def _discard(self, row_id: int, job_id: str) -> None:
        """Deletes the files of a job whose model is not kept."""
        self.objects.remove(f"jobs/{job_id}")
        with self.db.write() as session:
            session.execute(delete(Outbox).where(as_read("discard", [(row_id, job_id)])))


def main() -> None:
    """Runs the relay's process until SIGINT or SIGTERM."""
    settings = get_settings()
    logs.configure("relay", settings.log_format, settings.log_level)
    tracing.configure("relay", settings.otel_endpoint)
    stop = told_to_stop(signal.SIGINT, signal.SIGTERM)
    db = Database.of(settings)
    # In separate threads: a slow receiver of webhooks or a large egress delays neither wake-ups nor certificates, and a
    # broker that is away does not delay the audit log.
    every, witnesses = timedelta(hours=settings.ledger_check_hours), configured(settings)
    verify_next = partial(check_next, db, Heads.of(settings), every, {})
    threads = [
        in_thread("audit", lambda: audit_chain.seal(db), stop, SEAL_S, Changes(db, SELDOM_S)),
        in_thread("ledgers", verify_next, stop, CHECK_S, Changes(db, SELDOM_S)),
        in_thread("alerts", lambda: alerts.announce_due(db), stop, ALERTS_S, Changes(db, SELDOM_S)),
        *Deliverer.of(db, settings).start(stop),
    ]
    if witnesses:
        send = partial(checkpoints.witness_due, db, Heads.of(settings), witnesses, set(), {})
        threads.append(in_thread("witnesses", send, stop, WITNESS_S))
        date = partial(dates.witness_due, db, witnesses, set(), Round[str](SIGNING_S).over)
        threads.append(in_thread("dates", date, stop, WITNESS_S))
    relay = Relay(db, settings, signing_key(settings), CeleryNotifier(settings))
    threads.append(in_thread("egresses", relay.let_out, stop, EGRESS_S, Changes(db)))
    relay.run(stop)
    deadline = time.monotonic() + JOIN_S
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    tracing.close()


if __name__ == "__main__":
    main()
