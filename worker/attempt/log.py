"""worker.log: every line names the job and the attempt that it is about, as JOB/ATTEMPT; "-" where it is about none.

How an attempt's process ended is said here, to operators, and nowhere else: it may depend on private data.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

FORMAT = "[%(asctime)s: %(levelname)s] %(attempt)s %(name)s: %(message)s"
NOTHING = "-"
# Celery's own lines on a task know neither: one said "succeeded" of every attempt that did not raise.
MUTED = ("celery.app.trace", "celery.worker.strategy")
CURRENT: ContextVar[str] = ContextVar("attempt", default=NOTHING)


@contextmanager
def about(subject: str) -> Iterator[None]:
    """Lines of this block, and of threads that are started with its context, are about `subject`."""
    token = CURRENT.set(subject)
    try:
        yield
    finally:
        CURRENT.reset(token)


def install() -> None:
    """Gives every log record of this process its `attempt`. Once a process."""
    make = logging.getLogRecordFactory()

    def named(*arguments: Any, **keywords: Any) -> logging.LogRecord:
        record = make(*arguments, **keywords)
        record.attempt = CURRENT.get()
        return record

    logging.setLogRecordFactory(named)
    for name in MUTED:
        logging.getLogger(name).setLevel(logging.WARNING)
