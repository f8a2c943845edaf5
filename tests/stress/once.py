"""One run of the tests in a process of its own: what passed and what did not, as a file.

python -m tests.stress.once FILE [ARGUMENT ...]
"""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pytest


@dataclass
class Run:
    """What came of one run.

    Attributes:
        failures: the ids of tests that failed, or whose fixtures did, each with its error's last lines.
        took_s: by the clock.
    """

    passed: int = 0
    skipped: int = 0
    failures: dict[str, str] = field(default_factory=dict)
    took_s: float = 0.0
    status: int = 0


class Noted:
    """A plugin that counts."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.failures: dict[str, str] = {}

    def pytest_runtest_logreport(self, report: Any) -> None:
        self.counts[report.outcome] += report.when == "call" or report.outcome == "skipped"
        if report.failed:
            self.failures[report.nodeid] = "\n".join(report.longreprtext.splitlines()[-12:])

    def pytest_collectreport(self, report: Any) -> None:
        if report.failed:
            self.failures[report.nodeid] = report.longreprtext


def main(target: Path, arguments: list[str]) -> int:
    began, noted = time.monotonic(), Noted()
    status = int(pytest.main(arguments, plugins=[noted]))
    took_s = time.monotonic() - began
    run = Run(noted.counts["passed"], noted.counts["skipped"], noted.failures, took_s, status)
    target.write_text(json.dumps(asdict(run)))
    return status


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))
