"""How `pytest -n N` shares the tests out: whole files, so that what a file shares is made once; the slow ones first."""

from __future__ import annotations

import re
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

# The longest first: what begins last should be short, so that all workers end together.
SLOW_FIRST = (
    "tests/e2e/",
    "tests/contract/test_schemathesis.py",
    "tests/fuzz/",
    "tests/contract/",
    "tests/worker/test_child.py",
    "tests/cli/",
    "tests/dashboard/",
    "tests/access/",
    "tests/hpo/",
    "tests/datasets/",
    "tests/lifecycle/",
    "tests/ledger/",
    "tests/jobs/",
    "tests/worker/",
)
# Files that share what is started for each backing, and may be taken apart by it.
TOGETHER = {
    f"tests/e2e/test_{file}.py": "service"
    for file in ("audit", "events", "language", "probe", "ratings", "sequences", "spine", "studies")
}
APART = ("tests/e2e/test_cluster.py", *TOGETHER)


class BySharing(LoadScopeScheduling):
    """One worker takes all tests that share something slow."""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.split("::", maxsplit=1)[0]
        backing = re.search(r"\[(?:.*-)?(sqlite|postgres)", nodeid) if file in APART else None
        return TOGETHER.get(file, file) + (backing[1] if backing else "")


def make_scheduler(config: pytest.Config, log: Any) -> BySharing:
    config.option.loadscopereorder = False  # else: by the number of tests
    return BySharing(config, log)


def slow_first(item: pytest.Item) -> int:
    for place, start in enumerate(SLOW_FIRST):
        if item.nodeid.startswith(start):
            return place
    return len(SLOW_FIRST)
