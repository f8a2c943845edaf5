"""Puts a fault into modules that are loaded, or that are about to be."""

from __future__ import annotations

import ast
import gc
import importlib
import importlib.abc
import importlib.util
import sys
from collections.abc import Iterator, Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import CodeType, FunctionType, ModuleType

from tests.mutation.mutants import Mutant, mutated


def functions_of(root: Path, modules: Sequence[str]) -> dict[tuple[str, str, int], list[FunctionType]]:
    """Every function of these modules, by file, name and first line. Some modules are otherwise imported by the first
    test that needs them: their functions would be found by nobody."""
    for module in modules:
        importlib.import_module(module.removesuffix(".py").replace("/", "."))
    paths = {str(root / each): each for each in modules}
    found: dict[tuple[str, str, int], list[FunctionType]] = {}
    gc.unfreeze()  # what was loaded with the garbage collector away is listed again
    for each in gc.get_objects():
        if type(each) is FunctionType and each.__code__.co_filename in paths:
            code = each.__code__
            found.setdefault((paths[code.co_filename], code.co_qualname, code.co_firstlineno), []).append(each)
    return found


def replace(mutant: Mutant, root: Path, functions: dict[tuple[str, str, int], list[FunctionType]]) -> None:
    """Gives a loaded function the code with the fault. Whoever holds the function, under whatever name, runs it.

    Raises:
        LookupError: the function is not loaded.
    """
    path = root / mutant.module
    whole = compile(mutated(mutant, path.read_text()), str(path), "exec", dont_inherit=True)
    key = (mutant.function, mutant.begins)
    code = next(each for each in _codes(whole) if (each.co_qualname, each.co_firstlineno) == key)
    for each in functions[(mutant.module, *key)]:
        each.__code__ = code


def _codes(code: CodeType) -> Iterator[CodeType]:
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield each
            yield from _codes(each)


class Importing(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Imports one module with a fault in it."""

    def __init__(self, mutant: Mutant, root: Path) -> None:
        self.name = mutant.module.removesuffix(".py").replace("/", ".")
        self.path = root / mutant.module
        self.tree: ast.Module = mutated(mutant, self.path.read_text())

    def find_spec(self, fullname: str, _path: object = None, _target: object = None) -> ModuleSpec | None:
        if fullname != self.name:
            return None
        return importlib.util.spec_from_file_location(fullname, self.path, loader=self)

    def create_module(self, _spec: ModuleSpec) -> ModuleType | None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        exec(compile(self.tree, str(self.path), "exec", dont_inherit=True), vars(module))  # noqa: S102 - our own source

    def install(self) -> None:
        sys.meta_path.insert(0, self)
