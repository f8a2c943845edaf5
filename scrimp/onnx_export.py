"""A linear model or an MLP as ONNX, for runtimes without Python. Needs the package onnx.

    features (n, d) float → [− mean] → [· scale] → Gemm → [Tanh or Relu → Gemm] … → scores
    classification   label (n,) int64, a place in the card's classes; probabilities (n, K), of two classes as
                     scrimp.linear has them
    regression       value (n,), in the target's unit

The metadata hold the card: `features` are its columns in order. Those of a declared table are the scaled ones that
`scrimp.tables.features_of` makes of a record's cells. Hashed words have no operator in ONNX.
"""

from __future__ import annotations

import json
from importlib import import_module
from typing import Any

import numpy as np

from scrimp.errors import MissingPackage, ScrimpError
from scrimp.linear import SLOPE, Floats, Model, flat_range
from scrimp.loading import LoadedModel

OPSET, IR = 17, 8  # read by onnxruntime since 1.13


def onnx_of(model: LoadedModel) -> bytes:
    """The model as an ONNX file.

    Raises:
        ScrimpError: it is neither linear nor an MLP, or it reads texts.
        MissingPackage: onnx is not installed.
    """
    if not isinstance(model, Model):
        raise ScrimpError(
            f"a model of kind {model.card['kind']!r} has no ONNX form here: linear models and MLPs have one"
        )
    if model.card["features"]["kind"] not in ("columns", "table", "tensor") or model.card.get("extractor"):
        raise ScrimpError(
            "a model of texts has no ONNX form here: ONNX has no operator that hashes words as the service does"
        )
    try:
        onnx = import_module("onnx")
    except ImportError:
        raise MissingPackage("an ONNX export", "onnx", "scrimp-client[onnx]") from None
    graph = _Graph(onnx.helper, onnx.numpy_helper)
    scores = _scores(graph, model)
    card, types = model.card, onnx.TensorProto
    if card["task"]["kind"] == "classification":
        graph.add("Softmax", [_answers(graph, scores, model)], "probabilities", axis=1)
        graph.add("ArgMax", [scores], "label", axis=1, keepdims=0)
        outputs = {"label": (types.INT64, ["n"]), "probabilities": (types.FLOAT, ["n", len(card["task"]["classes"])])}
    else:
        _value(graph, scores, card["task"].get("range"))
        outputs = {"value": (types.FLOAT, ["n"])}
    info = onnx.helper.make_tensor_value_info
    onnx_graph = onnx.helper.make_graph(
        graph.nodes,
        "scrimp",
        [info("features", types.FLOAT, ["n", model.layers[0][0].shape[1]])],
        [info(name, kind, shape) for name, (kind, shape) in outputs.items()],
        graph.tensors,
    )
    opset = [onnx.helper.make_opsetid("", OPSET)]
    onnx_model = onnx.helper.make_model(onnx_graph, opset_imports=opset, producer_name="scrimp", ir_version=IR)
    plain = {name: value for name, value in card.items() if name not in ("usage", "files")}
    onnx.helper.set_model_props(onnx_model, {"card": json.dumps(plain, ensure_ascii=False)})
    onnx.checker.check_model(onnx_model)
    content: bytes = onnx_model.SerializeToString()
    return content


class _Graph:
    """Nodes and constant tensors, as they are added."""

    def __init__(self, helper: Any, numpy_helper: Any) -> None:
        self._helper, self._numpy = helper, numpy_helper
        self.nodes: list[Any] = []
        self.tensors: list[Any] = []

    def add(self, operator: str, inputs: list[str], output: str, **attributes: Any) -> str:
        self.nodes.append(self._helper.make_node(operator, inputs, [output], **attributes))
        return output

    def constant(self, name: str, value: Any, dtype: Any = np.float32) -> str:
        self.tensors.append(self._numpy.from_array(np.asarray(value, dtype=dtype), name))
        return name


def _scores(graph: _Graph, model: Model) -> str:
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


def _answers(graph: _Graph, scores: str, model: Model) -> str:
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


def _value(graph: _Graph, scores: str, ends: list[float] | None) -> None:
    """The single output; of a target with a range [−1, 1] becomes its unit."""
    if ends is not None:
        low, high = ends
        inside = [scores, graph.constant("least", -1.0), graph.constant("most", 1.0)]
        clipped = graph.add("Clip", inside, "clipped")
        half = graph.add("Mul", [clipped, graph.constant("half", (high - low) / 2.0)], "half_range")
        scores = graph.add("Add", [half, graph.constant("middle", (low + high) / 2.0)], "in_unit")
    graph.add("Squeeze", [scores, graph.constant("axis", [1], np.int64)], "value")
