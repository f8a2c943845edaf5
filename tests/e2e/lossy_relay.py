"""A relay over the real broker of whose messages a third is lost and a third doubled, in a seeded order. A process.

Its output says what became of each message: `0`, `1` or `2`.
"""

from __future__ import annotations

import random
import signal
import sys
from collections.abc import Iterator, Sequence
from typing import ClassVar

from app.db.database import Database
from app.ledger.signing_keys import signing_key
from app.lifecycle.relay import Relay
from app.lifecycle.wakeups import CeleryNotifier, WakeUp
from app.repeat import told_to_stop
from app.settings import get_settings


class LossyNotifier(CeleryNotifier):
    chance = random.Random(int(sys.argv[1]))
    fates: ClassVar[list[int]] = []

    def notify(self, due: Sequence[WakeUp]) -> Iterator[WakeUp]:
        # Dealt from a pack of three, so that any few messages have each fate.
        for each in due:
            if not self.fates:
                self.fates += self.chance.sample((0, 1, 2), 3)
            times = self.fates.pop()
            print(times, flush=True)
            list(super().notify([each] * times))
            yield each


if __name__ == "__main__":
    settings, stop = get_settings(), told_to_stop(signal.SIGTERM)
    Relay(Database.of(settings), settings, signing_key(settings), LossyNotifier(settings)).run(stop)
