"""ONNX files of finished models, run by onnxruntime: the same answers as the loaded model's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import scrimp
from scrimp.cli import app
from scrimp.linear import Model
from scrimp.onnx_export import onnx_of
from scrimp.specs import TableFeatures
from scrimp.tables import features_of
from tests.worker.test_predicting import CASES, message

onnx = pytest.importorskip("onnx")
runtime = pytest.importorskip("onnxruntime")


def inputs_of(name: str) -> Any:
    """The records of a case as the model's features."""
    features, records = CASES[name][2], CASES[name][4]
    if features["kind"] == "table":
        table = TableFeatures.model_validate(features)
        return np.array([features_of(each, table, at) for at, each in enumerate(records)], dtype=np.float32)
    rows = [each if isinstance(each, list) else [each["a"], each["b"]] for each in records]
    return np.array(rows, dtype=np.float32)


@pytest.mark.parametrize("name", ["linear", "table", "clipped", "range", "mlp", "relu"])
def test_onnxruntime_answers_as_the_loaded_model(tmp_path: Path, name: str) -> None:
    message(tmp_path, name)
    done = CliRunner().invoke(app, ["jobs", "export", str(tmp_path), "--onnx", str(tmp_path / "model.onnx")])
    assert done.exit_code == 0, done.output
    session = runtime.InferenceSession(tmp_path / "model.onnx", providers=["CPUExecutionProvider"])
    found = session.run(None, {"features": inputs_of(name)})
    model = scrimp.load_model(tmp_path)
    wanted = model.predict(CASES[name][4])
    if model.card["task"]["kind"] == "classification":
        classes = model.card["task"]["classes"]
        assert [classes[at] for at in found[0].tolist()] == [each["class"] for each in wanted]
        shares = [[each["probabilities"][str(label)] for label in classes] for each in wanted]
        assert found[1] == pytest.approx(np.array(shares), rel=1e-4, abs=1e-6)
    else:
        assert found[0] == pytest.approx(np.array([each["value"] for each in wanted]), rel=1e-4)
    card = json.loads(session.get_modelmeta().custom_metadata_map["card"])
    assert card["kind"] == model.card["kind"] and "usage" not in card


def test_a_private_mean_is_taken_from_the_features(tmp_path: Path) -> None:
    message(tmp_path, "linear")
    plain = scrimp.load_model(tmp_path)
    assert isinstance(plain, Model)
    centred = Model(plain.card, {**plain.tensors, "mean": np.array([0.5, -1.0])})
    session = runtime.InferenceSession(onnx_of(centred), providers=["CPUExecutionProvider"])
    _, shares = session.run(None, {"features": inputs_of("linear")})
    wanted = [each["probabilities"]["yes"] for each in centred.predict(CASES["linear"][4])]
    assert shares[:, 1] == pytest.approx(np.array(wanted), rel=1e-5)


@pytest.mark.parametrize("name", ["text", "ratings"])
def test_what_has_no_onnx_form_is_refused(tmp_path: Path, name: str) -> None:
    message(tmp_path, name)
    with pytest.raises(scrimp.ScrimpError, match="has no ONNX form here"):
        onnx_of(scrimp.load_model(tmp_path))
