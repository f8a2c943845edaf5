"""Interaction tables: every layout gives the same records, ids are of public lists, and what is not is counted."""

from __future__ import annotations

import contextlib
import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pydantic import ValidationError

from core.contracts.dataset_spec import DatasetSpec
from core.errors import InvalidRequest
from core.parts.id_rows import hashed_row
from core.parts.stored_records import Pairs, StoredPart
from tests.formats.files import parsed

ROWS = [(str(1 + i % 7), str(1 + i * i % 11), float(1 + i % 5)) for i in range(60)]
NUMBERED = {"kind": "numbered", "count": 20}


def spec(layout: str = "inter", **changes: Any) -> dict[str, Any]:
    features = {"kind": "interactions", "layout": layout, "users": NUMBERED, "items": NUMBERED}
    task = {"kind": "rating", "scale": [1, 5]}
    return {
        "name": "ratings",
        "format": "interactions",
        "task": task | changes.pop("task", {}),
        "features": features | changes.pop("features", {}),
        "privacy": {"sensitivity": "private", "records": 60, "cap": {"epsilon": 1.0, "delta": 1e-5}},
        "holdout": {"kind": "split", "fraction": 0.3},
    } | changes


def write(path: Path, layout: str, rows: list[tuple[str, str, Any]] = ROWS) -> Path:
    lines = {
        "inter": ["user_id:token\titem_id:token\trating:float\ttimestamp:float"]
        + [f"{u}\t{i}\t{r}\t881250949" for u, i, r in rows],
        "dat": [f"{u}::{i}::{r:g}::978300760" for u, i, r in rows] if layout == "dat" else [],
        "csv": ["item_id,user_id,note,rating", *(f'{i},{u},"a, ""b""",{r}' for u, i, r in rows)],
        "tsv": ["user_id\titem_id\trating", *(f"{u}\t{i}\t{r}" for u, i, r in rows)],
    }
    if layout == "parquet":
        columns = {"rating": [r for _, _, r in rows], "item_id": [i for _, i, _ in rows]}
        pq.write_table(pa.table(columns | {"user_id": [int(u) for u, _, _ in rows]}), path)
    else:
        path.write_text("\n".join(lines[layout]) + "\n")
    return path


def triples(part: StoredPart) -> list[tuple[int, int, float]]:
    assert isinstance(part.x, Pairs)
    return sorted(zip(part.x.users.tolist(), part.x.items.tolist(), part.y.tolist(), strict=True))


@pytest.mark.parametrize("layout", ["inter", "dat", "csv", "tsv", "parquet"])
def test_every_layout_gives_the_same_parts(tmp_path: Path, layout: str) -> None:
    answer, parts = parsed(tmp_path, spec(layout), write(tmp_path / "d", layout))
    reference, expected = parsed(tmp_path, spec("tsv"), write(tmp_path / "t", "tsv"))
    assert (answer["features"], answer["outputs"], answer["sparse"]) == (40, 1, True)
    assert {name: triples(part) for name, part in parts.items()} == {n: triples(p) for n, p in expected.items()}
    assert sorted(triples(parts["train"]) + triples(parts["holdout"])) == sorted(
        (int(u) - 1, int(i) - 1, r) for u, i, r in ROWS
    )
    assert not set(triples(parts["train"])) & set(triples(parts["holdout"]))
    records = [each["hmac"] for each in answer["contents"] if each["kind"] == "records"]
    assert records == [each["hmac"] for each in reference["contents"] if each["kind"] == "records"]
    assert answer["counts"]["dropped"] == 0


def test_rows_come_from_the_declaration_alone(tmp_path: Path) -> None:
    """Which users and items there are, and how many, does not depend on the data."""
    for rows in (ROWS, ROWS[:5]):
        answer, parts = parsed(tmp_path, spec("tsv"), write(tmp_path / "d", "tsv", rows))
        assert answer["features"] == 40
        assert all(isinstance(part.x, Pairs) and part.x.sizes == (20, 20) for part in parts.values())


