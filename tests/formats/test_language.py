"""Texts for a language model: one row, one record, without a label, in every format that has texts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from core.contracts.dataset_spec import DatasetSpec
from core.errors import InvalidRequest
from core.parts.stored_records import Texts
from tests.formats import files
from tests.formats.files import parsed, write

FORMATS = ["csv", "jsonl", "parquet"]
ROWS: list[dict[str, Any]] = [{"who": f"u{i % 7}", "t": f"row {i}, é\n" * (i % 4), "y": i} for i in range(40)]


def spec(format: str, **changes: Any) -> dict[str, Any]:
    document = files.spec(format, features={"kind": "text", "column": "t"})
    return document | {"task": {"kind": "language_model"}} | changes


@pytest.mark.parametrize("format", FORMATS)
def test_a_text_is_its_own_label(tmp_path: Path, format: str) -> None:
    answer, parts = parsed(tmp_path, spec(format), write(tmp_path / "d", format, ROWS))
    x = parts["train"].x
    assert isinstance(x, Texts) and list(x.texts()) == [row["t"] for row in ROWS]
    assert parts["train"].y.dtype == np.float64 and not parts["train"].y.any()
    assert (answer["features"], answer["outputs"], answer["sparse"]) == (1, 1, False)


def test_the_format_and_other_columns_change_no_record(tmp_path: Path) -> None:
    answers = [parsed(tmp_path, spec(format), write(tmp_path / format, format, ROWS))[0] for format in FORMATS]
    alone = [{"t": row["t"]} for row in ROWS]
    answers.append(parsed(tmp_path, spec("csv"), write(tmp_path / "alone", "csv", alone))[0])
    assert len({each["hmac"] for answer in answers for each in answer["contents"] if each["kind"] == "multiset"}) == 1


@pytest.mark.parametrize("format", FORMATS)
def test_a_prompt_stands_before_its_text(tmp_path: Path, format: str) -> None:
    """Its bytes are counted, in place of a label."""
    rows = [{"q": f"é{i}"[: i % 3], "t": row["t"]} for i, row in enumerate(ROWS)]
    asked = spec(format, task={"kind": "language_model", "prompt": "q"})
    _, parts = parsed(tmp_path, asked, write(tmp_path / "d", format, rows))
    x = parts["train"].x
    assert isinstance(x, Texts) and list(x.texts()) == [row["q"] + row["t"] for row in rows]
    assert parts["train"].y.tolist() == [float(len(row["q"].encode())) for row in rows]
    with pytest.raises(InvalidRequest) as caught:
        parsed(tmp_path, asked, write(tmp_path / "e", format, ROWS))
    assert {each["pointer"] for each in caught.value.members["errors"]} == {"/task/prompt"}


def test_a_prompt_s_end_is_part_of_a_record(tmp_path: Path) -> None:
    """Two records whose texts together are equal differ where their answers begin."""
    asked = spec("jsonl", task={"kind": "language_model", "prompt": "q"})
    found = [
        parsed(tmp_path, asked, write(tmp_path / q, "jsonl", [{"q": q, "t": "abc"[len(q) :]}] * 9))[0]
        for q in ("a", "ab")
    ]
    assert found[0]["contents"] != found[1]["contents"]


@pytest.mark.parametrize("format", FORMATS)
def test_users_keep_so_many_texts_each(tmp_path: Path, format: str) -> None:
    privacy = {"sensitivity": "private", "records": 7, "cap": {"epsilon": 1.0, "delta": 1e-5}}
    privacy |= {"unit": "user", "user_column": "who", "max_records_per_user": 3}
    _, parts = parsed(tmp_path, spec(format, privacy=privacy), write(tmp_path / "d", format, ROWS))
    assert parts["train"].units == 7 and len(parts["train"].y) == 21


def test_what_is_missing_is_said_once(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parsed(tmp_path, spec("csv"), write(tmp_path / "d", "csv", [{"y": 1}]))
    assert [each["pointer"] for each in caught.value.members["errors"]] == ["/features/column"]
    with pytest.raises(InvalidRequest, match="1 cell that"):
        parsed(tmp_path, spec("jsonl"), write(tmp_path / "e", "jsonl", [*ROWS, {"t": None}]))


def test_declarations_that_make_no_sense() -> None:
    for changes in (
        {"features": {"kind": "hashed_text", "column": "t"}},
        {"features": {"kind": "columns", "columns": ["a"]}},
        {"format": "interactions"},
        {"task": {"kind": "language_model", "label": "y"}},
    ):
        with pytest.raises(ValidationError):
            DatasetSpec.model_validate(spec("csv") | changes)
