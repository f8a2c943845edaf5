"""worker.log: every line names its job and attempt, as JOB/ATTEMPT, or "-".

Only this log, for operators, says how an attempt's process ended: it may depend on private data.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

FORMAT = "[%(asctime)s: %(levelname)s] %(attempt)s %(name)s: %(message)s"
NOTHING = "-"
# Celery's own task lines know neither job nor attempt, and log "succeeded" for every attempt that did not raise.
MUTED = ("celery.app.trace", "celery.worker.strategy")
CURRENT: ContextVar[str] = ContextVar("attempt", default=NOTHING)


@contextmanager
def about(subject: str) -> Iterator[None]:
    """Log lines within this block, and from threads started with its context, name `subject`."""
    token = CURRENT.set(subject)
    try:
        yield
    finally:
        CURRENT.reset(token)


def install() -> None:
    """Gives every log record of this process its `attempt`. Call once in a process."""
    make = logging.getLogRecordFactory()

    def named(*arguments: Any, **keywords: Any) -> logging.LogRecord:
        record = make(*arguments, **keywords)
        record.attempt = CURRENT.get()
        return record

    logging.setLogRecordFactory(named)
    for name in MUTED:
        logging.getLogger(name).setLevel(logging.WARNING)
