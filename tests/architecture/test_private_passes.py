"""No pass is cut, sized or packed by a private number: all rows of all passes are computed, and masked.

`test_private_sizes` reads conditions. Here are slices, ranges and new arrays whose size was counted, and indices by the
rows that hold a record, in the modules that put private records into rows and compute on them.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.architecture.test_private_sizes import FOLDERS, ROOT, asks_for_a_size, taints

MODULES = (
    "worker/data/secret_slots.py",
    "worker/data/passes.py",
    "worker/data/placed.py",
    "worker/training/batches.py",
    "worker/training/loop.py",
    "worker/training/steps.py",
    "worker/training/best.py",
    "worker/attempt/selecting.py",
    "scrimp/engine",
    "worker/metrics",
    "worker/models/graph_module.py",
    "worker/models/graph_network.py",
    "worker/statistics",
    "worker/clipping",
)
COUNTERS = {"len", "searchsorted", "flatnonzero", "nonzero", "argwhere", "count_nonzero", "unique", "bincount"}
PACKERS = {"flatnonzero", "nonzero", "argwhere", "masked_select", "compress", "only", "unique"}
MAKERS = {"range", "arange", "full", "zeros", "ones", "empty", "new_full", "new_zeros", "new_ones", "new_empty"}
MAKERS |= {"narrow", "split", "tensor_split", "chunk", "islice", "resize_"}

# Where a counted number cuts or sizes something all the same, and why no pass follows from it.
ALLOWED = {
    "worker/data/secret_slots.py: __getitem__": "which rows are occupied: a slice has as many rows as it was asked for",
    "worker/data/secret_slots.py: injected": "likewise: the rows are public",
    "worker/data/passes.py: passes": "of public records: all of them in their order",
    "worker/data/passes.py: passes_of": "rows, empty ones included",
    "worker/data/passes.py: padded": "likewise",
    "worker/data/passes.py: gathered_array": "likewise",
    "worker/data/passes.py: taken": "likewise",
    "worker/training/batches.py: _draw": "the draw, before it is put into rows",
    "scrimp/engine/draws.py: rows": "likewise, of scrimp.engine",
    "worker/training/batches.py: whole": "of public records",
    "worker/metrics/scores.py: _private_sums": "groups of classes, and the rows of a pass",
    "worker/metrics/confusion.py: confusion_scores": "the number of classes",
    "worker/metrics/scores.py: _sums_by_rank": "groups of tokens",
    "worker/statistics/sums_release.py: rehearse": "of no records: one row for each slot",
    "worker/statistics/frequent_values.py: counted": "one row for each slot, and as many places to count in",
    "worker/statistics/slot_columns.py: fill": "what it holds and reads is together one row for each slot",
    "worker/clipping/residuals.py: clipped_residuals": "the rows of a pass",
    "worker/clipping/rating_clipping.py: _divided_inputs": "likewise",
    "worker/clipping/linear_clipping.py: numbers": "likewise",
    "worker/clipping/linear_clipping.py: trace": "likewise",
    "worker/clipping/engine.py: traced": "likewise",
    "worker/clipping/rules.py: _convolution": "likewise",
    "worker/clipping/rules.py: _standardized_conv2d": "likewise",
    "worker/clipping/terms.py: dense_onto": "likewise",
    "worker/clipping/terms.py: formed": "likewise",
    "worker/clipping/terms.py: add_to": "the widths of a layer",
    "worker/clipping/totals.py: add_products": "groups of these rows",
    "worker/clipping/totals.py: products_of_groups": "likewise",
    "worker/clipping/accumulators.py: _add_formed": "likewise",
    "worker/clipping/accumulators.py: _cut": "likewise",
}
# What keeps the rows of records alone: of public records.
PACKED = {
    "worker/data/passes.py: only": "what the others call",
    "worker/training/planted.py: _losses": "of canaries",
    "worker/training/self_test.py: _numbers": "of random records",
    "worker/metrics/scores.py: public_scores": "of public records",
    "worker/metrics/scores.py: _of_each": "of public records",
    "worker/clipping/engine.py: traced": "of random records",
    "worker/models/base.py: forward": "of public records, or of one's own",
    "worker/models/hf/hf_model.py: token_scores": "likewise",
    "worker/models/next_item.py: next_scores": "likewise",
}


def _name(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")


def _calls(node: ast.AST, names: set[str]) -> bool:
    return any(isinstance(each, ast.Call) and _name(each) in names for each in ast.walk(node))


def _masks(function: ast.AST) -> set[str]:
    """The names that were assigned from `present`, or from such a name."""
    known, before = set[str](), -1
    while len(known) > before:
        before = len(known)
        known |= {
            ast.unparse(target)
            for target, value in _assigned(function)
            if isinstance(target, ast.Name | ast.Attribute) and _reads(value, known)
        }
    return known


def _assigned(function: ast.AST) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Targets and values, one by one where both are tuples."""
    for node in ast.walk(function):
        if not isinstance(node, ast.Assign | ast.AnnAssign | ast.NamedExpr) or node.value is None:
            continue
        for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
            if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                yield from zip(target.elts, node.value.elts, strict=False)
            else:
                yield from ((each, node.value) for each in _parts(target))


