"""The walls between the folders, and what an import may load."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
HEAVY = ("torch", "opacus", "dp_accounting", "scipy.stats", "sklearn", "pyarrow")


def loaded_by(statement: str) -> set[str]:
    """The heavy modules that a fresh interpreter has loaded after `statement`."""
    program = f"{statement}\nimport sys\nprint(*[name for name in {HEAVY!r} if name in sys.modules])"
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT, check=False)
    assert result.returncode == 0, result.stderr
    return set(result.stdout.split())


@pytest.mark.parametrize("module", ["app.main", "scrimp", "scrimp.cli", "scrimp.serve"])
def test_an_import_loads_nothing_heavy(module: str) -> None:
    assert loaded_by(f"import {module}") == set()


def test_the_probe_sees_what_is_loaded() -> None:
    assert loaded_by("import scipy.stats") == {"scipy.stats"}


def test_the_import_contracts_hold() -> None:
    command = [str(Path(sys.executable).with_name("lint-imports")), "--no-cache"]
    result = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    assert result.returncode == 0, result.stdout
