"""Kinds of job are one registry: nothing else branches on a kind's name, and each kind has what a page shows of it."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from core.contracts.job_spec import JobSpec
from core.contracts.kinds import KINDS, kinds_with, rule_of

ROOT = Path(__file__).resolve().parents[2]
TEMPLATES = ROOT / "app/dashboard/templates"
# What a kind releases, its rules, and its attempt: a match to the end, which mypy checks.
MATCHES = {"core/contracts/kinds.py", "core/privacy/derive.py", "app/admission/job_rules.py", "worker/attempt/child.py"}

STORED = {  # bytes that stay readable for ever
    "core/privacy/mechanism.py": "a stored mechanism has the member, or not",
    "core/contracts/job_spec.py": "the default is not written",
}


def branches(code: str) -> list[str]:
    """The comparisons of a member `kind` with a kind of job other than training, and tests of what only one has."""
    found = []
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            named = {each.value for each in sides if isinstance(each, ast.Constant)} & set(KINDS)
            of_kind = any("kind" in ast.unparse(each) for each in sides)
            if (named and of_kind) or re.search(r"\.(queries|statistics) is (not )?None", ast.unparse(node)):
                found.append(ast.unparse(node))
        if isinstance(node, ast.match_case) and isinstance(node.pattern, ast.MatchValue):
            value = node.pattern.value
            found += [value.value] if isinstance(value, ast.Constant) and value.value in KINDS else []
    return found


def test_a_branch_on_a_kind_is_found() -> None:
    assert branches('if spec.kind == "statistics": ...') and branches('match spec.kind:\n    case "training": ...')
    assert branches("x = 1 if spec.queries is None else 2") and not branches('if column.kind == "number": ...')


def test_code_branches_on_a_kind_in_four_matches_alone() -> None:
    found = {}
    for package in ("app", "core", "worker", "scrimp_server"):
        for path in sorted((ROOT / package).rglob("*.py")):
            name = str(path.relative_to(ROOT))
            if name not in MATCHES and (there := branches(path.read_text())):
                found[name] = there
    assert set(found) <= set(STORED), found


def test_pages_name_no_kind() -> None:
    for path in TEMPLATES.glob("*.html"):
        assert not re.search(rf"""kind["')]*\)? *[!=]= *["']({"|".join(KINDS)})""", path.read_text()), path.name


@pytest.mark.parametrize("kind", KINDS)
def test_a_kind_has_its_members_and_its_page(kind: str) -> None:
    rule = rule_of(kind)  # type: ignore[arg-type]
    assert (TEMPLATES / f"_settings_{kind}.html").is_file()
    assert rule.members <= set(JobSpec.model_fields) and not rule.members & set(rule.foreign)
    assert all(kind in kinds_with(name) for name in rule.members)
    assert rule.needs is None or rule.needs[0] in rule.members
    assert rule.trains == (rule.delivers is None)


@pytest.mark.parametrize("kind", KINDS)
def test_members_of_other_kinds_are_refused_and_not_written(kind: str) -> None:
    rule = rule_of(kind)  # type: ignore[arg-type]
    needs = {} if rule.needs is None else {rule.needs[0]: [{"kind": "count"}]}
    base = {"kind": kind, "dataset": "d", "privacy": {"target_epsilon": 1.0}} | needs
    assert not set(JobSpec.model_validate(base).model_dump()) & set(rule.foreign)
    for name in rule.foreign:
        with pytest.raises(ValueError, match=f"`{name}` is of jobs of kind"):
            JobSpec.model_validate(base | {name: {"kind": "x"}})
