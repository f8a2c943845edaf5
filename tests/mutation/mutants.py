"""Small faults of a module, one at a time: what a slip of the hand could have written instead.

A mutant is a place in the module's syntax tree and what stands there instead: a comparison with its bound moved or
turned round, other arithmetic, a constant one larger or smaller, a condition without one of its halves, a statement
that is not there, a `return` that returns nothing. Texts, types, imports and what an error says are left alone.
"""

from __future__ import annotations

import ast
import copy
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

COMPARISONS: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Lt: (ast.LtE, ast.GtE),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
}
ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult,
    ast.Pow: ast.Mult,
    ast.BitOr: ast.BitAnd,
    ast.BitAnd: ast.BitOr,
}
NAMES = {"min": "max", "max": "min", "any": "all", "all": "any", "ceil": "floor", "floor": "ceil"}
# Fields of a node that hold no behaviour, or what the module says and not what it does.
LEFT_ALONE = {"annotation", "returns", "decorator_list", "bases", "type_comment", "ctx"}
COMPOUND = (ast.If, ast.For, ast.While, ast.With, ast.Try, ast.FunctionDef, ast.ClassDef, ast.Match)
Put = Callable[[ast.AST], None]


@dataclass(frozen=True)
class Mutant:
    """One fault.

    Attributes:
        module: the file's path in the repository.
        number: which of the module's mutants, from 0 in the order of the text.
        function: the outermost function that it is in, or "" for what runs when the module is imported.
        begins: the function's first line, as its code object has it.
        lines: the first and last line of the statement, or of the head of one that holds others.
        what: the text before and after.
        which: 1, or more where the function has the same fault again.
    """

    module: str
    number: int
    function: str
    begins: int
    lines: tuple[int, int]
    what: str
    which: int = 1

    @property
    def name(self) -> str:
        """Names the fault also after lines have moved."""
        again = f" #{self.which}" if self.which > 1 else ""
        return f"{self.module} {self.function or '(import)'}: {self.what}{again}"


@dataclass
class _Where:
    """The surroundings of a node on the way down."""

    classes: tuple[str, ...] = ()
    function: str = ""
    begins: int = 0
    lines: tuple[int, int] = (0, 0)


def of_module(path: str, source: str) -> list[Mutant]:
    """All mutants of a module."""
    return [mutant for mutant, _ in _sites(path, ast.parse(source))]


def mutated(mutant: Mutant, source: str) -> ast.Module:
    """The module's tree with this fault in it, its line numbers unchanged."""
    tree = ast.parse(source)
    for each, change in _sites(mutant.module, tree):
        if each.number == mutant.number:
            if each != mutant:
                break
            change()
            return ast.fix_missing_locations(tree)
    raise LookupError(f"{mutant.name}: the module has changed")


def _sites(path: str, tree: ast.Module) -> Iterator[tuple[Mutant, Callable[[], None]]]:
    number, seen = 0, Counter[tuple[str, str]]()
    for node, put, where in list(_walk(tree, _Where())):
        for new in _instead(node):
            what = f"{_shown(node)} → {_shown(new)}"
            seen[where.function, what] += 1
            which = seen[where.function, what]
            mutant = Mutant(path, number, where.function, where.begins, where.lines, what, which)
            yield mutant, partial(put, ast.copy_location(new, node))
            number += 1


def _walk(parent: ast.AST, where: _Where) -> Iterator[tuple[ast.AST, Put, _Where]]:
    """Each node below with what puts another in its place."""
    for field, value in ast.iter_fields(parent):
        if field in LEFT_ALONE or (isinstance(parent, ast.ClassDef) and field == "keywords"):
            continue
        for place, child in enumerate(value if isinstance(value, list) else [value]):
            if isinstance(child, ast.AST) and not _says_only(child):
                # A default is computed where the function is defined.
                outside = field == "args" and 0 < _begins(parent) == where.begins
                inside = _Where(where.classes, lines=where.lines) if outside else _below(child, where)
                yield child, _putter(parent, field, place if isinstance(value, list) else None), inside
                if not isinstance(child, ast.Raise):
                    yield from _walk(child, inside)


def _says_only(node: ast.AST) -> bool:
    if isinstance(node, ast.Expr):
        return isinstance(node.value, ast.Constant)
    if isinstance(node, ast.If):
        return isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
    return isinstance(node, (ast.JoinedStr, ast.Import, ast.ImportFrom, ast.alias, ast.Global, ast.Nonlocal))


