"""Limits when callers see an attempt's progress: only at whole seconds of the clock.

A private attempt's timing depends on its batch sizes. So its news waits for the next whole second, for any step that
ended meanwhile, and times are recorded in whole seconds. A batch size then shows only if it, together with all batches
before it, moves a count of steps across a second.
"""

from __future__ import annotations

import math
import select
import time
from collections.abc import Callable

PERIOD_S = 1.0


def pause(seconds: float) -> None:
    """Sleeps for `seconds`. Unlike time.sleep it uses no absolute time, which fails if a library shifts the clock."""
    select.select([], [], [], seconds)


class Cadence:
    """Ticks at whole multiples of a period.

    Args:
        period_s: seconds; with 0 everything is shown at once.
        clock, sleep: the machine's; tests pass their own.
    """

    def __init__(
        self,
        period_s: float = PERIOD_S,
        clock: Callable[[], float] = time.time,
        sleep: Callable[[float], None] = pause,
    ) -> None:
        self.period_s, self._clock, self._sleep = period_s, clock, sleep
        self._seen = self._tick()

    def left_s(self) -> float:
        """Returns the seconds to the next tick."""
        return (self._tick() + 1) * self.period_s - self._clock() if self.period_s else 0.0

    def at_tick_s(self, seconds: float) -> float:
        """Returns the seconds to the first tick that is at least `seconds` from now."""
        if not self.period_s:
            return seconds
        now = self._clock()
        return math.ceil((now + seconds) / self.period_s) * self.period_s - now

    def ticked(self) -> bool:
        """Returns True if a tick has passed since this was last true, or since the start."""
        last, self._seen = self._seen, self._tick()
        return last != self._seen or not self.period_s

    def wait(self) -> None:
        """Returns at the next tick."""
        end = self._tick() + 1
        while self.period_s and (left := end * self.period_s - self._clock()) > 0.0:
            self._sleep(left)

    def _tick(self) -> int:
        return int(self._clock() // self.period_s) if self.period_s else 0
