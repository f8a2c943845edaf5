"""docs/reports/attacks.md names tests that are there, and the seven that run against real processes."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "reports" / "attacks.md").read_text()
ROWS = [line for line in PAGE.splitlines() if line.startswith("| ") and not line.startswith("| attack |")]
NAMED = sorted(set(re.findall(r"`(tests/[\w/]+\.py::\w+)`", PAGE)))


def functions(path: Path) -> dict[str, ast.FunctionDef]:
    return {node.name: node for node in ast.parse(path.read_text()).body if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize("name", NAMED)
def test_each_named_test_is_there(name: str) -> None:
    path, function = name.split("::")
    assert function in functions(ROOT / path)


def test_each_attack_names_a_test() -> None:
    assert len(ROWS) > 30
    assert [row for row in ROWS if not re.search(r"\| \**`tests/", row)] == []


def marked(path: Path) -> set[str]:
    text, name = path.read_text(), str(path.relative_to(ROOT))
    if "pytest.mark.attack" not in text:
        return set()
    tree = ast.parse(text)
    of_module = any("pytest.mark.attack" in ast.unparse(node) for node in tree.body if isinstance(node, ast.Assign))
    return {
        f"{name}::{function}"
        for function, node in functions(path).items()
        if function.startswith("test_") and (of_module or "pytest.mark.attack" in map(ast.unparse, node.decorator_list))
    }


def test_the_seven_worst_are_those_that_run_against_processes() -> None:
    bold = set(re.findall(r"\*\*`(tests/[\w/]+\.py::\w+)`\*\*", PAGE))
    found = set().union(*(marked(path) for path in sorted((ROOT / "tests").rglob("test_*.py"))))
    assert bold == found and len(bold) == 7
