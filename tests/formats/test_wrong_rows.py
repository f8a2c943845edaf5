"""Wrong rows: named with row, column and value, at most ten, or dropped by a rule; each by its own cells alone."""

from __future__ import annotations

import csv
import io
import json
import math
import re
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from app.formats import cell_blocks, csv_file
from app.formats import reader_records as records_module
from app.formats.row_faults import without_value
from core.contracts.dataset_spec import DatasetSpec
from core.contracts.table import NumberColumn
from core.errors import InvalidRequest
from core.parts.columns import Coder, NumberCoder, UnusableCell, comma_number, json_number, text_number
from core.parts.table_cells import CellCoder
from tests.formats.files import TEXT, Rows, parsed, refusal, spec, write
from tests.formats.test_streaming import file_of

HEADED = "a,b,y\n"


def told(error: InvalidRequest) -> list[tuple[int, str, str, str]]:
    errors = [each for each in error.members["errors"] if "row" in each]
    assert all(str(each["row"]) in each["detail"] and each["reason"] in each["detail"] for each in errors)
    return [(each["row"], each["column"], each["value"], each["reason"]) for each in errors]


def test_the_first_ten_cells_are_told_with_row_column_and_value(tmp_path: Path) -> None:
    rows = "".join(f"{'7l' if i % 3 == 0 else i},{'' if i % 5 == 0 else i},1\n" for i in range(1, 101))
    error = refusal(tmp_path, spec(), HEADED + rows)
    assert told(error) == [
        (3, "a", "7l", "not a number"),
        (5, "b", "", "missing"),
        (6, "a", "7l", "not a number"),
        (9, "a", "7l", "not a number"),
        (10, "b", "", "missing"),
        (12, "a", "7l", "not a number"),
        (15, "a", "7l", "not a number"),
        (15, "b", "", "missing"),
        (18, "a", "7l", "not a number"),
        (20, "b", "", "missing"),
    ]
    assert [each["count"] for each in error.members["errors"][:2]] == [33, 20], "all are counted"
    assert error.members["errors"][2]["detail"] == "row 3, column 'a': '7l' is not a number"
    assert error.members["errors"][3]["detail"] == "row 5, column 'b': missing"
    assert "7l" not in f"{error.message} {error.members['errors'][:2]}", "values stand in entries of rows alone"


