"""The tables of tests/by_night.py and tests/spread.py name tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

from tests.by_night import OF_CERTIFICATES, ON_POSTGRES_BY_DAY, SWEEPS
from tests.spread import SHARING, TOGETHER

ROOT = Path(__file__).resolve().parents[2]


def test_every_sweep_and_place_exists() -> None:
    for sweep, every in SWEEPS.items():
        file, test = sweep.split("::")
        assert every > 1 and f"def {test}(" in (ROOT / file).read_text(), sweep
    for place in (*ON_POSTGRES_BY_DAY, *OF_CERTIFICATES, *SHARING, *TOGETHER):
        file, _, test = place.partition("::")
        assert (ROOT / file).exists() and (not test or f"def {test}" in (ROOT / file).read_text()), place


def test_examples_are_drawn_by_the_profiles() -> None:
    """By day the same each time, by night others whose failures are kept: a test's own settings must not undo that."""
    undone = re.compile(r"@settings\([^)]*\b(deadline|database|derandomize)=")
    found = [str(each.relative_to(ROOT)) for each in (ROOT / "tests").rglob("*.py") if undone.search(each.read_text())]
    assert found == []
