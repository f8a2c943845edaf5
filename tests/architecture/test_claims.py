"""docs/claims.md: each claim names a test that exists."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ROWS = [line for line in (ROOT / "docs" / "claims.md").read_text().splitlines() if line.startswith("|")][2:]


def test_there_are_claims() -> None:
    assert len(ROWS) > 20 and len(set(ROWS)) == len(ROWS)


@pytest.mark.parametrize("row", ROWS, ids=range(len(ROWS)))
def test_each_claim_has_its_test(row: str) -> None:
    cells = [each.strip() for each in row.strip("|").split(" | ")]
    assert len(cells) == 3 and all(cells)
    named = re.fullmatch(r"`(tests/[\w/]+\.py)::(test_\w+)`", cells[2])
    assert named, "the last column is a test"
    tree = ast.parse((ROOT / named[1]).read_text())
    assert named[2] in {each.name for each in ast.walk(tree) if isinstance(each, ast.FunctionDef)}