def test_rows_are_records_whatever_lines_they_take(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blank lines are no rows, and a quoted line break begins none; nor does the end of a block."""
    text = 't,y\n"two\nlines",0\n\n\r\nfine,0\n"a ""quoted"" one\r\n",1\nbad,7\n'
    document = spec(features={"kind": "text", "column": "t"}, classes=[0, 1])
    for held in (2**20, 3):
        monkeypatch.setattr(records_module, "HELD", held)
        assert told(refusal(tmp_path, document, text)) == [(4, "y", "7", "not a declared class")]
        _, parts = parsed(tmp_path, document, write_text(tmp_path / "e", text.replace("bad,7", "good,1")))
        assert list(parts["train"].x.texts()) == ["two\nlines", "fine", 'a "quoted" one\r\n', "good"]  # type: ignore[union-attr]


def write_text(path: Path, text: str) -> Path:
    path.write_text(text, newline="")
    return path


def test_a_stray_quote_joins_no_records(tmp_path: Path) -> None:
    """Arrow reads these three records as one: a quoted cell that ends in another record, and text behind it."""
    document = spec(features={"kind": "text", "column": "t"}, classes=[0, 1])
    error = refusal(tmp_path, document, 't,y\nfine,0\n"open,1\nfine,0\n"x",1\n')
    assert "a row has a quoted cell without an end, or with text behind its closing quote" in error.message
    assert [each["row"] for each in error.members["errors"] if "row" in each] == [2]
    assert parsed(tmp_path, document, write_text(tmp_path / "e", 't,y\n5" pipe,0\n'))[0]["counts"]["records"] == 1


def test_long_and_odd_values_are_shortened(tmp_path: Path) -> None:
    error = refusal(tmp_path, spec(), HEADED.encode() + b"x" * 999 + b",\xff\xfe,1\n")
    assert told(error) == [
        (1, "a", "x" * 40 + "…", "not a number"),
        (1, "b", "\\udcff\\udcfe", "not a number"),
    ]
    json.dumps(error.members, ensure_ascii=False).encode()


@pytest.mark.parametrize("format", ["csv", "jsonl", "parquet", "arrow", "npz"])
def test_a_dropped_row_leaves_the_others_as_they_are(tmp_path: Path, format: str) -> None:
    """The parts, digests and sides of other records are those of a file without the wrong ones."""
    good: Rows = [{"a": i / 7, "b": float(i), "y": i % 2} for i in range(400)]
    wrong: Rows = [
        {"a": math.nan, "b": 1.0, "y": 0},
        {"a": 1.0, "b": -math.inf, "y": 1},
        {"a": 1.0, "b": 1.0, "y": 7},
        {"a": math.inf, "b": math.nan, "y": 9},
    ]
    mixed = [row for i, each in enumerate(good) for row in ([wrong[i // 100], each] if i % 100 == 50 else [each])]
    document = spec(format, classes=[0, 1], holdout={"kind": "split", "fraction": 0.3}, records=400)
    answer, parts = parsed(tmp_path, document, file_of(tmp_path / "good", document, good))
    with pytest.raises(InvalidRequest) as caught:
        parsed(tmp_path, document, file_of(tmp_path / "mixed", document, mixed))
    assert [row for row, *_ in told(caught.value)] == [51, 152, 253, 354, 354, 354]
    dropping = document | {"wrong_rows": "drop"}
    found, same = parsed(tmp_path, dropping, file_of(tmp_path / "mixed", document, mixed))
    assert all(np.array_equal(parts[name].x, same[name].x) for name in ("train", "holdout"))  # type: ignore[arg-type]
    assert all(np.array_equal(parts[name].y, same[name].y) for name in ("train", "holdout"))
    assert found["contents"][1] == answer["contents"][1] and found["units_sha256"] == answer["units_sha256"]
    assert found["counts"] == answer["counts"] | {"dropped": 4}
    assert [each.partition(": column")[0] for each in found["warnings"]] == ["4 rows that cannot be used are left out"]


def test_rows_with_other_cells_are_dropped_too_but_broken_quotes_are_not(tmp_path: Path) -> None:
    rule = {"wrong_rows": "drop"}
    answer, parts = parsed(
        tmp_path, spec() | rule, write_text(tmp_path / "d", HEADED + "1,2,3\n1,2\nx,2,3\n1,2,3,4\n4,5,6\n")
    )
    assert parts["train"].x.tolist() == [[1, 2], [4, 5]] and answer["counts"]["dropped"] == 3  # type: ignore[union-attr]
    assert answer["warnings"][0] == "3 rows that cannot be used are left out: column 'a': 1 not a number"
    assert "quoted" in refusal(tmp_path, spec() | rule, HEADED + '1,2,3\n1,"2,3\n').message
    assert "holds no records that can be used" in refusal(tmp_path, spec() | rule, HEADED + "x,2,3\n").message


def test_a_file_of_ragged_rows_is_not_read_to_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(csv_file, "MOST_RAGGED", 20)
    monkeypatch.setattr(records_module, "HELD", 10)
    error = refusal(tmp_path, spec(), HEADED + "1,2\n" * 1000)
    found = re.search(r"(\d+) or more rows do not have", error.message)
    assert found is not None and 20 < int(found[1]) < 500
    assert [each["row"] for each in error.members["errors"] if "row" in each] == list(range(1, 11))


def test_a_dropped_record_does_not_count_among_its_user_s(tmp_path: Path) -> None:
    users = {"unit": "user", "user_column": "u", "max_records_per_user": 2, "records": 2}
    document = spec("csv", classes=[0, 1], features=TEXT) | {"wrong_rows": "drop"}
    document["privacy"] = document["privacy"] | users
    text = "u,t,y\n" + "".join(f"a,word{i},{7 if i < 5 else 0}\n" for i in range(7)) + ",nobody,1\nb,word,1\n"
    answer, parts = parsed(tmp_path, document, write_text(tmp_path / "d", text))
    assert answer["counts"]["units"] == 2 and len(parts["train"].y) == 3 and answer["counts"]["dropped"] == 6


@pytest.mark.parametrize("format", ["interactions", "images"])
def test_the_rule_is_for_rows_of_columns(format: str) -> None:
    from tests.formats.test_images import declared
    from tests.formats.test_interactions import spec as interactions

    document = interactions() if format == "interactions" else declared().model_dump(mode="json")
    with pytest.raises(ValidationError, match="`wrong_rows` is for files with one record a row"):
        DatasetSpec.model_validate(document | {"wrong_rows": "drop"})


def test_a_declaration_without_the_rule_is_stored_as_before() -> None:
    assert "wrong_rows" not in DatasetSpec.model_validate(spec()).model_dump(mode="json")


def test_a_column_of_several_json_types_is_read(tmp_path: Path) -> None:
    """Arrow's own reader of JSON refuses this file: "changed from number to string"."""
    columns = [{"name": "ward", "kind": "category", "values": [1, 2, "true"]}]
    document = spec("jsonl", features={"kind": "table", "columns": columns}, classes=["1", "true"])
    lines = [{"ward": 1, "y": "1"}, {"ward": "2", "y": 1}, {"ward": True, "y": True}, {"ward": 2.0, "y": 1.0}]
    path = write(tmp_path / "d", "jsonl", lines)
    with pytest.raises(pa.ArrowInvalid, match="changed from"):
        import pyarrow.json

        pyarrow.json.read_json(path)
    _, parts = parsed(tmp_path, document, path)
    assert parts["train"].x.tolist() == [[0], [1], [2], [1]] and parts["train"].y.tolist() == [0, 0, 1, 0]  # type: ignore[union-attr]


NUMBERS = st.one_of(
    st.floats().map(repr),
    st.integers().map(str),
    st.sampled_from(
        [
            "",
            " ",
            " 1",
            "1 ",
            "+1",
            "-.5",
            "5.",
            "1e5",
            "1E-3",
            "1_0",
            "0x1F",
            "nan",
            "NaN",
            "nan(1)",
            "inf",
            "Infinity",
        ]
    ),
    st.sampled_from(
        ["1,5", "1.5,5", "1e999", "٣", "−1", "1e", "--1", "9007199254740993", "-0", "\x001", "1\n", "1d", "x"]
    ),
    st.text(max_size=4),
)
TYPED = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=3), st.just([1]))


