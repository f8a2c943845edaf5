"""No branch on a private size: what chooses a type, a shape, a chunk or a path is public.

How many records, entries or bytes there are is private. A condition on such a number, in the folders that compute on
private records, would let one record more change how all others are computed.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("worker/data", "worker/training", "worker/clipping", "worker/metrics")
SIZES = {"numel", "nnz", "size", "nbytes", "element_size", "all", "any", "item", "count_nonzero"}
CHOOSERS = {"min", "max"}

# Where a size of private data is compared all the same, and why nothing follows from it.
ALLOWED = {
    "worker/data/parts.py: check": "stored parts against their own columns: a broken file ends the attempt",
    "worker/data/parts.py: _declared": "likewise",
    "worker/data/parts.py: _within": "likewise",
    "worker/data/units.py: __init__": "a user with more records than were charged for ends the attempt",
    "worker/data/passes.py: passes": "how many of a pass's rows are records: their weights, and nothing else",
    "worker/data/sequences.py: padded": "no item at all: what is picked is masked either way",
    "worker/training/loop.py: __init__": "more records than a data set may have end the attempt",
    "worker/training/self_test.py: random_parameters": "of random weights",
    "worker/metrics/scores.py: public_scores": "of public records",
    "worker/metrics/scores.py: _of_tokens": "of public records",
    "worker/metrics/scores.py: public_training_loss": "of public records",
}

# Sizes of models, of passes of P rows, and of lists of layers.
PUBLIC = {
    "worker/clipping/bookkeeping.py: _tap",
    "worker/clipping/opacus_layers.py: opacus_rule",
    "worker/clipping/rules.py: rule_of",
    "worker/clipping/scratch.py: empty",
    "worker/clipping/terms.py: _joined_outer",
    "worker/clipping/terms.py: _joined_rows",
    "worker/clipping/terms.py: of",
}


def conditions(function: ast.AST) -> Iterator[ast.expr]:
    """What decides in a function: tests, and what `min` and `max` choose from."""
    for node in ast.walk(function):
        if isinstance(node, ast.If | ast.While | ast.IfExp):
            yield node.test
        elif isinstance(node, ast.comprehension):
            yield from node.ifs
        elif isinstance(node, ast.BoolOp | ast.Compare) or (
            isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in CHOOSERS
        ):
            yield node


def asks_for_a_size(condition: ast.expr) -> bool:
    """Whether it reads a length, a first dimension, a number of entries, or the values themselves."""
    for node in ast.walk(condition):
        if isinstance(node, ast.Call):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if name in SIZES or name == "len":
                return True
        if isinstance(node, ast.Attribute) and node.attr in ("nnz", "nbytes"):
            return True
        first = isinstance(node, ast.Subscript) and isinstance(node.value, ast.Attribute) and node.value.attr == "shape"
        if first and isinstance(node.slice, ast.Constant) and node.slice.value == 0:  # type: ignore[attr-defined]
            return True
    return False


def branches(source: str, path: str) -> set[str]:
    tree = ast.parse(source)
    return {
        f"{path}: {function.name}"
        for function in ast.walk(tree)
        if isinstance(function, ast.FunctionDef) and any(asks_for_a_size(each) for each in conditions(function))
    }


def found() -> set[str]:
    return {
        each
        for folder in FOLDERS
        for path in sorted((ROOT / folder).glob("*.py"))
        for each in branches(path.read_text(), str(path.relative_to(ROOT)))
    }


def test_no_path_is_chosen_by_a_private_size() -> None:
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