def test_listed_and_hashed_ids(tmp_path: Path) -> None:
    rows = [("ann", "x1", 3.0), ("bob", "x2", 4.0), ("ann", "x2", 1.0)]
    features = {"users": {"kind": "listed", "ids": ["bob", "ann"]}, "items": {"kind": "hashed", "buckets": 5}}
    _, parts = parsed(tmp_path, spec("tsv", features=features, holdout=None), write(tmp_path / "d", "tsv", rows))
    x = parts["train"].x
    assert isinstance(x, Pairs) and x.users.tolist() == [1, 0, 1]
    assert x.items.tolist() == [hashed_row(item, 5) for _, item, _ in rows]
    assert hashed_row("x1", 2**32) == int(hashlib.sha256(b"x1").hexdigest()[8:16], 16), "a function of the id alone"


@pytest.mark.parametrize("bad", ["0", "21", "007", "1.0", "x", "-1", "٣"])
def test_ids_that_are_not_declared(tmp_path: Path, bad: str) -> None:
    """Refused with a count, or dropped with a count, which the parser's caller tells to the owner alone."""
    file = write(tmp_path / "d", "tsv", [*ROWS, (bad, "1", 3.0), ("1", bad, 3.0), (bad, bad, 3.0)])
    with pytest.raises(InvalidRequest) as refused:
        parsed(tmp_path, spec("tsv"), file)
    errors = refused.value.members["errors"]
    assert [(each["pointer"], each["count"]) for each in errors if "row" not in each] == [
        ("/task/user", 2),
        ("/task/item", 2),
    ]
    answer, parts = parsed(tmp_path, spec("tsv", features={"unknown": "drop"}), file)
    assert answer["counts"]["records"] == 60 and answer["counts"]["dropped"] == 3
    clean, expected = parsed(tmp_path, spec("tsv"), write(tmp_path / "e", "tsv"))
    assert {n: triples(p) for n, p in parts.items()} == {n: triples(p) for n, p in expected.items()}
    assert clean["counts"]["dropped"] == 0


CELLS: list[tuple[str, tuple[str, str, Any], str]] = [
    ("no user", ("", "1", 3.0), "1 missing"),
    ("no item", ("1", "", 3.0), "1 missing"),
    ("a long id", ("1" * 300, "1", 3.0), "1 not an id"),
    ("no rating", ("1", "1", ""), "1 missing"),
    ("no number", ("1", "1", "good"), "1 not a number"),
    ("not finite", ("1", "1", "nan"), "not finite"),
    ("above the scale", ("1", "1", 5.5), "1 outside the declared scale"),
    ("below the scale", ("1", "1", 0.0), "1 outside the declared scale"),
]