def one_by_one(found: list[Any], coder: Coder) -> list[Any]:
    """What the coder says of each cell: the definition."""
    codes = []
    for cell in found:
        try:
            codes.append(coder.code(cell))
        except UnusableCell as error:
            codes.append(error.what)
    return codes


def by_column(found: cell_blocks.Cells, coder: Any) -> list[Any]:
    values, flags = cell_blocks.number_column(found, coder, typed=False)
    return [
        cell_blocks.REASONS[flag - 1] if flag else value
        for value, flag in zip(values.tolist(), flags.tolist(), strict=True)
    ]


@settings(max_examples=300)
@given(st.lists(NUMBERS, max_size=8), st.sampled_from([text_number, comma_number, float]))
def test_arrow_reads_texts_as_the_definition_does(texts: list[str], number: Callable[[Any], float]) -> None:
    column = NumberColumn.model_validate(
        {"name": "a", "range": (0, 1), "missing": "middle", "missing_cells": ("-9", "NA", "x")}
    )
    encoded = pa.array([each.encode(errors="surrogatepass") for each in texts], pa.binary())
    for coder in (NumberCoder(number), CellCoder(column, number)):
        sent = [each.encode(errors="surrogatepass").decode(errors="surrogateescape") for each in texts]
        assert str(by_column(encoded, coder)) == str(one_by_one(sent, coder))


@settings(max_examples=300)
@given(st.lists(TYPED, max_size=8))
def test_arrow_reads_json_s_cells_as_the_definition_does(found: list[Any]) -> None:
    column = NumberColumn.model_validate(
        {"name": "a", "range": (0, 1), "missing": "middle", "missing_cells": ("-9", "1")}
    )
    for coder in (NumberCoder(json_number), CellCoder(column, json_number)):
        assert str(by_column(cell_blocks.arrow_or_list(found), coder)) == str(one_by_one(found, coder))


@pytest.mark.parametrize(
    "array",
    [
        pa.array([1, None, 2**62 + 1, -9], pa.int64()),
        pa.array([1, None, 2**63 + 1], pa.uint64()),
        pa.array([1.5, None, math.nan, math.inf, -9.0], pa.float64()),
        pa.array([1.5, 65504.0], pa.float16()),
        pa.array([0.1, 3e38, None], pa.float32()),
        pa.array([True, False, None]),
        pa.array([Decimal("0.1234567890123456789"), None]),
        pa.array(["1.5", "x", None, "-9"]).dictionary_encode(),
        pa.array([1.0, 1.0, None]).dictionary_encode(),
        pa.array([0, 1], pa.date32()),
    ],
    ids=lambda array: str(array.type),
)
def test_arrow_reads_typed_cells_as_the_definition_does(array: pa.Array) -> None:
    column = NumberColumn.model_validate(
        {"name": "a", "range": (0, 1), "missing": "middle", "missing_cells": ("-9", "true")}
    )
    for number in (float, json_number):
        coder = CellCoder(column, number)
        assert str(by_column(array, coder)) == str(one_by_one(array.to_pylist(), coder))


