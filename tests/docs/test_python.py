"""The Python on pages: it parses, and what it calls is there."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import scrimp
from scrimp import specs
from scrimp.jobs import JobHandle
from scrimp.models import Job
from tests.factories import job_answer

ROOT = Path(__file__).resolve().parents[2]
PAGES = ("README.md", "docs/python.md", "docs/models.md", "docs/paths/analyst.md")
BLOCK = re.compile(r"^```python\n(.*?)^```", flags=re.MULTILINE | re.DOTALL)
CLIENT = scrimp.Client("http://127.0.0.1:9")
THINGS: dict[str, Any] = {
    "client": CLIENT,
    "client.jobs": CLIENT.jobs,
    "job": JobHandle(CLIENT, Job(**job_answer())),
    "specs": specs,
    "scrimp": scrimp,
}


def missing(code: str) -> Iterator[str]:
    """What a block asks of the client and does not find, and arguments that a specification does not have."""
    for node in ast.walk(ast.parse(code)):
        of = THINGS.get(ast.unparse(node.value)) if isinstance(node, ast.Attribute) else None
        if isinstance(node, ast.Attribute) and of is not None and not hasattr(of, node.attr):
            yield ast.unparse(node)
        if isinstance(node, ast.Call) and ast.unparse(node.func).startswith("specs."):
            kind = getattr(specs, ast.unparse(node.func).removeprefix("specs."), None)
            yield from (f"{kind}.{each.arg}" for each in node.keywords if each.arg not in kind.model_fields)


@pytest.mark.parametrize("page", PAGES)
def test_what_a_page_s_python_calls_is_there(page: str) -> None:
    blocks = BLOCK.findall((ROOT / page).read_text())
    assert blocks and [each for block in blocks for each in missing(block)] == []


def test_what_is_not_there_is_found() -> None:
    code = "client.nothing(); job.quote; client.jobs.nowhere; specs.DpSgd(learning_rat=1); scrimp.Nobody"
    assert len(list(missing(code))) == 4
