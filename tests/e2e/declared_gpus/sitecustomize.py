"""For tests, first on PYTHONPATH: this machine declares two GPUs, and a rank on one of them computes on the processor.

So a cluster counts GPUs that are not there, and all else is the product's: claims, drivers, actors, ranks.
"""

from __future__ import annotations

import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

DECLARED = 2


def _declare(module: ModuleType) -> None:
    def found(*_: Any) -> tuple[Any, ...]:
        about = {"memory_bytes": 2**34, "capability": "9.0"}
        return tuple(
            module.Device(kind="cuda", index=index, name="A declared GPU", **about) for index in range(DECLARED)
        )

    module.found = found  # type: ignore[attr-defined]


def _compute(module: ModuleType) -> None:
    module.device_of_start = lambda _start: module.torch.device("cpu")  # type: ignore[attr-defined]


CHANGES = {"worker.attempt.device_survey": _declare, "worker.attempt.prepare": _compute}


class _Changed(Loader):
    def __init__(self, loader: Loader, name: str) -> None:
        self._loader, self._name = loader, name

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        CHANGES[self._name](module)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)  # `python -m` asks for more


class _Finder(MetaPathFinder):
    def find_spec(self, name: str, path: Any, target: Any = None) -> ModuleSpec | None:
        spec = PathFinder.find_spec(name, path, target) if name in CHANGES else None
        if spec is not None and spec.loader is not None:
            spec.loader = _Changed(spec.loader, name)
        return spec


sys.meta_path.insert(0, _Finder())
