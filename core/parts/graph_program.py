"""A graph of tensor operations as a document: what a torch.export file says, without torch, and nothing else of it.

The text is a stranger's. Of the exporter's JSON only the members named here are read; all others, such as the guards'
code, are left where they are. Sizes are numbers, or a number times the records of a pass.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints, ValidationError

from core.contracts.base import Document

GRAPH = "graph.json"  # delivered beside the weights
MOST_NODES, MOST_DIMS, MOST_SIZE = 20_000, 8, 2**31 - 1
MOST_LIST = 4096  # entries of one argument
Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_]{1,200}$")]
TensorName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_]{1,200}(\.[A-Za-z0-9_]{1,200}){0,40}$")]
Kind = Literal["float64", "float32", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool"]
FLOATING: tuple[Kind, ...] = ("float64", "float32", "float16", "bfloat16")
BYTES: Mapping[Kind, int] = {
    **{"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2, "int64": 8, "int32": 4, "int16": 2},
    **{"int8": 1, "uint8": 1, "bool": 1},
}


def largest(kind: Kind) -> int:
    """The largest number of a type of whole numbers.

    >>> largest("int16"), largest("uint8"), largest("bool")
    (32767, 255, 1)
    """
    return 1 if kind == "bool" else 2 ** (8 * BYTES[kind] - (kind != "uint8")) - 1


# torch.export's numbers of types.
_KINDS: Mapping[int, Kind] = {
    **{1: "uint8", 2: "int8", 3: "int16", 4: "int32", 5: "int64", 6: "float16", 7: "float32", 8: "float64"},
    **{12: "bool", 13: "bfloat16"},
}
_SYMBOL = r"Symbol\('[A-Za-z0-9_]{1,40}'(?:, (?:positive|integer)=True)*\)"
_RECORDS = re.compile(rf"^(?:Mul\(Integer\((\d{{1,10}})\), ({_SYMBOL})\)|({_SYMBOL}))$")
_OPERATION = re.compile(r"^torch\.ops\.aten\.([a-z0-9_]{1,80}\.[A-Za-z0-9_]{1,80})$")


class UnfitGraphError(Exception):
    """Why a file holds no graph that can be trained here, in words for the caller."""


class Records(Document):
    """A size: so many times the number of records in a pass."""

    records: Annotated[int, Field(strict=True, ge=1, le=MOST_SIZE)]


class Ref(Document):
    """A value by its name."""

    value: Name


class OfKind(Document):
    """A type of numbers."""

    dtype: Kind


class Extreme(Document):
    """A number that JSON has no word for."""

    float: Literal["inf", "-inf", "nan"]


Plain = (
    None
    | Annotated[bool, Field(strict=True)]
    | Annotated[int, Field(strict=True)]
    | Annotated[float, Field(strict=True)]
    | Annotated[str, StringConstraints(max_length=40)]
)
Single = Plain | Ref | Records | OfKind | Extreme
Argument = Single | Annotated[tuple[Single, ...], Field(max_length=MOST_LIST)]
Size = Annotated[int, Field(strict=True, ge=0, le=MOST_SIZE)] | Records
Sizes = Annotated[tuple[Size, ...], Field(max_length=MOST_DIMS)]


class Value(Document):
    """What the file says of a value. The worker compares it with what it computes."""

    dtype: Kind
    sizes: Sizes


class Stored(Document):
    """A tensor of the file: a parameter, a buffer or a constant. `trained`: gradients are taken."""

    name: TensorName
    dtype: Kind
    sizes: Annotated[tuple[Annotated[int, Field(strict=True, ge=0, le=MOST_SIZE)], ...], Field(max_length=MOST_DIMS)]
    trained: bool


class Node(Document):
    """One operation, by torch's name in `aten`, with its arguments by name and the names of its results."""

    operation: Annotated[str, StringConstraints(pattern=r"^[a-z0-9_]{1,80}\.[A-Za-z0-9_]{1,80}$")]
    arguments: dict[Name, Argument]
    results: Annotated[tuple[Name, ...], Field(min_length=1, max_length=256)]


