"""The command line covers every route of the API; what it leaves out has a reason, at the route."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from app.main import create_app
from app.web.route_operation import OPERATIONS, Operation
from core import leaves
from scrimp.cli import app
from scrimp.cli.command_session import EXIT_CODES

assert create_app  # its routes declare themselves as they are imported
ROOT = Path(__file__).resolve().parents[2]
TYPED = (*(ROOT / "docs").glob("*.md"), *(ROOT / "docs" / "paths").glob("*.md"))


@cache
def root() -> object:
    return get_command(app)


def commands() -> set[str]:
    """Every command, as it is typed."""

    def below(group: object, typed: str) -> set[str]:
        found = getattr(group, "commands", None)
        if found is None:
            return {typed}
        return {each for name, one in found.items() for each in below(one, f"{typed} {name}".strip())}

    return below(root(), "")


def test_the_command_that_a_route_declares_is_there() -> None:
    assert {each.command for each in OPERATIONS.values() if each.command is not None} <= commands()


def test_a_route_has_a_command_or_a_reason() -> None:
    with pytest.raises(ValueError, match="has a command, or says why it has none"):
        Operation("The job.", audience="view", leaves=leaves.ELSEWHERE)


def test_every_command_is_on_a_page() -> None:
    pages = "".join(path.read_text() for path in (ROOT / "docs").glob("*.md"))
    assert [each for each in sorted(commands()) if f"scrimp {each}" not in pages] == []


# A command as pages write it: alone on its line, after a prompt or a pipe, or between backticks.
WRITTEN = re.compile(r"(?:^(?:\$ )?|`|\| )scrimp ([a-z][^`\n|#>]*)", flags=re.MULTILINE)


def unknown(line: str) -> str | None:
    """The first word of a written command that `scrimp` does not know: a command, or an option."""
    group, words = root(), line.split()
    while (found := getattr(group, "commands", None)) is not None:
        if not words or not re.fullmatch(r"[a-z-]+,?", words[0]):
            return None  # prose about a group of commands
        if (one := found.get(words.pop(0).rstrip(","))) is None:
            return line
        group = one
    options = {name for each in group.params for name in (*each.opts, *each.secondary_opts)} | {"--help"}
    asked = (found[0] for each in words if (found := re.match(r"--[a-z-]+", each.lstrip("[("))))
    return next((each for each in asked if each not in options), None)


@pytest.mark.parametrize("page", ["README.md", *sorted(str(path.relative_to(ROOT)) for path in TYPED)])
def test_what_a_page_types_is_a_command_with_its_options(page: str) -> None:
    written = WRITTEN.findall((ROOT / page).read_text())
    assert [(each, wrong) for each in written if (wrong := unknown(each)) is not None] == []


def test_a_command_or_an_option_that_is_not_there_is_found() -> None:
    assert unknown("jobs submit job.json --watch") is None and unknown("budgets list visits") is None
    assert unknown("jobs subm job.json") == "jobs subm job.json"
    assert unknown("jobs submit job.json [--wach]") == "--wach"


def test_the_exit_codes_are_documented() -> None:
    page = (ROOT / "docs" / "cli.md").read_text()
    table = page.partition("| exit code | |")[2].partition("\n\n")[0]
    rows = {int(code): said for code, said in re.findall(r"^\| (\d+) \| (.*) \|$", table, flags=re.MULTILINE)}
    assert rows == EXIT_CODES


@pytest.mark.parametrize("option", ["--url", "--key", "--json"])
def test_no_command_hides_the_connection_s_options(option: str) -> None:
    shown = CliRunner().invoke(app, ["jobs", "spec", "--help"], env={"COLUMNS": "200"})
    assert option in shown.output
