"""The import graph: files import downwards alone, rooms but for known exceptions, and the page says so."""

from __future__ import annotations

import pytest

from scripts import import_graph
from scripts.import_graph import Graph, read, rooms, shape

# Arrows between rooms that lead up, and why. A noun's folder has routes (high) and rules (low).
KNOWN = {
    ("app.admission", "app.datasets"): "a hold reads whether the content is still there",
    ("app.audit", "app.keys"): "the audit log's routes need a caller; callers are recorded",
    ("app.audit", "app.web"): "the audit log's routes are routes",
    ("app.lifecycle", "app.egress"): "the relay makes egresses",
    ("app.lifecycle", "app.ledger"): "the end of a job is an entry; the relay keeps heads and checks",
    ("app.lifecycle", "app.predictions"): "the relay takes back predictions that a dead worker had",
    ("app.lifecycle", "app.retention"): "the relay deletes what has expired",
    ("app.lifecycle", "app.webhooks"): "the relay delivers them",
    ("app.web", "app.datasets"): "requests get the parsing process",
    ("app.web", "app.ledger"): "requests get the recorded heads",
    ("worker.attempt", "worker.predicting"): "one process answers predictions too; their supervisor forks it",
}


MOST_IMPORTS = 15
# Files that import more of their package, and why. Nothing is added to this list.
MANY = {
    "app.main": "every router is named once",
    "app.lifecycle.relay": "every duty of the relay is named once",
    "core.contracts.job_spec": "the union of all parts of a job",
    "worker.clipping.bookkeeping": "every rule of a layer",
    "worker.training.loop": "all parts of a step",
    "worker.training.plan": "the parts that a plan builds",
    "worker.training.self_test": "every kind of layer",
}


@pytest.fixture(scope="module")
def graphs() -> dict[str, Graph]:
    return {package: read(package) for package in import_graph.PACKAGES}


def test_every_import_between_files_leads_down(graphs: dict[str, Graph]) -> None:
    for package, files in graphs.items():
        measured = shape(files)
        assert (measured.upward, measured.circles) == (frozenset(), ()), package


def test_the_rooms_upward_arrows_are_the_known_ones(graphs: dict[str, Graph]) -> None:
    assert {arrow for files in graphs.values() for arrow in shape(rooms(files)).upward} == set(KNOWN)


def test_a_file_imports_at_most_fifteen_others(graphs: dict[str, Graph]) -> None:
    many = {name: len(seen) for files in graphs.values() for name, seen in files.items() if len(seen) > MOST_IMPORTS}
    assert many.keys() == MANY.keys()


def test_the_page_shows_the_graph(graphs: dict[str, Graph]) -> None:
    """Counts that change with every file are as of the last `make graph`."""
    page, outdated = import_graph.PAGE.read_text(), "run `make graph`"
    for row in import_graph.table(graphs).splitlines()[2:]:
        name, *shown = (cell.strip() for cell in row.strip("|").split("|"))
        (line,) = (line for line in page.splitlines() if line.startswith(f"| {name} |"))
        there = [cell.strip() for cell in line.strip("|").split("|")][1:]
        kept = slice(2, None) if name.endswith("rooms") else slice(3, None)  # floors, upward arrows, circles
        assert there[kept] == shown[kept], outdated
    drawn = import_graph.picture({package: rooms(files) for package, files in graphs.items()})
    assert import_graph.PICTURE.read_text() == drawn, outdated


def test_a_circle_is_found_and_broken_by_the_fewest_arrows() -> None:
    graph = {"a": frozenset("bc"), "b": frozenset("c"), "c": frozenset("a"), "d": frozenset("a")}
    measured = shape(graph)
    assert measured.circles == (frozenset("abc"),) and measured.upward == {("c", "a")}
    assert (measured.nodes, measured.arrows, measured.floors) == (4, 5, 4)
