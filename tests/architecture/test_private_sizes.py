"""No branch on a private size: what chooses a type, a shape, a chunk or a path is public.

How many records, entries or bytes there are is private. A condition on such a number, in the folders that compute on
private records, would let one record more change how all others are computed. A name that was assigned from a size
(`rows = len(x)`, `n, d = x.shape`) is one too, and so is what was computed from it.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("worker/data", "worker/training", "worker/clipping", "worker/metrics", "worker/models", "worker/statistics")
SIZES = {"numel", "nnz", "size", "nbytes", "element_size", "all", "any", "item", "count_nonzero"}
ATTRIBUTES = {"nnz", "nbytes", "present"}  # `present`: of a pass, which of its rows are records
VALUES = {"all", "any", "item"}  # of tensors: a condition may not ask for them, but what they are is no size
ARITHMETIC = {"int", "float", "bool", "abs", "round", "sum", "min", "max", "divmod", "ceil", "floor", "gcd", "isqrt"}
CHOOSERS = {"min", "max"}

# Where a size of private data is compared all the same, and why nothing follows from it.
ALLOWED = {
    "worker/data/loaded_parts.py: check": "stored parts against their own columns: a broken file ends the attempt",
    "worker/data/loaded_parts.py: _declared": "likewise",
    "worker/data/loaded_parts.py: _within": "likewise",
    "worker/data/loaded_parts.py: _slots_of": "likewise",
    "worker/data/records.py: even": "likewise",
    "worker/data/record_units.py: __init__": "a user with more records than were charged for ends the attempt",
    "worker/data/passes.py: taken": "no record at all: what is read for empty rows is masked either way",
    "worker/data/passes.py: gathered_array": "likewise",
    "worker/data/secret_slots.py: injected": "more drawn records than rows: as the price says, a "
    "uniform part of them stays",
    "worker/training/batches.py: _in_rows": "likewise",
    "worker/training/batches.py: _injection": "how a part is stored follows from declared sizes",
    "worker/data/sequence_records.py: padded": "no item at all: what is picked is masked either way",
    "worker/training/batches.py: __init__": "more records than a data set may have end the attempt",
    "worker/training/batches.py: whole": "likewise",
    "worker/data/secret_slots.py: joined_slots": "likewise",
    "worker/models/hf/tokens.py: answered": "of one record alone: what is read of it is its own",
    "worker/models/hf/tokens.py: _ended": "likewise",
    "worker/models/hf/tokens.py: followed": "likewise",
    "worker/training/operations.py: name_of": "types and layouts, of random records",
    "worker/training/operations.py: _reduces_all": "a parameter that is named `all`",
    "worker/training/self_test.py: random_parameters": "of random weights",
    "worker/training/self_test.py: same": "of random records",
    "worker/training/self_test.py: extractor_failures": "of random records",
    "worker/training/planted.py: left": "of canaries, which are public, under released parameters",
    "worker/training/planted.py: _losses": "likewise",
    "worker/metrics/scores.py: public_scores": "of public records",
    "worker/metrics/scores.py: _of_tokens": "of public records",
    "worker/metrics/scores.py: public_training_loss": "of public records",
    "worker/statistics/sums_release.py: private_sums": "more records than a data set may have end the attempt",
    "worker/statistics/sums_release.py: cells": "no record at all: what is read for empty rows is masked either way",
    "worker/statistics/slot_columns.py: fill": "likewise",
    "worker/statistics/slot_columns.py: check_users": "a user with more records than the noise covers ends the attempt",
    "worker/statistics/sums_release.py: release": "a sum beyond its public bound, which no records "
    "reach, ends the attempt",
}

# Sizes of models, of passes of P rows, of lists of layers, parts and declared columns.
PUBLIC = {
    "worker/clipping/bookkeeping.py: _tap",
    "worker/clipping/bookkeeping.py: add_clipped",
    "worker/clipping/factors.py: _compiled",
    "worker/clipping/totals.py: add_formed",
    "worker/clipping/methods.py: kept_bytes",
    "worker/clipping/accumulators.py: _rows",
    "worker/clipping/accumulators.py: bounded",
    "worker/clipping/accumulators.py: _joined",
    "worker/clipping/gpu_check.py: require_same",
    "worker/clipping/bookkeeping.py: _attach",
    "worker/clipping/own.py: called",
    "worker/clipping/residuals.py: _clipped",
    "worker/clipping/rules.py: _learned_positions",
    "worker/clipping/rules.py: rule_of",
    "worker/clipping/scratch.py: empty",
    "worker/clipping/terms.py: _joined_outer",
    "worker/clipping/terms.py: _joined_rows",
    "worker/clipping/terms.py: take",
    "worker/clipping/totals.py: _require_factors",
    "worker/clipping/totals.py: _require_sizes",
    "worker/clipping/totals.py: products_of_groups",
    "worker/data/flat.py: spanning",
    "worker/data/joined.py: join",
    "worker/data/passes.py: padded",
    "worker/data/passes.py: passes_of",
    "worker/data/records.py: _torch_csr",
    "worker/data/records.py: adjoint",
    "worker/metrics/confusion.py: confusion_scores",
    "worker/training/plan.py: _weighted",
    "worker/models/card.py: _learned",
    "worker/models/graph_module.py: _each",
    "worker/models/graph_module.py: _layer",
    "worker/models/graph_module.py: _is_apart",
    "worker/models/hf/images.py: _numbers",
    "worker/models/hf/hf_loading.py: remembers",
    "worker/models/hf/root_mean_square.py: plain_norms",
    "worker/models/hf/hf_model.py: outputs",
    "worker/models/item_loss.py: _scores",
    "worker/models/item_loss.py: forward",
    "worker/models/recommenders.py: forward",
    "worker/statistics/build.py: _in_this_folder",
    "worker/statistics/build.py: statistics_of",
    "worker/training/write_ahead.py: _check_fresh",
    "worker/training/write_ahead.py: _check_segments",
    "worker/models/snippet.py: _record",
    "worker/statistics/synthetic_files.py: _array",  # of rows that follow from released numbers
}


def conditions(function: ast.AST) -> Iterator[ast.expr]:
    """What decides in a function: tests, and what `min` and `max` choose from."""
    for node in ast.walk(function):
        if isinstance(node, ast.If | ast.While | ast.IfExp | ast.Assert):
            yield node.test
        elif isinstance(node, ast.Match):
            yield node.subject
        elif isinstance(node, ast.match_case) and node.guard is not None:
            yield node.guard
        elif isinstance(node, ast.comprehension):
            yield from node.ifs
        elif isinstance(node, ast.BoolOp | ast.Compare) or (
            isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in CHOOSERS
        ):
            yield node


def is_a_size(node: ast.AST) -> bool:
    """Whether this node by itself reads a length, a first dimension, a number of entries, or the values themselves."""
    if isinstance(node, ast.Call):
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        return name in SIZES or name == "len"
    if isinstance(node, ast.Attribute):
        return node.attr in ATTRIBUTES
    return isinstance(node, ast.Subscript) and _is_shape(node.value) and _first(node.slice)


def _is_shape(node: ast.AST) -> bool:
    return isinstance(node, ast.Attribute) and node.attr == "shape"


def _first(index: ast.expr) -> bool:
    """0, or a slice that begins there."""
    if isinstance(index, ast.Slice):
        return index.lower is None or (isinstance(index.lower, ast.Constant) and index.lower.value == 0)
    return isinstance(index, ast.Constant) and index.value == 0


def asks_for_a_size(condition: ast.expr, tainted: set[str]) -> bool:
    """Whether it reads a size, or a name that holds one."""
    called = {id(node.func) for node in ast.walk(condition) if isinstance(node, ast.Call)}
    return any(
        (is_a_size(node) and id(node) not in called)
        or (isinstance(node, ast.Name | ast.Attribute) and ast.unparse(node) in tainted)
        for node in ast.walk(condition)
    )


def holds_a_size(value: ast.expr, tainted: set[str]) -> bool:
    """Whether an assigned value is a size, or arithmetic with one. A slice by a size is a tensor, and is none."""
    if isinstance(value, ast.Name | ast.Attribute) and ast.unparse(value) in tainted:
        return True
    if is_a_size(value):
        return not (isinstance(value, ast.Call) and _name(value) in VALUES)
    match value:
        case ast.BinOp(left=left, right=right):
            parts = [left, right]
        case ast.UnaryOp(operand=part) | ast.NamedExpr(value=part):
            parts = [part]
        case ast.IfExp(test=test, body=body, orelse=other):
            parts = [test, body, other]
        case ast.BoolOp(values=parts):
            pass
        case ast.Compare(left=left, comparators=others):
            parts = [left, *others]
        case ast.Call(func=ast.Attribute(value=summand), args=parts) if _name(value) in ARITHMETIC:
            parts = [summand, *parts]
        case ast.Call(args=parts) if _name(value) in ARITHMETIC:
            pass
        case _:
            return False
    return any(holds_a_size(each, tainted) for each in parts)


def _name(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")


def assigned(scope: ast.AST) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Targets and what is assigned to them; of `n, d = x.shape` the first alone, as x.shape[0]."""
    for node in ast.walk(scope):
        if isinstance(node, ast.Assign):
            for target in node.targets:
                yield from _unpacked(target, node.value)
        elif isinstance(node, ast.AnnAssign | ast.AugAssign | ast.NamedExpr) and node.value is not None:
            yield node.target, node.value


