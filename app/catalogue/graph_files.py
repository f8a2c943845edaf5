"""Models that users bring as graphs: admission pins a job to a file's content."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from app.sandbox.confinement import Policy
from app.sandbox.limited import run_limited
from core.contracts.graph import GraphFacts
from core.errors import InvalidRequest, LimitError

MEMORY, TIME_S = 4 << 30, 60.0


def pinned(models_root: Path | None, path: str, said: GraphFacts) -> GraphFacts:
    """The facts of a graph's file, which is read in a process of its own.

    Args:
        said: what the request says of it.

    Raises:
        InvalidRequest: the file is missing, holds no graph that can be trained, or differs from what is said.
    """
    if models_root is None:
        raise InvalidRequest.at("/model/path", "this service has no models root: an operator sets one")
    file = _inside(models_root, path)
    known = file.stat()
    try:
        found = _looked_at(str(file), known.st_ino, known.st_size, known.st_mtime_ns)
    except LimitError:
        detail = f"reading the graph takes more than {TIME_S:g} s, or too much memory"
        raise InvalidRequest.at("/model/path", detail) from None
    if isinstance(found, str):
        raise InvalidRequest.at("/model/path", found)
    for name, fact in found:
        if getattr(said, name) not in (None, fact):
            raise InvalidRequest.at(f"/model/{name}", f"the graph in this file has {fact}: leave this out")
    return found


def _inside(models_root: Path, path: str) -> Path:
    try:
        root, found = models_root.resolve(), (models_root / path).resolve(strict=True)
    except OSError:
        raise InvalidRequest.at("/model/path", "there is no such file in the models root") from None
    if not found.is_relative_to(root) or not found.is_file():
        raise InvalidRequest.at("/model/path", "there is no such file in the models root")
    return found


@lru_cache(maxsize=64)
def _looked_at(path: str, *_version: int) -> GraphFacts | str:
    """The facts, or why there are none. Cached as long as the file is the same: quotes are frequent."""
    answer = run_limited(
        "core.parts.graph_facts:looked_at",
        {"path": path},
        memory_bytes=MEMORY,
        time_s=TIME_S,
        files=Policy((Path(path),)),
    )
    return str(answer["refused"]) if "refused" in answer else GraphFacts.model_validate(answer)
