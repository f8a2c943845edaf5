"""Models that users bring as graphs: admission pins a job to a file's content."""

from __future__ import annotations

import hashlib
import threading
from functools import lru_cache
from pathlib import Path

from app.sandbox.confinement import Policy
from app.sandbox.limited import WorkLimitError, busy, run_limited
from core.contracts.graph import GraphFacts
from core.errors import InvalidRequest, LimitError

MEMORY, CPU_S = 4 << 30, 60
TIME_S = 4.0 * CPU_S  # wall clock: a busy machine ends a look by it, which says nothing of the file
AT_ONCE = 2  # files that one API process looks at; each may take MEMORY
KEPT = 1024  # verdicts
MOST_WORDS = 600  # characters of a refusal, which may repeat names of the file's
NOT_UPLOADED = "your key has uploaded no graph with this SHA-256, or it was deleted: `scrimp graphs upload` sends it"

Verdict = GraphFacts | str
_turns = threading.BoundedSemaphore(AT_ONCE)
# By who asks and the file's SHA-256, the oldest first; refusals too, since they cost the same. Nobody's answer comes
# sooner because another key has the same file.
_verdicts: dict[tuple[str | None, str], Verdict] = {}


def pinned(
    models_root: Path | None, path: str | None, said: GraphFacts, uploaded: GraphFacts | None = None
) -> GraphFacts:
    """The facts of a graph's file, in the models root or as its key uploaded it.

    Args:
        path: in the models root; None: the request names an upload.
        said: what the request says of the file.

    Raises:
        InvalidRequest: the file is missing, holds no graph that can be trained, or differs from what is said.
        LimitError: too many files are looked at (503), or the machine was too busy to end the look.
    """
    facts = uploaded if path is None else _in_root(models_root, path)
    if facts is None:
        raise InvalidRequest.at("/model/upload", NOT_UPLOADED)
    for name, fact in facts:
        if getattr(said, name) not in (None, fact):
            raise InvalidRequest.at(f"/model/{name}", f"the graph in this file has {fact}: leave this out")
    return facts


def _in_root(models_root: Path | None, path: str) -> GraphFacts:
    if models_root is None:
        raise InvalidRequest.at("/model/path", "this service has no models root: an operator sets one")
    file = _inside(models_root, path)
    status = file.stat()
    verdict = verdict_of(file, _sha256(file, status.st_ino, status.st_size, status.st_mtime_ns))
    if isinstance(verdict, str):
        raise InvalidRequest.at("/model/path", verdict)
    return verdict


def verdict_of(file: Path, sha256: str, key_id: str | None = None) -> Verdict:
    """The facts of a graph's file, which is read in a process of its own; or why there are none.

    Args:
        sha256: the file's. Of a known one nothing is read again.
        key_id: of the key whose file it is; None: it lies in the models root, for everybody.

    Raises:
        LimitError: too many files are looked at (503), or the machine was too busy to end the look. It is not kept.
    """
    name = key_id, sha256
    if (verdict := _verdicts.get(name)) is not None:
        return verdict
    if not _turns.acquire(timeout=TIME_S):
        raise busy()
    try:
        verdict = _verdicts.get(name) or _looked_at(file)  # another may have looked while this waited
    finally:
        _turns.release()
    if isinstance(verdict, GraphFacts) and verdict.sha256 != sha256:
        return verdict  # the file was replaced since it was hashed: it pins what was read
    while len(_verdicts) >= KEPT:
        _verdicts.pop(next(iter(_verdicts)), None)
    return _verdicts.setdefault(name, verdict)


def _looked_at(file: Path) -> Verdict:
    try:
        answer = run_limited(
            "core.parts.graph_facts:looked_at",
            {"path": str(file)},
            memory_bytes=MEMORY,
            time_s=TIME_S,
            cpu_s=CPU_S,
            files=Policy((file,)),
        )
    except WorkLimitError:
        return f"reading the graph takes more than {CPU_S} s of a processor, or too much memory"
    except LimitError:  # the wall clock, or the kernel's choice where memory is short: of the machine, not of the file
        raise busy() from None
    return str(answer["refused"])[:MOST_WORDS] if "refused" in answer else GraphFacts.model_validate(answer)


def _inside(models_root: Path, path: str) -> Path:
    try:
        root, folder = models_root.resolve(), (models_root / path).resolve(strict=True)
    except OSError:
        raise InvalidRequest.at("/model/path", "there is no such file in the models root") from None
    if not folder.is_relative_to(root) or not folder.is_file():
        raise InvalidRequest.at("/model/path", "there is no such file in the models root")
    return folder


@lru_cache(maxsize=256)
def _sha256(file: Path, *_version: int) -> str:
    """The file's, kept as long as the file is the same: quotes are frequent."""
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()
