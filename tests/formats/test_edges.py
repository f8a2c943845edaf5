"""A file of edges beside one of nodes: the same lists as of one file, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from app.formats import edge_lists
from app.formats.edge_lists import Lists
from core.contracts.dataset_spec import DatasetSpec
from core.errors import InvalidRequest
from core.parts.nodes import ids_of, kept, number_of
from tests.formats.files import Rows, parsed, spec, write

NODES: Rows = [
    {"id": "p", "a": 1.0, "b": 0.5, "y": 1.0},
    {"id": "q", "a": 2.0, "b": 0.5, "y": 0.0},
    {"id": "7", "a": 4.0, "b": 0.5, "y": 1.0},
]
EDGES: Rows = [
    {"from": "p", "to": "q"},
    {"from": "p", "to": "gone"},
    {"from": "7", "to": "p"},
    {"from": "p", "to": "q"},
    {"from": "7", "to": "7"},
]
COLUMNS = {"kind": "nodes", "columns": ["a", "b"], "node": "id", "keep": 2}


def document(format: str = "csv", *, undirected: bool = False, **changes: Any) -> dict[str, Any]:
    edges = {"source": "from", "target": "to", "undirected": undirected}
    return spec(format, features=COLUMNS | {"edges": edges}) | changes


def joined(folder: Path, asked: dict[str, Any], edges: Rows, nodes: Rows = NODES) -> tuple[Any, NDArray[np.float32]]:
    """What is answered, and the stored part."""
    format = asked["format"]
    nodes_file, edges_file = (write(folder / name, format, rows) for name, rows in (("n", nodes), ("e", edges)))
    found, parts = parsed(folder, asked, nodes_file, edges_file=str(edges_file))
    return found, np.asarray(parts["train"].x)


def one_file(folder: Path, lists: dict[str, str]) -> tuple[Any, NDArray[np.float32]]:
    """The same nodes with their lists in a column."""
    rows = [row | {"links": lists.get(str(row["id"]), "")} for row in NODES]
    asked = spec("csv", features=COLUMNS | {"neighbours": "links"})
    found, parts = parsed(folder, asked, write(folder / "one", "csv", rows))
    return found, np.asarray(parts["train"].x)


def contents(found: dict[str, Any]) -> list[str]:
    return [each["hmac"] for each in found["contents"] if each["kind"] == "multiset"]


@pytest.mark.parametrize("format", ["csv", "jsonl", "parquet", "arrow"])
@pytest.mark.parametrize("undirected", [False, True])
def test_two_files_are_stored_as_one_with_lists(format: str, undirected: bool, tmp_path: Path) -> None:
    lists = {"p": "q gone 7", "q": "p", "7": "p"} if undirected else {"p": "q gone", "7": "p"}
    (tmp_path / "two").mkdir()
    one, stored = one_file(tmp_path, lists)
    two, also_stored = joined(tmp_path / "two", document(format, undirected=undirected), EDGES)
    assert np.array_equal(stored, also_stored) and contents(one) == contents(two)
    assert [each for each in two["warnings"] if "edges" in each] == (
        ["1 ids that the edges give lists to are no rows of the nodes' file"] if undirected else []
    )


@pytest.mark.parametrize("seed", [0, 1])
def test_lists_are_those_of_the_whole_whatever_the_pieces(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(seed)
    names = [f"n{place}" for place in range(40)]
    numbers = np.array([number_of(each) for each in names])
    pairs = rng.integers(0, 40, size=(600, 2))
    monkeypatch.setattr(edge_lists, "FEWEST", 50)
    lists = Lists(keep=5)
    for piece in np.array_split(pairs, 23):
        lists.add(numbers[piece[:, 0]], numbers[piece[:, 1]])
    own = lists.of(numbers[:30])
    for place, name in enumerate(names[:30]):
        listed = [names[other] for one, other in pairs if one == place]
        expected = kept(name, listed, 5)
        assert own[place].tolist() == expected + [-1] * (5 - len(expected))
    assert lists.unasked == len({one for one, other in pairs if one >= 30 and one != other})


def test_what_is_kept_is_bounded_by_the_nodes_and_not_by_the_edges(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(edge_lists, "FEWEST", 100)
    lists = Lists(keep=3)
    for start in range(0, 5000, 100):
        lists.add(np.zeros(100, dtype=np.int64), np.arange(1 + start, 101 + start))
    held = sum(each.size for each in vars(lists).values() if isinstance(each, np.ndarray))
    assert held + sum(each.size for each, _ in lists._waiting) < 400


def test_a_hold_out_file_has_its_lists_from_the_same_edges(tmp_path: Path) -> None:
    held = [row | {"id": f"h{row['id']}", "a": 9.0} for row in NODES]
    files = {name: write(tmp_path / name, "csv", rows) for name, rows in (("n", NODES), ("h", held))}
    edges = write(tmp_path / "e", "csv", [*EDGES, {"from": "hp", "to": "h7"}])
    asked = document(holdout={"kind": "public"})
    _, parts = parsed(tmp_path, asked, files["n"], files["h"], edges_file=str(edges))
    assert ids_of(np.asarray(parts["holdout"].x)[:, 2:])[0].tolist() == [number_of("hp"), number_of("h7"), -1]


def test_no_edges_are_a_graph_too(tmp_path: Path) -> None:
    nodes, edges = write(tmp_path / "n", "csv", NODES), tmp_path / "e"
    edges.write_text("from,to\n")
    _, parts = parsed(tmp_path, document(), nodes, edges_file=str(edges))
    assert (ids_of(np.asarray(parts["train"].x)[:, 2:])[:, 1:] == -1).all()


def test_an_edge_without_an_end_is_told_to_the_owner_with_its_row(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="1 cell that cannot be used") as refused:
        joined(tmp_path, document(), [*EDGES, {"from": "p", "to": ""}])
    assert refused.value.members["file"] == "edges_file"
    column, row = refused.value.members["errors"]
    assert (column["pointer"], column["count"], row["row"]) == ("/features/edges/target", 1, 6)


def test_such_an_edge_is_dropped_where_wrong_rows_are(tmp_path: Path) -> None:
    found, stored = joined(tmp_path, document(wrong_rows="drop"), [*EDGES, {"from": "p", "to": ""}])
    assert "1 edges that cannot be used are left out" in found["warnings"]
    assert np.array_equal(stored, joined(tmp_path, document(), EDGES)[1])


@pytest.mark.parametrize(("edges", "said"), [([{"from": "p"}], "'to'"), ([{"from": "p", "other": "q"}], "'to'")])
def test_a_file_without_the_columns_is_refused(edges: Rows, said: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="file of edges has no column") as refused:
        joined(tmp_path, document(), edges)
    assert said in str(refused.value)


def test_another_format_is_named(tmp_path: Path) -> None:
    files = write(tmp_path / "n", "csv", NODES), write(tmp_path / "e", "parquet", EDGES)
    with pytest.raises(InvalidRequest, match="file of edges cannot be read as csv"):
        parsed(tmp_path, document(), files[0], edges_file=str(files[1]))


def test_ends_are_two_columns_and_the_direction_is_said() -> None:
    for edges in ({"source": "a", "target": "a", "undirected": True}, {"source": "a", "target": "b"}):
        with pytest.raises(ValueError, match=r"source|undirected"):
            DatasetSpec.model_validate(spec("csv", features=COLUMNS | {"edges": edges}))
