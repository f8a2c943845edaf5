"""Helper processes of pricing that outlive their service: a test's own would cost two seconds of imports each."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from app.sandbox import Fresh, HelperProcess


class Warm(Fresh):
    """The processes that services have closed, for the next ones of the same kind.

    One that is still at a call is ended, as the service would end it: its late answer is nobody's.
    """

    def __init__(self) -> None:
        self.idle: dict[tuple[str, int], list[HelperProcess]] = defaultdict(list)

    def take(self, target: str, memory_bytes: int, preload: Sequence[str]) -> HelperProcess:
        idle = self.idle[target, memory_bytes]
        while idle:
            process = idle.pop()
            if process.alive:
                return process
        return super().take(target, memory_bytes, preload)

    def give_back(self, target: str, process: HelperProcess) -> None:
        if target.startswith("app.privacy.") and process.alive and not process.busy:
            self.idle[target, process.memory_bytes].append(process)
        else:
            process.kill()

    def end(self) -> None:
        """Ends all that are idle."""
        for processes in self.idle.values():
            while processes:
                processes.pop().kill()
