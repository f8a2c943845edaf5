"""An owner's own file as records: columns by name, cells as they are written, what is kept, and where a fault is."""

from __future__ import annotations

import csv
import json
from datetime import date
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from scrimp.record_files import RecordFile, UnusableFileError, joined, write
from tests.cli.conftest import Cli

COLUMNS = {"kind": "columns", "columns": ["a", "b"]}
TABLE = {
    "kind": "table",
    "columns": [
        {"name": "age", "kind": "number"},
        {"name": "code", "kind": "category"},
        {"name": "seen", "kind": "date", "format": "%d.%m.%Y"},
    ],
}


def read(path: Path, content: str) -> RecordFile:
    path.write_text(content, encoding="utf-8")
    return RecordFile.read(path)


def test_the_model_s_columns_are_taken_by_name_and_the_others_stay(tmp_path: Path) -> None:
    rows = read(tmp_path / "own.csv", '﻿patient_id,b,note,a\n0017,2.5,"one\ntwo",1\n0018,word,,3\n')
    assert rows.records(COLUMNS) == [{"a": "1", "b": "2.5"}, {"a": "3", "b": "word"}], "cells are the file's text"
    assert rows.kept(["patient_id"]) == [{"patient_id": "0017"}, {"patient_id": "0018"}]
    assert rows.place(1) == "own.csv, line 4", "a line of the file, though a cell has two"
    assert rows.records({"kind": "text", "column": "note"}) == ["one\ntwo", ""]
    assert rows.records({"kind": "text", "column": "x"}, "a") == ["1", "3"]


def test_separators_and_decimal_commas(tmp_path: Path) -> None:
    rows = read(tmp_path / "own.csv", "age;code;seen;name\n3,5;7,1;01.02.2020;A\n1.000,5;7;;B\n")
    found = rows.records(TABLE, decimal=",")
    assert found[0] == {"age": "3.5", "code": "7,1", "seen": "01.02.2020"}, "numbers alone have decimals"
    assert found[1]["age"] == "1.000,5", "the service refuses it: it is two numbers in two countries"
    assert rows.records(TABLE)[0]["age"] == "3,5"


def test_parquet_and_frames_keep_their_types(tmp_path: Path) -> None:
    cells: dict[str, list[Any]] = {
        "age": [40.5, None],
        "code": ["x", None],
        "seen": [date(2020, 2, 1), None],
        "id": [1, 2],
    }
    pq.write_table(pa.table(cells), tmp_path / "own.parquet")
    rows = RecordFile.read(tmp_path / "own.parquet")
    wanted = [{"age": 40.5, "code": "x", "seen": "01.02.2020"}, {"age": None, "code": None, "seen": None}]
    assert rows.records(TABLE) == wanted and rows.kept(["id"]) == [{"id": 1}, {"id": 2}]
    assert rows.place(1) == "own.parquet, row 2"
    frame = pd.DataFrame(cells | {"seen": pd.to_datetime(["2020-02-01", None])})
    assert json.loads(json.dumps(RecordFile.of_frame(frame).records(TABLE))) == wanted


def test_a_day_that_python_lacks_is_named(tmp_path: Path) -> None:
    days = pa.chunked_array([pa.array([0, 1], pa.date32()), pa.array([-(2**30)], pa.date32())])
    pq.write_table(pa.table({"a": [1, 2, 3], "seen": days}), tmp_path / "own.parquet")
    with pytest.raises(UnusableFileError, match="row 3 of column `seen` is no day of the years 1 to 9999"):
        RecordFile.read(tmp_path / "own.parquet")


def test_pairs_and_lists_are_rows_of_their_own(tmp_path: Path) -> None:
    ids = read(tmp_path / "ids.csv", "when,user,item\n1,0195153448,1e5\n")
    assert ids.records({"kind": "interactions"}) == [{"user": "0195153448", "item": "1e5"}]
    lists = read(tmp_path / "lists.jsonl", '["50", "172"]\n\n["3"]\n')
    assert lists.records({"kind": "interactions"}) == [["50", "172"], ["3"]] and lists.place(1) == "lists.jsonl, line 3"


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("own.csv", "A,b\n1,2\n", "own.csv lacks `a`; perhaps `A` must be called `a`"),
        ("own.csv", "a,b\n1\n", "line 2 has more or fewer cells than the header"),
        ("own.csv", "a,b\n1,2,3\n", "line 2 has more or fewer cells than the header"),
        ("own.jsonl", '{"a": 1}\nno\n', "own.jsonl cannot be read"),
        ("own.parquet", "a,b\n", "own.parquet cannot be read"),
        ("own.xlsx", "", "must end in one of .csv"),
    ],
)
def test_a_file_that_does_not_fit_is_refused(tmp_path: Path, name: str, content: str, said: str) -> None:
    with pytest.raises(UnusableFileError, match=said):
        read(tmp_path / name, content).records(COLUMNS)
    with pytest.raises(UnusableFileError, match="lacks `patient`; perhaps `patients` must be called `patient`"):
        read(tmp_path / "ids.csv", "patients,a\n1,2\n").kept(["patient"])


ANSWERS = [
    {"class": "1", "probabilities": {"1": 0.75, "0": 0.25}},
    {"class": "0", "probabilities": {"0": 1.0, "1": 0.0}},
]


def test_answers_are_written_beside_what_is_kept(tmp_path: Path) -> None:
    rows = joined([{"id": "007"}, {"id": "008"}], ANSWERS)
    for name in ("out.csv", "out.tsv", "out.jsonl", "out.parquet"):
        write(tmp_path / name, rows)
    flat = [
        {"id": "007", "class": "1", "probability_1": 0.75, "probability_0": 0.25},
        {"id": "008", "class": "0", "probability_1": 0.0, "probability_0": 1.0},
    ]
    with (tmp_path / "out.csv").open(newline="") as lines:
        assert list(csv.DictReader(lines)) == [{name: str(cell) for name, cell in row.items()} for row in flat]
    assert RecordFile.read(tmp_path / "out.parquet").rows == flat
    assert RecordFile.read(tmp_path / "out.jsonl").rows == rows
    assert RecordFile.read(tmp_path / "out.tsv").columns == list(flat[0])
    with pytest.raises(UnusableFileError, match="`class` cannot be kept"):
        joined([{"class": "a"}], ANSWERS[:1])


def test_options_without_a_table_are_refused(cli: Cli, job_file: str) -> None:
    job = cli.json("jobs", "submit", job_file)["id"]
    records = cli.file("some.json", {"records": []})
    for arguments in ([records, "--keep", "a"], [records, "--to", "out.xlsx"], [records, "--decimal", ";"]):
        assert cli("predict", job, *arguments).exit_code == 2, arguments
    (table := cli.folder / "own.csv").write_text("id,a\n1,2.5\n")
    refused = cli("predict", job, str(table), "--keep", "ID")
    assert refused.exit_code == 2 and "own.csv lacks `ID`; perhaps `id` must be called `ID`" in refused.stderr