def _unpacked(target: ast.expr, value: ast.expr) -> Iterator[tuple[ast.expr, ast.expr]]:
    if not isinstance(target, ast.Tuple | ast.List):
        yield target, value
    elif isinstance(value, ast.Tuple | ast.List) and len(value.elts) == len(target.elts):
        for one, part in zip(target.elts, value.elts, strict=True):
            yield from _unpacked(one, part)
    elif _is_shape(value) or (isinstance(value, ast.Call) and _name(value) == "size"):
        first = ast.Subscript(ast.Attribute(ast.Name("x"), "shape"), ast.Constant(0))
        yield target.elts[0], first


def taints(scope: ast.AST, inherited: set[str]) -> set[str]:
    """The names that hold sizes in a function, or a class; whatever the order of its lines."""
    known, before = set(inherited), -1
    while len(known) > before:
        before = len(known)
        known |= {
            ast.unparse(target)
            for target, value in assigned(scope)
            if isinstance(target, ast.Name | ast.Attribute) and holds_a_size(value, known)
        }
    return known


def branches(source: str, path: str) -> set[str]:
    """The functions that branch on a size, `path: name`; lambdas outside of functions by `<lambda>`."""
    return set(_branches(ast.parse(source), path, set()))


def _branches(scope: ast.AST, path: str, tainted: set[str]) -> Iterator[str]:
    for node in ast.iter_child_nodes(scope):
        if isinstance(node, ast.ClassDef):
            own = {each for each in taints(node, tainted) if each.startswith("self.")}
            yield from _branches(node, path, tainted | own)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            known = taints(node, tainted)
            if any(asks_for_a_size(each, known) for each in conditions(node)):
                yield f"{path}: {getattr(node, 'name', '<lambda>')}"
            yield from _branches(node, path, known)
        else:
            yield from _branches(node, path, tainted)