@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(
    rows=st.lists(st.tuples(*[st.text(alphabet='a1,;"\n\r é\t', max_size=5)] * 2), min_size=1, max_size=6),
    quoting=st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL]),
    end=st.sampled_from(["\n", "\r\n", "\r"]),
    held=st.sampled_from([1, 5, 2**20]),
    damage=st.tuples(st.integers(0, 40), st.sampled_from(["", '"', "\n", ",", "x"])),
)
def test_a_csv_file_is_read_as_python_s_strict_reader_reads_it(
    tmp_path: Path, rows: list[tuple[str, str]], quoting: int, end: str, held: int, damage: tuple[int, str]
) -> None:
    text = io.StringIO(newline="")
    csv.writer(text, quoting=quoting, lineterminator=end).writerows([("t", "u"), *rows])  # type: ignore[arg-type]
    at, extra = damage
    content = text.getvalue()
    content = content[: at + 5] + extra + content[at + 5 :]
    with_users = spec(features={"kind": "text", "column": "t"}) | {"task": {"kind": "language_model", "prompt": "u"}}
    path = write_text(tmp_path / "d", content)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(records_module, "HELD", held)
        try:
            _, parts = parsed(tmp_path, with_users, path)
            found: list[str] | None = list(parts["train"].x.texts())  # type: ignore[union-attr]
        except InvalidRequest:
            found = None
    assert found == expected(content)


def expected(content: str) -> list[str] | None:
    """The prompts and texts of rows of two cells; None if the file is refused."""
    try:
        header, *rest = csv.reader(io.StringIO(content, newline=""), strict=True)
    except (csv.Error, ValueError):
        return None
    kept = [row for row in rest if row]
    if header != ["t", "u"] or not kept or any(len(row) != 2 for row in kept):
        return None
    return [user + text for text, user in kept]


LONG = 2**25  # longer than a row may be
WELL, LAST = 1233, 1234
ROW_FAULTS: list[tuple[str, dict[str, Any], str, str, str]] = [
    ("a cell", spec(), HEADED + "1,2,3\n" * WELL, "1,oops,3\n", "row"),
    ("too few cells", spec(), HEADED + "1,2,3\n" * WELL, "1,2\n", "row"),
    ("an open quote", spec(), HEADED + "1,2,3\n" * WELL, '1,"oops,3\n', "row"),
    ("text behind a quote", spec(), HEADED + "1,2,3\n" * WELL, '1,"2"oops,3\n', "row"),
    ("a long row", spec(), HEADED + "1,2,3\n" * WELL, "x" * (LONG + 9), "row"),
    ("JSON", spec("jsonl"), '{"a": 1, "b": 2, "y": 3}\n' * WELL, "oops\n", "line"),
    ("JSON twice", spec("jsonl"), '{"a": 1, "b": 2, "y": 3}\n' * WELL, '{"a": 1, "a": 2}\n', "line"),
    ("no object", spec("jsonl"), '{"a": 1, "b": 2, "y": 3}\n' * WELL, "[1]\n", "line"),
    ("a long line", spec("jsonl"), '{"a": 1, "b": 2, "y": 3}\n' * WELL, "x" * (LONG + 9), "line"),
]


@pytest.mark.parametrize("case", ROW_FAULTS, ids=[case[0] for case in ROW_FAULTS])
def test_no_text_but_a_row_s_own_entry_has_its_number_or_value(tmp_path: Path, case: tuple[Any, ...]) -> None:
    _, document, good, bad, place = case
    error = refusal(tmp_path, document, good + bad)
    rows = [each for each in error.members["errors"] if place in each]
    others = [error.message, *(each["detail"] for each in error.members["errors"] if place not in each)]
    assert [each[place] for each in rows] == [LAST] and f"{place} {LAST}" in rows[0]["detail"]
    assert not any(str(LAST) in each or "oops" in each for each in others)
    assert all("oops" not in str(without_value(each)) for each in error.members["errors"])
