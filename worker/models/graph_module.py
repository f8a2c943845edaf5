"""A graph from a file as a torch module, by an interpreter of its own: no code of the file's runs.

Records never meet. Layers with rules for their gradients are called with all records at once, and dimension 0 counts
these. Everything between two layers runs as for one record, mapped over the records by torch's vmap: an operation sees
one record's numbers, whatever it does. That is what keeps records apart; core.parts.graph_rules only says whether the
graph still means the same so. Parameters that no layer holds are handed to each record as a copy of its own, whose
gradient is that record's.

No number of a record can make an operation fail: ids that name rows of a table are brought into its range.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import vmap

from core.errors import PrivacyError
from core.parts.graph_program import FLOATING, Extreme, Node, OfKind, Program, Records, Ref, Stored, names_in
from core.parts.graph_rules import Place, masked, places_of
from worker.models.dropout import Dropout, Masks
from worker.models.positions import PerRecord

KINDS: Mapping[str, torch.dtype] = {
    name: getattr(torch, name)
    for name in ("float64", "float32", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool")
}
PLAIN = Place(0)
# They make numbers of the type that torch would take by default, where the file names none.
_MAKERS = frozenset({"zeros", "ones", "full", "arange", "scalar_tensor", "new_zeros", "new_ones", "new_full"})


@dataclass(frozen=True)
class _Layer:
    """A call of a layer whose gradients have a rule."""

    node: Node
    input: str
    module: nn.Module
    table: int = 0  # rows of an embedding, into whose range ids are brought


@dataclass(frozen=True)
class _Segment:
    """Operations between layers, which run for each record alone."""

    nodes: list[Node] = field(default_factory=list)
    inputs: list[str] = field(default_factory=list)
    outputs: list[str] = field(default_factory=list)


class GraphModule(nn.Module):
    """The program's function of (n, …) records, with trained parameters under the file's names.

    Args:
        program: of a graph that has been read here.
        constants: the tensors that are not trained, by the file's names.
        dtype: of floating numbers.
        device: of parameters and constants.
        masks: of dropout in training; None: it draws none, as in evaluation.
    """

    def __init__(
        self,
        program: Program,
        constants: Mapping[str, Tensor],
        dtype: torch.dtype,
        device: torch.device | str,
        masks: Masks | None = None,
    ) -> None:
        super().__init__()
        self._program, self._places = program, places_of(program)
        trained = {each.name: each for each in program.tensors.values() if each.trained}
        self._trained = {
            name: nn.Parameter(torch.empty(each.sizes, dtype=dtype, device=device)) for name, each in trained.items()
        }
        self._held: dict[str, str] = {}  # the buffer of each constant, by the name that nodes use
        for name, tensor in program.tensors.items():
            if not tensor.trained:
                value = constants[tensor.name]
                self._held[name] = f"constant_{len(self._held)}"
                value = value.to(device, dtype if value.is_floating_point() else value.dtype)
                self.register_buffer(self._held[name], value)
        self._masks, self._layers = masks, dict[tuple[Any, ...], nn.Module]()
        self._own: dict[str, nn.Module] = {}
        self._steps = list(self._divided())
        self.parts = nn.ModuleList([*self._layers.values(), *self._own.values()])

    def named_parameters(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, nn.Parameter]]:
        """The trained parameters by the file's names, in its order."""
        if recurse:
            for name in self._trained:
                module, parameter_name = self._where[name]
                yield f"{prefix}.{name}" if prefix else name, module.get_parameter(parameter_name)

    def forward(self, x: Tensor) -> Tensor:
        """(n, outputs) of (n, …): a record's numbers, in the shape of the graph's input or in a row."""
        values: dict[str, Tensor] = {self._program.input: x.reshape(len(x), *self._said(self._program.input))}
        for name, module in self._own.items():
            values[name] = module(x)
        for step in self._steps:
            if isinstance(step, _Layer):
                values[step.node.results[0]] = self._called(step, values[step.input])
                continue
            mapped = vmap(self._run_of(step), in_dims=0)(*(values[name] for name in step.inputs))
            values.update(zip(step.outputs, mapped, strict=True))
        output = values[self._program.output].squeeze(1)
        return output if output.dim() > 1 else output[:, None]

    def _called(self, step: _Layer, x: Tensor) -> Tensor:
        """A layer, whose records lie along dimension 0. A record's own dimension of size 1 is left out meanwhile."""
        plain = self._places[step.input] == PLAIN
        x = x.squeeze(1) if plain else x
        result: Tensor = step.module(x.clamp(0, step.table - 1) if step.table else x)
        result = result.unsqueeze(1) if plain else result
        self._require_said(step.node.results[0], result[0])
        return result

    def _run_of(self, step: _Segment) -> Callable[..., tuple[Tensor, ...]]:
        def run(*tensors: Tensor) -> tuple[Tensor, ...]:
            values = dict(zip(step.inputs, tensors, strict=True))
            for name, buffer in self._held.items():
                values[name] = getattr(self, buffer)
            for node in step.nodes:
                outputs = self._result(node, values)
                for name, value in zip(
                    node.results, outputs if isinstance(outputs, tuple | list) else (outputs,), strict=True
                ):
                    if value is not None:
                        self._require_said(name, value)
                        values[name] = value
            return tuple(values[name] for name in step.outputs)

        return run

    def _require_said(self, name: str, value: Tensor) -> None:
        """The result has the sizes and the type that the file says, for one record: a fact of shapes alone."""
        if tuple(value.shape) != self._said(name):
            sizes = self._said(name)
            raise PrivacyError(f"the graph's {name} has sizes {tuple(value.shape)}, and its file says {sizes}")
        kind = self._program.values[name].dtype
        if value.dtype != KINDS[kind] and not (kind in FLOATING and value.is_floating_point()):
            raise PrivacyError(f"the graph's {name} is of type {value.dtype}, and its file says {kind}")

    def _said(self, name: str) -> tuple[int, ...]:
        """The sizes of a value for one record."""
        sizes = self._program.values[name].sizes
        return tuple(each.records if isinstance(each, Records) else each for each in sizes)

    def _result(self, node: Node, values: Mapping[str, Tensor]) -> Any:
        """One operation on one record's numbers."""
        packet, overload = node.operation.split(".")
        arguments = {name: self._given(each, values) for name, each in node.arguments.items()}
        match node.operation:
            case "embedding.default":
                arguments["indices"] = arguments["indices"].clamp(0, arguments["weight"].shape[0] - 1)
            case "gather.default":
                arguments["index"] = arguments["index"].clamp(0, arguments["self"].shape[arguments["dim"]] - 1)
            case "index.Tensor":
                arguments["indices"] = [
                    each if each is None else _inside(each, size)
                    for each, size in zip(arguments["indices"], arguments["self"].shape, strict=False)
                ]
            case "_native_batch_norm_legit_no_training.default":
                return _frozen_norm(arguments), None, None
            case "native_dropout.default":  # outside of training
                return arguments["input"], None
            case "_weight_norm_interface.default":
                return _weight_norm(arguments), None
            case "scaled_dot_product_attention.default":
                return _attention(arguments)
            case "view.default" | "_unsafe_view.default":  # of one record the memory's order may be another
                return arguments["self"].reshape(arguments["size"])
        if packet in _MAKERS and (packet in ("arange", "scalar_tensor") or not packet.startswith("new_")):
            arguments["device"] = self._device
        if packet in _MAKERS and arguments.get("dtype") is None and not packet.startswith("new_"):
            arguments["dtype"] = self._kind(self._program.values[node.results[0]].dtype)
        return getattr(getattr(torch.ops.aten, packet), overload)(
            **{name: each for name, each in arguments.items() if name != "pin_memory"}
        )

    def _given(self, argument: Any, values: Mapping[str, Tensor]) -> Any:
        if isinstance(argument, tuple):
            return [self._given(each, values) for each in argument]
        if isinstance(argument, Ref):
            return values[argument.value]
        if isinstance(argument, Records):
            return argument.records  # of one record
        if isinstance(argument, OfKind):
            return self._kind(argument.dtype)
        if isinstance(argument, Extreme):
            return float(argument.float)
        return argument

    def _kind(self, name: str) -> torch.dtype:
        return self._dtype if name in FLOATING else KINDS[name]

    @property
    def _dtype(self) -> torch.dtype:
        return next(self.parameters()).dtype

    @property
    def _device(self) -> torch.device:
        return next(self.parameters()).device

    # --- From nodes to layers and segments ---

    def _divided(self) -> Iterator[_Layer | _Segment]:
        self._where: dict[str, tuple[nn.Module, str]] = {}
        steps: list[_Layer | _Segment] = []
        for node in self._program.nodes:
            layer = self._layer(node)
            if layer is not None:
                steps.append(layer)
                continue
            if not steps or isinstance(steps[-1], _Layer):
                steps.append(_Segment())
            steps[-1].nodes.append(node)  # type: ignore[union-attr]
        last: dict[str, int] = {self._program.output: len(steps)}
        for at, step in enumerate(steps):
            for name in (
                [step.input] if isinstance(step, _Layer) else [n for each in step.nodes for n in names_in(each)]
            ):
                last[name] = at
        for at, step in enumerate(steps):
            if isinstance(step, _Segment):
                self._connect(step, at, last)
        return iter(steps)

    def _connect(self, step: _Segment, at: int, last: Mapping[str, int]) -> None:
        """What it takes from before, and what it leaves for later. `last`: the last step that takes each value."""
        produced = {name for node in step.nodes for name in node.results}
        taken = dict.fromkeys(name for node in step.nodes for name in names_in(node) if name not in produced)
        for name in taken:
            stored = self._program.tensors.get(name)
            if stored is not None and stored.trained and name not in self._own:
                self._own[name] = PerRecord(self._trained[stored.name])
                self._where.setdefault(stored.name, (self._own[name], "weight"))
        step.inputs.extend(dict.fromkeys([self._program.input, *(name for name in taken if name not in self._held)]))
        step.outputs.extend(name for node in step.nodes for name in node.results if last.get(name, at) > at)

    def _layer(self, node: Node) -> _Layer | None:
        """The layer that a node calls: all of its tensors but the records are trained parameters."""
        arguments = node.arguments
        if masked(node):
            number = len(self._layers)
            self._layers[node.results] = nn.Identity() if self._masks is None else Dropout(self._masks, number)
            return _Layer(node, arguments["input"].value, self._layers[node.results])  # type: ignore[union-attr]
        weight, bias = arguments.get("weight"), arguments.get("bias")
        source = arguments.get("indices" if node.operation == "embedding.default" else "input")
        tensors = {name: each for name, each in (("weight", weight), ("bias", bias)) if each is not None}
        if not isinstance(source, Ref) or not isinstance(weight, Ref) or not self._is_apart(node, source, tensors):
            return None
        settings = tuple((name, each) for name, each in arguments.items() if not isinstance(each, Ref))
        key = (node.operation, *(each.value for each in tensors.values() if isinstance(each, Ref)), settings)
        if key not in self._layers:
            module = _LAYERS[node.operation](arguments, self._stored(weight).sizes, bias is not None)
            if module is None or any(
                module.get_parameter(name).shape != self._stored(each).sizes for name, each in tensors.items()
            ):
                return None  # a bias of a line for each row would be another for each record
            for name, tensor in tensors.items():
                module._parameters[name] = self._trained[self._stored(tensor).name]
                self._where.setdefault(self._stored(tensor).name, (module, name))
            self._layers[key] = module
        table = self._stored(weight).sizes[0] if node.operation == "embedding.default" else 0
        return _Layer(node, source.value, self._layers[key], table)

    def _is_apart(self, node: Node, source: Ref, tensors: Mapping[str, Any]) -> bool:
        """Whether a node is a layer that works on each row of dimension 0 alone, whatever the file says of its weights:
        what it works over are dimensions of a record's own."""
        place = self._places.get(source.value)
        if (
            node.operation not in _LAYERS
            or place is None
            or not all(self._is_trained(each) for each in tensors.values())
        ):
            return False
        dims = len(self._stored(tensors["weight"]).sizes)
        wanted, over = _DIMS.get(node.operation, (dims, dims))
        source_dims = len(self._said(source.value)) - (place == PLAIN)
        if tensors.get("bias") == tensors["weight"]:
            return False  # the engine's rules take them for two parameters
        return (node.operation in _ANYWHERE or place == PLAIN) and dims == wanted and source_dims >= over

    def _stored(self, argument: Any) -> Stored:
        return self._program.tensors[argument.value]

    def _is_trained(self, argument: Any) -> bool:
        stored = self._program.tensors.get(argument.value) if isinstance(argument, Ref) else None
        return stored is not None and stored.trained


