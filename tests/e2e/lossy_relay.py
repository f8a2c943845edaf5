"""A relay over the real broker whose messages are lost (30 %) or doubled (30 %), by a seeded chance. A process.

Its output says what became of each message: `0`, `1` or `2`.
"""

from __future__ import annotations

import random
import signal
import sys
import threading

from app.db.engine import Database
from app.ledger.signing_keys import signing_key
from app.lifecycle.relay import CeleryBell, Relay
from app.settings import get_settings


class LossyBell(CeleryBell):
    chance = random.Random(int(sys.argv[1]))

    def ring(self, job_id: str) -> None:
        fate = self.chance.random()
        times = 0 if fate < 0.3 else 2 if fate < 0.6 else 1
        print(times, flush=True)
        for _ in range(times):
            super().ring(job_id)


if __name__ == "__main__":
    settings, stop = get_settings(), threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    Relay(Database.of(settings), settings, signing_key(settings), LossyBell(settings)).run(stop)
