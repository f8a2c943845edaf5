"""One run of the tests in a process of its own: what passed and what did not, as a file. A run in which no test ends
for ten minutes ends, and names those that hang.

python -m tests.stress.once FILE [ARGUMENT ...]
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections import Counter
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from threading import Event, Thread
from typing import Any

import psutil
import pytest

QUIET_S = 600.0


@dataclass
class Run:
    """What came of one run.

    Attributes:
        failures: the ids of tests that failed, or whose fixtures did, each with the last lines of its error and output.
        took_s: by the clock.
    """

    passed: int = 0
    skipped: int = 0
    failures: dict[str, str] = field(default_factory=dict)
    took_s: float = 0.0
    status: int = 0


class Noted:
    """A plugin that counts, and writes what came of the run so far whenever something fails.

    Args:
        target: the file that gets it.

    Attributes:
        running: the ids of tests that have begun and not ended; those of all workers.
        quiet_since: by the monotonic clock, when a test last ended.
    """

    def __init__(self, target: Path) -> None:
        self._target, self._began = target, time.monotonic()
        self.counts: Counter[str] = Counter()
        self.failures: dict[str, str] = {}
        self.running: set[str] = set()
        self.quiet_since = self._began

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self.running.add(nodeid)

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.when not in ("setup", "call"):  # its teardown, or its worker has crashed
            self.running.discard(report.nodeid)
            self.quiet_since = time.monotonic()
        self.counts[report.outcome] += report.when == "call" or report.outcome == "skipped"
        if report.failed:
            lines = report.longreprtext.splitlines()[-12:]
            for title, content in report.sections:  # such as a service's logs
                lines += [f"--- {title}", *content.splitlines()[-40:]]
            self.fail({report.nodeid: "\n".join(lines)})

    def pytest_collectreport(self, report: Any) -> None:
        if report.failed:
            self.fail({report.nodeid: report.longreprtext})

    def fail(self, failures: dict[str, str]) -> None:
        self.failures |= failures
        self.write(1)

    def write(self, status: int) -> None:
        took_s = time.monotonic() - self._began
        run = Run(self.counts["passed"], self.counts["skipped"], self.failures, took_s, status)
        half = self._target.with_suffix(".half")  # a run that is killed meanwhile leaves what was whole before
        half.write_text(json.dumps(asdict(run)))
        half.replace(self._target)


def watch(noted: Noted, over: Event) -> None:
    """Ends a run that hangs, and all that it has started. From a thread, as nothing else of it may go on."""
    while not over.wait(1.0):
        if time.monotonic() - noted.quiet_since > QUIET_S:
            hung = sorted(noted.running) or ["the run itself"]
            noted.fail(dict.fromkeys(hung, f"it runs, and no test has ended for {QUIET_S:g} s"))
            for each in psutil.Process().children(recursive=True):
                with suppress(psutil.Error):  # it ended meanwhile
                    each.kill()
            os._exit(1)


def main(target: Path, arguments: list[str]) -> int:
    noted, over = Noted(target), Event()
    Thread(target=watch, args=(noted, over), daemon=True).start()
    status = int(pytest.main(arguments, plugins=[noted]))
    over.set()
    noted.write(status)
    return status


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))
