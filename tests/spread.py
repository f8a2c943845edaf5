"""How `pytest -n N` shares the tests out: whole files, so that what a file shares is made once; the longest first."""

from __future__ import annotations

import hashlib
import json
import re
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

# Seconds of processor time of the files that take some: `python -m tests.stress.cost` measures them.
DURATIONS = Path(__file__).with_name("durations.json")
# They load transformers, which takes six seconds of processor time.
LOADING = "tests/hf/"
# Files of tests/e2e that share the service of a backing, and the backing of their tests that do not name one.
SHARING = {f"tests/e2e/test_{file}.py": "sqlite" for file in ("audit", "blocks", "client", "devices", "events")}
SHARING |= {f"tests/e2e/test_{file}.py": "sqlite" for file in ("language", "places", "sklearn", "slots")}
SHARING |= {f"tests/e2e/test_{file}.py": "sqlite" for file in ("logs", "notebooks", "probe", "ratings", "reading")}
SHARING |= {f"tests/e2e/test_{file}.py": "sqlite" for file in ("private_logs", "sequences", "serve", "spine")}
SHARING |= {f"tests/e2e/test_{file}.py": "sqlite" for file in ("studies", "traces", "vision")}
SHARING |= {f"tests/e2e/test_{file}.py": "postgres" for file in ("attacks", "audit_faults", "cluster", "outages")}
# Files that share something else: a fork server, which loads torch, a browser, and an S3 server.
TOGETHER = {f"tests/lifecycle/test_{file}.py": "a fork server" for file in ("audited", "auditor", "sealed_jobs")}
TOGETHER |= {
    f"tests/worker/test_{file}.py": "a fork server"
    for file in ("canaries", "child", "fork_server", "joined", "mapped", "planted", "predicting", "preconditioned")
}
TOGETHER |= {f"tests/worker/test_{file}.py": "a fork server" for file in ("rank_processes", "sealed_parts", "users")}
TOGETHER |= {
    f"tests/{file}.py": "an S3 server"
    for file in (
        "catalogue/test_bench",
        "cli/test_doctor",
        "datasets/test_bucket_files",
        "datasets/test_bucket_registration",
        "deploy/test_drill",
        "ledger/test_heads",
        "lifecycle/test_zombies",
        "system/test_objects",
        "system/test_parts",
    )
}
TOGETHER |= {f"tests/dashboard/test_{file}.py": "a browser" for file in ("axe", "browser", "flows", "phone", "stream")}


class BySharing(LoadScopeScheduling):
    """One worker takes all tests that share something slow."""

    def _split_scope(self, nodeid: str) -> str:
        return scope(nodeid)


def scope(nodeid: str) -> str:
    """What a test shares with others: a service, a server, or its file alone."""
    file = file_of(nodeid)
    if file.startswith(LOADING):
        return LOADING
    if file not in SHARING:
        return TOGETHER.get(file, file)
    backing = re.search(r"\[(?:.*-)?(sqlite|postgres)", nodeid)
    return f"service on {backing[1] if backing else SHARING[file]}"


def file_of(nodeid: str) -> str:
    return nodeid.partition("::")[0]


def make_scheduler(config: pytest.Config, log: Any) -> BySharing:
    config.option.loadscopereorder = False  # else: by the number of tests
    return BySharing(config, log)


def longest_first(items: list[pytest.Item]) -> None:
    """Sorts by what a worker takes as a whole: what begins last should be short, so that all workers end together."""
    seconds: dict[str, float] = json.loads(DURATIONS.read_text())
    total: defaultdict[str, float] = defaultdict(float)
    for name, file in {(scope(item.nodeid), file_of(item.nodeid)) for item in items}:
        total[name] += seconds.get(file, 0.0)
    items.sort(key=lambda item: -total[scope(item.nodeid)])


def shuffled(seed: int, item: pytest.Item) -> tuple[str, str]:
    """Where a test comes in a seed's order, whatever else is run: files stay whole, as they share fixtures."""
    file = file_of(item.nodeid)
    return _drawn(f"{seed}/{file}"), _drawn(f"{seed}/{item.nodeid}")


def _drawn(name: str) -> str:
    return hashlib.sha256(name.encode()).hexdigest()
