"""What registration refuses in data files, format by format: each with the place, the column and the count."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from core.errors import InvalidRequest
from tests.formats.files import TEXT, number_rows, parsed, refusal, spec, write

CLASSES = {"classes": [0, 1]}
TEXT_SPEC = {"features": TEXT, "classes": [0, 1]}


CSV_CELLS: list[tuple[str, dict[str, Any], str | bytes, str, str, int, str]] = [
    ("NaN", {}, "a,b,y\n1,nan,0\n1,2,0\n1,NaN,0\n", "/features/columns/1", "b", 2, "2 not finite"),
    ("infinite", {}, "a,b,y\n1,inf,0\n-Infinity,2,0\n", "/features/columns/0", "a", 1, "1 not finite"),
    ("beyond float64", {}, "a,b,y\n1e999,2,0\n", "/features/columns/0", "a", 1, "1 not finite"),
    ("beyond float32", {}, "a,b,y\n-4e38,2,0\n", "/features/columns/0", "a", 1, "1 not finite in 32 bits"),
    ("missing", {}, "a,b,y\n,2,0\n  ,2,0\n1,2,0\n", "/features/columns/0", "a", 2, "2 missing"),
    ("not a number", {}, "a,b,y\n1,x,0\n1,1_000,0\n1,0x1F,0\n", "/features/columns/1", "b", 3, "3 not a number"),
    ("decimal comma", {}, 'a,b,y\n1,"1,5",0\n', "/features/columns/1", "b", 1, "1 not a number"),
    (
        "all at once",
        {},
        "a,b,y\n1,x,0\n1,,0\n1,nan,0\n",
        "/features/columns/1",
        "b",
        3,
        "1 missing, 1 not a number, 1 not",
    ),
    ("missing target", {}, "a,b,y\n1,2,\n", "/task/label", "y", 1, "1 missing"),
    ("NaN target", {}, "a,b,y\n1,2,nan\n1,2,x\n", "/task/label", "y", 2, "1 not a number, 1 not finite"),
    (
        "unknown class",
        CLASSES,
        "a,b,y\n1,2,2\n1,2,2\n1,2,1\n",
        "/task/label",
        "y",
        2,
        "2 not a declared class",
    ),
    ("class with a blank", {"classes": ["u", "v"]}, "a,b,y\n1,2, u\n", "/task/label", "y", 1, "1 not a declared class"),
    ("fractional class", CLASSES, "a,b,y\n1,2,0.5\n1,2,1e999\n", "/task/label", "y", 2, "2 not a declared class"),
    ("missing class", CLASSES, "a,b,y\n1,2,\n1,2,0\n", "/task/label", "y", 1, "1 missing"),
    ("not UTF-8", TEXT_SPEC, b"t,y\nok,0\n\xff\xfe,1\n", "/features/column", "t", 1, "1 not Unicode text"),
]


@pytest.mark.parametrize("case", CSV_CELLS, ids=[case[0] for case in CSV_CELLS])
def test_bad_csv_cells_are_refused_with_column_and_count(tmp_path: Path, case: tuple[Any, ...]) -> None:
    _, changes, content, pointer, column, count, text = case
    error = refusal(tmp_path, spec(**changes), content)
    found = {each["pointer"]: each for each in error.members["errors"] if "row" not in each}
    assert pointer in found, error.members
    assert (found[pointer]["column"], found[pointer]["count"]) == (column, count)
    assert text in found[pointer]["detail"]


CSV_FILES: list[tuple[str, str | bytes, str]] = [
    ("nothing", "", "empty"),
    ("header alone", "a,b,y\n", "no records"),
    ("repeats a name", "a,b,b,y\n1,2,3,4\n", "more than once: 'b'"),
    ("an unused name twice", "a,b,z,z,y\n1,2,3,4,5\n", "more than once: 'z'"),
    (
        "short rows",
        "a,b,y\n1,2,3\n1,2\n1\n1,2,3\n",
        "2 rows do not have the header's 3 cells; rows are counted from 1 below the header",
    ),
    ("long row", "a,b,y\n1,2,3,4\n", "1 rows"),
    ("open quote", 'a,b,y\n1,2,3\n1,"2,3\n1,2,3\n', "row 2 has a quoted cell without an end"),
    ("text after a quote", 'a,b,y\n1,"2"x,3\n', "row 1 has a quoted cell"),
    ("binary", bytes(range(256)), "not text: there are NUL bytes in its first line"),
    ("another format", b"PAR1" + bytes(100), "it is a Parquet file"),
    ("an archive", b"PK\x03\x04" + bytes(100), "it is a ZIP archive"),
    ("UTF-16", "a,b,y\n1,2,3\n".encode("utf-16"), "it is text in UTF-16: save it as UTF-8"),
    ("semicolons", "a;b;y\n1;2;3\n", "its columns are separated by semicolons (';'); write it with commas"),
    ("quoted semicolons", '"a";"b";"y"\n1,5;2;3\n', "separated by semicolons"),
    ("tabs", "y\ta\tmore\tb\r\n1\t2\t3\t4\r\n", "separated by tabs"),
    ("bars, behind a mark of order", "\ufeffa|b|y\n1|2|3\n", "separated by bars"),
]


@pytest.mark.parametrize("case", CSV_FILES, ids=[case[0] for case in CSV_FILES])
def test_broken_csv_files_are_refused(tmp_path: Path, case: tuple[str, str | bytes, str]) -> None:
    error = refusal(tmp_path, spec(), case[1])
    assert case[2] in f"{error} {error.members['errors']}"


def test_an_absent_column_is_named_with_what_is_there(tmp_path: Path) -> None:
    error = refusal(tmp_path, spec(), "A,b,why\n1,2,3\n")
    assert str(error) == "The data file has no column 'a'; it has 'A', 'b', 'why'"
    assert [each["pointer"] for each in error.members["errors"]] == ["/features/columns/0", "/task/label"]


def test_errors_stay_short(tmp_path: Path) -> None:
    names = [f"c{i}" for i in range(3000)]
    document = spec(features={"kind": "columns", "columns": names})
    rows = ",".join([*names, "y"]) + "\n" + ",".join(["x"] * 3000) + ",0\n"
    assert len(refusal(tmp_path, document, rows).members["errors"]) == 20 + 10
    error = refusal(tmp_path, spec(classes=[0, 1]), "a,b,y\n" + "".join(f"1,2,{'long' * 99}{i}\n" for i in range(999)))
    assert "999 not a declared class" in str(error.members) and len(str(error.members)) < 3000
    absent = refusal(tmp_path, document, "x,y\n1,2\n")
    assert len(absent.members["errors"]) == 20


JSONL: list[tuple[str, str, str]] = [
    ("not JSON", '{"a": 1, "b": 2, "y": 3}\n{"a": secret}\n', "line 2 is not JSON"),
    ("half a line", '{"a": 1, "b"', "line 1 is not JSON"),
    ("a huge integer", '{"a": %s, "b": 2, "y": 3}\n' % ("9" * 5000), "line 1 is not JSON"),
    ("not an object", "[1, 2]\n", "line 1 is not an object"),
    ("deep", "[" * 100_000 + "\n", "line 1 is nested too deeply"),
    ("repeats a name", '{"a": 1, "a": 2, "b": 2, "y": 3}\n', "line 1 repeats a name"),
    ("not UTF-8", '{"a": 1, "b": 2, "y": "\udcff"}\n', "line 1 is not UTF-8"),
    ("empty", "\n\n", "no records"),
    ("no label", '{"a": 1, "b": 2}\n', "no column 'y'"),
]


@pytest.mark.parametrize("case", JSONL, ids=[case[0] for case in JSONL])
def test_broken_jsonl_is_refused_and_not_quoted(tmp_path: Path, case: tuple[str, str, str]) -> None:
    error = refusal(tmp_path, spec("jsonl"), case[1].encode("utf-8", "surrogateescape"))
    assert case[2] in f"{error} {error.members['errors']}"
    assert "secret" not in f"{error} {error.members}"


@pytest.mark.parametrize(
    ("cell", "text"),
    [
        ("null", "1 missing"),
        ('"1.5"', "1 not a number"),
        ("[1]", "1 not a number"),
        ("NaN", "1 not finite"),
        ("-Infinity", "1 not finite"),
        ("1e400", "1 not finite"),
        ("9" * 400, "1 not finite"),
    ],
)
def test_bad_jsonl_cells_are_counted(tmp_path: Path, cell: str, text: str) -> None:
    error = refusal(tmp_path, spec("jsonl"), f'{{"a": {cell}, "b": 1, "y": 1}}\n{{"b": 1, "a": 2, "y": 1}}\n')
    assert error.members["errors"][0]["column"] == "a" and text in error.members["errors"][0]["detail"]


@pytest.mark.parametrize("cell", ["null", "3", '"\\ud800"', '["a"]'])
def test_jsonl_texts_must_be_texts(tmp_path: Path, cell: str) -> None:
    error = refusal(tmp_path, spec("jsonl", **TEXT_SPEC), f'{{"t": {cell}, "y": 1}}\n{{"t": "fine", "y": 1}}\n')
    assert error.members["errors"][0]["count"] == 1


def test_labels_with_lone_surrogates_can_be_shown(tmp_path: Path) -> None:
    error = refusal(tmp_path, spec("jsonl", **CLASSES), '{"a": 1, "b": 1, "y": "\\ud800"}\n')
    json.dumps(error.members, ensure_ascii=False).encode()


def test_a_line_without_end_is_not_read_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.formats.jsonl_file.MAX_LINE_BYTES", 1000)
    assert "longer than 1000 bytes" in str(refusal(tmp_path, spec("jsonl"), '{"a": "' + "x" * 5000))


def parquet(folder: Path, document: dict[str, Any], columns: dict[str, Any] | pa.Table) -> InvalidRequest:
    pq.write_table(columns if isinstance(columns, pa.Table) else pa.table(columns), folder / "p")
    return refusal(folder, document, (folder / "p").read_bytes())


@pytest.mark.parametrize(
    ("changes", "columns", "text"),
    [
        ({}, {"a": [1.0, None], "b": [1, 2], "y": [1, 2]}, "column 'a': 1 missing"),
        ({}, {"a": [1.0, float("nan")], "b": [1, 2], "y": [1, 2]}, "column 'a': 1 not finite"),
        ({}, {"a": [1.0, 1e300], "b": [1, 2], "y": [1, 2]}, "column 'a': 1 not finite in 32 bits"),
        ({}, {"a": ["1"], "b": [1], "y": [1]}, "column 'a' is of type string"),
        ({}, {"a": [[1]], "b": [1], "y": [1]}, "column 'a' is of type list"),
        ({}, {"a": pa.array([1], pa.timestamp("s")), "b": [1], "y": [1]}, "column 'a' is of type timestamp"),
        ({}, {"a": [1], "b": [1], "y": ["1"]}, "column 'y' is of type string"),
        ({}, {"a": [1], "b": [1], "y": pa.array([None], pa.float64())}, "column 'y': 1 missing"),
        ({}, {"a": [], "b": [], "y": []}, "type null"),
        ({}, {"a": pa.array([], pa.int8()), "b": pa.array([], pa.int8()), "y": pa.array([], pa.int8())}, "no records"),
        (TEXT_SPEC, {"t": ["a", None], "y": [0, 1]}, "column 't': 1 missing"),
        (TEXT_SPEC, {"t": [b"a"], "y": [0]}, "column 't' is of type binary"),
        (TEXT_SPEC, {"t": ["a"], "y": [0.5]}, "1 not a declared class"),
        (TEXT_SPEC, {"t": ["a"], "y": pa.array([None], pa.int64())}, "column 'y': 1 missing"),
        (
            {},
            pa.Table.from_arrays([pa.array([1])] * 4, names=["a", "b", "b", "y"]),
            "more than once: 'b'",
        ),
    ],
)
def test_parquet_refusals(tmp_path: Path, changes: dict[str, Any], columns: Any, text: str) -> None:
    error = parquet(tmp_path, spec("parquet", **changes), columns)
    assert text in f"{error} {error.members['errors']}"


@pytest.mark.parametrize("content", [b"", b"PAR1", b"a,b,y\n1,2,3\n", b"PAR1" + bytes(200) + b"\xff\xff\xff\x7fPAR1"])
def test_broken_parquet_is_refused(tmp_path: Path, content: bytes) -> None:
    assert "not an intact Parquet file" in str(refusal(tmp_path, spec("parquet"), content))


def test_damaged_parquet_pages_are_refused(tmp_path: Path) -> None:
    write(tmp_path / "p", "parquet", number_rows(100))
    content = bytearray((tmp_path / "p").read_bytes())
    content[4:400] = bytes(396)
    assert "not an intact Parquet file" in str(refusal(tmp_path, spec("parquet"), bytes(content)))


ONES = np.ones((3, 2))


@pytest.mark.parametrize(
    ("arrays", "text"),
    [
        ({"x": ONES}, "no column 'y'; it has 'x'"),
        ({"x": ONES, "y": np.ones(2)}, "x has the shape (3, 2) and the labels (2,)"),
        ({"x": ONES, "y": np.ones((3, 1))}, "the labels (3, 1)"),
        ({"x": np.float64(1), "y": np.ones(1)}, "x has the shape ()"),
        ({"x": np.ones((3, 0)), "y": np.ones(3)}, "without features"),
        ({"x": np.ones((0, 3)), "y": np.ones(0)}, "no records"),
        ({"x": ONES * np.nan, "y": np.ones(3)}, "column 'x': 6 not finite"),
        ({"x": ONES * 1e300, "y": np.ones(3)}, "column 'x': 6 not finite"),
        ({"x": ONES, "y": np.array([1, np.inf, 2])}, "column 'y': 1 not finite"),
        ({"x": ONES * 1j, "y": np.ones(3)}, "column 'x' holds values of type complex128"),
        ({"x": np.array([["a"]]), "y": np.ones(1)}, "column 'x' holds values of type <U1"),
        ({"x": np.array([[None]]), "y": np.ones(1)}, "objects, which would need pickle"),
        ({"x": ONES, "y": np.array([1, None, 2])}, "objects, which would need pickle"),
        ({"x": ONES, "y": np.array([b"a", b"b", b"c"])}, "column 'y' holds values of type |S1"),
        ({"x": np.zeros(3, dtype=[("a", "f8")]), "y": np.ones(3)}, "column 'x' holds values of type"),
    ],
)
def test_npz_refusals(tmp_path: Path, arrays: dict[str, Any], text: str) -> None:
    np.savez(tmp_path / "d.npz", **arrays)
    error = refusal(tmp_path, spec("npz"), (tmp_path / "d.npz").read_bytes())
    assert text in f"{error} {error.members['errors']}"


def test_unknown_npz_classes(tmp_path: Path) -> None:
    np.savez(tmp_path / "d.npz", x=ONES, y=np.array([0, 1, 7]))
    error = refusal(tmp_path, spec("npz", classes=[0, 1]), (tmp_path / "d.npz").read_bytes())
    assert "1 not a declared class" in str(error.members) and error.members["errors"][1]["value"] == "7"


def test_the_holdout_file_is_checked_as_well(tmp_path: Path) -> None:
    data = write(tmp_path / "d", "csv", number_rows(5))
    holdout = tmp_path / "h"
    holdout.write_text("a,b,y\n1,x,2\n")
    with pytest.raises(InvalidRequest) as caught:
        parsed(tmp_path, spec(holdout={"kind": "public"}), data, holdout)
    assert caught.value.members["file"] == "holdout_file"
    assert caught.value.members["errors"][0]["count"] == 1


def test_the_holdout_tensor_must_have_as_many_features(tmp_path: Path) -> None:
    np.savez(tmp_path / "d.npz", x=ONES, y=np.ones(3))
    np.savez(tmp_path / "h.npz", x=np.ones((3, 5)), y=np.ones(3))
    with pytest.raises(InvalidRequest, match="5 features, but those of the data have 2"):
        parsed(tmp_path, spec("npz", holdout={"kind": "public"}), tmp_path / "d.npz", tmp_path / "h.npz")
