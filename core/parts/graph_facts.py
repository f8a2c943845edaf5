"""What a graph's file says of a model before it runs: whether it fits, and its sizes. Nothing is computed with numbers.

`looked_at` runs in a process of its own, under limits (app.catalogue.graph_files): the file is a stranger's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from core.parts import graph_file
from core.parts.graph_file import GraphFile
from core.parts.graph_program import Node, Program, Records, Ref, Size, Stored, UnfitGraphError, names_in
from core.parts.graph_rules import places_of

LARGEST_WHOLE = 2**24  # delivered weights are float32
MOST_CONSTANTS = 2**24  # numbers that a graph computes from no record: no estimate of a pass counts them


def looked_at(request: Mapping[str, Any]) -> dict[str, Any]:
    """The facts of the file at `path`, or `refused`: why it holds no graph that can be trained."""
    try:
        return facts_of(graph_file.read(Path(request["path"])))
    except UnfitGraphError as error:
        return {"refused": str(error)}
    except (LookupError, TypeError, AttributeError, ValueError, ArithmeticError) as error:  # no exporter's arguments
        return {"refused": f"its operations are not what torch.export writes ({type(error).__name__})"}


def facts_of(file: GraphFile) -> dict[str, Any]:
    """The members of a job's GraphModel that follow from its file.

    Raises:
        UnfitGraphError: it mixes records, or is no classifier or regression of one tensor.
    """
    program = file.program
    places_of(program)
    sizes = program.values[program.output].sizes
    if len(sizes) > 2 or not all(isinstance(each, int) and each > 0 for each in sizes[1:]):
        raise UnfitGraphError("the output is not one row of numbers for each record: one for each class, or one")
    if program.values[program.input].dtype != "float32":
        raise UnfitGraphError("the input is not of type float32, as records are: convert within the module")
    for tensor in program.tensors.values():
        if tensor.dtype.startswith(("int", "uint")) and _largest(file, tensor) > LARGEST_WHOLE:
            raise UnfitGraphError(
                f"{tensor.name} has whole numbers beyond {LARGEST_WHOLE}, which files of weights lack"
            )
    per_record_names = of_each_record(program)
    constants = sum(per_record(program, name) for name in program.values if name not in per_record_names)
    if constants > MOST_CONSTANTS:
        raise UnfitGraphError(
            f"it computes constants of {constants} numbers in each pass; at most {MOST_CONSTANTS}: make them buffers"
        )
    trained = sum(math.prod(each.sizes) for each in program.tensors.values() if each.trained)
    if trained == 0:
        raise UnfitGraphError("no parameter is trained: all have requires_grad=False")
    return {
        "sha256": file.sha256,
        "parameters": sum(math.prod(each.sizes) for each in program.tensors.values()),
        "trained": trained,
        "inputs": per_record(program, program.input),
        "outputs": per_record(program, program.output),
        "places": most_places(program),
        "pass_numbers": pass_numbers(program, per_record_names),
    }


def _largest(file: GraphFile, tensor: Stored) -> int:
    numbers = np.frombuffer(file.tensor(tensor.name), dtype=np.dtype(tensor.dtype))
    return max((abs(int(numbers.min())), abs(int(numbers.max()))), default=0) if len(numbers) else 0


def per_record(program: Program, name: str) -> int:
    """How many numbers of a value belong to one record."""
    return math.prod(_of_one(each) for each in program.value(name).sizes)


def _of_one(size: Size) -> int:
    return size.records if isinstance(size, Records) else size


def most_places(program: Program) -> int:
    """The most rows of one product over records that belong to a record, over all uses of a trained tensor."""
    rows: dict[str, int] = {}
    for node in program.nodes:
        weight = node.arguments.get("weight")
        count = _ROWS.get(node.operation)
        if count is not None and isinstance(weight, Ref) and weight.value in program.tensors:
            rows[weight.value] = rows.get(weight.value, 0) + count(program, node)
    return max(rows.values(), default=1)


def _rows_of_linear(program: Program, node: Node) -> int:
    result = node.results[0]
    return per_record(program, result) // max(1, _of_one(program.values[result].sizes[-1]))


def _rows_of_convolution(program: Program, node: Node) -> int:
    result = node.results[0]
    return per_record(program, result) // max(1, _of_one(program.values[result].sizes[1]))


def _rows_of_ids(program: Program, node: Node) -> int:
    ids = node.arguments["indices"]
    return per_record(program, ids.value) if isinstance(ids, Ref) else 1


_ROWS: Mapping[str, Callable[[Program, Node], int]] = {
    "linear.default": _rows_of_linear,
    "conv1d.default": _rows_of_convolution,
    "conv2d.default": _rows_of_convolution,
    "embedding.default": _rows_of_ids,
}


def of_each_record(program: Program) -> set[str]:
    """The values of which each record has its own: what follows from records, or from a trained tensor, of which each
    record has a copy where no layer holds it."""
    sources = {name for name, each in program.tensors.items() if each.trained} | {program.input}
    names = {program.input}
    for node in program.nodes:
        if not sources.isdisjoint(names_in(node)):
            sources.update(node.results)
            names.update(node.results)
    return names & program.values.keys()


def pass_numbers(program: Program, names: Iterable[str]) -> int:
    """About how many numbers a pass holds for one record: results and their gradients, patches of convolutions, and
    tensors of which each record has a copy.

    Args:
        names: the values of which each record has its own.
    """
    numbers = sum(3 * per_record(program, name) for name in names)
    for node in program.nodes:
        taken = [each for each in node.arguments.values() if isinstance(each, Ref)]
        tensors = [program.tensors[each.value] for each in taken if each.value in program.tensors]
        sizes = [math.prod(each.sizes) for each in tensors if each.trained]
        if node.operation in ("conv1d.default", "conv2d.default") and sizes:
            numbers += sizes[0] + sizes[0] // max(1, tensors[0].sizes[0]) * _rows_of_convolution(program, node)
        elif node.operation not in _ROWS:
            numbers += 3 * sum(sizes)
    return max(1, numbers)
