"""Tables as hospitals have them: each record's features are a function of its own cells and of the declaration."""

from __future__ import annotations

import gzip
import json
import math
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.datasets.receiving import document_of
from core.contracts.dataset_spec import DatasetSpec
from core.contracts.redeclaration import Redeclaration, amended
from core.contracts.table import TableFeatures
from core.errors import InvalidRequest
from core.parts import inputs
from core.parts.table_cells import entries, expanded
from tests.formats.files import parsed, spec, write

COLUMNS: list[dict[str, Any]] = [
    {"name": "age", "kind": "number", "range": [0, 100], "missing": "flag", "missing_cells": ["NA", "-9"]},
    {"name": "sex", "kind": "category", "values": ["f", "m"], "unknown": "other", "missing": "other"},
    {"name": "seen", "kind": "date", "range": ["2020-01-01", "2020-01-11"], "missing": "middle"},
    {"name": "ward", "kind": "category", "values": [1, 2]},
    {"name": "dose", "kind": "number"},
]
TABLE = {"kind": "table", "columns": COLUMNS}
ROWS: list[dict[str, Any]] = [
    {"age": "50", "sex": "f", "seen": "2020-01-06", "ward": "1", "dose": "0.5", "y": 1},
    {"age": "200", "sex": "x", "seen": "2019-01-01", "ward": "2", "dose": "7", "y": 2},
    {"age": "NA", "sex": "", "seen": "", "ward": "2", "dose": "-1", "y": 3},
    {"age": "-9", "sex": "m", "seen": "2021-01-01", "ward": "1", "dose": "0", "y": 4},
]
#          age  missing  f  m  other  seen   1  2   dose
EXPECTED = [
    [0.0, 0.0, 1, 0, 0, 0.0, 1, 0, 0.5],
    [1.0, 0.0, 0, 0, 1, -1.0, 0, 1, 7.0],
    [0.0, 1.0, 0, 0, 1, 0.0, 0, 1, -1.0],
    [0.0, 1.0, 0, 1, 0, 1.0, 1, 0, 0.0],
]


def features_of(answer: dict[str, Any], parts: dict[str, Any], table: dict[str, Any] = TABLE) -> list[list[float]]:
    declared = TableFeatures.model_validate(table)
    assert answer["features"] == declared.width
    return expanded(parts["train"].x, declared).tolist()


@pytest.mark.parametrize("format", ["csv", "jsonl", "parquet"])
def test_a_table_of_each_format(tmp_path: Path, format: str) -> None:
    answer, parts = parsed(
        tmp_path, spec(format, features=TABLE), write(tmp_path / "d", format, ROWS if format == "csv" else typed())
    )
    assert features_of(answer, parts) == EXPECTED
    assert parts["train"].shape == (4, 5), "stored as read: ranges can be declared anew"


def typed() -> list[dict[str, Any]]:
    """The same rows with the types that JSON and Parquet have."""
    return [
        row
        | {
            "age": None if row["age"] in ("NA", "-9") else float(row["age"]),
            "ward": int(row["ward"]),
            "dose": float(row["dose"]),
            "sex": row["sex"] or None,
            "seen": row["seen"] or None,
        }
        for row in ROWS
    ]


def test_one_content_has_one_digest_in_any_notation(tmp_path: Path) -> None:
    """Or else a second registration of the same records, as another format, would be a second budget."""
    hashes, reordered = (
        [],
        [{**each, "values": each["values"][::-1]} if each.get("values") else each for each in COLUMNS],
    )
    for number, (format, rows, columns) in enumerate(
        [
            ("csv", ROWS, COLUMNS),
            ("parquet", typed(), COLUMNS),
            ("jsonl", typed(), COLUMNS[::-1]),
            ("csv", ROWS, reordered),
        ]
    ):
        features = {"kind": "table", "columns": columns}
        answer, _ = parsed(tmp_path, spec(format, features=features), write(tmp_path / f"d{number}", format, rows))
        hashes.append([each["hmac"] for each in answer["contents"] if each["kind"] == "records"])
    assert hashes[1:] == hashes[:-1]


