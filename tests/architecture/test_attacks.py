"""docs/reports/attacks.md is written from docstrings of tests; it names the seven that run against real processes."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts import write_claims

ROOT = Path(__file__).resolve().parents[2]
ATTACKS = [each for each in write_claims.statements() if each.section is not None]
NAMED = sorted({name for each in ATTACKS for name in each.tests})


def test_each_attack_is_on_the_page_with_its_tests() -> None:
    assert len(ATTACKS) > 30
    assert write_claims.ATTACKS.read_text() == write_claims.attacks(), "run `make openapi`"


@pytest.mark.parametrize("name", NAMED)
def test_each_named_test_is_there(name: str) -> None:
    path, function = name.split("::")
    assert function in {node.name for node in write_claims.functions(ROOT / path)}


def test_the_seven_worst_are_those_that_run_against_processes() -> None:
    assert write_claims.marked() <= set(NAMED) and len(write_claims.marked()) == 7
