"""An additive model's functions are its outputs: two records differ by the sum of their functions' differences."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import TypeAdapter

import scrimp
from core.contracts.dataset_spec import ClassificationTask, RegressionTask
from core.contracts.job_spec import GamModel, seen_by
from core.contracts.shape_function import ShapeFunction
from core.contracts.table import TableFeatures
from core.parts.shape_functions import shape_functions
from scrimp.linear import Model
from tests.worker.test_predicting import CLASSES, message
from worker.models.model_files import README

FUNCTIONS = TypeAdapter(list[ShapeFunction])


def log_odds(model: Any, record: dict[str, Any]) -> list[float]:
    """Of each class against the first."""
    shares = model.predict([record])[0]["probabilities"]
    return [math.log(shares[str(each)] / shares[str(CLASSES["classes"][0])]) for each in CLASSES["classes"]]


def test_functions_add_up_to_the_model(tmp_path: Path) -> None:
    message(tmp_path, "pairs")
    model = scrimp.load_model(tmp_path)
    assert isinstance(model, Model)
    found = FUNCTIONS.validate_python(model.card["shape_functions"])
    assert [each.columns for each in found] == [("age",), ("sex",), ("age", "sex")]
    age = found[0]
    assert age.places[0] == ("below 30", "30 to 60", "60 to 90", "from 90", "missing")
    assert age.outputs == tuple(f"logit of {each}" for each in CLASSES["classes"])
    assert all(sum(values) == pytest.approx(0.0, abs=1e-3) for each in found for values in each.values)

    def added(place: int, other: int) -> list[float]:
        logits = [
            a[place] + b[other] + c[2 * place + other] for a, b, c in zip(*(e.values for e in found), strict=True)
        ]
        return [each - logits[0] for each in logits]

    base = [a - b for a, b in zip(added(0, 0), log_odds(model, {"age": 10, "sex": "f"}), strict=True)]
    for place, years in enumerate((10, 40, 75, 100, None)):
        for other, cell in enumerate(("f", "m")):
            found_here = [a - b for a, b in zip(added(place, other), base, strict=True)]
            assert found_here == pytest.approx(log_odds(model, {"age": years, "sex": cell}), abs=3e-4)


def test_two_classes_have_one_function_and_a_number_its_own_unit() -> None:
    columns = TableFeatures.model_validate({"kind": "table", "columns": COLUMNS[1:]})
    weight = np.arange(10.0).reshape(2, 5) ** 2
    two = ClassificationTask(label="y", classes=["no", "yes"])
    (bmi, sex) = shape_functions(weight, columns, two)
    assert bmi.outputs == ("score of yes",) and bmi.values == ((-10.0, 0.0, 10.0),)
    assert sex.places == (("f", "m"),)
    (steps, _) = shape_functions(weight[:1], columns, RegressionTask(label="y", range=(0.0, 100.0)))
    assert steps.outputs == ("y",) and steps.values[0][1] - steps.values[0][0] == pytest.approx(50.0, abs=1e-2)


def test_a_card_shows_them_to_people(tmp_path: Path) -> None:
    message(tmp_path, "pairs")
    said = (tmp_path / README).read_text()
    assert "## What it learned" in said and "| below 30 | " in said and "age and sex" in said
    message(tmp_path, "linear")
    assert "What it learned" not in (tmp_path / README).read_text()
    assert "shape_functions" not in json.loads((tmp_path / "model.json").read_text())


COLUMNS = [
    {"name": "age", "kind": "number", "range": [0, 120], "missing": "flag"},
    {"name": "bmi", "kind": "number", "bins": [18.5, 25]},
    {"name": "sex", "kind": "category", "values": ["f", "m"]},
]


def test_an_additive_model_reads_bins_and_its_pairs_once() -> None:
    declared = TableFeatures.model_validate({"kind": "table", "columns": COLUMNS, "pairs": [["bmi", "sex"]]})
    model = GamModel(bins=8, pairs=(("sex", "bmi"), ("age", "sex")))
    seen = seen_by(model, declared)
    assert isinstance(seen, TableFeatures) and seen.pairs == (("bmi", "sex"), ("age", "sex"))
    assert seen.width == 9 + 3 + 2 + 3 * 2 + 9 * 2 and seen.entries == 5 and seen.is_one_hot
    assert seen.length(seen.width) == math.sqrt(5)
    assert seen_by(model, seen) == seen, "what it reads, read by it, is the same"


@pytest.mark.parametrize(
    ("pairs", "columns", "said"),
    [
        ([["age", "age"]], COLUMNS, "two different columns"),
        ([["age", "nobody"]], COLUMNS, "two different columns"),
        ([], [{"name": "x", "kind": "number"}], "has no range"),
    ],
)
def test_maps_that_columns_do_not_allow_are_refused(pairs: Any, columns: Any, said: str) -> None:
    declared = TableFeatures.model_validate({"kind": "table", "columns": columns})
    with pytest.raises(ValueError, match=said):
        seen_by(GamModel.model_validate({"kind": "gam", "pairs": pairs}), declared)