def _below(node: ast.AST, where: _Where) -> _Where:
    if not isinstance(node, ast.stmt):
        return where
    lines = (node.lineno, node.end_lineno or node.lineno)
    if isinstance(node, COMPOUND):
        head = getattr(node, "test", None) or getattr(node, "iter", None) or node
        lines = (node.lineno, (head.end_lineno or node.lineno) if head is not node else node.lineno)
    if isinstance(node, ast.ClassDef) and not where.function:
        return _Where((*where.classes, node.name), "", 0, lines)
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and not where.function:
        return _Where(where.classes, ".".join((*where.classes, node.name)), _begins(node), lines)
    return _Where(where.classes, where.function, where.begins, lines)


def _begins(node: ast.AST) -> int:
    """The line of a function's first decorator, or its own: 0 of anything else."""
    if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        return 0
    return min([node.lineno, *(each.lineno for each in node.decorator_list)])


def _putter(parent: ast.AST, field: str, place: int | None) -> Put:
    def put(new: ast.AST) -> None:
        if place is None:
            setattr(parent, field, new)
        else:
            getattr(parent, field)[place] = new

    return put


def _instead(node: ast.AST) -> Iterator[ast.AST]:
    """What may stand there instead."""
    if isinstance(node, ast.expr):
        yield from _other_value(node)
    elif isinstance(node, (ast.Raise, ast.Continue, ast.Break)) or _acts(node):
        yield ast.Pass()
    elif isinstance(node, ast.Return) and node.value is not None and not _is_none(node.value):
        yield ast.Return(ast.Constant(None))
    elif isinstance(node, ast.AugAssign) and type(node.op) in ARITHMETIC:
        yield _with(node, op=ARITHMETIC[type(node.op)]())
        yield ast.Pass()
    elif isinstance(node, (ast.If, ast.While)) and not isinstance(node.test, (ast.Compare, ast.UnaryOp)):
        yield _with(node, test=ast.UnaryOp(ast.Not(), node.test))


def _acts(node: ast.AST) -> bool:
    """A statement that is there for its effect alone."""
    if isinstance(node, ast.Assign):
        return all(isinstance(each, (ast.Attribute, ast.Subscript)) for each in node.targets)
    return isinstance(node, (ast.Expr, ast.Delete))


def _other_value(node: ast.expr) -> Iterator[ast.expr]:
    if isinstance(node, ast.Compare):
        for place, each in enumerate(node.ops):
            for other in COMPARISONS[type(each)]:
                yield _with(node, ops=[*node.ops[:place], other(), *node.ops[place + 1 :]])
    elif isinstance(node, ast.BoolOp):
        yield _with(node, op=ast.Or() if isinstance(node.op, ast.And) else ast.And())
        for place in range(len(node.values)):
            rest = [*node.values[:place], *node.values[place + 1 :]]
            yield rest[0] if len(rest) == 1 else _with(node, values=rest)
    elif isinstance(node, ast.BinOp) and type(node.op) in ARITHMETIC:
        yield _with(node, op=ARITHMETIC[type(node.op)]())
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.Not, ast.USub)):
        yield node.operand
    elif isinstance(node, ast.IfExp):
        yield node.body
        yield node.orelse
    elif isinstance(node, ast.Constant):
        yield from _other_constant(node.value)
    elif isinstance(node, ast.Name) and node.id in NAMES:
        yield _with(node, id=NAMES[node.id])
    elif isinstance(node, ast.Attribute) and node.attr in NAMES:
        yield _with(node, attr=NAMES[node.attr])


def _other_constant(value: Any) -> Iterator[ast.expr]:
    if isinstance(value, bool):
        yield ast.Constant(not value)
    elif isinstance(value, int) or (isinstance(value, float) and value.is_integer()):
        yield ast.Constant(value + 1)
        yield ast.Constant(value - 1) if value >= 1 else ast.UnaryOp(ast.USub(), ast.Constant(type(value)(1)))
    elif isinstance(value, float):
        yield ast.Constant(value * 2)
        yield ast.Constant(value / 2)


def _with(node: Any, **fields: Any) -> Any:
    """The node with other fields; what it holds is shared, as only one mutant of a tree is ever made."""
    new = copy.copy(node)
    for name, value in fields.items():
        setattr(new, name, value)
    return new


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def _shown(node: ast.AST) -> str:
    """One line of it; of a statement that holds others, its head."""
    if isinstance(node, (ast.If, ast.While)):
        return f"{type(node).__name__.lower()} {ast.unparse(node.test)}"[:100]
    return " ".join(ast.unparse(node).split())[:100]
