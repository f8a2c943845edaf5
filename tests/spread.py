"""How `pytest -n N` shares the tests out: whole files, so that what a file shares is made once; the slow ones first."""

from __future__ import annotations

import hashlib
import re
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

# The longest first: what begins last should be short, so that all workers end together.
SLOW_FIRST = (
    "tests/e2e/",
    "tests/contract/test_schemathesis.py",
    "tests/fuzz/",
    "tests/hf/",
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
        file = nodeid.split("::", maxsplit=1)[0]
        if file.startswith(LOADING):
            return LOADING
        if file not in SHARING:
            return TOGETHER.get(file, file)
        backing = re.search(r"\[(?:.*-)?(sqlite|postgres)", nodeid)
        return f"service on {backing[1] if backing else SHARING[file]}"


def make_scheduler(config: pytest.Config, log: Any) -> BySharing:
    config.option.loadscopereorder = False  # else: by the number of tests
    return BySharing(config, log)


def slow_first(item: pytest.Item) -> int:
    for place, start in enumerate(SLOW_FIRST):
        if item.nodeid.startswith(start):
            return place
    return len(SLOW_FIRST)


def shuffled(seed: int, item: pytest.Item) -> tuple[str, str]:
    """Where a test comes in a seed's order, whatever else is run: files stay whole, as they share fixtures."""
    file = item.nodeid.partition("::")[0]
    return _drawn(f"{seed}/{file}"), _drawn(f"{seed}/{item.nodeid}")


def _drawn(name: str) -> str:
    return hashlib.sha256(name.encode()).hexdigest()
