"""The one task: claim a job, run an attempt, settle. The message is a doorbell; the database decides."""

from __future__ import annotations

import logging
import os
import socket
from functools import cache
from subprocess import SubprocessError
from typing import Any

from celery.signals import worker_ready, worker_shutdown

from app.contracts.events import RUN_JOB
from app.db.engine import Database
from app.ledger.heads import Heads
from app.lifecycle.attempts import AttemptLog
from app.lifecycle.fair import claim_next
from app.lifecycle.presence import Presence
from app.lifecycle.states import ring
from app.predictions import claims as predictions
from app.settings import get_settings
from worker.attempt.log import about
from worker.attempt.nursery import Nursery
from worker.attempt.sandbox import default_memory_bytes, probe
from worker.attempt.supervisor import STOPPING, run_attempt
from worker.celery_app import app
from worker.predicting.supervise import predict

logger = logging.getLogger(__name__)
# What this worker takes jobs for. An attempt runs on the CPU where its device is missing, and says so.
DEVICES = frozenset(("cpu", "cuda"))


@cache
def _database() -> Database:
    return Database.of(get_settings())


@cache
def _presence() -> Presence:
    return Presence(_database(), socket.gethostname(), os.getpid(), get_settings().heartbeat_s, _sandbox())


@cache
def _nursery() -> Nursery:
    return Nursery(get_settings().attempt_memory_bytes)


def _sandbox() -> dict[str, object] | None:
    """What attempts of this worker are kept from, tried out once; None where that could not be found out."""
    try:
        found = probe(get_settings().attempt_memory_bytes or default_memory_bytes())
    except (OSError, SubprocessError, ValueError) as error:
        logger.error("the sandbox of attempts cannot be tried out: %s", type(error).__name__)
        return None
    off = [name for name, state in (("seccomp", found.seccomp), ("landlock", found.landlock)) if not state]
    if off or found.network == "host":
        logger.warning("attempts are not confined by: %s", ", ".join([*off, *["network"] * (found.network == "host")]))
    return found.model_dump()


@worker_ready.connect  # type: ignore[untyped-decorator]
def _appear(**_: Any) -> None:
    _presence().start()


@worker_shutdown.connect  # type: ignore[untyped-decorator]
def _leave(**_: Any) -> None:
    _presence().stop()


@app.task(name=RUN_JOB)  # type: ignore[untyped-decorator]
def run_job(job_id: str) -> None:
    """Runs one attempt of the job whose turn it is. The message names one that is queued, and says only that there is
    something to do; a late or doubled one finds nothing to claim.

    A worker that was told to stop may be handed one more message, even that of the job it just gave back.

    The bell of a prediction rings here too.
    """
    settings, db = get_settings(), _database()
    if predictions.is_prediction(job_id):
        with about(job_id):
            predict(db, job_id, settings, _nursery())
        return
    if STOPPING.is_set():
        with db.write() as session:
            ring(session, job_id)
        return
    held = claim_next(db, Heads.of(settings), _presence().name, settings.lease_s, DEVICES)
    if held is not None:
        log = AttemptLog(db, held, lease_s=settings.lease_s, max_attempts=settings.max_attempts)
        with about(f"{held.job_id}/{held.attempt}"):
            run_attempt(log, settings, _nursery())
