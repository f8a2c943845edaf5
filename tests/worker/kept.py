"""What tests compile: kept from one run to the next, until the sources, the flags or the compiler change."""

from __future__ import annotations

import hashlib
import shutil
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path

CACHE = Path(__file__).resolve().parents[2] / ".cache" / "compiled"


def kept(name: str, command: Iterable[str], sources: Iterable[Path], compile_to: Callable[[Path], bool]) -> Path | None:
    """A compiled file; compiled if none of the same making is there.

    Args:
        name: of the file.
        command: the compiler, whose own file counts, and what it is called with.
        sources: whose bytes count.
        compile_to: compiles to a path; False where it cannot.

    Returns:
        None where it cannot be compiled.
    """
    words = list(command)
    compiler = Path(shutil.which(words[0]) or words[0])
    making = [*words, str(compiler.stat().st_mtime_ns if compiler.exists() else None)]
    digest = hashlib.sha256(repr((making, [path.read_bytes() for path in sources])).encode()).hexdigest()
    target = CACHE / digest[:32] / name
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent) as folder:
            if not compile_to(Path(folder) / name):
                return None
            (Path(folder) / name).replace(target)  # at once: whoever compiles the same meanwhile has the same
    return target
