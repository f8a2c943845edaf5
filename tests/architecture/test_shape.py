"""The shape that keeps the code readable, and privacy invariants that cannot be switched off."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.settings import Settings
from scripts import mirrored

ROOT = Path(__file__).resolve().parents[2]
CODE = ("app", "core", "worker", "scrimp", "scrimp_server", "scripts", "benchmarks", "tests")
MAX_FILE_LINES = 800
MAX_FUNCTION_LINES = 70
MAX_MIRRORED = 25  # rows and their views, requests and answers: what the same members mean differs there


def python_files(*folders: str) -> list[Path]:
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


def functions(node: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Those in a node; no expression has one, and most nodes are expressions."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            yield child
        if not isinstance(child, ast.expr):
            yield from functions(child)


def test_no_file_is_too_long() -> None:
    lengths = {str(path.relative_to(ROOT)): len(path.read_text().splitlines()) for path in python_files(*CODE)}
    assert {name: length for name, length in lengths.items() if length > MAX_FILE_LINES} == {}


def test_no_function_is_too_long() -> None:
    too_long = [
        f"{path.relative_to(ROOT)}:{node.lineno} {node.name} has {length} lines"
        for path in python_files(*CODE)
        for node in functions(ast.parse(path.read_text()))
        if (length := (node.end_lineno or node.lineno) - node.lineno + 1) > MAX_FUNCTION_LINES
    ]
    assert too_long == []


def test_invariants_are_raised_not_asserted() -> None:
    # `python -O` strips asserts: a guarantee must not hang on one.
    asserts = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path in python_files("app", "core", "worker")
        if "assert" in (text := path.read_text())
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Assert)
    ]
    assert asserts == []


def defined(module: str) -> set[str] | None:
    """The names that a module of ours has, the modules in it included; None if it is none of ours."""
    folder = ROOT / module.replace(".", "/")
    path = folder / "__init__.py" if folder.is_dir() else folder.with_suffix(".py")
    names = {each.stem for each in folder.iterdir()} if folder.is_dir() else set()
    if not path.is_file():
        return names or None
    for node in ast.walk(ast.parse(path.read_text())):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                names.add(name)
            case ast.Import(names=found) | ast.ImportFrom(names=found):
                names |= {(each.asname or each.name).partition(".")[0] for each in found}
            case ast.Name(id=name, ctx=ast.Store()):
                names.add(name)
    return names


def test_few_classes_are_copies_of_others() -> None:
    assert len(mirrored.pairs(ROOT)) <= MAX_MIRRORED, "a new pair: `python -m scripts.mirrored --list`"


def test_a_copy_of_a_class_is_counted(tmp_path: Path) -> None:
    (tmp_path / "app").mkdir()
    members = "    name: str\n    step: int\n    value: float\n    std: float\n"
    (tmp_path / "app" / "a.py").write_text(f"class Score:\n{members}\n\nclass Number:\n{members}    on: str\n")
    (tmp_path / "app" / "b.py").write_text("from app.a import Score\n\n\nclass Group(Score):\n    group: int\n")
    assert mirrored.pairs(tmp_path) == [("app/a.py:Score", "app/a.py:Number", 0.8)]


def test_what_benchmarks_and_scripts_import_is_there() -> None:
    """Few of them run in tests: a name that moved would be missed when somebody needs the number again."""
    asked = [
        (f"{path.relative_to(ROOT)}:{node.lineno}", node.module, each.name)
        for path in python_files("benchmarks", "scripts")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom) and node.module and node.module.partition(".")[0] in CODE
        for each in node.names
    ]
    modules = {module: defined(module) for module in {each[1] for each in asked}}
    assert [f"{where} {module}.{name}" for where, module, name in asked if name not in (modules[module] or ())] == []
    assert len(asked) > 100


@pytest.mark.parametrize("name", sorted(Settings.model_fields))
def test_every_setting_is_documented(name: str) -> None:
    assert f"| `SCRIMP_{name.upper()}` |" in (ROOT / "docs" / "settings.md").read_text()


def test_no_setting_is_documented_that_is_not_there() -> None:
    rows = (ROOT / "docs" / "settings.md").read_text().split("## The command line")[0].splitlines()
    named = {row.split("`")[1].removeprefix("SCRIMP_").lower() for row in rows if row.startswith("| `SCRIMP_")}
    assert named == set(Settings.model_fields)


def test_every_dependency_is_pinned() -> None:
    lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if not line.startswith("#")]
    assert [line for line in lines if line.count("==") != 1 or "+" in line] == []
