"""Pages have the length that their readers have time for; `python -m scripts.word_count` lists them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from scripts import word_count

ROOT = Path(__file__).resolve().parents[2]
PATHS = ("owner", "analyst", "operator", "auditor")
GLOSSARY = ("account", "block", "cap", "hold", "share", "slot")


def length(page: str) -> int:
    return len((word_count.DOCS / page).read_text().split())


@pytest.mark.parametrize("page", [*(f"paths/{name}.md" for name in PATHS), "privacy.md"])
def test_a_path_and_the_guarantee_take_ten_minutes(page: str) -> None:
    assert length(page) <= word_count.PATH


def test_all_other_words_only_fall() -> None:
    assert word_count.total(word_count.words()) <= word_count.MOST, "say it once: scripts/word_count.py"


def test_a_generated_page_is_there() -> None:
    assert [page for page in word_count.GENERATED if not (word_count.DOCS / page).is_file()] == []


def test_the_readme_leads_to_each_path_in_90_lines() -> None:
    lines = (ROOT / "README.md").read_text().splitlines()
    assert len(lines) <= 90
    assert [name for name in PATHS if f"docs/paths/{name}.md" not in "".join(lines)] == []


def test_the_glossary_has_the_ledgers_words() -> None:
    page = (word_count.DOCS / "paths" / "glossary.md").read_text()
    rows = re.findall(r"^\| \*\*(.*?)\*\* \|", page, flags=re.MULTILINE)
    assert [word for word in GLOSSARY if word not in rows] == [] and rows[:-1] == sorted(rows[:-1])


def test_data_begins_with_a_table_in_five_minutes() -> None:
    first = re.findall(r"^## (.*)$", (word_count.DOCS / "data.md").read_text(), flags=re.MULTILINE)[0]
    assert first == "Register a table in five minutes"
