"""Counts the words of the documentation, as `wc -w` does: `python -m scripts.word_count`. `tests/docs` reads its limits.

Decision records are a history and stay as they are; pages that a program writes count for nothing.
"""

from __future__ import annotations

from pathlib import Path

DOCS = Path(__file__).resolve().parents[1] / "docs"
# Page → who writes it.
GENERATED = {
    "api.md": "scripts.write_openapi",
    "leaves.md": "scripts.write_leaves",
    "threat-model.md": "scrimp.threat_model",
    "reports/audit.md": "tests.canaries.nightly",
    "reports/bound.md": "tests.bound.nightly",
    "reports/contract.md": "tests.contract.nightly",
}
PATH = 1_500  # words of a path, and of the guarantee: ten minutes


def kinds() -> dict[str, dict[str, int]]:
    """The words of each page by kind: paths, reference, generated."""
    count: dict[str, dict[str, int]] = {"paths": {}, "reference": {}, "generated": {}}
    for page in sorted(DOCS.rglob("*.md")):
        name = str(page.relative_to(DOCS))
        if not name.startswith("decisions/"):
            kind = "generated" if name in GENERATED else "paths" if name.startswith("paths/") else "reference"
            count[kind][name] = len(page.read_text().split())
    return count


def main() -> None:
    for kind, pages in kinds().items():
        for name, words in sorted(pages.items(), key=lambda page: page[1]):
            print(f"{words:7,}  {name}")
        print(f"{sum(pages.values()):7,}  {kind}\n")


if __name__ == "__main__":
    main()
