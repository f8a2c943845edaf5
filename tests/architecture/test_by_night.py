"""The tables of tests/by_night.py and tests/spread.py name tests that exist."""

from __future__ import annotations

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
