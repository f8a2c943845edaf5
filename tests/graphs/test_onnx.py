"""Graphs as ONNX, run by onnxruntime: each operation is the interpreter's, each architecture the loaded model's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import TypeAdapter
from typer.testing import CliRunner

import scrimp
from core.contracts.dataset_spec import Features, Task
from core.contracts.graph import GraphModel
from core.parts.graph_facts import facts_of
from core.parts.graph_rules import RULES
from scrimp.cli import app
from scrimp.errors import ScrimpError
from scrimp.onnx_forms import FORMS
from scrimp.onnx_graph import Translated
from scrimp.onnx_nodes import Nodes
from tests.graphs.architectures import ACCEPTED
from tests.graphs.conftest import Exported
from tests.graphs.operations import OPERATIONS, built
from tests.worker.support import ROOT
from worker.models.graph_network import GraphNetwork, tensors_of
from worker.models.model_files import save_model

onnx = pytest.importorskip("onnx")
runtime = pytest.importorskip("onnxruntime")
TASK: TypeAdapter[Task] = TypeAdapter(Task)
FEATURES: TypeAdapter[Features] = TypeAdapter(Features)
TYPES = {"float32": 1, "int64": 7, "bool": 9, "int32": 6}
# Without a form: ONNX has no such operator, or none of whole numbers before opset 18.
REFUSED = {"atan2.default", "cumprod.default"}
OF_BITS = {f"bitwise_{name}" for name in ("and.Tensor", "not.default", "or.Tensor", "xor.Tensor")}
CONSTANTS_ALONE = {"var.default", "std.default"}


def session_of(nodes: Nodes, output: str, kind: Any, width: int) -> Any:
    info = onnx.helper.make_tensor_value_info
    graph = onnx.helper.make_graph(
        nodes.nodes, "test", [info("features", 1, ["n", width])], [info(output, kind, None)], nodes.tensors
    )
    opset = [onnx.helper.make_opsetid("", 17)]
    model = onnx.helper.make_model(graph, opset_imports=opset, ir_version=8)
    return runtime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])


def test_operations_without_a_form_are_known() -> None:
    assert RULES.keys() - FORMS.keys() == REFUSED | CONSTANTS_ALONE
    assert FORMS.keys() <= RULES.keys()
    said = f"{len(FORMS)} of the {len(RULES)} operations have a form"
    assert said in (ROOT / "docs" / "own-models.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("operation", [name for name in OPERATIONS if name not in REFUSED | OF_BITS])
def test_an_operation_is_the_interpreter_s(operation: str) -> None:
    of = built(operation)
    generator = torch.Generator().manual_seed(5)
    x = 2.0 * torch.randn(5, *of.case.row, generator=generator)
    if of.case.kind == "int64":
        x = torch.randint(-3, 9, (5, *of.case.row), generator=generator).float()
    program = of.module._program
    buffers = dict(of.module.named_buffers())
    tensors = {
        name: np.asarray(buffers[of.module._held[name]]) if name in of.module._held else np.float32(1.0)
        for name in program.tensors
    }
    document, nodes = program.model_dump(mode="json"), Nodes(onnx)
    translated = Translated(nodes, document, tensors, FORMS)
    output = translated.names[program.output]
    session = session_of(nodes, output, TYPES[program.values[program.output].dtype], x[0].numel())
    (answer,) = session.run([output], {"features": x.flatten(1).numpy()})
    with torch.no_grad():
        wanted = of.module(x).numpy()
    assert answer.reshape(wanted.shape) == pytest.approx(wanted, rel=2e-5, abs=2e-5, nan_ok=True)


@pytest.mark.parametrize("operation", sorted(REFUSED | OF_BITS))
def test_what_has_no_form_is_refused_by_name(operation: str) -> None:
    program = built(operation).module._program
    tensors = dict.fromkeys(program.tensors, np.float32(1.0))
    with pytest.raises(ScrimpError, match=f"r0 = {operation.replace('.', '[.]')}: .* no ONNX form here"):
        Translated(Nodes(onnx), program.model_dump(mode="json"), tensors, FORMS)


@pytest.mark.parametrize("name", ACCEPTED)
def test_onnxruntime_answers_as_the_loaded_model(name: str, exported: Exported, tmp_path: Path) -> None:
    file = exported(name)
    facts = facts_of(file)
    task = {"kind": "classification", "label": "y", "classes": list(range(facts["outputs"]))}
    features = {"kind": "columns", "columns": [f"c{at}" for at in range(facts["inputs"])]}
    settings = GraphModel.model_validate({"path": "own.pt2"} | facts)
    model = GraphNetwork(facts["inputs"], facts["outputs"], settings, program=file.program, tensors=tensors_of(file))
    moved = {at: each + 0.01 for at, each in model.init().items()}
    save_model(tmp_path, model, moved, TASK.validate_python(task), FEATURES.validate_python(features))
    done = CliRunner().invoke(app, ["jobs", "export", str(tmp_path), "--onnx", str(tmp_path / "model.onnx")])
    assert done.exit_code == 0, done.output
    session = runtime.InferenceSession(tmp_path / "model.onnx", providers=["CPUExecutionProvider"])
    records = ACCEPTED[name].example(6, seed=4).flatten(1).numpy()
    label, shares = session.run(None, {"features": records})
    wanted = scrimp.load_model(tmp_path).predict(records.tolist(), top=10)
    assert label.tolist() == [each["class"] for each in wanted]
    by_class = [[each["probabilities"][str(at)] for at in range(facts["outputs"])] for each in wanted]
    assert shares == pytest.approx(np.array(by_class), rel=1e-4, abs=1e-5)
    card = json.loads(session.get_modelmeta().custom_metadata_map["card"])
    assert card["kind"] == "graph" and "usage" not in card
    alone = session.run(None, {"features": records[:1]})[1]  # any number of records
    assert alone == pytest.approx(shares[:1], rel=1e-4, abs=1e-6)
