"""A process that sends nothing any more within a claim. Apart from the test, so that it loads little."""

from __future__ import annotations

from multiprocessing.synchronize import Event
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


def claim_and_stand_still(url: str, step: str, there: Event, go_on: Event) -> None:
    """Claims a job, and waits in a step of the second claim, which it says.

    Not by SIGSTOP: that it is stopped says neither where nor by whom, and anybody may let it go on.
    """
    db = Database(url)
    fair.claim_next(db, NO_RECORDS, "still", 3600.0)  # so it knows which ledger to compare
    module, name = STEPS[step]
    own = getattr(module, name)

    def stands_still(*values: Any) -> Any:
        there.set()
        go_on.wait()
        return own(*values)

    with patch.object(module, name, stands_still):
        fair.claim_next(db, NO_RECORDS, "still", 3600.0)