Maker = Callable[[Mapping[str, Any], tuple[int, ...], bool], nn.Module | None]


def _linear(_: Mapping[str, Any], sizes: tuple[int, ...], bias: bool) -> nn.Module | None:
    return nn.Linear(sizes[1], sizes[0], bias=bias, device="meta")


def _conv(kind: Callable[..., nn.Module], places: int) -> Maker:
    def make(arguments: Mapping[str, Any], sizes: tuple[int, ...], bias: bool) -> nn.Module | None:
        groups = arguments.get("groups", 1)
        window = {name: _each(arguments.get(name, default), places) for name, default in _WINDOW}
        return kind(sizes[1] * groups, sizes[0], sizes[2:], groups=groups, bias=bias, device="meta", **window)

    return make


_WINDOW = (("stride", 1), ("padding", 0), ("dilation", 1))


def _each(value: Any, places: int) -> tuple[int, ...]:
    """One number for each place: lists of one number stand for all."""
    numbers = value if isinstance(value, tuple) else (value,)
    return numbers * places if len(numbers) == 1 else numbers


def _embedding(arguments: Mapping[str, Any], sizes: tuple[int, ...], _: bool) -> nn.Module | None:
    if arguments.get("scale_grad_by_freq", False) or arguments.get("sparse", False):
        return None
    padding = arguments.get("padding_idx", -1)
    weight = torch.empty(sizes[0], sizes[1], device="meta")  # to draw it would load torch's compiler
    return nn.Embedding(sizes[0], sizes[1], padding_idx=padding if padding >= 0 else None, _weight=weight)


