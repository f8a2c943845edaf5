"""Names that say what happened to a thing, not what it is: `make lint` counts them, and their number only falls.

python -m scripts.vague_names           # the figure; an error if it rose
python -m scripts.vague_names --list    # each of them
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("app", "core", "worker", "scrimp", "scrimp_server")
MOST = 195  # lower it to what is found
WORDS = frozenset(
    word
    for line in (
        "after alike alone asked before beside chosen done each found given heard held here how kept known least",
        "made more most named of once others ours own read rest said shown theirs there told what where who whole",
        "whose why",
    )
    for word in line.split()
)


def bound(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Lines and names of variables and arguments; `each` is allowed where a comprehension binds it."""
    targets = [part.target for part in ast.walk(tree) if isinstance(part, ast.comprehension)]
    inside = {id(node) for target in targets for node in ast.walk(target) if getattr(node, "id", "") == "each"}
    for node in ast.walk(tree):
        if isinstance(node, ast.arg):
            yield node.lineno, node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and id(node) not in inside:
            yield node.lineno, node.id


def main() -> int:
    """Prints the figure. Returns 1 if it rose."""
    names = [
        (path, line, name)
        for folder in FOLDERS
        for path in sorted((ROOT / folder).rglob("*.py"))
        for line, name in bound(ast.parse(path.read_text(encoding="utf-8")))
    ]
    vague = [(path, line, name) for path, line, name in names if name in WORDS]
    if "--list" in sys.argv or len(vague) > MOST:
        print(*(f"{path.relative_to(ROOT)}:{line} {name}" for path, line, name in vague), sep="\n")
    print(f"{len(vague)} of {len(names)} names are vague, {100 * len(vague) / len(names):.2f} %; at most {MOST} may be")
    if len(vague) > MOST:
        print("call a thing by the field's noun: CONTRIBUTING.md, names")
    return int(len(vague) > MOST)


if __name__ == "__main__":
    sys.exit(main())
