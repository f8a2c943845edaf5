"""Compiles the C files here into libscrimp.so: `python core/native/build.py`, and setup.py when a wheel is built.

Optional: without the library, Python computes the same bits, a few times slower. Uses the standard
library alone, because setup.py imports it before anything is installed.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
SOURCES = tuple(
    FOLDER / name for name in ("ascending.c", "digests.c", "layers.c", "linear.c", "noise.c", "records.c", "steps.c")
)
HEADERS = tuple(FOLDER / name for name in ("blake2b_lanes.h", "gaussians.h", "threads.h", "two_compilers.h"))
LIBRARY = FOLDER / "libscrimp.so"
GLIBC = "2.17"  # the oldest that ziglang builds for: manylinux2014
# No contraction: the bounds in noise.c are of operations that round one by one.
FLAGS = ("-std=c11", "-O3", "-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math", "-fPIC", "-shared", "-s")
TIMEOUT_S = 300


@dataclass(frozen=True)
class Compiler:
    """A C compiler.

    Attributes:
        command: its program and first arguments.
        portable: True if what it builds runs on any Linux with glibc 2.17.
    """

    command: tuple[str, ...]
    portable: bool = False

    @property
    def platform_tag(self) -> str | None:
        """The platform tag of a wheel with its library; None: that of this machine."""
        return f"manylinux_2_17_{platform.machine()}.manylinux2014_{platform.machine()}" if self.portable else None


def compilers() -> list[Compiler]:
    """The compilers of this machine: $CC, the `ziglang` package, cc, gcc and clang, in this order."""
    compilers_found = [Compiler((os.environ["CC"],))] if shutil.which(os.environ.get("CC", "")) else []
    if importlib.util.find_spec("ziglang") is not None and sys.platform == "linux":
        target = f"{platform.machine()}-linux-gnu.{GLIBC}"
        compilers_found.append(Compiler((sys.executable, "-m", "ziglang", "cc", "-target", target), portable=True))
    return compilers_found + [Compiler((name,)) for name in ("cc", "gcc", "clang") if shutil.which(name)]


def digest() -> str:
    """The SHA-256 of the C files, their headers and the flags, which a library built from them carries."""
    made_of = (" ".join(FLAGS).encode(), *(each.read_bytes() for each in (*SOURCES, *HEADERS)))
    return hashlib.sha256(b"".join(hashlib.sha256(each).digest() for each in made_of)).hexdigest()


def build(target: Path = LIBRARY, sources: Sequence[Path] = SOURCES, *options: str) -> Compiler | None:
    """Compiles with the first compiler that can, and replaces `target` at once: who has it open keeps the old one.

    Args:
        options: for the compiler, after its flags.

    Returns:
        the compiler, or None if none of them works.
    """
    for compiler in compilers():
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=".build-") as folder:
            library = Path(folder) / target.name
            files = [str(each) for each in sources]
            line = [*compiler.command, *FLAGS, *options, f'-DSCRIMP_DIGEST="{digest()}"', "-o", str(library), *files]
            caches = {"ZIG_GLOBAL_CACHE_DIR": folder, "ZIG_LOCAL_CACHE_DIR": folder}
            try:
                result = subprocess.run(
                    line, env=os.environ | caches, capture_output=True, timeout=TIMEOUT_S, check=False
                )
            except (OSError, subprocess.TimeoutExpired):
                continue
            if result.returncode == 0 and library.is_file():
                library.chmod(0o755)
                library.replace(target)
                return compiler
    return None


if __name__ == "__main__":
    used = build()
    if used is None:
        sys.exit("no C compiler here: a step is made in Python, with the same bits (pip install ziglang)")
    sys.stdout.write(f"built {LIBRARY} with {' '.join(used.command)}\n")
