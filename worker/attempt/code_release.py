"""What runs attempts here, by name: the code, and the libraries that compute. Two workers of one name are alike.

Only these: a job goes on from a checkpoint of the same release alone, and workers of a release take its jobs first.
A certificate names the code, and all installed packages:

    $ python -m worker.attempt.code_release > packages.txt      # the packages' lines, and the two hashes
"""

from __future__ import annotations

import hashlib
import sys
from functools import cache
from importlib.metadata import PackageNotFoundError, distributions, version
from pathlib import Path

LIBRARIES = ("torch", "numpy", "scipy", "transformers", "opacus", "safetensors")
OWN = ("app", "core", "worker")
ENDINGS = ("*.py", "*.c", "*.h", "*.so")
ROOT = Path(__file__).resolve().parents[2]


@cache
def code(*packages: str) -> str:
    """SHA-256 (hex) of the files of these packages, compiled parts included: of a line for each, by name, as
    `sha256sum` writes it."""
    folders = [ROOT / each for each in packages]
    paths = (path for folder in folders for ending in ENDINGS for path in folder.rglob(ending))
    files = sorted((path.relative_to(ROOT).as_posix(), path) for path in paths)
    lines = (f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {name}\n" for name, path in files)
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def installed() -> list[str]:
    """NAME==VERSION of each installed distribution, sorted, each once."""
    return sorted({f"{each.name.lower().replace('_', '-')}=={each.version}" for each in distributions()})


@cache
def packages() -> str:
    """SHA-256 (hex) of `installed`, each with a line's end."""
    return hashlib.sha256("".join(f"{line}\n" for line in installed()).encode()).hexdigest()


def libraries() -> dict[str, str | None]:
    """The versions of the libraries that compute; None: it is not installed."""
    return {each: _version(each) for each in LIBRARIES}


@cache
def release() -> str:
    """The name: 16 hexadecimal digits."""
    facts = (code(*OWN), sorted(libraries().items()), sys.version)
    return hashlib.sha256(repr(facts).encode()).hexdigest()[:16]


@cache
def _version(library: str) -> str | None:
    try:
        return version(library)
    except PackageNotFoundError:
        return None


if __name__ == "__main__":
    sys.stdout.write(
        "".join(f"{line}\n" for line in [*installed(), f"# packages {packages()}", f"# code {code(*OWN)}"])
    )