class Program(Document):
    """A graph: each node names values that stand before it.

    Attributes:
        input: the name of the records.
        output: of one row for each record.
        tensors: by the name that nodes use.
        values: of the input and of all results.
    """

    format: Literal["scrimp-graph/1"] = "scrimp-graph/1"
    input: Name
    output: Name
    tensors: dict[Name, Stored]
    values: dict[Name, Value]
    nodes: Annotated[tuple[Node, ...], Field(max_length=MOST_NODES)]

    def value(self, name: str) -> Value:
        """What is said of a value or a tensor."""
        stored = self.tensors.get(name)
        return Value(dtype=stored.dtype, sizes=stored.sizes) if stored is not None else self.values[name]

    def require_ordered(self) -> None:
        """Raises UnfitGraphError if a node names what does not stand before it, or a name is given twice."""
        available = {self.input, *self.tensors}
        if self.input in self.tensors or self.input not in self.values:
            raise UnfitGraphError("the graph's input is no value of its own")
        for node in self.nodes:
            for name in names_in(node):
                if name not in available:
                    raise UnfitGraphError(f"{node.operation} takes {name}, which no node before it makes")
            for name in node.results:
                if name in available or name not in self.values:
                    raise UnfitGraphError(f"{node.operation} makes {name}, which is there before, or is not described")
                available.add(name)
        if self.output not in available - self.tensors.keys():
            raise UnfitGraphError("the graph's output is nothing that it computes")


def names_in(node: Node) -> list[str]:
    """The values that a node takes."""
    names = []
    for argument in node.arguments.values():
        names += [
            one.value for one in (argument if isinstance(argument, tuple) else (argument,)) if isinstance(one, Ref)
        ]
    return names


def program_of(model: Any, weights: Mapping[str, Any], constants: Mapping[str, Any]) -> Program:
    """The program in an exporter's documents.

    Args:
        model: models/model.json.
        weights, constants: the `config` of each of the two folders of tensors, by the tensors' names.

    Raises:
        UnfitGraphError: it holds something else, or more than is read here.
    """
    try:
        graph, signature = model["graph_module"]["graph"], model["graph_module"]["signature"]
        for member in ("custom_obj_values", "sym_float_values", "sym_bool_values"):
            if graph.get(member):
                raise UnfitGraphError(f"the graph has {member}: only tensors and sizes are read here")
        if len(graph["nodes"]) > MOST_NODES:
            raise UnfitGraphError(f"the graph has {len(graph['nodes'])} nodes; at most {MOST_NODES} are read")
        symbols = {name: _size(each) for name, each in graph["sym_int_values"].items()}
        program = Program(
            input=_input(signature),
            output=_output(signature),
            tensors=dict(_tensors(signature, weights, constants)),
            values={name: _value(each) for name, each in graph["tensor_values"].items()},
            nodes=tuple(_node(each, symbols) for each in graph["nodes"] if not _is_size(each)),
        )
    except ValidationError as error:
        first = error.errors()[0]
        raise UnfitGraphError(f"the graph's {'/'.join(map(str, first['loc']))[:200]}: {first['msg']}") from None
    except (KeyError, TypeError, AttributeError, ValueError, IndexError) as error:
        raise UnfitGraphError(f"its model.json is not what torch.export writes ({type(error).__name__})") from None
    program.require_ordered()
    used = {name for node in program.nodes for name in (*names_in(node), *node.results)} | {
        program.input,
        program.output,
    }
    return program.model_copy(
        update={
            "tensors": {name: each for name, each in program.tensors.items() if name in used},
            "values": {
                name: each for name, each in program.values.items() if name in used and name not in program.tensors
            },
        }
    )


def _input(signature: Any) -> str:
    inputs = [each["user_input"]["arg"] for each in signature["input_specs"] if "user_input" in each]
    if len(inputs) != 1 or "as_tensor" not in inputs[0]:
        raise UnfitGraphError(f"the graph takes {len(inputs)} inputs: one tensor of records is what a pass gives")
    return str(inputs[0]["as_tensor"]["name"])


def _output(signature: Any) -> str:
    outputs = signature["output_specs"]
    for output in outputs:
        if "user_output" not in output:
            raise UnfitGraphError(
                f"the graph has a {next(iter(output))}: a pass changes nothing, so leave out what keeps running numbers"
            )
    if len(outputs) != 1 or "as_tensor" not in outputs[0]["user_output"]["arg"]:
        raise UnfitGraphError("the graph gives more than one tensor: return the outputs alone")
    return str(outputs[0]["user_output"]["arg"]["as_tensor"]["name"])


def _tensors(signature: Any, weights: Mapping[str, Any], constants: Mapping[str, Any]) -> Any:
    for spec in signature["input_specs"]:
        ((kind, spec_body),) = spec.items()
        if kind == "user_input":
            continue
        names = {"parameter": "parameter_name", "buffer": "buffer_name", "tensor_constant": "tensor_constant_name"}
        if kind not in names:
            raise UnfitGraphError(f"the graph takes a {kind}: only tensors are read here")
        name = str(spec_body[names[kind]])
        config = weights[name] if name in weights else constants[name]
        meta = config["tensor_meta"]
        sizes = tuple(_size(size) for size in meta["sizes"])
        trained = kind == "parameter" and bool(meta["requires_grad"])
        yield (
            str(spec_body["arg"]["name"]),
            Stored(name=name, dtype=_KINDS[meta["dtype"]], sizes=sizes, trained=trained),
        )