@pytest.mark.every_case
@pytest.mark.parametrize(("row", "said"), [case[1:] for case in CELLS], ids=[case[0] for case in CELLS])
@pytest.mark.parametrize("unknown", ["refuse", "drop"])
def test_cells_that_can_not_be_used(tmp_path: Path, row: tuple[str, str, Any], said: str, unknown: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        parsed(tmp_path, spec("tsv", features={"unknown": unknown}), write(tmp_path / "d", "tsv", [*ROWS, row]))
    assert said in str(refused.value.members["errors"])


FILES = [
    ("inter", b"user_id\titem_id\trating\n1\t1\t3\n", "name:type"),
    ("inter", b"user_id:float\titem_id:token\trating:float\n1\t1\t3\n", "'token'"),
    ("inter", b"user_id:token\titem_id:token\n1\t1\n", "no column 'rating'"),
    ("inter", b"user_id:token\titem_id:token\trating:token\n1\t1\t3\n", "'float'"),
    ("dat", b"1::1::3::4\n1::1\n1:1:3:4\n", "2 lines are not user::item::rating"),
    ("dat", b"1::1::3::4::5\n", "1 lines are not"),
    ("dat", b"", "no records"),
    ("dat", b"9" * (2 << 20), "longer than"),
    ("csv", b"user_id,item_id,rating\n1,1,3,4\n", "1 rows do not have the header's 3 cells"),
    ("tsv", b"user_id,item_id,rating\n1,1,3\n", "write it with tabs"),
    ("parquet", b"PAR1", "not an intact Parquet file"),
]


@pytest.mark.parametrize(("layout", "content", "said"), FILES)
def test_files_that_can_not_be_read(tmp_path: Path, layout: str, content: bytes, said: str) -> None:
    (tmp_path / "d").write_bytes(content)
    with pytest.raises(InvalidRequest) as refused:
        parsed(tmp_path, spec(layout), tmp_path / "d")
    assert said in refused.value.message + str(refused.value.members["errors"])


def test_the_first_wrong_line_is_a_member(tmp_path: Path) -> None:
    (tmp_path / "d").write_bytes(b"1::1::3::4\n1::1\n1:1:3:4\n")
    with pytest.raises(InvalidRequest) as refused:
        parsed(tmp_path, spec("dat"), tmp_path / "d")
    whole, line = refused.value.members["errors"]
    assert line["line"] == 2 and line["detail"].startswith("line 2 is not user::item::rating or ")
    assert whole["detail"].startswith("2 lines are not ") and "line 2" not in refused.value.message


def test_parquet_types(tmp_path: Path) -> None:
    for user, rating in (([1.0], [3.0]), (["1"], ["3"]), ([True], [3.0])):
        pq.write_table(pa.table({"user_id": user, "item_id": ["1"], "rating": rating}), tmp_path / "d")
        with pytest.raises(InvalidRequest, match="cannot be used here"):
            parsed(tmp_path, spec("parquet", holdout=None), tmp_path / "d")
    table = pa.table({"user_id": pa.array(["1", None]), "item_id": pa.array([2, 2]), "rating": [3, 3]})
    pq.write_table(table, tmp_path / "d")
    with pytest.raises(InvalidRequest) as refused:
        parsed(tmp_path, spec("parquet"), tmp_path / "d")
    assert "1 missing" in str(refused.value.members["errors"])


@pytest.mark.parametrize(
    "changes",
    [
        {"format": "csv"},
        {"task": {"kind": "regression", "label": "rating"}},
        {"features": {"kind": "columns", "columns": ["a"]}},
        {"task": {"kind": "rating", "scale": [5, 1]}},
        {"task": {"kind": "rating", "scale": [1, 5], "user": "rating"}},
        {"features": spec()["features"] | {"users": {"kind": "listed", "ids": ["a", "a"]}}},
        {"features": spec()["features"] | {"users": {"kind": "numbered", "count": 10**9}}},
    ],
)
def test_declarations_that_do_not_fit(changes: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        DatasetSpec.model_validate(spec() | changes)


def test_a_repeated_record_is_on_one_side(tmp_path: Path) -> None:
    _, parts = parsed(tmp_path, spec("tsv"), write(tmp_path / "d", "tsv", ROWS * 2))
    assert all(np.unique(triples(part), axis=0, return_counts=True)[1].min() >= 2 for part in parts.values())


@pytest.mark.parametrize("layout", ["inter", "dat", "csv", "tsv", "parquet"])
def test_damaged_files_are_refused_or_read(tmp_path: Path, layout: str) -> None:
    """Bytes changed, cut out and doubled: nothing but InvalidRequest is ever raised."""
    good = bytearray(write(tmp_path / "good", layout, ROWS[:6]).read_bytes())
    generator = np.random.default_rng(5)
    for _ in range(150):
        content = bytearray(good)
        for _ in range(generator.integers(1, 4)):
            at, length = generator.integers(0, len(content)), generator.integers(1, 9)
            piece = bytes(generator.integers(0, 256, length, dtype=np.uint8)) if generator.random() < 0.5 else b""
            content[at : at + length] = piece if generator.random() < 0.7 else content[at : at + length] * 2
        (tmp_path / "d").write_bytes(content)
        with contextlib.suppress(InvalidRequest):
            parsed(tmp_path, spec(layout, holdout=None), tmp_path / "d")
