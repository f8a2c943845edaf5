"""Files of nodes: what a part stores of them, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from core.contracts.dataset_spec import DatasetSpec
from core.contracts.neighbourhoods import Tree
from core.errors import InvalidRequest
from core.parts.nodes import ids_of, kept, number_of, read
from core.statistics.statistics_passes import width_of
from tests.formats.files import Rows, parsed, spec, write

NODES: dict[str, Any] = {"kind": "nodes", "columns": ["a", "b"], "node": "id", "neighbours": "links", "keep": 2}
ROWS: Rows = [
    {"id": "p", "a": 1.0, "b": 0.5, "links": "q r s gone", "y": 1.0},
    {"id": "q", "a": 2.0, "b": 0.5, "links": "", "y": 0.0},
    {"id": "7", "a": 4.0, "b": 0.5, "links": "p 7 p", "y": 1.0},
]


def document(format: str = "csv", **changes: Any) -> dict[str, Any]:
    return spec(format, features=NODES | changes)


def content(folder: Path, format: str, rows: Rows) -> list[str]:
    found, _ = parsed(folder, document(format), write(folder / "d", format, rows))
    return [each["hmac"] for each in found["contents"] if each["kind"] == "multiset"]


@pytest.mark.parametrize("format", ["csv", "jsonl", "parquet"])
def test_a_part_stores_columns_and_the_first_of_each_list(format: str, tmp_path: Path) -> None:
    found, parts = parsed(tmp_path, document(format), write(tmp_path / "d", format, ROWS))
    assert (found["features"], found["sparse"]) == (2, False)
    x = np.asarray(parts["train"].x)
    assert x.shape == (3, 2 + 2 * 3) and x[:, :2].tolist() == [[1.0, 0.5], [2.0, 0.5], [4.0, 0.5]]
    ids = ids_of(x[:, 2:])
    assert ids[:, 0].tolist() == [number_of(each) for each in ("p", "q", "7")]
    assert ids[0, 1:].tolist() == kept("p", ["q", "r", "s", "gone"], 2)
    assert ids[1, 1:].tolist() == [-1, -1] and ids[2, 1:].tolist() == [number_of("p"), -1]
    assert read(x, 2, 2, None).tolist() == x[:, :2].tolist()
    assert read(x, 2, 2, Tree(hops=1, neighbours=1))[0].tolist() == [1.0, 0.5, 4.0, 0.5]


def test_a_list_of_json_is_a_list(tmp_path: Path) -> None:
    given = [row | {"links": row["links"].split()} for row in ROWS]
    assert content(tmp_path, "jsonl", given) == content(tmp_path, "jsonl", ROWS)


def test_another_list_is_another_content(tmp_path: Path) -> None:
    other = [ROWS[0], ROWS[1] | {"links": "p"}, ROWS[2]]
    assert content(tmp_path, "csv", other) != content(tmp_path, "csv", ROWS)


def test_two_rows_of_one_node_are_refused_by_their_number_alone(tmp_path: Path) -> None:
    file = write(tmp_path / "d", "csv", [*ROWS, ROWS[0] | {"a": 9.0}])
    with pytest.raises(InvalidRequest, match="1 rows have the id of another row") as refused:
        parsed(tmp_path, document(), file)
    assert "9.0" not in str(refused.value.members)


@pytest.mark.parametrize("cell", ["", None])
def test_a_node_has_an_id(cell: Any, tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="cannot be used"):
        parsed(tmp_path, document("jsonl"), write(tmp_path / "d", "jsonl", [*ROWS, ROWS[0] | {"id": cell}]))


def test_a_list_that_is_none_is_refused(tmp_path: Path) -> None:
    for cell in (1.5, ["p", None], {"p": 1}):
        file = write(tmp_path / "d", "jsonl", [*ROWS, ROWS[1] | {"id": "n", "links": cell}])
        with pytest.raises(InvalidRequest, match="cannot be used"):
            parsed(tmp_path, document("jsonl"), file)


def test_statistics_know_the_width_of_what_is_stored() -> None:
    assert width_of(DatasetSpec.model_validate(document()).features) == 2 + 2 * 3
