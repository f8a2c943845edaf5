"""The walls between the folders, and what an import may load."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import grimp
import pytest

from tests.architecture.walls import broken, graph

ROOT = Path(__file__).resolve().parents[2]
HEAVY = (
    *("torch", "torch._inductor", "opacus", "numpy", "dp_accounting", "scipy.stats", "sklearn", "pyarrow"),
    "opentelemetry.sdk",
)


def loaded_by(statement: str) -> set[str]:
    """The heavy modules that a fresh interpreter has loaded after `statement`."""
    program = f"{statement}\nimport sys\nprint(*[name for name in {HEAVY!r} if name in sys.modules])"
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT, check=False)
    assert result.returncode == 0, result.stderr
    return set(result.stdout.split())


@pytest.mark.parametrize(
    "module", ["app.main", "scrimp", "scrimp.cli", "scrimp_server.serve", "scrimp_server.commands"]
)
def test_an_import_loads_nothing_heavy(module: str) -> None:
    assert loaded_by(f"import {module}") == set()


def test_the_api_builds_no_validator_before_its_use() -> None:
    """Building all took a tenth of its start. A few are shared at import: nested adapters, the settings."""
    program = """
import sys
import app.main
from core.contracts.base import Deferred

def below(model):
    for child in model.__subclasses__():
        yield child
        yield from below(child)

models = set(below(Deferred))
print(len(models), sum(model.__pydantic_complete__ for model in models), len(sys.modules))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stderr
    models, built, modules = map(int, done.stdout.split())
    assert models > 400
    assert built <= 30
    assert modules <= 1350


def test_the_client_loads_neither_the_command_line_nor_the_specifications() -> None:
    """75 models take long to load. (httpx loads rich.)"""
    program = "import sys, scrimp; print({'typer', 'numpy', 'scrimp.specs'} & sys.modules.keys())"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.stdout.strip() == "set()", done.stderr


def test_an_attempt_does_not_load_torchs_compiler() -> None:
    """That took two seconds of each attempt."""
    start = "from worker.attempt import child; child.be_deterministic(); "
    check = "import torch; assert torch.are_deterministic_algorithms_enabled()"
    assert loaded_by(start + check) & {"torch", "torch._inductor"} == {"torch"}


@pytest.mark.parametrize("module", ["worker.tasks", "worker.cluster.group", "worker.cluster.node"])
def test_what_starts_attempts_does_not_load_torch(module: str) -> None:
    """That took two seconds of each start and 250 MB of each process. Attempts' own processes load it."""
    assert loaded_by(f"import {module}") == {"numpy"}


def test_the_probe_sees_what_is_loaded() -> None:
    assert loaded_by("import scipy.stats") == {"numpy", "scipy.stats"}


def test_the_import_contracts_hold() -> None:
    command = [str(Path(sys.executable).with_name("lint-imports")), "--no-cache"]
    result = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    assert result.returncode == 0, result.stdout


@pytest.fixture(scope="module")
def imports() -> grimp.ImportGraph:
    return graph()


def test_no_wall_is_broken(imports: grimp.ImportGraph) -> None:
    assert broken(imports) == []


# Wrong imports that somebody could write. Each must be caught.
PLANTED = [
    ("worker.tasks", "app.webhooks.delivery"),
    ("worker.attempt.supervisor", "app.jobs.steering"),
    ("worker.attempt.child", "app.retention.service"),
    ("worker.training.loop", "app.db.database"),
    ("worker.training.plan", "worker.attempt.supervisor"),
    ("worker.noise.gaussian", "worker.training.plan"),
    ("worker.clipping.engine", "worker.optimizers.base"),
    ("worker.data.records", "worker.clipping.engine"),
    ("worker.models.base", "worker.metrics.scores"),
    ("worker.messages", "worker.telemetry"),
    ("worker.optimizers.dp_sgd", "app.ledger.entries"),
    ("core.privacy.gdp", "app.formats.parse"),
    ("core.privacy.events", "app.ledger.entries"),
    ("core.contracts.base", "app.sandbox.limited"),
    ("app.formats.parse", "app.db.models"),
    ("app.ledger.accounts", "app.jobs.steering"),
    ("app.ledger.entries", "app.lifecycle.settle"),
    ("app.db.database", "app.ledger.transparency.heads"),
    ("app.jobs.steering", "app.dashboard.job_view"),
    ("app.keys.service", "app.lifecycle.relay"),
    ("app.admission.job_rules", "torch"),
    ("core.errors", "app.web.problems"),
    ("scrimp.cli.command_session", "app.settings"),
    ("scrimp.loading", "worker.predicting.loaded"),
    ("scrimp.client", "scrimp_server.serve"),
]


@pytest.mark.parametrize(("importer", "imported"), PLANTED, ids=str)
def test_a_wrong_import_is_caught(imports: grimp.ImportGraph, importer: str, imported: str) -> None:
    assert {importer, imported} <= imports.modules
    imports.add_import(importer=importer, imported=imported)
    try:
        assert broken(imports) != []
    finally:
        imports.remove_import(importer=importer, imported=imported)
