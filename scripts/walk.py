"""Follows a parameter from a function through all calls that pass it on: stays, files, returns.

    python -m scripts.import_graph --follow app.jobs.routes:submit:spec
    python -m scripts.import_graph --follow app.jobs.routes:submit:spec --parts

The parameter is followed by its class: into each function of the package that takes an object of this class, or of one
that holds such an object in a field; with `--parts` also into those that take a part of it. Calls are read in the order
in which the code is written, and each function's body once. A *stay* is a run of functions in one file; a *return* is a
stay in a file that was left before, so stays = files + returns. Calls that no annotation resolves are not followed.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Named:
    """A function, method or class: its module, its class if it is a method, and its name."""

    module: str
    name: str
    holder: str | None = None


@dataclass
class Module:
    """What a file defines and imports."""

    functions: dict[str, Function] = field(default_factory=dict)
    classes: dict[str, ast.ClassDef] = field(default_factory=dict)
    aliases: dict[str, ast.expr] = field(default_factory=dict)  # Optimizer = A | B
    imports: dict[str, tuple[str, str | None]] = field(default_factory=dict)


@dataclass(frozen=True)
class Walk:
    """The functions that were entered, in order."""

    entered: tuple[Named, ...]

    @property
    def stays(self) -> list[str]:
        """The files, one for each stay."""
        files = [each.module for each in self.entered]
        return [file for place, file in enumerate(files) if place == 0 or files[place - 1] != file]

    @property
    def files(self) -> set[str]:
        """The files that were entered."""
        return set(self.stays)

    @property
    def returns(self) -> int:
        """How many stays are in a file that was left before."""
        return len(self.stays) - len(self.files)

    def told(self) -> str:
        """The stays with the functions in each, and the sum."""
        lines, last = [], ""
        for each in self.entered:
            if each.module != last:
                lines.append(f"{each.module}:")
            last = each.module
            lines[-1] += f" {each.holder}.{each.name}" if each.holder else f" {each.name}"
        return "\n".join([*lines, str(self)])

    def __str__(self) -> str:
        return f"{len(self.stays)} stays in {len(self.files)} files with {self.returns} returns"


class Program:
    """The sources of some packages.

    Args:
        root: the folder of the packages.
        packages: their names.
    """

    def __init__(self, root: Path, packages: tuple[str, ...]) -> None:
        self._modules: dict[str, Module] = {}
        for package in packages:
            for path in sorted((root / package).rglob("*.py")):
                name = ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__")
                self._modules[name] = _read(ast.parse(path.read_text()))

    def follow(self, module: str, function: str, parameter: str, *, parts: bool = False) -> Walk:
        """Walks from a function with a parameter."""
        entry = self._modules[module].functions[function]
        (annotation,) = (each.annotation for each in _arguments(entry) if each.arg == parameter)
        start = self._types(module, annotation)
        followed = start | self._holders(start)
        if parts:
            followed |= {each for one in start for each in self._parts(one)}
        walk = _Walk(self, frozenset(followed))
        walk.enter(Named(module, function))
        return Walk(tuple(walk.entered))

    def resolved(self, module: str, name: str) -> Named | None:
        """What a name means in a module."""
        for _ in range(9):
            at = self._modules.get(module)
            if at is None:
                return None
            if name in at.functions or name in at.classes or name in at.aliases:
                return Named(module, name)
            if name not in at.imports:
                return None
            module, imported = at.imports[name]
            if imported is None:
                return Named(module, "")
            if f"{module}.{imported}" in self._modules:
                return Named(f"{module}.{imported}", "")
            name = imported
        return None

    def definition(self, named: Named) -> Function | ast.ClassDef | None:
        """The code of a function or class."""
        module = self._modules[named.module]
        if named.holder is None:
            return module.functions.get(named.name) or module.classes.get(named.name)
        members = module.classes[named.holder].body
        return next((each for each in members if isinstance(each, Function) and each.name == named.name), None)

    def method(self, of: Named, name: str) -> Named | None:
        """A class's method, its own or a base's."""
        cls = self._modules[of.module].classes.get(of.name)
        if cls is None:
            return None
        found = Named(of.module, name, of.name)
        if self.definition(found) is not None:
            return found
        for base in cls.bases:
            for each in self._types(of.module, base):
                if (inherited := self.method(each, name)) is not None:
                    return inherited
        return None

    def types(self, module: str, annotation: ast.expr | None) -> frozenset[Named]:
        """The classes of the program that an annotation names."""
        return self._types(module, annotation)

    def field_types(self, of: Named, name: str) -> frozenset[Named]:
        """The classes of a field or property."""
        cls = self._modules[of.module].classes.get(of.name)
        for each in cls.body if cls is not None else ():
            if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name) and each.target.id == name:
                return self._types(of.module, each.annotation)
            if isinstance(each, Function) and each.name == name:
                return self._types(of.module, each.returns)
        bases = [each for base in (cls.bases if cls is not None else ()) for each in self._types(of.module, base)]
        return frozenset(found for base in bases for found in self.field_types(base, name))

    def _types(self, module: str, annotation: ast.expr | None) -> frozenset[Named]:
        if annotation is None:
            return frozenset()
        found: set[Named] = set()
        for node in ast.walk(annotation):
            named = None
            if isinstance(node, ast.Name):
                named = self.resolved(module, node.id)
            elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                outer = self.resolved(module, node.value.id)
                named = self.resolved(outer.module, node.attr) if outer is not None and not outer.name else None
            if named is None or not named.name:
                continue
            alias = self._modules[named.module].aliases.get(named.name)
            found |= {named} if alias is None else self._types(named.module, alias)
        return frozenset(each for each in found if each.name in self._modules[each.module].classes)

    def _fields(self, of: Named) -> Iterator[Named]:
        cls = self._modules[of.module].classes.get(of.name)
        for each in cls.body if cls is not None else ():
            if isinstance(each, ast.AnnAssign):
                yield from self._types(of.module, each.annotation)
        for base in cls.bases if cls is not None else ():
            for each in self._types(of.module, base):
                yield from self._fields(each)

    def _holders(self, held: frozenset[Named]) -> set[Named]:
        """The classes with a field that holds one of these, or another such class."""
        every = [Named(module, name) for module, each in self._modules.items() for name in each.classes]
        found: set[Named] = set()
        while new := {each for each in every if each not in found and (held | found) & set(self._fields(each))}:
            found |= new
        return found

    def _parts(self, of: Named) -> set[Named]:
        found: set[Named] = set()
        waiting = [of]
        while waiting:
            new = set(self._fields(waiting.pop())) - found
            found |= new
            waiting += new
        return found


class _Walk:
    def __init__(self, program: Program, followed: frozenset[Named]) -> None:
        self._program, self._followed, self.entered = program, followed, list[Named]()
        self._read: set[Named] = set()

    def enter(self, named: Named) -> None:
        """Enters a function, and what it calls unless it was read before."""
        self.entered.append(named)
        code = self._program.definition(named)
        if named in self._read or not isinstance(code, Function):
            return
        self._read.add(named)
        names = {each.arg: self._program.types(named.module, each.annotation) for each in _arguments(code)}
        if named.holder is not None and code.args.args:
            names[code.args.args[0].arg] = frozenset({Named(named.module, named.holder)})
        self._body(named.module, code.body, names)

    def _body(self, module: str, body: list[ast.stmt], names: dict[str, frozenset[Named]]) -> None:
        for statement in body:
            if isinstance(statement, Function):
                self._body(module, statement.body, names)  # a nested function is called where it is defined
                continue
            for node in _children(statement):
                self._expression(module, node, names)
            if isinstance(statement, ast.Assign):
                types = self._type(module, statement.value, names)
                for target in statement.targets:
                    self._bind(target, statement.value, types, names, module)
            if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
                names[statement.target.id] = self._program.types(module, statement.annotation)
            for inner in ("body", "orelse", "finalbody"):
                self._body(module, getattr(statement, inner, []), names)
            for case in [*getattr(statement, "handlers", []), *getattr(statement, "cases", [])]:
                self._body(module, case.body, names)

    def _bind(
        self,
        target: ast.expr,
        value: ast.expr,
        types: frozenset[Named],
        names: dict[str, frozenset[Named]],
        module: str,
    ) -> None:
        if isinstance(target, ast.Name):
            names[target.id] = types
        elif isinstance(target, ast.Tuple):
            pieces = value.elts if isinstance(value, ast.Tuple) and len(value.elts) == len(target.elts) else None
            for place, each in enumerate(target.elts):
                piece = self._type(module, pieces[place], names) if pieces else types
                self._bind(each, value, piece, names, module)

    def _expression(self, module: str, node: ast.expr, names: dict[str, frozenset[Named]]) -> None:
        for child in ast.iter_child_nodes(node):
            for each in _expressions(child):
                self._expression(module, each, names)
        if not isinstance(node, ast.Call):
            return
        callee = self._callee(module, node.func, names)
        code = None if callee is None else self._program.definition(callee)
        if callee is None or not isinstance(code, Function):
            return
        taken = {named for each in _arguments(code) for named in self._program.types(callee.module, each.annotation)}
        if callee.holder is not None:
            taken.add(Named(callee.module, callee.holder))
        if taken & self._followed:
            self.enter(callee)

    def _callee(self, module: str, called: ast.expr, names: dict[str, frozenset[Named]]) -> Named | None:
        if isinstance(called, ast.Name):
            return self._program.resolved(module, called.id)
        if not isinstance(called, ast.Attribute):
            return None
        if isinstance(called.value, ast.Name) and called.value.id not in names:
            outer = self._program.resolved(module, called.value.id)
            if outer is not None and not outer.name:
                return self._program.resolved(outer.module, called.attr)
            return None if outer is None else self._program.method(outer, called.attr)
        of = self._type(module, called.value, names)
        methods = (self._program.method(each, called.attr) for each in sorted(of, key=str))
        return next((each for each in methods if each is not None), None)

    def _type(self, module: str, value: ast.expr, names: dict[str, frozenset[Named]]) -> frozenset[Named]:
        match value:
            case ast.Name():
                return names.get(value.id, frozenset())
            case ast.Attribute():
                of = self._type(module, value.value, names)
                return frozenset(found for each in of for found in self._program.field_types(each, value.attr))
            case ast.IfExp():
                return self._type(module, value.body, names) | self._type(module, value.orelse, names)
            case ast.Call():
                return self._returned(self._callee(module, value.func, names))
            case ast.Await() | ast.NamedExpr():
                return self._type(module, value.value, names)
        return frozenset()

    def _returned(self, callee: Named | None) -> frozenset[Named]:
        """The classes of what a call returns."""
        code = None if callee is None else self._program.definition(callee)
        if callee is None or code is None:
            return frozenset()
        return (
            frozenset({callee}) if isinstance(code, ast.ClassDef) else self._program.types(callee.module, code.returns)
        )


def _read(tree: ast.Module) -> Module:
    module = Module()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            for each in node.names:
                module.imports[each.asname or each.name] = (node.module, each.name)
        elif isinstance(node, ast.Import):
            for each in node.names:
                module.imports[each.asname or each.name.partition(".")[0]] = (each.name, None)
    for statement in tree.body:
        match statement:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                module.functions[statement.name] = statement
            case ast.ClassDef():
                module.classes[statement.name] = statement
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.BinOp() | ast.Subscript()):
                module.aliases[name] = statement.value
    return module


def _arguments(code: Function) -> list[ast.arg]:
    of = code.args
    return [*of.posonlyargs, *of.args, *of.kwonlyargs]


def _children(statement: ast.stmt) -> Iterator[ast.expr]:
    """The expressions of a statement itself, not those of the statements in it."""
    for child in ast.iter_child_nodes(statement):
        yield from _expressions(child)


def _expressions(node: ast.AST) -> Iterator[ast.expr]:
    if isinstance(node, ast.expr):
        yield node
    elif isinstance(node, ast.keyword | ast.withitem | ast.comprehension | ast.match_case):
        for child in ast.iter_child_nodes(node):
            yield from _expressions(child)
