"""Libraries of Hugging Face take seconds to load: only a job that needs them loads them."""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LATE = {"transformers", "tokenizers", "peft", "huggingface_hub"}


def test_nothing_of_them_is_imported_with_a_module() -> None:
    early = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for folder in ("app", "core", "worker", "scrimp", "scrimp_server")
        for path in (ROOT / folder).rglob("*.py")
        for node in ast.parse(path.read_text()).body
        for name in _names(node)
        if name.partition(".")[0] in LATE
    ]
    assert early == []


def _names(node: ast.stmt) -> list[str]:
    if isinstance(node, ast.Import):
        return [each.name for each in node.names]
    return [node.module or ""] if isinstance(node, ast.ImportFrom) else []
