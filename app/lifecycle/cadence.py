"""When callers may see how far an attempt is: at whole seconds of the clock, and at no other moment.

What a private attempt does takes as long as its batches are large. So its news wait for the next whole second, whatever
step has ended meanwhile, and times are written down in whole seconds. Of a batch is then seen what moves a count of
steps across a second, together with all batches before it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable

PERIOD_S = 1.0


class Cadence:
    """Ticks at whole multiples of a period.

    Args:
        period_s: seconds; 0 where everything may be seen at once.
        clock, sleep: those of the machine; tests have their own.
    """

    def __init__(
        self,
        period_s: float = PERIOD_S,
        clock: Callable[[], float] = time.time,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.period_s, self._clock, self._sleep = period_s, clock, sleep
        self._seen = self._tick()

    def left_s(self) -> float:
        """Seconds to the next tick."""
        return (self._tick() + 1) * self.period_s - self._clock() if self.period_s else 0.0

    def at_tick_s(self, seconds: float) -> float:
        """Seconds to the first tick that is no sooner than `seconds` from now."""
        if not self.period_s:
            return seconds
        now = self._clock()
        return math.ceil((now + seconds) / self.period_s) * self.period_s - now

    def ticked(self) -> bool:
        """Says if a tick has passed since this was last true, or since the start."""
        before, self._seen = self._seen, self._tick()
        return before != self._seen or not self.period_s

    def wait(self) -> None:
        """Returns at the next tick."""
        end = self._tick() + 1
        while self.period_s and (left := end * self.period_s - self._clock()) > 0.0:
            self._sleep(left)

    def _tick(self) -> int:
        return int(self._clock() // self.period_s) if self.period_s else 0
