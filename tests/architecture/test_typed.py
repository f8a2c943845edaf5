"""JSON exists at the edges and nowhere between: prices, plans and events are frozen documents."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TYPED = ("app/privacy", "app/jobs", "app/hpo")
# file: what of it is JSON
EDGES = {
    "app/privacy/pricing_server.py": "the pipe, on the side of the pricing process",
    "app/jobs/pricing.py": "the pipe, on the service's side, and the cache of prices in the database",
    "app/jobs/rows.py": "the columns of a new job",
    "app/jobs/schemas.py": "the columns of a job, as the REST contract shows them",
    "app/jobs/routes.py": "the OpenAPI document",
}


def untyped(tree: ast.AST) -> Iterator[str]:
    """Types without members: objects of anything by name, under whatever name."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Subscript) and ast.unparse(node.value) in ("dict", "Mapping", "MutableMapping", "Dict"):
            arguments = ast.unparse(node.slice).strip("()").split(", ")
            if arguments[0] == "str" and arguments[-1] in ("Any", "object"):
                yield f"{node.lineno}: {ast.unparse(node)}"
        if isinstance(node, ast.Name | ast.alias):
            name = node.id if isinstance(node, ast.Name) else node.name
            if name in ("TypedDict", "Json", "JSON"):
                yield f"{node.lineno}: {name}"


@pytest.mark.parametrize(
    "code",
    [
        "def f(x: dict[str, Any]): ...",
        "def f() -> list[Mapping[str, object]]: ...",
        "Json = int",
        "from typing import TypedDict",
        "x: dict[str, object] = {}",
    ],
)
def test_the_test_sees_what_is_untyped(code: str) -> None:
    assert list(untyped(ast.parse(code)))


def test_json_is_at_the_edges_alone() -> None:
    found = {
        name: said
        for folder in TYPED
        for path in sorted((ROOT / folder).rglob("*.py"))
        if (name := str(path.relative_to(ROOT))) not in EDGES
        if (said := list(untyped(ast.parse(path.read_text()))))
    }
    assert found == {}


def test_every_edge_is_one() -> None:
    assert [name for name in EDGES if not list(untyped(ast.parse((ROOT / name).read_text())))] == []
