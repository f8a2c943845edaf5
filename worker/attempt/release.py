"""What runs attempts here, by name: the code, and the libraries that compute. Two workers of one name are alike.

Only these: a job goes on from a checkpoint of the same release alone, and workers of a release take its jobs first.
"""

from __future__ import annotations

import hashlib
import sys
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

LIBRARIES = ("torch", "numpy", "scipy", "transformers", "opacus", "safetensors")
ROOT = Path(__file__).resolve().parents[2]


@cache
def code(*packages: str) -> str:
    """A digest of the code of these packages, compiled parts included."""
    digest = hashlib.sha256()
    folders = [ROOT / each for each in packages]
    files = (path for folder in folders for ending in ("*.py", "*.c", "*.so") for path in folder.rglob(ending))
    for path in sorted(files):
        digest.update(f"{path.relative_to(ROOT)}/".encode())
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


def libraries() -> dict[str, str | None]:
    """The versions of the libraries that compute; None: it is not installed."""
    return {each: _version(each) for each in LIBRARIES}


@cache
def release() -> str:
    """The name: 16 hexadecimal digits."""
    facts = (code("app", "worker"), sorted(libraries().items()), sys.version)
    return hashlib.sha256(repr(facts).encode()).hexdigest()[:16]


@cache
def _version(library: str) -> str | None:
    try:
        return version(library)
    except PackageNotFoundError:
        return None
