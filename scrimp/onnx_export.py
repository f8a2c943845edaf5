"""A linear model, an MLP or a graph of a user's as ONNX, for runtimes without Python. Needs the package onnx.

    features (n, d) float → [− mean] → [· scale] → Gemm → [Tanh or Relu → Gemm] … → scores
                     of a graph: its own operations (scrimp.onnx_graph)
    classification   label (n,) int64, a place in the card's classes; probabilities (n, K), of two classes as
                     scrimp.linear has them
    regression       value (n,), in the target's unit

The metadata hold the card: `features` are its columns in order. Those of a declared table are the scaled ones that
`scrimp.tables.features_of` makes of a record's cells. Hashed words have no operator in ONNX.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from scrimp.errors import MissingPackage, ScrimpError
from scrimp.linear import SLOPE, Floats, Model, flat_range, tensors
from scrimp.loading import LoadedModel, UnreadableModelError, checked, load_model
from scrimp.onnx_forms import FORMS
from scrimp.onnx_graph import GRAPH, Translated
from scrimp.onnx_nodes import Nodes

OPSET, IR = 17, 8  # read by onnxruntime since 1.13


def onnx_of(model: LoadedModel) -> bytes:
    """The model as an ONNX file; one of a graph from its files (`onnx_of_files`).

    Raises:
        ScrimpError: it is neither linear nor an MLP, or it reads texts.
        MissingPackage: onnx is not installed.
    """
    if not isinstance(model, Model):
        raise ScrimpError(
            f"a model of kind {model.card['kind']!r} has no ONNX form here: linear models, MLPs and graphs have one"
        )
    if model.card["features"]["kind"] not in ("columns", "table", "tensor") or model.card.get("extractor"):
        raise ScrimpError(
            "a model of texts has no ONNX form here: ONNX has no operator that hashes words as the service does"
        )
    onnx = _package()
    nodes = Nodes(onnx)
    scores = _scores(nodes, model)
    return _file(onnx, nodes, model.card, scores, _answers(nodes, scores, model), model.layers[0][0].shape[1])


def onnx_of_files(folder: Path) -> bytes:
    """A finished model as an ONNX file, from its own files.

    Raises:
        ScrimpError: it has no ONNX form, of a graph by the name of the operation that has none.
        ValueError: as scrimp.load_model.
        MissingPackage: onnx is not installed.
    """
    card, weights = checked(folder)
    if card["kind"] != "graph":
        return onnx_of(load_model(folder))
    onnx = _package()
    nodes = Nodes(onnx)
    try:
        document = json.loads((folder / GRAPH).read_bytes())
        scores = Translated(nodes, document, tensors(weights), FORMS).output
    except (OSError, ValueError, KeyError, TypeError, IndexError):
        raise UnreadableModelError(f"{folder / GRAPH} does not describe the model: fetch it again") from None
    return _file(onnx, nodes, card, scores, scores, card["inputs"])


def _package() -> Any:
    try:
        return import_module("onnx")
    except ImportError:
        raise MissingPackage("an ONNX export", "onnx", "scrimp-client[onnx]") from None


def _file(onnx: Any, nodes: Nodes, card: Mapping[str, Any], scores: str, answers: str, width: int) -> bytes:
    """The file of a model's scores. `answers`: the outputs whose softmax is answered."""
    types = onnx.TensorProto
    if card["task"]["kind"] == "classification":
        nodes.add("Softmax", [answers], "probabilities", axis=1)
        nodes.add("ArgMax", [scores], "label", axis=1, keepdims=0)
        outputs = {"label": (types.INT64, ["n"]), "probabilities": (types.FLOAT, ["n", len(card["task"]["classes"])])}
    else:
        _value(nodes, scores, card["task"].get("range"))
        outputs = {"value": (types.FLOAT, ["n"])}
    info = onnx.helper.make_tensor_value_info
    onnx_graph = onnx.helper.make_graph(
        nodes.nodes,
        "scrimp",
        [info("features", types.FLOAT, ["n", width])],
        [info(name, kind, shape) for name, (kind, shape) in outputs.items()],
        nodes.tensors,
    )
    opset = [onnx.helper.make_opsetid("", OPSET)]
    onnx_model = onnx.helper.make_model(onnx_graph, opset_imports=opset, producer_name="scrimp", ir_version=IR)
    plain = {name: value for name, value in card.items() if name not in ("usage", "files")}
    onnx.helper.set_model_props(onnx_model, {"card": json.dumps(plain, ensure_ascii=False)})
    onnx.checker.check_model(onnx_model)
    content: bytes = onnx_model.SerializeToString()
    return content


def _scores(graph: Nodes, model: Model) -> str:
    x = "features"
    mean: Floats | None = model.tensors.get("mean")
    if mean is not None:
        x = graph.add("Sub", [x, graph.constant("mean", mean)], "centred")
    if model.scale != 1.0:
        x = graph.add("Mul", [x, graph.constant("scale", model.scale)], "scaled")
    for at, (weight, bias) in enumerate(model.layers):
        if at:
            x = graph.add("Tanh" if model.activation == "tanh" else "Relu", [x], f"hidden{at}")
        names = [graph.constant(f"weight{at}", weight), graph.constant(f"bias{at}", bias)]
        x = graph.add("Gemm", [x, *names], f"outputs{at}", transB=1)
    return x


def _answers(graph: Nodes, scores: str, model: Model) -> str:
    """The outputs whose softmax is answered; see scrimp.linear.answer_logit."""
    ratios = model.tensors.get("clip_ratios")
    if ratios is None:
        return scores
    score = graph.add("MatMul", [scores, graph.constant("difference", [[-1.0], [1.0]])], "score")
    minus = graph.add("Neg", [score], "minus_score")
    zero, logs = graph.constant("zero", 0.0), np.log(ratios)
    cut = []
    for at, (towards, log) in enumerate(zip((minus, score), logs, strict=True)):
        softplus = graph.add("Softplus", [towards], f"softplus{at}")
        ratio = graph.add("Sub", [graph.constant(f"log_ratio{at}", log), softplus], f"log_length{at}")
        cut.append(graph.add("Min", [ratio, zero], f"cut{at}"))
    low, high = flat_range(ratios)
    ends = [graph.constant("flat_low", low), graph.constant("flat_high", high)]
    middle = graph.constant("flat_middle", (low + high) / 2.0)
    inside = graph.add("Sub", [graph.add("Clip", [score, *ends], "inside"), middle], "beside_middle")
    rise = graph.add("Mul", [inside, graph.constant("slope", SLOPE)], "rise")
    logit = graph.add("Add", [graph.add("Sub", cut, "undone"), rise], "answer_logit")
    return graph.add("MatMul", [logit, graph.constant("halves", [[-0.5, 0.5]])], "answers")


def _value(graph: Nodes, scores: str, ends: list[float] | None) -> None:
    """The single output; of a target with a range [−1, 1] becomes its unit."""
    if ends is not None:
        low, high = ends
        inside = [scores, graph.constant("least", -1.0), graph.constant("most", 1.0)]
        clipped = graph.add("Clip", inside, "clipped")
        half = graph.add("Mul", [clipped, graph.constant("half", (high - low) / 2.0)], "half_range")
        scores = graph.add("Add", [half, graph.constant("middle", (low + high) / 2.0)], "in_unit")
    graph.add("Squeeze", [scores, graph.constant("axis", [1], np.int64)], "value")
