"""Counts pairs of classes that share most of their fields: what is declared twice and kept equal by hand.

    python -m scripts.mirrored [--list]

A field is an annotated name in a class's body. Two classes of at least four fields are mirrored if they share 60 % or
more of the fields of both together (|A ∩ B| / |A ∪ B|). Files that a script writes do not count.
"""

from __future__ import annotations

import argparse
import ast
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
ROOMS = ("app", "core", "worker", "scrimp", "scrimp_server")
SHARE, FEWEST = 0.6, 4
WRITTEN = "Written by scripts/"

Fields = tuple[str, frozenset[str]]


def classes(root: Path) -> Iterator[Fields]:
    """Each class with its own fields."""
    for room in ROOMS:
        for path in sorted((root / room).rglob("*.py")):
            text = path.read_text(encoding="utf-8")
            if WRITTEN in text.partition("from __future__")[0]:
                continue
            for node in ast.walk(ast.parse(text)):
                if isinstance(node, ast.ClassDef):
                    yield f"{path.relative_to(root)}:{node.name}", _fields(node)


def _fields(node: ast.ClassDef) -> frozenset[str]:
    annotated = [each.target for each in node.body if isinstance(each, ast.AnnAssign)]
    return frozenset(each.id for each in annotated if isinstance(each, ast.Name) and each.id[0] != "_")


def pairs(root: Path) -> list[tuple[str, str, float]]:
    """The mirrored pairs with the share of their fields, the most alike first."""
    alike = [
        (one, other, len(fields & more) / len(fields | more))
        for (one, fields), (other, more) in combinations([each for each in classes(root) if len(each[1]) >= FEWEST], 2)
    ]
    return sorted((each for each in alike if each[2] >= SHARE), key=lambda each: (-each[2], each[:2]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--list", action="store_true", help="print the pairs")
    parser.add_argument("--root", type=Path, default=ROOT)
    options = parser.parse_args()
    mirrored = pairs(options.root)
    for one, other, share in mirrored if options.list else ():
        print(f"{share:.0%}  {one}  {other}")
    print(f"{len(mirrored)} pairs of classes share {SHARE:.0%} or more of their fields")


if __name__ == "__main__":
    main()