def _parts(target: ast.expr) -> list[ast.expr]:
    return target.elts if isinstance(target, ast.Tuple) else [target]


def _reads(node: ast.AST, masks: set[str]) -> bool:
    return any(
        isinstance(each, ast.Name | ast.Attribute)
        and ((isinstance(each, ast.Attribute) and each.attr == "present") or ast.unparse(each) in masks)
        for each in ast.walk(node)
    )


def cuts(function: ast.AST) -> bool:
    """Whether a slice, a range or a new array takes a number that was counted."""
    counted = taints(function, {ast.unparse(each) for each in _counted(function)})
    for node in ast.walk(function):
        sizes: list[ast.expr | None] = []
        if isinstance(node, ast.Slice):
            sizes = [node.lower, node.upper, node.step]
        elif isinstance(node, ast.Call) and _name(node) in MAKERS:
            sizes = [*node.args, *(each.value for each in node.keywords)]
        if any(each is not None and (asks_for_a_size(each, counted) or _calls(each, COUNTERS)) for each in sizes):
            return True
    return False


def _counted(function: ast.AST) -> Iterator[ast.expr]:
    """What is assigned from a counter, or from a method of what it returns."""
    for target, value in _assigned(function):
        inner = value.func.value if isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute) else None
        if any(isinstance(each, ast.Call) and _name(each) in COUNTERS for each in (value, inner)):
            yield target


def packs(function: ast.AST) -> bool:
    """Whether rows are left out by what they hold: by a boolean index, or by a list of those that hold a record."""
    masks = _masks(function)
    for node in ast.walk(function):
        if isinstance(node, ast.Subscript) and not isinstance(node.slice, ast.Slice):
            index = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
            if any(_reads(each, masks) for each in index):
                return True
        elif isinstance(node, ast.Call) and _name(node) in PACKERS:
            mine = [*node.args, *([node.func.value] if isinstance(node.func, ast.Attribute) else [])]
            if _name(node) == "only" or any(_reads(each, masks) for each in mine):
                return True
    return False


def functions(source: str, path: str) -> Iterator[tuple[str, ast.AST]]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield f"{path}: {node.name}", node


@cache
def read(folders: tuple[str, ...]) -> list[tuple[str, ast.AST]]:
    paths = [path for each in folders for path in ([ROOT / each] if each.endswith(".py") else _modules(ROOT / each))]
    return [function for path in paths for function in functions(path.read_text(), str(path.relative_to(ROOT)))]


def _modules(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.py"))


def test_no_pass_is_cut_or_sized_by_a_private_number() -> None:
    """Claim: no pass is cut, sized or packed by a private number
    Now: one mask, read from the code
    """
    assert {name for name, function in read(MODULES) if cuts(function)} == set(ALLOWED)


def test_no_pass_is_packed() -> None:
    assert {name for name, function in read(FOLDERS) if packs(function)} == set(PACKED)


CUT = {
    "a prefix": "n = len(drawn)\n    return records[:n]",
    "a prefix of rows": "n = int(np.count_nonzero(of.present))\n    return outputs[:, :n]",
    "rows up to the last record": "last = np.searchsorted(drawn, most)\n    return rows[: last + 1]",
    "one of two counts": "inside, there = np.searchsorted(drawn, [a, b])\n    return rows[:there]",
    "as many passes as records need": "for at in range(0, len(records), 48):\n        yield at",
    "an array as large as the draw": "return np.full(len(drawn), -1)",
    "a list of as many": "count = np.flatnonzero(rows).tolist()\n    return values.narrow(0, 0, count)",
}
PACK = {
    "a boolean index": "return outputs[of.present]",
    "a boolean index by name": "there = of.present.cpu()\n    return losses[there]",
    "of columns": "present = of.present\n    return outputs[:, present]",
    "a list of rows": "return losses[np.flatnonzero(of.present)]",
    "selected": "return torch.masked_select(losses, of.present)",
    "only": "return of.only(losses)",
}
RIGHT = {
    "a select": "return torch.where(of.present[:, None], cells, 0).sum(dim=0)",
    "weights": "return (of.weights * losses).sum()",
    "public rows": "return [records.piece(places[at : at + rows]) for at in range(0, most, rows)]",
    "a group": "return values[of_class[labels]]",
}


@pytest.mark.parametrize("name", CUT)
def test_a_cut_is_found(name: str) -> None:
    assert any(cuts(function) for _, function in functions(f"def f(x):\n    {CUT[name]}\n", "x"))


@pytest.mark.parametrize("name", PACK)
def test_packing_is_found(name: str) -> None:
    assert any(packs(function) for _, function in functions(f"def f(x):\n    {PACK[name]}\n", "x"))


@pytest.mark.parametrize("name", RIGHT)
def test_right_code_is_not(name: str) -> None:
    ((_, function),) = functions(f"def f(x):\n    {RIGHT[name]}\n", "x")
    assert not cuts(function) and not packs(function)
