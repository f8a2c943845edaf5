"""A process that stands still within a claim. Apart from the test, so that it loads little."""

from __future__ import annotations

import os
import signal
from typing import Any
from unittest.mock import patch

from app.db.database import Database
from app.lifecycle import claims
from app.lifecycle.queue import fair
from tests.lifecycle.test_fair import NO_RECORDS

STEPS: dict[str, tuple[Any, str]] = {
    "it is first in line": (fair, "next_job"),
    "it has chosen": (claims, "Queued"),
    "it takes the job": (claims, "take"),
}


def claim_and_stop(url: str, step: str) -> None:
    """Claims a job, and stops itself in a step of the second claim."""
    db = Database(url)
    fair.claim_next(db, NO_RECORDS, "still", 60.0)  # so it knows which ledger to compare
    module, name = STEPS[step]
    own = getattr(module, name)

    def stops(*values: Any) -> Any:
        os.kill(os.getpid(), signal.SIGSTOP)
        return own(*values)

    with patch.object(module, name, stops):
        fair.claim_next(db, NO_RECORDS, "still", 60.0)
