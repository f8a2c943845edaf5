"""`scrimp.load_model`: every kind of model from its files, with the worker's own answers."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

import scrimp
from tests.worker.test_predicting import CASES, PIXELS, message
from worker.models.model_files import CARD
from worker.predicting.predict import predicted

ROOT = Path(__file__).resolve().parents[2]


def numbers_of(answer: dict[str, Any]) -> list[float]:
    """The answer's numbers, in order."""
    found = list(answer.get("probabilities", {}).values()) + [each["score"] for each in answer.get("items", [])]
    return [*found, answer.get("value", 0.0)]


def same(mine: list[dict[str, Any]], theirs: list[dict[str, Any]]) -> bool:
    """Equal classes, items and values; numbers to a float's rounding, since passes have other numbers of rows."""
    left, right = ([each.get("class"), *(i["row"] for i in each.get("items", []))] for each in (mine[0], theirs[0]))
    numbers = ([number for each in answers for number in numbers_of(each)] for answers in (mine, theirs))
    return len(mine) == len(theirs) and left == right and next(numbers) == pytest.approx(next(numbers), rel=1e-5)


@pytest.mark.parametrize("name", CASES)
def test_a_loaded_model_answers_as_the_worker_does(tmp_path: Path, name: str) -> None:
    asked, _ = message(tmp_path, name)
    loaded = scrimp.load_model(tmp_path)
    records = CASES[name][4]
    assert same(loaded.predict(records, top=2), predicted(asked))
    assert loaded.predict(records[:1], top=2) == loaded.predict(records, top=2)[:1]
    assert loaded.predict([]) == [] and loaded.card["kind"] == ("linear" if name == "pairs" else CASES[name][0]["kind"])


# The same records in other forms.
FORMS: list[tuple[str, Any]] = [
    ("linear", np.array([[1.0, -2.5], [3.0, 0.0]])),
    ("linear", [(1, -2.5), [np.float32(3.0), 0]]),
    ("linear", [{"a": np.int64(1), "b": np.float32(-2.5)}, {"b": 0.0, "a": 3}]),
    ("table", [(30, "m"), (math.nan, "f")]),
    ("table", [{"age": np.float32(30.0), "sex": np.str_("m")}, {"sex": "f"}]),
    ("table", np.array([[30, "m"], [None, "f"]], dtype=object)),
    ("table", [{"age": "30", "sex": "m", "patient_id": "p-1"}, {"age": "", "sex": "f", "patient_id": "p-2"}]),
    ("linear", [{"patient_id": "p-1", "a": "1", "b": " -2.5"}, {"patient_id": "p-2", "b": "0", "a": "3e0"}]),
    ("text", np.array(["a fine film", ""])),
    ("mlp", np.array([[1.0, 2.0, 3.5]] * 3)),
    ("cnn", np.reshape([PIXELS, PIXELS], (2, 28, 28))),
    ("ratings", [("bob", 3), ("ada", "12")]),
    ("transformer", [np.array([3, 4]), np.ones(9, dtype=np.int64)]),
]


@pytest.mark.parametrize(("name", "records"), FORMS)
def test_records_come_as_arrays_pairs_and_histories(tmp_path: Path, name: str, records: Any) -> None:
    asked, _ = message(tmp_path, name)
    assert same(scrimp.load_model(tmp_path).predict(records, top=2), predicted(asked))


def test_cells_of_a_table_are_scaled_as_declared(tmp_path: Path) -> None:
    message(tmp_path, "table")
    weight = load_file(tmp_path / "model.safetensors")["weight"]
    young, unknown = scrimp.load_model(tmp_path).predict([{"age": 30, "sex": "m"}, {"age": None, "sex": "f"}], top=3)
    for answer, x in ((young, [-0.5, 0.0, 0.0, 1.0]), (unknown, [0.0, 1.0, 1.0, 0.0])):
        shares = np.exp(weight @ np.array(x))
        wanted = dict(zip(("no", "yes", "perhaps"), (shares / shares.sum()).tolist(), strict=True))
        assert answer["probabilities"] == pytest.approx(wanted, rel=1e-5)


@pytest.mark.parametrize(
    ("name", "records", "said"),
    [
        ("linear", [{"a": 1}], "records/0"),
        ("linear", [[1, 2], [1, 2, 3]], "records/1"),
        ("table", [{"age": 30, "sex": "x"}], "records/0/sex.*not a declared value"),
        ("table", [{"age": "old", "sex": "m"}], "records/0/age: column 'age': 'old' is not a number"),
        ("table", [{"Age": 30, "sex": "m"}], "it lacks `age`; perhaps `Age` must be called `age`"),
        ("linear", [{"a": 1, "b": "2,5"}], "records/0/b: column 'b' must be a number.* and is '2,5'"),
        ("table", [{"age": 30}], "records/0/sex.*missing"),
        ("table", [(30, "m"), (30,)], "records/1"),
        ("ratings", [("eve", 3)], "records/0"),
        ("text", "a text", "a list of records"),
        ("linear", {"a": 1, "b": 2}, "a list of records"),
    ],
)
def test_a_record_that_does_not_fit_is_named(tmp_path: Path, name: str, records: Any, said: str) -> None:
    message(tmp_path, name)
    with pytest.raises(ValueError, match=said):
        scrimp.load_model(tmp_path).predict(records)


@pytest.mark.parametrize("name", ["linear", "ratings", "mlp"])
def test_cards_without_hashes_are_read(tmp_path: Path, name: str) -> None:
    """Models delivered before cards had hashes and types."""
    asked, _ = message(tmp_path, name)
    card = json.loads((tmp_path / CARD).read_text())
    del card["files"], card["passes"]
    (tmp_path / CARD).write_text(json.dumps(card))
    assert same(scrimp.load_model(tmp_path).predict(CASES[name][4], top=2), predicted(asked))
    (tmp_path / "model.safetensors").write_bytes(b"no tensors")
    with pytest.raises(ValueError, match="differs from its card"):
        scrimp.load_model(tmp_path)


def test_what_is_no_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="scrimp jobs fetch"):
        scrimp.load_model(tmp_path)
    message(tmp_path, "linear")
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"?")
    with pytest.raises(ValueError, match="differs from its card"):
        scrimp.load_model(tmp_path)
    weights.unlink()
    with pytest.raises(ValueError, match="differs from its card"):
        scrimp.load_model(tmp_path)
    (tmp_path / CARD).write_text('{"format": "another"}')
    with pytest.raises(ValueError, match="not the card"):
        scrimp.load_model(tmp_path)


def test_without_torch_it_says_what_to_install(tmp_path: Path) -> None:
    message(tmp_path, "ratings")
    program = f"""
import sys
sys.modules["torch"] = None  # as if it were not installed
import scrimp
try:
    scrimp.load_model({str(tmp_path)!r})
except ImportError as error:
    print(error)
"""
    run = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "load_model needs torch: pip install 'scrimp[worker]'"