def _layer_norm(arguments: Mapping[str, Any], sizes: tuple[int, ...], bias: bool) -> nn.Module | None:
    return nn.LayerNorm(sizes, eps=arguments.get("eps", 1e-5), bias=bias, device="meta")


def _rms_norm(arguments: Mapping[str, Any], sizes: tuple[int, ...], _: bool) -> nn.Module | None:
    return nn.RMSNorm(sizes, eps=arguments.get("eps"), device="meta")


def _group_norm(arguments: Mapping[str, Any], sizes: tuple[int, ...], bias: bool) -> nn.Module | None:
    if not bias:
        return None
    return nn.GroupNorm(arguments["num_groups"], sizes[0], eps=arguments.get("eps", 1e-5), device="meta")


_LAYERS: Mapping[str, Maker] = {
    "linear.default": _linear,
    "conv1d.default": _conv(nn.Conv1d, 1),
    "conv2d.default": _conv(nn.Conv2d, 2),
    "embedding.default": _embedding,
    "layer_norm.default": _layer_norm,
    "rms_norm.default": _rms_norm,
    "group_norm.default": _group_norm,
}
# Dimensions of the weight, and of a record's own that the layer works over: for norms as many as the weight has.
_DIMS: Mapping[str, tuple[int, int]] = {
    "linear.default": (2, 1),
    "conv1d.default": (3, 2),
    "conv2d.default": (4, 3),
    "embedding.default": (2, 0),
    "group_norm.default": (1, 1),
}
_ANYWHERE = ("linear.default", "embedding.default", "layer_norm.default", "rms_norm.default")


