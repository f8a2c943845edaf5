"""Writes docs/claims.md and docs/reports/attacks.md from the docstrings of the tests that hold them: `make openapi`.

A paragraph of a test's docstring states a claim that an attack on the engine broke, or an attack from outside:

    Claim: one record changes a clipped sum by at most C · slack          Attack (Doors): Headers that drip
    Now: at most 1 + 10⁻⁶                                                 Now: cut off
                                                                          Also: tests/access/test_doors.py::test_…

`Also` names further tests. A claim so goes with its test, and none is without one.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CLAIMS = ROOT / "docs" / "claims.md"
ATTACKS = ROOT / "docs" / "reports" / "attacks.md"
MARK = "pytest.mark.attack"
STATEMENT = re.compile(r"(?:Claim|Attack \((Reliability|Doors|Tenants)\)): (.*?) Now: (.*?)(?: Also: (.*))?")

CLAIMS_HEAD = """# Claims and the tests that hold them

Attacks on the engine and the service found each of these claims about privacy and its accounts broken once; the test in
the last column asserts what holds now, and its docstring has the claim. `C` is the clipping norm. `make openapi` writes
this page. Attacks from outside: [reports/attacks.md](reports/attacks.md). The worst |S − S′| of every kind, type and
number of threads, over 1 to 33 records: `python -m tests.bound.nightly`, a part of `make nightly`, writes
[reports/bound.md](reports/bound.md).

| claim | now | test |
|---|---|---|
"""
ATTACKS_HEAD = """# Attacks

Attacks from outside that succeeded once, over real PostgreSQL, Redis and SQLite; what comes of them now; and the tests
that hold it so, whose docstrings state them. **Bold** tests are the seven worst, which run against real processes:
`pytest -m attack`. `make nightly-chaos` repeats races, kills, clocks, rewinds and tampering for ten minutes, and writes
[chaos.md](../../benchmarks/reports/chaos.md). `make openapi` writes this page.
"""
SECTIONS = {
    "Reliability": "",
    "Doors": "",
    "Tenants": "What one key with few rights did to the others. `python benchmarks/bench_tenants.py` attacks a running"
    " service and\nmeasures ([before and after](../../benchmarks/reports/tenants.md)).\n\n",
}


@dataclass(frozen=True, slots=True)
class Statement:
    """A claim (without a section) or an attack, what holds now, and the tests of it."""

    section: str | None
    what: str
    now: str
    tests: tuple[str, ...]


@cache
def statements() -> tuple[Statement, ...]:
    """All of them, in the order of their tests."""
    return tuple(statement for path in _files() for statement in _stated(path))


def _files() -> list[Path]:
    return sorted((ROOT / "tests").rglob("test_*.py"))


def _stated(path: Path) -> Iterator[Statement]:
    for node in functions(path):
        for paragraph in (ast.get_docstring(node) or "").split("\n\n"):
            if paragraph.startswith(("Claim:", "Attack:", "Attack (")):
                yield read(paragraph, f"{path.relative_to(ROOT)}::{node.name}")


def read(paragraph: str, name: str) -> Statement:
    """The statement of a paragraph of the test's docstring."""
    match = STATEMENT.fullmatch(" ".join(paragraph.split()))
    if match is None:
        raise ValueError(f"{name} does not state a claim as scripts/write_claims.py reads it: {paragraph}")
    section, what, now, also = match.groups()
    return Statement(section, what, now, (name, *(also.split(", ") if also else ())))


def functions(path: Path) -> list[ast.FunctionDef]:
    """The file's test functions."""
    return [node for node in ast.parse(path.read_text()).body if isinstance(node, ast.FunctionDef)]


@cache
def marked() -> frozenset[str]:
    """The tests that `pytest -m attack` runs."""
    return frozenset(name for path in _files() if MARK in path.read_text() for name in _marked(path))


def _marked(path: Path) -> Iterator[str]:
    tree = ast.parse(path.read_text())
    whole_file = any(MARK in ast.unparse(node) for node in tree.body if isinstance(node, ast.Assign))
    for node in functions(path):
        if node.name.startswith("test_") and (whole_file or MARK in map(ast.unparse, node.decorator_list)):
            yield f"{path.relative_to(ROOT)}::{node.name}"


def claims() -> str:
    """docs/claims.md."""
    return CLAIMS_HEAD + "".join(_row(each) for each in statements() if each.section is None)


def attacks() -> str:
    """docs/reports/attacks.md."""
    table = "| attack | now | test |\n|---|---|---|\n"
    return ATTACKS_HEAD + "".join(
        f"\n## {section}\n\n{text}{table}{''.join(_row(each) for each in statements() if each.section == section)}"
        for section, text in SECTIONS.items()
    )


def _row(statement: Statement) -> str:
    tests = ", ".join(f"**`{name}`**" if name in marked() else f"`{name}`" for name in statement.tests)
    return f"| {statement.what} | {statement.now} | {tests} |\n"


def main() -> None:
    CLAIMS.write_text(claims())
    ATTACKS.write_text(attacks())


if __name__ == "__main__":
    main()
