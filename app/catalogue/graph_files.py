"""Models that users bring as graphs: admission pins a job to a file's content."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

from app.sandbox.confinement import Policy
from app.sandbox.limited import run_limited
from core.contracts.graph import GraphModel
from core.errors import InvalidRequest, LimitError

MEMORY, TIME_S = 4 << 30, 60.0


def resolved(asked: GraphModel, models_root: Path | None) -> GraphModel:
    """The model, pinned: content hash and sizes filled in. The file is read in a process of its own.

    Raises:
        InvalidRequest: the file is missing, holds no graph that can be trained, or differs from the pinned one.
    """
    if models_root is None:
        raise InvalidRequest.at("/model/path", "this service has no models root: an operator sets one")
    facts = dict(_facts(_inside(models_root, asked.path)))
    if refused := facts.pop("refused", None):
        raise InvalidRequest.at("/model/path", str(refused))
    for name, fact in facts.items():
        if getattr(asked, name) not in (None, fact):
            raise InvalidRequest.at(f"/model/{name}", f"the graph in this file has {fact}: leave this out")
    return asked.model_copy(update=facts)


def _inside(models_root: Path, path: str) -> Path:
    try:
        root, found = models_root.resolve(), (models_root / path).resolve(strict=True)
    except OSError:
        raise InvalidRequest.at("/model/path", "there is no such file in the models root") from None
    if not found.is_relative_to(root) or not found.is_file():
        raise InvalidRequest.at("/model/path", "there is no such file in the models root")
    return found


def _facts(path: Path) -> dict[str, Any]:
    known = path.stat()
    return _facts_of(str(path), known.st_ino, known.st_size, known.st_mtime_ns)


@lru_cache(maxsize=64)
def _facts_of(path: str, *_version: int) -> dict[str, Any]:
    """Cached as long as the file is the same: quotes are frequent."""
    try:
        return run_limited(
            "core.parts.graph_facts:looked_at",
            {"path": path},
            memory_bytes=MEMORY,
            time_s=TIME_S,
            files=Policy((Path(path),)),
        )
    except LimitError:
        return {"refused": f"reading the graph takes more than {TIME_S:g} s, or too much memory"}
