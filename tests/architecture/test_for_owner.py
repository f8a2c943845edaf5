"""What only an owner is told is taken from `ForOwner` by a row that keeps it, and by nothing else."""

from __future__ import annotations

import ast
from pathlib import Path

import app

ROOT = Path(app.__file__).parent


def readers(name: str, inside: str | None = None) -> set[str]:
    """The files of app that read an attribute, of a name or an attribute `inside` if that is given."""
    found = set[str]()
    for path in ROOT.rglob("*.py"):
        text = path.read_text()
        for node in ast.walk(ast.parse(text)) if name in text else ():
            if isinstance(node, ast.Attribute) and node.attr == name:
                owner = getattr(node.value, "attr", getattr(node.value, "id", None))
                if inside is None or owner == inside:
                    found.add(path.relative_to(ROOT).as_posix())
    return found


def test_a_row_alone_takes_findings_without_a_caller() -> None:
    assert readers("value", "findings") == {"datasets/readings.py"}
    routes = {f"datasets/{name}_routes.py" for name in ("block", "declaration", "register")}
    assert readers("findings") == {"datasets/readings.py", *routes}


def test_a_reading_s_outcome_goes_through_for_owner() -> None:
    text = (ROOT / "datasets/schemas.py").read_text()
    assert text.count("row.outcome") == text.count("ForOwner(row.owner_key, row.outcome)") == 1
    assert readers("outcome", "row") == {"datasets/schemas.py"}
