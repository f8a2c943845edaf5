"""Each role comes to its end on a hospital's table: in the browser, by REST and commands."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.e2e.conftest import Service
from tests.e2e.roles import CommandLine, InBrowser, Key, Rest, pages, walked


@pytest.fixture
def admin(served: Callable[[str], Service]) -> Key:
    return Key("", (served("sqlite").home / "admin.key").read_text().strip())


def test_by_plain_rest(served: Callable[[str], Service], admin: Key, tmp_path: Path) -> None:
    walks = walked(Rest(f"http://127.0.0.1:{served('sqlite').port}", tmp_path), admin, tmp_path)
    assert [each.role for each in walks] == ["operator", "owner", "analyst", "auditor"]


def test_on_the_command_line(served: Callable[[str], Service], admin: Key, tmp_path: Path) -> None:
    walks = walked(CommandLine(f"http://127.0.0.1:{served('sqlite').port}", tmp_path), admin, tmp_path)
    assert [each.role for each in walks] == ["operator", "owner", "analyst", "auditor"]


@pytest.mark.nightly  # by day by REST and commands, above; pages in tests/dashboard/test_flows.py
@pytest.mark.browser
def test_in_the_browser(served: Callable[[str], Service], admin: Key, tmp_path: Path) -> None:
    with pages(f"http://127.0.0.1:{served('sqlite').port}") as page_of:
        walks = walked(InBrowser(page_of, tmp_path), admin, tmp_path)
    assert [each.role for each in walks] == ["operator", "owner", "analyst", "auditor"]
