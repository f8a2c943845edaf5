"""Retired words stay out: one word for one thing, the field's (CONTRIBUTING.md)."""

from __future__ import annotations

import ast
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
# Word → what to say.
RETIRED = {
    r"can not": "cannot",
    r"doorbells?|\bbells?\b(?! & Volinsky)|\brings? (?:a|the) worker|\brung\b": "notify, notification",
    r"nurser(?:y|ies)": "fork server",
    r"\bdesks?\b": "pricing server",
    r"\bvaults?\b": "encryption",
    r"\bglanc(?:e|er|es)\b": "quick read",
    r"\bforetold\b|\bforetells?\b": "extrapolated",
    r"\bdear(?:er|est)?\b": "expensive",
    r"\btakers?\b": "sharers",
    r"\bParameterBook\b|\bkeeps? books\b": "accumulators",
}
FOLDERS = (
    "app",
    "core",
    "worker",
    "scrimp",
    "scrimp_server",
    "client",
    "alembic",
    "scripts",
    "docs",
    "examples",
    "benchmarks",
)
PAGES = (
    "README.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "Makefile",
    "Dockerfile",
    "docker-compose.yml",
    "pyproject.toml",
)
SUFFIXES = (".py", ".md", ".html", ".toml", ".yml", ".sh", ".js", ".css", ".ipynb")
# Migrations of old names keep them; so do words inside recorded outputs.
EXEMPT = ("alembic/versions/", "app/docs/static/", "app/dashboard/static/vendor/")


def files() -> list[Path]:
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False).stdout.split(
        "\n"
    )
    names = listed if any(listed) else [str(path.relative_to(ROOT)) for path in ROOT.rglob("*")]
    return [
        ROOT / name
        for name in names
        if (name.startswith(tuple(f"{each}/" for each in FOLDERS)) and name.endswith(SUFFIXES)) or name in PAGES
        if not name.startswith(EXEMPT) and (ROOT / name).is_file()
    ]


@pytest.mark.parametrize("word", RETIRED, ids=RETIRED.values())
def test_a_retired_word_stays_out(word: str) -> None:
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()[:100]}"
        for path in files()
        for number, line in enumerate(path.read_text().splitlines(), start=1)
        if re.search(word, line, flags=re.IGNORECASE)
    ]
    assert found == [], f"say: {RETIRED[word]}"


def test_the_words_are_found_where_they_stand() -> None:
    said = ["It can not be.", "the doorbell", "Nursery", "a desk", "vault.encrypt", "db.glance()", "dearest", "takers"]
    for text in said:
        assert any(re.search(word, text, flags=re.IGNORECASE) for word in RETIRED), text
    assert not any(re.search(word, "during a string of scoring") for word in RETIRED)


def public(tree: ast.Module) -> list[ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef]:
    """Public functions and classes, and public methods of public classes."""
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    found = [node for node in tree.body if isinstance(node, kinds) and not node.name.startswith("_")]
    for node in list(found):
        if isinstance(node, ast.ClassDef):
            found += [each for each in node.body if isinstance(each, kinds) and not each.name.startswith("_")]
    return found


@pytest.mark.parametrize("folder", ["app", "worker", "scrimp", "scrimp_server"])
def test_public_names_have_docstrings(folder: str) -> None:
    """85 % of them: what a name says by itself needs none. A method that overrides has its base's."""
    nodes = [node for path in (ROOT / folder).rglob("*.py") for node in public(ast.parse(path.read_text()))]
    said = sum(ast.get_docstring(node) is not None for node in nodes)
    assert said / len(nodes) >= 0.85, f"{said} of {len(nodes)}"
