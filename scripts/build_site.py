"""Builds the documentation's site: `make docs`. Strict: a dead link, or a page missing from the navigation, fails.

The pages are the repository's own files: README.md, CONTRIBUTING.md, SECURITY.md, CHANGELOG.md, docs/ and
benchmarks/reports/. They are copied into one folder with their paths here, so that a link works on the site as in the
repository. A link to a file that is not a page (a program, an example) becomes its text.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[1]
PAGES = ("README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md")
FOLDERS = ("docs", "benchmarks/reports")
SECTIONS = {"Decisions": "docs/decisions", "Reports": "docs/reports", "Benchmarks": "benchmarks/reports"}
SUFFIXES = {".md", ".png"}
LINK = re.compile(r"\[([^\]]+)\]\(\s*([^)#\s]+)(#[^)\s]*)?\)")


def build(target: Path) -> subprocess.CompletedProcess[str]:
    """Builds the site into `target`/html, from copies in `target`/pages. Returns mkdocs's result."""
    pages = target / "pages"
    shutil.rmtree(pages, ignore_errors=True)
    for source in sources():
        copy = pages / source.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        if source.suffix == ".md":
            copy.write_text(without_links_to_code(source))
        else:
            shutil.copy(source, copy)
    configuration = target / "mkdocs.yml"
    configuration.write_text(yaml.safe_dump(settings(), allow_unicode=True, sort_keys=False))
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--config-file", str(configuration)]
    # Otherwise the theme advertises its successor.
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)


def settings() -> dict[str, Any]:
    """mkdocs.yml, with the two folders, and every decision record and report in the navigation."""
    read: dict[str, Any] = yaml.safe_load((ROOT / "mkdocs.yml").read_text())
    for title, folder in SECTIONS.items():
        pages = [str(path.relative_to(ROOT)) for path in sources() if path.is_relative_to(ROOT / folder)]
        read["nav"].append({title: [page for page in pages if page.endswith(".md")]})
    return read | {"docs_dir": "pages", "site_dir": "html"}


def sources() -> list[Path]:
    """Every file of the site."""
    found = [ROOT / name for name in PAGES]
    for folder in FOLDERS:
        found += [path for path in sorted((ROOT / folder).rglob("*")) if path.suffix in SUFFIXES]
    return found


def without_links_to_code(page: Path) -> str:
    """The page's text. Replaces links to existing files that are not pages by their text; keeps others, so that mkdocs
    finds dead ones."""
    known = set(sources())

    def link(found: re.Match[str]) -> str:
        text, address, _ = found.groups()
        if "://" in address or address.startswith("mailto:"):
            return found[0]
        target = (page.parent / address).resolve()
        return text if target.exists() and target not in known else found[0]

    return LINK.sub(link, page.read_text())


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("--to", type=Path, default=ROOT / "build" / "site", help="output folder")
    target = asked.parse_args().to
    target.mkdir(parents=True, exist_ok=True)
    result = build(target)
    print(result.stdout + result.stderr, end="")
    if result.returncode:
        raise SystemExit(result.returncode)
    print(f"wrote {target / 'html' / 'index.html'}")


if __name__ == "__main__":
    main()