def _inside(index: Tensor, size: int) -> Tensor:
    """Places in 0 … size − 1; below 0 they count from the end."""
    return torch.where(index < 0, index + size, index).clamp(0, size - 1)


def _frozen_norm(arguments: Mapping[str, Any]) -> Tensor:
    """BatchNorm with constant statistics: a line for each channel."""
    x: Tensor = arguments["input"]
    shape = (1, -1, *(1 for _ in x.shape[2:]))
    scale = torch.rsqrt(arguments["running_var"] + arguments["eps"])
    scale = scale if arguments.get("weight") is None else scale * arguments["weight"]
    normalized: Tensor = (x - arguments["running_mean"].view(shape)) * scale.view(shape)
    shift: Tensor | None = arguments.get("bias")
    return normalized if shift is None else normalized + shift.view(shape)


def _weight_norm(arguments: Mapping[str, Any]) -> Tensor:
    """g · v / ‖v‖, a norm for each place along `dim`."""
    v: Tensor = arguments["v"]
    dims = [at for at in range(v.dim()) if at != arguments.get("dim", 0) % v.dim()]
    g: Tensor = arguments["g"]
    return v * (g / v.square().sum(dim=dims, keepdim=True).sqrt())


def _attention(arguments: Mapping[str, Any]) -> Tensor:
    """softmax(q kᵀ / √d + mask) v: torch's own kernels have no form that is mapped over records."""
    query: Tensor = arguments["query"]
    mask, scale = arguments.get("attn_mask"), arguments.get("scale")
    scores: Tensor = query @ arguments["key"].mT * (query.shape[-1] ** -0.5 if scale is None else scale)
    if arguments.get("is_causal", False):
        mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf) if mask.dtype == torch.bool else scores + mask
    attended: Tensor = torch.softmax(scores, dim=-1) @ arguments["value"]
    return attended
