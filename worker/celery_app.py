"""The workers' Celery app: one task, sent by the relay. `celery -A worker.celery_app worker --pool solo`."""

from __future__ import annotations

from typing import Any

from celery import Celery
from celery.signals import worker_shutting_down

from app.lifecycle.broker import celery_options
from app.settings import get_settings
from worker.attempt import log
from worker.attempt.supervisor import STOPPING

log.install()
app = Celery("scrimp", include=["worker.tasks"])
app.conf.update(celery_options(get_settings()), worker_log_format=log.FORMAT, worker_task_log_format=log.FORMAT)


@worker_shutting_down.connect  # type: ignore[untyped-decorator]
def _stop_attempt(**_: Any) -> None:
    """Runs in the signal handler: ends the running attempt, whose job is then queued again."""
    STOPPING.set()
