"""Counts the documentation's words, as `wc -w` does: `python -m scripts.word_count`. `tests/docs` reads the limits.

Decision records are a history and stay as they are. A page that a program writes is not counted among those that people
write: paths, reference, theorems, and evidence (what attacks and experiments showed).
"""

from __future__ import annotations

from pathlib import Path

DOCS = Path(__file__).resolve().parents[1] / "docs"
# Page → who writes it.
GENERATED = {
    "api.md": "scripts.write_openapi",
    "claims.md": "scripts.write_claims",
    "cli.md": "scripts.write_cli",
    "errors.md": "scripts.write_errors",
    "leaves.md": "scripts.write_leaves",
    "metrics.md": "scripts.write_metrics",
    "settings.md": "scripts.write_settings",
    "specifications.md": "scripts.write_specifications",
    "threat-model.md": "scrimp.threat_model",
    "system-calls.md": "app.sandbox.system_calls, but for its first lines",
    "reports/attacks.md": "scripts.write_claims",
    "reports/audit.md": "tests.canaries.nightly",
    "reports/bound.md": "tests.bound.nightly",
    "reports/contract.md": "tests.contract.nightly",
}
EVIDENCE = ("measured.md", "papers.md", "reports/")
PATH = 1_500  # words of a path, and of the guarantee: ten minutes
MOST = 42_000  # words of the pages that people write, without paths: lower it as they fall; the aim is 33,000


def kind_of(page: str) -> str:
    """What a page of docs/ is."""
    if page in GENERATED:
        return "generated"
    if page.startswith("paths/"):
        return "paths"
    if page.startswith(EVIDENCE):
        return "evidence"
    return "theorems" if page == "theorems.md" else "reference"


def words() -> dict[str, dict[str, int]]:
    """The words of each page, by kind."""
    count: dict[str, dict[str, int]] = {}
    for path in sorted(DOCS.rglob("*.md")):
        page = str(path.relative_to(DOCS))
        if not page.startswith("decisions/"):
            count.setdefault(kind_of(page), {})[page] = len(path.read_text(encoding="utf-8").split())
    return count


def total(count: dict[str, dict[str, int]]) -> int:
    """The words that people write, without paths."""
    return sum(sum(count[kind].values()) for kind in ("reference", "theorems", "evidence"))


def main() -> None:
    count = words()
    for kind, pages in count.items():
        for page, number in sorted(pages.items(), key=lambda item: item[1]):
            print(f"{number:7,}  {page}")
        print(f"{sum(pages.values()):7,}  {kind}\n")
    print(f"{total(count):7,}  written by people, without paths; at most {MOST:,}")


if __name__ == "__main__":
    main()