def test_semicolons_decimal_commas_and_gzip(tmp_path: Path) -> None:
    text = "age;sex;seen;ward;dose;y\n50;f;06.01.2020;1;0,5;1,0\n200;x;01.01.2019;2;7;2\n"
    columns = [each | {"format": "%d.%m.%Y"} if each["kind"] == "date" else each for each in COLUMNS]
    declared = spec(features={"kind": "table", "columns": columns}) | {"csv": {"separator": ";", "decimal": ","}}
    packed = tmp_path / "d.csv.gz"
    packed.write_bytes(gzip.compress(text.encode()))
    answer, parts = parsed(tmp_path, declared, packed)
    assert features_of(answer, parts) == EXPECTED[:2]
    assert parts["train"].y.tolist() == [1.0, 2.0]
    packed.write_bytes(gzip.compress(text.replace("0,5", "1.234").encode()))
    with pytest.raises(InvalidRequest) as refused:
        parsed(tmp_path, declared, packed)
    assert refused.value.members["errors"][0]["detail"] == "column 'dose': 1 not a number"
    with pytest.raises(InvalidRequest, match="semicolons") as refused:
        parsed(tmp_path, declared | {"csv": None}, packed)
    assert '"separator": ";"' in refused.value.message


@pytest.mark.parametrize("format", ["csv", "jsonl"])
def test_an_archive_unpacks_to_a_bounded_size(tmp_path: Path, format: str) -> None:
    path = tmp_path / "bomb"
    path.write_bytes(gzip.compress(b"a,b,y\n" + b"1,2,3\n" * 2_000_000 if format == "csv" else b"\n" * 12_000_000))
    with pytest.raises(InvalidRequest, match="unpacks to more than 1000000 bytes"):
        parsed(tmp_path, spec(format), path, max_unpacked_bytes=1_000_000)
    path.write_bytes(gzip.compress(b"a,b,y\n1,2,3\n" * 1000)[:-20])
    with pytest.raises(InvalidRequest, match=r"cannot be read"):
        parsed(tmp_path, spec(format), path)


def test_what_is_not_declared_is_refused_with_counts(tmp_path: Path) -> None:
    rows = [*ROWS, {"age": "x", "sex": "f", "seen": "soon", "ward": "3", "dose": "", "y": 1}]
    with pytest.raises(InvalidRequest) as refused:
        parsed(tmp_path, spec(features=TABLE), write(tmp_path / "d", "csv", rows))
    found = [(each["pointer"], each["detail"].partition(": ")[2]) for each in refused.value.members["errors"][:4]]
    assert found == [
        ("/features/columns/0", "1 not a number"),
        ("/features/columns/2", "1 not a date"),
        ("/features/columns/3", "1 not a declared value"),
        ("/features/columns/4", "1 missing"),
    ]


