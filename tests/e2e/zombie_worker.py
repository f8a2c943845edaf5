"""A worker that stands still between its claim and its first write, as on a machine that was paused there.

`celery --app tests.e2e.zombie_worker worker …` is the real worker otherwise. It goes on when it gets SIGCONT.
"""

from __future__ import annotations

import os
import signal
from typing import Any

from app.lifecycle.attempts import AttemptLog
from app.settings import Settings
from worker import tasks
from worker.attempt.fork_server import ForkServer
from worker.attempt.supervisor import run_attempt
from worker.celery_app import app

__all__ = ["app"]


def _late(log: AttemptLog, settings: Settings, fork_server: ForkServer, **how: Any) -> str:
    os.kill(os.getpid(), signal.SIGSTOP)
    return run_attempt(log, settings, fork_server, **how)


vars(tasks)["run_attempt"] = _late
