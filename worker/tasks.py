"""The one task: claim the job, run an attempt, settle. The message is a doorbell; the database decides."""

from __future__ import annotations

import os
import socket
from functools import cache
from typing import Any

from celery.signals import worker_ready, worker_shutdown

from app.contracts.events import RUN_JOB
from app.db.engine import Database
from app.ledger.behind import may_run
from app.ledger.heads import Heads
from app.lifecycle import predictions
from app.lifecycle.attempts import AttemptLog
from app.lifecycle.claims import claim
from app.lifecycle.presence import Presence
from app.lifecycle.states import ring
from app.settings import get_settings
from worker.attempt.log import about
from worker.attempt.nursery import Nursery
from worker.attempt.supervisor import STOPPING, run_attempt
from worker.celery_app import app
from worker.predicting.supervise import predict


@cache
def _database() -> Database:
    return Database.of(get_settings())


@cache
def _presence() -> Presence:
    return Presence(_database(), socket.gethostname(), os.getpid(), get_settings().heartbeat_s)


@cache
def _nursery() -> Nursery:
    return Nursery()


@worker_ready.connect  # type: ignore[untyped-decorator]
def _appear(**_: Any) -> None:
    _presence().start()


@worker_shutdown.connect  # type: ignore[untyped-decorator]
def _leave(**_: Any) -> None:
    _presence().stop()


@app.task(name=RUN_JOB)  # type: ignore[untyped-decorator]
def run_job(job_id: str) -> None:
    """Runs one attempt of a job, where it is queued. A late or doubled message finds nothing to claim.

    A worker that was told to stop may be handed one more message, even that of the job it just gave back.

    The bell of a prediction rings here too.
    """
    settings, db = get_settings(), _database()
    if predictions.is_prediction(job_id):
        with about(job_id):
            predict(db, job_id, settings, _nursery())
        return
    if not may_run(db, Heads.of(settings), job_id):
        return  # its message is sent again later
    with db.write() as session:
        if STOPPING.is_set():
            ring(session, job_id)
            return
        held = claim(session, job_id, _presence().name, settings.lease_s)
    if held is not None:
        log = AttemptLog(db, held, lease_s=settings.lease_s, max_attempts=settings.max_attempts)
        with about(f"{held.job_id}/{held.attempt}"):
            run_attempt(log, settings, _nursery())