@cache
def found() -> set[str]:
    return {
        each
        for folder in FOLDERS
        for path in sorted((ROOT / folder).rglob("*.py"))
        for each in branches(path.read_text(), str(path.relative_to(ROOT)))
    }


def test_no_path_is_chosen_by_a_private_size() -> None:
    """Claim: the private count chooses nothing
    Now: no branch on a private size
    """
    assert found() - set(ALLOWED) - PUBLIC == set()


def test_what_is_allowed_is_still_there() -> None:
    assert (set(ALLOWED) | PUBLIC) - found() == set()


def test_the_check_sees_what_was_there_before() -> None:
    """Three of the branches by which one record more changed how others were computed."""
    before = """
def index(matrix):
    return np.int32 if max(matrix.nnz, *matrix.shape) < 2**31 else np.int64
def widened(features):
    return features.double() if features.numel() * 8 <= DOUBLE_BYTES else features
def added(used, chunk):
    if not bool(used.all()):
        chunk = chunk.take(used)
"""
    assert branches(before, "x") == {"x: index", "x: widened", "x: added"}


WRONG = {
    "a length by name": "rows = len(x)\n    return x.double() if rows < 100 else x",
    "a first dimension by name": "n = x.shape[0]\n    if n % 4:\n        return x.double()",
    "an unpacked shape": "n, d = x.shape\n    return x if n > 3 else x.double()",
    "an unpacked size": "n, *rest = x.size()\n    return x if n > 3 else x.double()",
    "both at once": "d, n = x.shape[1], x.shape[0]\n    return x if n > 3 else x.double()",
    "a number of numbers": "size = x.numel() * 8\n    while size > 2**20:\n        size //= 2",
    "size(0)": "n = x.size(0)\n    return x[: min(n, 7)]",
    "by way of another name": "half = len(x) // 2 + 1\n    wide = half > 9\n    return x.double() if wide else x",
    "declared": "n: int = len(x)\n    return x.double() if n > 9 else x",
    "added up": "total = 0\n    for part in x:\n        total += len(part)\n    return x.double() if total > 9 else x",
    "a walrus": "return x.double() if (n := len(x)) and n > 9 else x",
    "which rows of a pass are records": "used = x.present\n    return x.records if used.all() else x.records[used]",
    "how many they are": "used = x.present.sum()\n    return x.records if used < 48 else x.records.double()",
    "entries": "return np.int32 if x.nnz < 2**31 else np.int64",
    "a lambda": "return map(lambda each: each.double() if len(each) > 9 else each, x)",
    "a name from outside": "n = len(x)\n    def inner(y):\n        return y.double() if n > 9 else y\n    return inner",
    "a match": "match len(x):\n        case 1:\n            return x.double()",
    "an assertion": "n = len(x)\n    assert n > 3",
    "a comprehension": "n = len(x)\n    return [each for each in x if n > 9]",
    "a slice of the shape": "lead = x.shape[:1]\n    return x.double() if lead == (1,) else x",
}
RIGHT = {
    "features": "n, d = x.shape\n    return x.double() if d < 100 else x",
    "a last dimension": "return x.double() if x.shape[-1] == 1 else x",
    "slices by a length": "n = len(x)\n    part = y[:n]\n    return part if part is not None else x",
    "as many passes as there are": "return [each for at in range(0, len(x), 48) for each in x[at : at + 48]]",
    "a list's count": "return y.count('a') if y else x",
    "elementwise": "return torch.where(x > 0.0, x, 0.0)",
    "another function's": "return x.double() if limit > 9 else x",
}


@pytest.mark.every_case
@pytest.mark.parametrize("name", WRONG)
@pytest.mark.parametrize("header", ["def f(x, y):", "async def f(x, y):"])
def test_wrong_code_is_found(name: str, header: str) -> None:
    assert "x: f" in branches(f"{header}\n    {WRONG[name]}\n", "x")


def test_attributes_and_lambdas_of_a_module_are_found() -> None:
    kept = """
class Batch:
    def __init__(self, x):
        self._rows = len(x)
    def widened(self, x):
        return x.double() if self._rows < 100 else x
widened = lambda x: x.double() if len(x) < 100 else x
"""
    assert branches(kept, "x") == {"x: widened", "x: <lambda>"}


@pytest.mark.parametrize("name", RIGHT)
def test_right_code_is_not(name: str) -> None:
    assert branches(f"def f(x, y):\n    {RIGHT[name]}\n", "x") == set()


def test_all_folders_are_read() -> None:
    """Those inside of others too."""
    paths = {each.partition(":")[0] for each in found()}
    assert {"worker/models/hf/tokens.py", "worker/metrics/scores.py"} <= paths
