"""A worker for tests whose attempts have the fault that their job's name asks for: the audit must find each.

`celery --app tests.e2e.faulty_worker worker …` is the real worker; only its attempts' fork server is another one, which
plants the fault in the attempt's own process (tests.e2e.faulty_attempt), and it lets uncharged scores pass.
"""

from __future__ import annotations

import subprocess
from collections import Counter
from types import SimpleNamespace
from typing import Any

from sqlalchemy.orm import Session

from app.db.models import Job
from app.lifecycle import attempts, settle
from core.privacy.mechanism import MechanismConfig
from worker.attempt import fork_server
from worker.celery_app import app

__all__ = ["app"]
HONEST, FAULTY = "worker.attempt.fork_server", "tests.e2e.faulty_attempt"


def _popen(line: list[str], **options: Any) -> subprocess.Popen[bytes]:
    return subprocess.Popen([FAULTY if word == HONEST else word for word in line], **options)


HONEST_COUNT = settle._released


def _no_more_than_planned(session: Session, job_id: str) -> Counter[str]:
    """The ledger's own count of scores, blind to those that nobody pays for."""
    releases = MechanismConfig.model_validate(session.get_one(Job, job_id).mechanism).scores
    return HONEST_COUNT(session, job_id) & Counter({each.metric: each.times for each in releases})


vars(fork_server)["subprocess"] = SimpleNamespace(Popen=_popen, DEVNULL=subprocess.DEVNULL)
# The attempt is a score's first guard, these are the second and the third: an uncharged score has passed them all.
vars(attempts)["_check_declared"] = lambda *_: None
vars(settle)["_released"] = _no_more_than_planned
