"""The relay: rings workers, issues certificates, sweeps. `python -m app.lifecycle.relay` runs it as a process, which
also seals the audit log and sends webhooks.

Jobs are rung from the outbox at once, and again by the sweeper where nobody claimed them. With the broker down, jobs
wait in the database. The relay alone holds the signing key.
"""

from __future__ import annotations

import logging
import signal
import threading
import time
from importlib.metadata import version
from typing import Protocol

from celery import Celery
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from sqlalchemy import delete, select, update

from app.audit import chain
from app.contracts.events import RUN_JOB
from app.db.engine import Database
from app.db.models import Job, Outbox
from app.errors import ServiceError
from app.ids import now
from app.ledger import certificates
from app.lifecycle.broker import celery_options
from app.lifecycle.repeat import in_thread, repeat
from app.lifecycle.states import append_event
from app.lifecycle.sweeper import reap_expired, unclaimed
from app.secrets import load_secret
from app.settings import Settings, get_settings
from app.webhooks.delivery import Deliverer

logger = logging.getLogger(__name__)
POLL_S = 0.1
SEAL_S = 0.5
JOIN_S = 3.0  # a delivery that is cut off is tried again


class Bell(Protocol):
    """Sends a job's id to a worker; may lose or double it."""

    def __call__(self, job_id: str) -> None: ...


def celery_bell(settings: Settings) -> Bell:
    app = Celery("scrimp")
    app.conf.update(celery_options(settings))

    def bell(job_id: str) -> None:
        app.send_task(RUN_JOB, args=[job_id], ignore_result=True, retry=False)

    return bell


class Relay:
    """One pass does what is due; `run` repeats passes until told to stop."""

    def __init__(self, db: Database, settings: Settings, signing_key: Ed25519PrivateKey, bell: Bell) -> None:
        self.db, self.settings, self.signing_key, self.bell = db, settings, signing_key, bell
        self.code_version = version("scrimp")
        self.next_sweep = 0.0

    def run_once(self) -> None:
        self._empty_outbox()
        if time.monotonic() >= self.next_sweep:
            reap_expired(self.db, self.settings.max_attempts)
            for job_id in unclaimed(self.db, self.settings.ring_again_s):
                self._ring(job_id)
            self.next_sweep = time.monotonic() + self.settings.sweep_s

    def run(self, stop: threading.Event) -> None:
        repeat(self.run_once, stop, POLL_S)

    def _empty_outbox(self) -> None:
        with self.db.read() as session:
            rows = select(Outbox.id, Outbox.topic, Outbox.job_id).order_by(Outbox.topic.desc(), Outbox.id).limit(100)
            due = session.execute(rows).all()
        failed: ServiceError | None = None
        for row_id, topic, job_id in due:
            # Done first, deleted after: a crash between the two does it twice, and both are harmless twice.
            try:
                if topic == "ring":
                    self._ring(job_id)
                else:
                    self._certify(job_id)
            except ServiceError as error:
                failed = error  # the others are not kept waiting; this one is tried again
                continue
            with self.db.write() as session:
                session.execute(delete(Outbox).where(Outbox.id == row_id))
        if failed is not None:
            raise failed

    def _ring(self, job_id: str) -> None:
        self.bell(job_id)
        with self.db.write() as session:
            session.execute(update(Job).where(Job.id == job_id, Job.status == "queued").values(rung_at=now()))

    def _certify(self, job_id: str) -> None:
        with self.db.write() as session:
            if certificates.issue(session, job_id, self.signing_key, self.code_version):
                append_event(session, job_id, "certificate_issued")


def signing_key(settings: Settings) -> Ed25519PrivateKey:
    return Ed25519PrivateKey.from_private_bytes(load_secret(settings, "signing_key"))


def main() -> None:
    settings = get_settings()
    logging.basicConfig(level=settings.log_level, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    db = Database.of(settings)
    # In threads of their own: a slow receiver of webhooks delays neither bells nor certificates, nor does a broker
    # that is away delay the audit log.
    others = [in_thread("audit", lambda: chain.seal(db), stop, SEAL_S), *Deliverer.of(db, settings).start(stop)]
    Relay(db, settings, signing_key(settings), celery_bell(settings)).run(stop)
    deadline = time.monotonic() + JOIN_S
    for thread in others:
        thread.join(max(0.0, deadline - time.monotonic()))


if __name__ == "__main__":
    main()