@pytest.mark.parametrize(
    "column",
    [
        {"name": "a", "kind": "number", "missing": "middle"},
        {"name": "a", "kind": "number", "range": [1, 1]},
        {"name": "a", "kind": "date", "range": ["2020-01-02", "2020-01-01"]},
        {"name": "a", "kind": "date", "range": ["2020-01-01", "2020-01-02"], "format": "%Q%d"},
        {"name": "a", "kind": "date", "range": ["2020-01-01", "2020-01-02"], "format": "%d.%m"},
        {"name": "a", "kind": "category", "values": [1, "1"]},
        {"name": "a", "kind": "category", "values": []},
        {"name": "y", "kind": "number"},
    ],
)
def test_declarations_that_say_nothing(column: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        DatasetSpec.model_validate(spec(features={"kind": "table", "columns": [column]}))


@given(
    st.lists(
        st.tuples(
            st.one_of(st.just(math.nan), st.floats(-1e6, 1e6, width=32)),
            st.sampled_from([-1.0, 0.0, 1.0]),
            st.one_of(st.just(math.nan), st.integers(10_000, 30_000).map(float)),
            st.sampled_from([0.0, 1.0]),
            st.floats(-10, 10, width=32),
        ),
        min_size=1,
        max_size=8,
    )
)
def test_a_records_features_are_its_own_and_bounded(rows: list[tuple[float, ...]]) -> None:
    declared = TableFeatures.model_validate(TABLE)
    cells = np.array(rows, dtype=np.float32)
    whole = expanded(cells, declared)
    assert np.isfinite(whole).all() and (np.abs(whole[:, :-1]) <= 1.0).all()
    alone = np.concatenate([expanded(cells[[at]], declared) for at in range(len(cells))])
    assert alone.tobytes() == whole.tobytes()


def test_predictions_take_the_same_cells() -> None:
    declared = DatasetSpec.model_validate(spec(features=TABLE))
    records = [
        {"age": 50, "sex": "f", "seen": "2020-01-06", "ward": 1, "dose": 0.5},
        {"age": 200, "sex": "x", "seen": "2019-01-01", "ward": "2", "dose": 7},
        {"age": "NA", "ward": 2.0, "dose": -1, "sex": None},
    ]
    assert inputs.checked(records, declared.task, declared.features, 9) == EXPECTED[:3]
    for wrong, pointer in (
        ({"age": 1, "ward": 3, "dose": 1}, "/records/0/ward"),
        ({"age": 1, "ward": 1}, "/records/0/dose"),
        ({"other": 1}, "/records/0"),
        ([1, 2], "/records/0"),
    ):
        with pytest.raises(InvalidRequest) as refused:
            inputs.checked([wrong], declared.task, declared.features, 9)
        assert refused.value.members["errors"][0]["pointer"] == pointer


def test_days_are_numbers_of_days() -> None:
    column = TableFeatures.model_validate(TABLE).columns[2]
    assert (
        column.kind == "date" and column.day("2020-01-06T23:59:00+02:00") == (date(2020, 1, 6) - date(1970, 1, 1)).days
    )


MAPS: list[tuple[dict[str, Any], list[tuple[float, list[float]]]]] = [
    (
        {"range": [0, 8], "bins": 4, "missing": "own"},
        [(-1, [1, 0, 0, 0, 0]), (2, [0, 1, 0, 0, 0]), (8, [0, 0, 0, 1, 0]), (math.nan, [0, 0, 0, 0, 1])],
    ),
    ({"bins": [18, 65], "missing": 30}, [(17.5, [1, 0, 0]), (18, [0, 1, 0]), (65, [0, 0, 1]), (math.nan, [0, 1, 0])]),
    ({"range": [1, 100], "scale": "log", "bins": 2}, [(0, [1, 0]), (9.5, [1, 0]), (10.5, [0, 1]), (1e9, [0, 1])]),
    ({"range": [1, 100], "scale": "log", "missing": 10}, [(-5, [-1]), (10, [0]), (100, [1]), (math.nan, [0])]),
    ({"range": [1, 100], "scale": "log", "missing": "flag"}, [(100, [1, 0]), (math.nan, [0, 1])]),
    ({"range": [1, 100], "scale": "log", "bins": 3, "missing": "middle"}, [(math.nan, [0, 1, 0])]),
]


@pytest.mark.parametrize(("declared", "cells"), MAPS)
def test_a_number_on_its_declared_map(declared: dict[str, Any], cells: list[tuple[float, list[float]]]) -> None:
    column = {"name": "a", "kind": "number"} | declared
    table = TableFeatures.model_validate({"kind": "table", "columns": [column]})
    assert expanded(np.array([[cell] for cell, _ in cells]), table).tolist() == [
        pytest.approx(features, abs=1e-6) for _, features in cells
    ]


def test_a_record_of_bins_has_the_declared_length() -> None:
    columns = [{"name": f"b{k}", "kind": "number", "range": [0, 1], "bins": 16, "missing": "own"} for k in range(9)]
    table = TableFeatures.model_validate({"kind": "table", "columns": columns})
    cells = np.random.default_rng(0).uniform(-1.0, 2.0, (50, 9))
    cells[cells < -0.8] = math.nan
    assert np.linalg.norm(expanded(cells, table), axis=1).tolist() == [table.length(table.width)] * 50


@pytest.mark.parametrize(
    ("declared", "why"),
    [
        ({"scale": "log"}, "a log scale needs a `range` above 0"),
        ({"scale": "log", "range": [0, 1]}, "a log scale needs a `range` above 0"),
        ({"bins": 4}, "a number of `bins` divides a `range`"),
        ({"bins": [2, 1]}, "must rise"),
        ({"bins": [1, 2], "range": [0, 3]}, "need no `range`"),
        ({"bins": 4, "range": [0, 3], "missing": "flag"}, "its `own` bin"),
        ({"range": [0, 3], "missing": "own"}, "its `own` bin"),
        ({"bins": [1, 2], "missing": "middle"}, "declare one"),
    ],
)
def test_a_map_that_means_nothing_is_refused(declared: dict[str, Any], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        TableFeatures.model_validate({"kind": "table", "columns": [{"name": "a", "kind": "number"} | declared]})


NARROW = [1e30 - 1e15, 1e30]  # two numbers with one logarithm


def test_a_log_scale_whose_ends_have_one_logarithm_is_refused_but_read_if_stored() -> None:
    """Each feature was 0/0."""
    column = {"name": "a", "kind": "number", "range": NARROW, "scale": "log"}
    table = spec(features={"kind": "table", "columns": [column]})
    with pytest.raises(InvalidRequest) as refused:
        document_of(json.dumps(table).encode(), DatasetSpec)
    assert [each["pointer"] for each in refused.value.members["errors"]] == ["/features/columns/0"]
    assert "both ends of `range` have the same logarithm: make it wider" in str(refused.value.members["errors"])
    stored = DatasetSpec.model_validate(table)
    with pytest.raises(InvalidRequest, match="have the same logarithm"):
        amended(stored, Redeclaration(records=5))
    wider = amended(stored, Redeclaration(ranges={"a": (1e29, 1e30)})).features
    assert isinstance(wider, TableFeatures)
    assert expanded(np.array([[1e29], [1e30]]), wider).tolist() == [[-1.0], [1.0]]
    linear = table | {"features": {"kind": "table", "columns": [column | {"scale": "linear"}]}}
    assert document_of(json.dumps(linear).encode(), DatasetSpec).features.kind == "table"


def test_columns_without_a_map_are_stored_as_before() -> None:
    stored = TableFeatures.model_validate(TABLE).model_dump(mode="json")["columns"][0]
    assert stored.keys() == {"kind", "name", "range", "missing", "missing_cells"}


def test_a_sparse_row_has_the_features_and_a_public_number_of_entries() -> None:
    """`entries` are what `expanded` places, whatever a record's cells are."""
    columns = [
        {"kind": "number", "name": "age", "range": [0, 100], "bins": 10, "missing": "own"},
        {"kind": "number", "name": "bmi", "range": [10, 60], "missing": "flag"},
        {"kind": "category", "name": "sex", "values": ["f", "m"], "missing": "other"},
    ]
    declared = TableFeatures.model_validate({"kind": "table", "columns": columns})
    cells = np.array([[34.0, 22.0, 1.0], [np.nan, np.nan, -1.0], [1e9, -5.0, 0.0]])
    places, numbers = entries(cells, declared)
    assert places.shape == (3, declared.entries) == (3, 4) and (np.diff(places, axis=1) > 0).all()
    dense = expanded(cells, declared)
    for row, (at, values) in enumerate(zip(places, numbers, strict=True)):
        assert dense[row, at].tolist() == values.tolist() and np.count_nonzero(np.delete(dense[row], at)) == 0
    assert not declared.is_one_hot
    with pytest.raises(ValueError, match="none of the declared values"):
        entries(np.array([[34.0, 22.0, 7.0]]), declared)
