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
# Of tests/e2e, files that start services of their own, and those whose tests are on the cluster unless they name a
# backing. All others share one `scrimp serve`, on SQLite unless a test names another backing.
WHOLE = "tests/e2e/"
ALONE = {
    f"{WHOLE}test_{file}.py"
    for file in ("machines", "object_store", "ranks", "ray", "ray_gpus", "second_user", "token")
}
ALONE |= {f"{WHOLE}test_walk_through.py"}
ON_POSTGRES = {f"{WHOLE}test_{file}.py" for file in ("attacks", "audit_faults", "cluster", "outages")}
# Files that share something else: a fork server, which loads torch, a browser, and an S3 server.
TOGETHER = {
    f"tests/lifecycle/test_{file}.py": "a fork server" for file in ("audited", "auditor", "checkpoints", "sealed_jobs")
}
TOGETHER |= {
    f"tests/worker/test_{file}.py": "a fork server"
    for file in ("canaries", "checkpoints", "child", "cuda_build", "devices", "fork_server", "gpu", "joined", "mapped")
}
TOGETHER |= {
    f"tests/worker/test_{file}.py": "a fork server"
    for file in ("networks", "planted", "predicting", "preconditioned", "rank_processes", "sandbox", "sealed_parts")
}
TOGETHER |= {
    f"tests/{file}.py": "a fork server"
    for file in (
        "jobs/test_hypothetical",
        *(f"worker/test_{each}" for each in ("selecting", "slot_order", "users", "verdicts")),
    )
}
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
TOGETHER |= {
    f"tests/dashboard/test_{file}.py": "a browser"
    for file in ("axe", "browser", "flows", "manage", "phone", "register", "stream")
}


class BySharing(LoadScopeScheduling):
    """One worker takes all tests that share something slow."""

    def _split_scope(self, nodeid: str) -> str:
        return scope(nodeid)


def scope(nodeid: str) -> str:
    """What a test shares with others: a service, a server, or its file alone."""
    file = file_of(nodeid)
    if file.startswith(LOADING):
        return LOADING
    if file in ALONE or not file.startswith(WHOLE):
        return TOGETHER.get(file, file)
    backing = re.search(r"\[(?:.*-)?(sqlite|postgres)", nodeid)
    return f"service on {backing[1] if backing else 'postgres' if file in ON_POSTGRES else 'sqlite'}"


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
