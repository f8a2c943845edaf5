"""Helper processes of pricing that outlive their service: a test's own would cost two seconds of imports each."""

from __future__ import annotations

from collections import defaultdict

from app.sandbox import LimitedServer, _Process

IDLE: dict[tuple[str, int], list[_Process]] = defaultdict(list)
CLOSING_S = 15.0


class WarmServer(LimitedServer):
    """A LimitedServer that takes a process of the same kind that another has done with, and gives it back at its end.

    One that is still at a call then is waited for, so that what it was importing is not lost; in the end it is killed.
    """

    def close(self) -> None:
        if not self._turn.acquire(timeout=CLOSING_S):
            super().close()
            return
        try:
            process, self._process = self._process, None
            if process is not None and process.alive:
                IDLE[self.target, self.memory_bytes].append(process)
            elif process is not None:
                process.kill()
        finally:
            self._turn.release()

    def _running(self) -> _Process:
        idle = IDLE[self.target, self.memory_bytes]
        while (self._process is None or not self._process.alive) and idle:
            self._process = idle.pop()
        if self._process is None or not self._process.alive:
            self._process = _Process(memory_bytes=self.memory_bytes, cpu_s=None, preload=(self.target.split(":")[0],))
        return self._process


def end() -> None:
    """Ends all that are idle."""
    for processes in IDLE.values():
        while processes:
            processes.pop().kill()
