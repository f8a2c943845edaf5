"""A user's own graph as ONNX, on all records at once: its values, and what an operation is given. What each operation
becomes is scrimp.onnx_forms.

The document is the one that the worker runs record by record (core.parts.graph_program); its rules were checked when it
was admitted. An operation without a form here is refused by name. Floating numbers of all kinds are float32.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from scrimp.errors import ScrimpError
from scrimp.onnx_nodes import Nodes

GRAPH, FEATURES = "graph.json", "features"
KINDS: dict[str, Any] = {"int64": np.int64, "int32": np.int32, "bool": np.bool_}
KINDS |= dict.fromkeys(("float64", "float32", "float16", "bfloat16"), np.float32)
TYPES = {np.float32: 1, np.int32: 6, np.int64: 7, np.bool_: 9}  # onnx.TensorProto's numbers
END = 2**63 - 1
Json = Mapping[str, Any]
Form = Callable[["Call"], "str | list[str]"]


class Translated:
    """The program's values as names of an ONNX graph.

    Args:
        document: `graph.json`.
        tensors: of the weights' file, by their names there.
        forms: what each operation becomes.

    Raises:
        ScrimpError: an operation has no ONNX form here.
    """

    def __init__(self, nodes: Nodes, document: Json, tensors: Mapping[str, Any], forms: Mapping[str, Form]) -> None:
        self.nodes, self.document, self.names = nodes, document, dict[str, str]()
        self._records: str | None = None
        for name, stored in document["tensors"].items():
            kind = self.kind_of(name)
            self.names[name] = nodes.constant(f"tensor_{name}", tensors[stored["name"]], kind)
        self.names[document["input"]] = nodes.add("Reshape", [FEATURES, self.shape(self.sizes(document["input"]))])
        for node in document["nodes"]:
            call = Call(self, node)
            form = forms.get(node["operation"])
            if form is None:
                raise call.unfit("this operation has no ONNX form here")
            outputs = form(call)
            for name, output in zip(
                node["results"], [outputs] if isinstance(outputs, str) else outputs, strict=False
            ):  # of what has no form, such as a window's place, the later use is refused
                self.names[name] = output
        sizes = self.sizes(document["output"])
        width = sizes[1] if len(sizes) > 1 else 1
        output = self.named(document["output"])
        self.output = nodes.add("Reshape", [output, nodes.constant("", [-1, width], np.int64)])

    def sizes(self, name: str) -> list[Any]:
        """What the document says: numbers, or {"records": k}."""
        stored: Json = self.document["tensors"].get(name) or self.document["values"][name]
        return list(stored["sizes"])

    def kind_of(self, name: str) -> Any:
        """The numpy type of a value."""
        stored: Json = self.document["tensors"].get(name) or self.document["values"][name]
        if stored["dtype"] not in KINDS:
            raise ScrimpError(f"the graph's {name} is of type {stored['dtype']}, which has no ONNX form here")
        return KINDS[stored["dtype"]]

    def named(self, name: str) -> str:
        """The ONNX name of a value."""
        if name not in self.names:
            raise ScrimpError(f"the graph's {name} has no ONNX form here: its operation gives the first result alone")
        return self.names[name]

    def shape(self, sizes: Sequence[Any]) -> str:
        """Sizes as a tensor, for a Reshape: those of the records follow from the others."""
        if 0 in sizes:
            raise ScrimpError("the graph has a tensor without numbers, which has no ONNX form here")
        plain = [-1 if isinstance(size, Mapping) else size for size in sizes]
        return self.nodes.constant("", plain, np.int64)

    def counted(self, sizes: Sequence[Any]) -> str:
        """Sizes as a tensor, with the number of records that came."""
        if not any(isinstance(size, Mapping) for size in sizes):
            return self.nodes.constant("", list(sizes), np.int64)
        if self._records is None:
            self._records = self.nodes.add("Shape", [FEATURES], start=0, end=1)
        parts = []
        for size in sizes:
            times = self.nodes.constant("", [size["records"] if isinstance(size, Mapping) else size], np.int64)
            parts.append(self.nodes.add("Mul", [self._records, times]) if isinstance(size, Mapping) else times)
        return self.nodes.add("Concat", parts, axis=0)


@dataclass(frozen=True)
class Call:
    """One operation of the program, with its arguments as names and numbers."""

    program: Translated
    node: Json

    def add(self, operator: str, *inputs: str, **attributes: Any) -> str:
        """Adds an ONNX operator."""
        return self.program.nodes.add(operator, list(inputs), **attributes)

    def number(self, value: Any, kind: Any = None) -> str:
        """A constant, of the result's type or another."""
        return self.program.nodes.constant("", value, self.kind if kind is None else kind)

    def has(self, name: str) -> bool:
        """Whether an argument is there and not None."""
        return self.node["arguments"].get(name) is not None

    def argument(self, name: str, default: Any = None) -> Any:
        """An argument as it is; infinities as numbers."""
        value = self.node["arguments"].get(name)
        if isinstance(value, Mapping) and "float" in value:
            return float(value["float"])
        return default if value is None else value

    def tensor(self, name: str, kind: Any = None) -> str:
        """An argument as a tensor of a type, by default its own; a number becomes a constant."""
        value = self.argument(name)
        if not isinstance(value, Mapping):
            return self.number(value, kind)
        return self.cast(self.program.named(value["value"]), self.program.kind_of(value["value"]), kind)

    def cast(self, name: str, kind: Any, to: Any) -> str:
        """A tensor in another type."""
        return name if to is None or to is kind else self.add("Cast", name, to=TYPES[to])

    def same(self, *names: str) -> list[str]:
        """Arguments in the result's type."""
        return [self.tensor(name, self.kind) for name in names]

    def kind_of(self, name: str) -> Any:
        """The type of an argument: of a number the one that it needs."""
        value = self.argument(name)
        if isinstance(value, Mapping):
            return self.program.kind_of(value["value"])
        return np.bool_ if isinstance(value, bool) else np.int32 if isinstance(value, int) else np.float32

    def sizes(self, name: str) -> list[Any]:
        """Of a tensor argument."""
        return self.program.sizes(self.node["arguments"][name]["value"])

    @property
    def kind(self) -> Any:
        """Of the first result."""
        return self.program.kind_of(self.node["results"][0])

    @property
    def result(self) -> list[Any]:
        """Sizes of the first result."""
        return self.program.sizes(self.node["results"][0])

    @property
    def floats(self) -> bool:
        return self.kind is np.float32

    def dims(self, default: Any = None, name: str = "dim") -> list[int]:
        """The dimensions that are named, from the front; all where none is."""
        count, dims = len(self.sizes("self")), self.argument(name, default)
        dims = dims if isinstance(dims, Sequence) else [dims]
        return [dim % count for dim in dims if dim is not None] or list(range(count))

    def reshaped(self, name: str) -> str:
        """In the sizes that the document says."""
        return self.add("Reshape", name, self.program.shape(self.result))

    def unfit(self, reason: str) -> ScrimpError:
        """A refusal that names the operation and its result."""
        return ScrimpError(f"{self.node['results'][0]} = {self.node['operation']}: {reason}")
