"""The workers' Celery app: one task, sent by the relay. `celery -A worker.celery_app worker --pool solo`."""

from __future__ import annotations

import logging
from typing import Any

from celery import Celery
from celery.apps import worker as celery_worker
from celery.signals import celeryd_init, setup_logging, worker_shutting_down

from app import logs, tracing
from app.lifecycle.broker import celery_options
from app.settings import get_settings
from worker.attempt.supervisor import AT_ONCE, STOPPING

logger = logging.getLogger(__name__)
app = Celery("scrimp", include=["worker.tasks"])
app.conf.update(celery_options(get_settings()))


def _unsaid(*_: object) -> None:
    """In place of what Celery prints at a signal: no lines of the log, of whatever format, and at SIGUSR1 the local
    variables of all threads."""


celery_worker.safe_say = _unsaid


@celeryd_init.connect  # type: ignore[untyped-decorator]
@setup_logging.connect  # type: ignore[untyped-decorator]
def _log(**_: Any) -> None:
    """Sets up the logs before Celery says a word, and again in place of its own set-up."""
    settings = get_settings()
    logs.configure("worker", settings.log_format, settings.log_level)
    if not tracing.is_on():
        tracing.configure("worker", settings.otel_endpoint)


@worker_shutting_down.connect  # type: ignore[untyped-decorator]
def _stop_attempt(sig: str, **_: Any) -> None:
    """Runs in the signal handler: the running attempt ends at its block's end, and its job is queued again. A second
    signal ends it at once."""
    logger.info("this worker ends: %s", sig)
    (AT_ONCE if STOPPING.is_set() else STOPPING).set()