def _value(meta: Any) -> Value:
    if meta["dtype"] not in _KINDS:
        raise UnfitGraphError(f"the graph has numbers of type {meta['dtype']} of torch.export, which are not read here")
    return Value(dtype=_KINDS[meta["dtype"]], sizes=tuple(_size(each) for each in meta["sizes"]))


def _size(document: Any) -> int | Records:
    if "as_int" in document:
        return _whole(document["as_int"])
    text = str(document["as_expr"]["expr_str"])
    if text.startswith("Integer(") and text[8:-1].isdecimal():
        return _whole(int(text[8:-1]))
    match = _RECORDS.match(text)
    if match is None:
        raise UnfitGraphError(
            f"a size is {text[:120]!r}: sizes are numbers, or a number times the records of a pass; export with one "
            "dynamic dimension, the records'"
        )
    return Records(records=int(match[1] or 1))


def _whole(number: Any) -> int:
    if type(number) is not int:
        raise ValueError("a size is a whole number")
    return number


def _is_size(node: Any) -> bool:
    """Whether a node computes with sizes alone, whose values are known from their expressions, or notes a type."""
    if node["target"] == "torch.ops.aten._assert_tensor_metadata.default":
        return True
    return bool(node["outputs"]) and all("as_sym_int" in each for each in node["outputs"])


def _node(document: Any, symbols: Mapping[str, int | Records]) -> Node:
    target = str(document["target"])
    match = _OPERATION.match(target)
    if match is None:
        raise UnfitGraphError(f"the graph calls {target[:120]!r}: only operations of torch.ops.aten are known here")
    results: list[str] = []
    for output in document["outputs"]:
        if "as_tensor" in output:
            results.append(output["as_tensor"]["name"])
        elif "as_tensors" in output:
            results += [one["name"] for one in output["as_tensors"]]
        else:
            raise UnfitGraphError(f"{match[1]} gives {next(iter(output))}: only tensors are read here")
    arguments = {each["name"]: _argument(match[1], each["arg"], symbols) for each in document["inputs"]}
    return Node(operation=match[1], arguments=arguments, results=tuple(results))


def _argument(operation: str, document: Any, symbols: Mapping[str, int | Records]) -> Any:
    ((kind, value),) = document.items()
    if kind in ("as_sym_int", "as_sym_ints"):
        return tuple(_symbol(each, symbols) for each in value) if kind == "as_sym_ints" else _symbol(value, symbols)
    reader = _ARGUMENTS.get(kind)
    if reader is None:
        raise UnfitGraphError(f"{operation} takes {kind}: only tensors, numbers and sizes are read here")
    return reader(value)


def _optional(document: Any) -> Ref | None:
    return Ref(value=document["as_tensor"]["name"]) if "as_tensor" in document else None


def _symbol(document: Any, symbols: Mapping[str, int | Records]) -> int | Records:
    return symbols[document["as_name"]] if "as_name" in document else _whole(document["as_int"])


def _number(value: Any) -> float | Extreme:
    special: dict[str, Literal["inf", "-inf", "nan"]] = {"Infinity": "inf", "-Infinity": "-inf", "NaN": "nan"}
    if isinstance(value, str):
        return Extreme(float=special[value])
    number = float(value)
    text = repr(number)
    return Extreme(float=text) if text in ("inf", "-inf", "nan") else number


_ARGUMENTS: Mapping[str, Callable[[Any], Any]] = {
    "as_none": lambda _: None,
    "as_tensor": lambda value: Ref(value=value["name"]),
    "as_tensors": lambda value: tuple(Ref(value=each["name"]) for each in value),
    "as_optional_tensor": _optional,
    "as_optional_tensors": lambda value: tuple(_optional(each) for each in value),
    "as_int": lambda value: value,
    "as_bool": lambda value: value,
    "as_ints": tuple,
    "as_bools": tuple,
    "as_float": _number,
    "as_floats": lambda value: tuple(_number(each) for each in value),
    "as_string": str,
    "as_scalar_type": lambda value: OfKind(dtype=_KINDS[value]),
    # Of the place where it was exported.
    **dict.fromkeys(("as_memory_format", "as_layout", "as_device"), lambda _: None),
}
