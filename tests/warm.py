"""What outlives a test's own service: helper processes (two seconds of imports each) and compiled SQL."""

from __future__ import annotations

import tempfile
import threading
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from sqlalchemy import Engine, event
from sqlalchemy.util import LRUCache

from app.sandbox.confinement import Policy
from app.sandbox.limited import HelperProcess, Source

# What services ask for by default. Tests of the limits themselves get fresh processes.
KEPT = {"core.privacy.pricing_server:answer", "app.formats.parse:parse", "app.formats.recount:recount"}
ENOUGH_CPU_S = 301  # what files may take; those that are read in the background may take more
# What kept processes may read and write, as one serves many requests; and those that run code of the tests.
WIDE = Policy((Path(__file__).parent,), (Path(tempfile.gettempdir()), Path("/dev/shm")))  # noqa: S108 - fuzzed files lie there


class Warm:
    """The processes that services have closed, for the next ones of the same kind and limits.

    One that is still at a call, mostly the one that loads its libraries, is taken once its caller has the answer.
    """

    def __init__(self, fresh: Source) -> None:
        self.fresh = fresh
        self.lock = threading.Lock()
        self.idle: dict[tuple[str, int, int | None], list[HelperProcess]] = defaultdict(list)

    def take(
        self,
        target: str,
        memory_bytes: int,
        preload: Sequence[str] = (),
        cpu_s: int | None = None,
        files: Policy = Policy(),
    ) -> HelperProcess:
        with self.lock:
            idle = self.idle[target, memory_bytes, cpu_s]
            for process in [each for each in idle if not each.busy]:
                idle.remove(process)
                if process.alive:
                    return process
        files = WIDE if target in KEPT or target.startswith("tests.") else files
        return self.fresh.take(target, memory_bytes, preload, cpu_s, files)

    def give_back(self, target: str, process: HelperProcess) -> None:
        kept = target in KEPT and (process.cpu_s is None or process.cpu_s >= ENOUGH_CPU_S)
        if kept and process.alive:
            with self.lock:
                self.idle[target, process.memory_bytes, process.cpu_s].append(process)
        else:
            process.kill()

    def end(self) -> None:
        """Ends them all."""
        for processes in self.idle.values():
            while processes:
                processes.pop().kill()


class Compiled:
    """Makes engines that share the SQL that others of their dialect have compiled.

    Each test has an engine of its own: compiling the same statements anew was a fifth of a test's processor time.
    """

    def __init__(self, make: Callable[..., Engine]) -> None:
        self.make = make
        self.first: dict[str, Engine] = {}

    def __call__(self, url: str, **options: Any) -> Engine:
        engine = self.make(url, **options)
        name = engine.dialect.name
        if name in self.first:  # what is compiled belongs to a dialect, too
            engine.dialect, engine._compiled_cache = self.first[name].dialect, self.first[name]._compiled_cache
        else:
            engine._compiled_cache = LRUCache(5000)
            # Only a dialect that has seen a connection knows its server.
            event.listen(engine, "connect", lambda *_: self.first.setdefault(name, engine))
        return engine
