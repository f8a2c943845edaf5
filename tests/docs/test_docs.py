"""The documentation: the site builds without a dead link, and what pages name exists."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, get_args

import pytest

from app.lifecycle import failures
from core import errors
from core.contracts.base import AccountantName
from core.contracts.dataset_spec import TableFormat, Task
from core.contracts.filter_names import FILTERS
from core.contracts.job_spec import Model
from core.contracts.metrics import METRICS, rule_of
from core.contracts.optimizers import Optimizer
from core.privacy.releases import BEFORE
from scripts import (
    build_site,
    write_cli,
    write_errors,
    write_metrics,
    write_openapi,
    write_settings,
    write_specifications,
)

ROOT = Path(__file__).resolve().parents[2]
PAGES = [path for path in build_site.sources() if path.suffix == ".md" and "benchmarks" not in path.parts]
NAMES = [path for path in PAGES if path.name != "CHANGELOG.md"]
PATH = re.compile(r"`([\w./]+\.py)`(?:\s+`([A-Za-z_]\w*)`)?")


def test_the_site_builds_strictly(tmp_path: Path) -> None:
    result = build_site.build(tmp_path)
    assert result.returncode == 0, result.stdout + result.stderr
    assert (tmp_path / "html" / "docs" / "privacy.html").exists()


def test_a_dead_link_fails_the_build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tmp_path / "CONTRIBUTING.md"
    page.write_text("# Page\n\n[nowhere](docs/nowhere.md)\n")
    monkeypatch.setattr(build_site, "without_links_to_code", lambda _source: page.read_text())
    result = build_site.build(tmp_path)
    assert result.returncode != 0 and "docs/nowhere.md" in result.stdout + result.stderr


def named(page: Path) -> Iterator[tuple[str, str]]:
    yield from PATH.findall(page.read_text())


@pytest.mark.parametrize("page", NAMES, ids=lambda page: str(page.relative_to(ROOT)))
def test_files_and_functions_that_a_page_names_exist(page: Path) -> None:
    missing = [(path, name) for path, name in named(page) if not exists(path, name)]
    assert missing == []


def exists(path: str, name: str) -> bool:
    """Says if a file of that path, or of that name in any folder, has that function, class or constant."""
    found = [ROOT / path] if (ROOT / path).exists() else [each for each in modules() if each.match(path)]
    return any(not name or name in defined(each) for each in found)


def modules() -> list[Path]:
    folders = ("app", "core", "worker", "scrimp", "scrimp_server", "scripts", "tests", "benchmarks", "alembic")
    return [path for folder in folders if (ROOT / folder).is_dir() for path in (ROOT / folder).rglob("*.py")]


def defined(path: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Assign):
            names |= {target.id for target in node.targets if isinstance(target, ast.Name)}
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            names.add(node.target.id)
    return names


def test_a_name_that_is_not_there_is_found() -> None:
    assert exists("app/lifecycle/settle.py", "settle") and exists("settle.py", "")
    assert not exists("app/lifecycle/settle.py", "_nobody")
    assert not exists("app/lifecycle/nobody.py", "")


def codes(kind: type[errors.ServiceError]) -> Iterator[str]:
    for each in kind.__subclasses__():
        if each.__module__ == errors.__name__ and not issubclass(each, errors.WorkerError):
            if "code" in vars(each):
                yield each.code
            yield from codes(each)


def test_every_error_is_documented_and_none_that_is_not_there() -> None:
    rows = (ROOT / "docs" / "errors.md").read_text().split("## Why a job failed")[0]
    documented = set(re.findall(r"^\| `([a-z-]+)` \|", rows, flags=re.MULTILINE))
    assert documented == {*codes(errors.ServiceError), errors.ServiceError.code, *get_args(errors.ConflictCode)}


def test_every_cause_of_a_failure_says_what_to_do() -> None:
    rows = (ROOT / "docs" / "errors.md").read_text().split("## Why a job failed")[1]
    named = (re.findall(r"`([a-z-]+)`", row) for row in re.findall(r"^\| (`.*?) \|", rows, flags=re.MULTILINE))
    documented = [code for row in named for code in row]
    assert sorted(documented) == sorted({*failures.TOLD, failures.INTERNAL.code, "trial-failed"})


def test_every_metric_is_documented_with_its_bound() -> None:
    section = (ROOT / "docs" / "optimizers.md").read_text().partition("\n## Scores\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| `(\w+)` \| .* \| (.*) \| (.*) \|$", section, flags=re.MULTILINE)
    rules = {name: rule_of(name) for name in METRICS}
    assert {name: (bound.strip("`"), task.strip("`")) for name, bound, task in rows} == {
        name: (_written(rule.bound), rule.task or "any") for name, rule in rules.items()
    }


def _written(bound: float | None) -> str:
    """A metric's bound in its table: a root as one."""
    if not bound:
        return "loss_bound"
    square = bound**2
    return f"√{square:g}" if abs(bound - round(bound)) > 1e-9 else f"{bound:g}"


def test_every_format_is_documented() -> None:
    section = (ROOT / "docs" / "data.md").read_text().partition("\n## Files\n")[2].partition("\n## ")[0]
    assert set(re.findall(r"^\| `(\w+)`", section, flags=re.MULTILINE)) == {
        *get_args(TableFormat),
        "interactions",
        "format",
    }


def kinds_of(union: Any) -> list[str]:
    """The kinds of a union of documents."""
    return [each.model_fields["kind"].default for each in get_args(union)]


@pytest.mark.parametrize(
    ("page", "names"),
    [
        ("models.md", kinds_of(Model)),
        ("optimizers.md", kinds_of(Optimizer)),
        ("data.md", kinds_of(get_args(Task)[0])),
        ("privacy.md", [*FILTERS, *get_args(AccountantName)]),
        ("theorems.md", [each.line for each in BEFORE]),
    ],
    ids=["models", "optimizers", "tasks", "filters and accountants", "released statistics"],
)
def test_every_kind_has_its_page(page: str, names: list[str]) -> None:
    text = (ROOT / "docs" / page).read_text()
    assert [name for name in names if f"`{name}`" not in text and f'"{name}"' not in text] == [], page


def test_every_route_is_documented() -> None:
    document = json.loads((ROOT / "docs" / "openapi.json").read_text())
    assert (ROOT / "docs" / "api.md").read_text() == write_openapi.page(document), "run `make openapi`"


@pytest.mark.parametrize(
    "writer",
    [write_settings, write_cli, write_errors, write_metrics, write_specifications],
    ids=lambda each: each.__name__,
)
def test_a_generated_page_is_as_written(writer: ModuleType) -> None:
    assert writer.PAGE.read_text() == writer.page(), "run `make openapi`"
