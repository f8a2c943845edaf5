"""The import graph in numbers and as a picture: rooms, arrows, floors, upward arrows, circles.

    python -m scripts.import_graph            # the numbers
    python -m scripts.import_graph --write    # into docs/architecture.md and docs/img/floors.svg
    python -m scripts.import_graph --follow app.jobs.routes:submit:spec    # a parameter's way (scripts/walk.py)

A room is a folder or a file right under a package (`app.jobs`, `core.errors`). An arrow leads from a room to one that
it imports; imports for type checking count. A circle is a set of rooms that reach each other. Upward arrows are the
fewest arrows without which there is no circle. Floors: without them, the longest way down.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import grimp

from scripts.walk import Program

ROOT = Path(__file__).resolve().parents[1]
Graph = Mapping[str, frozenset[str]]  # what each node imports
Arrow = tuple[str, str]
PACKAGES = ("app", "core", "worker")
PAGE, PICTURE = ROOT / "docs" / "architecture.md", ROOT / "docs" / "img" / "floors.svg"
HEAD = "Now (`make graph`):"  # the line before the table
MOST_IN_CIRCLE = 18
WIDTH, ROW = 470, 32  # of a floor in the picture, in pixels
SVG = """\
<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}">
<style>text {{ font: 13px sans-serif; fill: #222 }} rect {{ fill: #e8eefc; stroke: #8aa }}
path {{ fill: none; stroke: #c33; stroke-width: 1.2; marker-end: url(#up) }}</style>
<defs><marker id="up" viewBox="0 0 6 6" refX="5" refY="3" markerWidth="7" markerHeight="7" orient="auto">
<path d="M0 0 L6 3 L0 6 z" style="fill: #c33; stroke: none; marker-end: none"/></marker></defs>
<rect width="{width}" height="{height}" style="fill: #fff; stroke: none"/>
{drawn}
</svg>
"""


@dataclass(frozen=True)
class Shape:
    """A graph in numbers."""

    nodes: int
    arrows: int
    floors: int
    upward: frozenset[Arrow]
    circles: tuple[frozenset[str], ...]

    def __str__(self) -> str:
        counts = (self.nodes, self.arrows, self.floors, len(self.upward), len(self.circles))
        return " | ".join(map(str, counts))


def read(package: str, root: Path = ROOT) -> Graph:
    """What each module of a package imports of the same package, directly."""
    sys.path.insert(0, str(root))
    found = grimp.build_graph(package, cache_dir=None)
    inside = {name for name in found.modules if name != package}
    return {name: frozenset(found.find_modules_directly_imported_by(name) & inside) for name in sorted(inside)}


def rooms(graph: Graph) -> Graph:
    """The same graph of rooms."""
    made: dict[str, set[str]] = {}
    for importer, imported in graph.items():
        made.setdefault(_room(importer), set()).update(map(_room, imported))
    return {room: frozenset(seen - {room}) for room, seen in made.items()}


def shape(graph: Graph) -> Shape:
    """Measures a graph."""
    circles = tuple(each for each in _components(graph) if len(each) > 1)
    upward = frozenset(arrow for circle in circles for arrow in _fewest_upward(graph, circle))
    return Shape(len(graph), sum(map(len, graph.values())), 1 + max(floors(graph, upward).values()), upward, circles)


def floors(graph: Graph, without: Iterable[Arrow] = ()) -> dict[str, int]:
    """Each node's floor: 0 if it imports nothing, else one above the highest that it imports."""
    left = {node: seen - {to for by, to in without if by == node} for node, seen in graph.items()}

    @cache
    def floor(node: str) -> int:
        return 1 + max((floor(each) for each in left[node]), default=-1)

    return {node: floor(node) for node in graph}


def picture(packages: Mapping[str, Graph]) -> str:
    """The floors of graphs of rooms as an SVG, side by side; upward arrows are drawn, all others lead down."""
    drawn, height = [], 0
    for column, (package, graph) in enumerate(packages.items()):
        left, measured = column * (WIDTH + 60) + 10, shape(graph)
        floor_of = floors(graph, measured.upward)
        top = max(floor_of.values())
        y = {floor: 40 + (top - floor) * ROW for floor in range(top + 1)}
        height = max(height, y[0] + ROW)
        drawn.append(f'<text x="{left}" y="24" font-weight="bold">{package}</text>')
        for floor, at_y in y.items():
            names = " · ".join(sorted(node.partition(".")[2] for node, at in floor_of.items() if at == floor))
            drawn.append(f'<rect x="{left}" y="{at_y}" width="{WIDTH}" height="{ROW - 6}" rx="4"/>')
            drawn.append(f'<text x="{left + 8}" y="{at_y + 17}">{names}</text>')
        for number, (by, to) in enumerate(sorted(measured.upward)):
            start, end, out = y[floor_of[by]] + 12, y[floor_of[to]] + 12, left + WIDTH + 10 + 5 * number
            drawn.append(f'<path d="M{left + WIDTH} {start} H{out} V{end} H{left + WIDTH + 3}"/>')
    width = len(packages) * (WIDTH + 60) + 10
    return SVG.format(width=width, height=height, drawn="\n".join(drawn))


def _room(module: str) -> str:
    return ".".join(module.split(".")[:2])


def _components(graph: Graph) -> list[frozenset[str]]:
    """The strongly connected components, by what each node reaches."""
    reach = {node: _reached(graph, node) for node in graph}
    found = {frozenset({node} | {other for other in reach[node] if node in reach[other]}) for node in graph}
    return sorted(found, key=sorted)


def _reached(graph: Graph, start: str) -> set[str]:
    seen: set[str] = set()
    waiting = [start]
    while waiting:
        new = graph[waiting.pop()] - seen
        seen |= new
        waiting += new
    return seen


def _fewest_upward(graph: Graph, circle: frozenset[str]) -> frozenset[Arrow]:
    return _fewest(frozenset((by, to) for by in circle for to in graph[by] & circle))


@cache
def _fewest(arrows: frozenset[Arrow]) -> frozenset[Arrow]:
    """The fewest of a circle's arrows that point up, over all orders of nodes; by dynamic programming over subsets.

    Nodes and arrows are bits. Of sets of as many arrows the first in the alphabet counts: that of the highest bits.
    """
    nodes, alphabet = sorted({by for by, _ in arrows}), sorted(arrows, reverse=True)
    if len(nodes) > MOST_IN_CIRCLE:
        raise ValueError(f"a circle of {len(nodes)} is too large to measure")
    bit_of = {node: 1 << number for number, node in enumerate(nodes)}
    leaving: dict[int, list[tuple[int, int]]] = {bit: [] for bit in bit_of.values()}
    for number, (by, to) in enumerate(alphabet):
        leaving[bit_of[by]].append((bit_of[to], 1 << number))
    best = {0: (0, 0)}  # of what lies at the bottom: how many arrows point up, and minus their bits
    for _ in nodes:  # one node more in each round
        larger: dict[int, tuple[int, int]] = {}
        for below, (count, minus) in best.items():
            for node, out in leaving.items():
                if not node & below:
                    more = [arrow for to, arrow in out if not to & below]
                    found = count + len(more), minus - sum(more)
                    larger[below | node] = min(found, larger.get(below | node, found))
        best = larger
    ((_, minus),) = best.values()
    return frozenset(arrow for number, arrow in enumerate(alphabet) if -minus >> number & 1)


def table(graphs: Mapping[str, Graph]) -> str:
    """The table of docs/architecture.md, from the graphs of files."""
    lines = ["| | nodes | arrows | floors | upward arrows | circles |", "|---|---|---|---|---|---|"]
    for package, files in graphs.items():
        lines += [f"| {package}, rooms | {shape(rooms(files))} |", f"| {package}, files | {shape(files)} |"]
    return "\n".join(lines)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--write", action="store_true", help="write docs/architecture.md and docs/img/floors.svg")
    options.add_argument("--root", type=Path, default=ROOT, help="another checkout, to measure only")
    options.add_argument(
        "--follow", metavar="MODULE:FUNCTION:PARAMETER", help="walk with a parameter (scripts/walk.py)"
    )
    options.add_argument("--parts", action="store_true", help="follow what it consists of, too")
    asked = options.parse_args()
    if asked.follow:
        print(Program(asked.root, ("app", "core")).follow(*asked.follow.split(":"), parts=asked.parts).told())
        return
    graphs = {package: read(package, asked.root) for package in PACKAGES}
    print(table(graphs))
    if asked.write:
        before, _, rest = PAGE.read_text().partition(HEAD)
        after = rest.partition("\n\n")[2].partition("\n\n")[2]
        PAGE.write_text(f"{before}{HEAD}\n\n{table(graphs)}\n\n{after}")
        PICTURE.write_text(picture({package: rooms(files) for package, files in graphs.items()}))


if __name__ == "__main__":
    main()
