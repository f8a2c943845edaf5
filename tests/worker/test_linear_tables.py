"""The client's numpy reads a table's cells as the worker does: every kind of column, and every way to miss."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import scrimp
from core.contracts.dataset_spec import TableFeatures
from core.contracts.extractor import Words
from core.errors import InvalidRequest
from core.parts.hashing import hashed
from core.parts.inputs import checked
from scrimp import specs
from scrimp.linear import Model, _hashed, murmur3
from scrimp.tables import features_of
from tests.worker.test_predicting import CLASSES, message

COLUMNS: list[dict[str, Any]] = [
    {"name": "plain", "kind": "number"},
    {"name": "age", "kind": "number", "range": [18, 90], "missing": "flag", "missing_cells": ["-1", "unknown"]},
    {"name": "dose", "kind": "number", "range": [-0.5, 0.25], "missing": "middle"},
    {"name": "income", "kind": "number", "range": [1, 100000], "scale": "log", "missing": "flag"},
    {"name": "pulse", "kind": "number", "range": [0, 5], "bins": 5, "missing": "own"},
    {"name": "cost", "kind": "number", "range": [0.1, 1000], "scale": "log", "bins": 4, "missing": "middle"},
    {"name": "stage", "kind": "number", "bins": [1, 2.5], "missing": 2},
    {"name": "seen", "kind": "date", "range": ["2001-05-03", "2020-02-29"], "missing": "flag"},
    {"name": "born", "kind": "date", "range": ["1900-01-01", "2000-01-01"], "format": "%d.%m.%Y"},
    {"name": "sex", "kind": "category", "values": ["f", "m"]},
    {"name": "ward", "kind": "category", "values": [1, 2, "x"], "unknown": "other", "missing": "other"},
]
TABLE = {"kind": "table", "columns": COLUMNS, "pairs": [["pulse", "sex"], ["ward", "stage"]]}
HERE, THERE = specs.TableFeatures.model_validate(TABLE), TableFeatures.model_validate(TABLE)
GOOD = {
    "plain": 3,
    "age": 50,
    "dose": 0.1,
    **dict.fromkeys(("income", "pulse", "cost", "stage"), 1),
    "seen": "2010-01-01",
    "born": "24.12.1950",
    "sex": "f",
    "ward": 2,
}
CELLS: list[Any] = [None, "", " ", -1, "-1", "unknown", 0, 1, 1.0, 2.5, True, 1e30, 4e38, float("nan"), float("inf")]
CELLS += ["f", "m ", "x", "2", "2010-06-01", "2010-06-01T10:00:00", "24.12.1950", "1.1.1", "text", [1]]
CELLS += [datetime.date(2015, 5, 5), datetime.datetime(2015, 5, 5, 12, tzinfo=datetime.UTC)]


def there(record: dict[str, Any]) -> list[float] | None:
    """The worker's features; None if it refuses."""
    try:
        (found,) = checked([record], None, THERE, THERE.width)  # type: ignore[arg-type] # tables need no task
    except (InvalidRequest, TypeError):
        return None
    return [float(number) for number in found]


def here(record: dict[str, Any]) -> list[float] | None:
    try:
        return features_of(record, HERE, 0)
    except (ValueError, TypeError):
        return None


@settings(max_examples=300)
@given(
    column=st.sampled_from([each["name"] for each in COLUMNS]), cell=st.sampled_from(CELLS) | st.floats() | st.text()
)
def test_every_cell_becomes_the_worker_s_features(column: str, cell: Any) -> None:
    record = GOOD | {column: cell}
    mine, theirs = here(record), there(record)
    assert mine == (theirs if theirs is None else pytest.approx(theirs, rel=1e-6, abs=1e-7, nan_ok=True)), record


def test_records_are_objects_or_rows() -> None:
    assert features_of(list(GOOD.values()), HERE, 0) == features_of(GOOD, HERE, 0)
    assert features_of({**GOOD, "patient_id": "p-17"}, HERE, 0) == features_of(GOOD, HERE, 0)
    for wrong in ([1, 2], "text", 3):
        with pytest.raises(ValueError, match="records/7: a record of this model must be an object"):
            features_of(wrong, HERE, 7)
    with pytest.raises(ValueError, match=r"records/0/sex: column 'sex': 'q' is not a declared value"):
        features_of(GOOD | {"sex": "q"}, HERE, 0)


def test_linear_models_and_mlps_are_numpy_s_and_others_the_worker_s(tmp_path: Path) -> None:
    for name in ("linear", "table", "pairs", "text", "mlp", "relu", "ratings"):
        (folder := tmp_path / name).mkdir()
        message(folder, name)
        assert isinstance(scrimp.load_model(folder), Model) == (name != "ratings")
    assert CLASSES["kind"] == "classification"


@settings(max_examples=200)
@given(text=st.binary(max_size=40))
def test_words_are_hashed_as_scikit_learn_does(text: bytes) -> None:
    from sklearn.utils import murmurhash3_32

    assert murmur3(text) == murmurhash3_32(text, 0, positive=True)


WORDS = {"buckets": 1000, "binary": False, "ngrams": [1, 2]}


@settings(max_examples=200)
@given(text=st.text(max_size=60) | st.lists(st.sampled_from(["ab", "Ab", "été", "x", "ab-cd", "２３"])).map(" ".join))
def test_texts_become_the_service_s_features(text: str) -> None:
    there = hashed([text], Words.model_validate(WORDS))
    wanted = dict(zip(there.indices.tolist(), there.data.tolist(), strict=True))
    assert dict(_hashed(text, WORDS)) == pytest.approx(wanted, rel=1e-6)
